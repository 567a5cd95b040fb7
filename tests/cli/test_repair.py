# `diskq repair`: shows what it would do, does it with --apply, and reports what it did.

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from diskq.engine.queue.fifo_queue import Queue
from diskq.errors import DamagedStoreError
from tests.tools.damaged import COUNT, digest, flip, made, messages_in

GOLDEN = Path(__file__).parent.parent / "golden"
LOST = 24  # in the block in which it has rotted


@pytest.fixture
def root(tmp_path):
    """Of a stream in which a bit has rotted."""
    path = tmp_path / "clicks"
    path.mkdir()
    made("stream", str(path))
    flip(path / "parts/000000/00000000000000000025.data", 1500)
    return path


def test_dry_it_reports_and_changes_nothing(run, root):
    before = digest(root)
    done = run("repair", root)
    assert done.code == 1
    assert b"would be cut" in done.out
    assert done.notes == [
        f"diskq: stream {root}: nothing was changed; --apply does it; "
        "save what can be read first: --salvage OUT"
    ]
    assert digest(root) == before


def test_applied_it_is_whole(run, root):
    done = run("repair", root, "--apply")
    assert done.code == 0
    assert f"{LOST} messages are missing".encode() in done.out
    assert done.notes == [f"diskq: stream {root}: repaired"]
    assert run("verify", root).code == 0


def test_what_is_whole_needs_nothing(run, root):
    run("repair", root, "--apply")
    for more in ((), ("--apply",)):
        done = run("repair", root, *more)
        assert (done.code, done.out) == (0, b"")
        assert done.notes == [f"diskq: stream {root}: nothing has to be repaired"]


def test_it_is_reported_to_programs(run, root):
    told = json.loads(run("repair", root, "--json").out)
    assert not told["is_applied"]
    (store,) = told["things"]
    assert (store["kind"], store["lost"], store["left"]) == ("stream", LOST, [])
    assert [each["records"] for each in store["repairs"]] == [LOST]
    assert json.loads(run("repair", root, "--apply", "--json").out)["is_applied"]


def test_any_file_of_it_will_do(run, root):
    assert run("repair", next((root / "parts/000000").glob("*.index"))).code == 1


def test_what_another_process_has_names_it(run, tmp_path):
    with Queue(tmp_path, "events"):
        done = run("repair", tmp_path, "--wait", "0s")
    assert done.code == 2
    assert "process" in done.notes[0]
    assert "this process has it open already: close it first" in done.notes[0]


def test_what_is_not_known_says_so(run, tmp_path):
    done = run("repair", tmp_path)
    assert (done.code, done.notes) == (
        2,
        [f"diskq: error: {tmp_path}: there is nothing here that diskq knows"],
    )


def test_what_a_go_producer_left_says_what_to_do(run, tmp_path):
    shutil.copytree(GOLDEN / "diskq/live_owner/data", tmp_path / "copy")
    done = run("repair", tmp_path / "copy", "--wait", "0s")
    assert done.code == 2
    assert "--take-over" in done.notes[0]
    assert run("repair", tmp_path / "copy", "--take-over").code == 0


def test_a_store_is_repaired_as_by_its_own_verb(run, tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        store = made("jobs", str(tmp_path / name))
        flip(sorted((tmp_path / name).rglob("*.log"))[0], 1000)
    run("repair", tmp_path / "here", "--apply")
    run("priority", "repair", tmp_path / "there", "--apply")
    here = messages_in(store._replace(path=str(tmp_path / "here")))
    assert here == messages_in(store._replace(path=str(tmp_path / "there"))) != []


def test_what_a_refused_open_advises_can_be_done(run, tmp_path):
    store = made("jobs", str(tmp_path))
    next(tmp_path.rglob(".diskq/point")).unlink()  # as if TaskFlux had written it
    flip(sorted(tmp_path.rglob("*.log"))[0], 1000)
    with pytest.raises(DamagedStoreError) as refusal:
        messages_in(store)
    (advice,) = re.findall("`diskq (.+)`", str(refusal.value))
    assert run(*advice.split(), "--apply").code == 0
    assert messages_in(store)


def test_what_can_be_read_is_salvaged(run, root, tmp_path):
    out = tmp_path / "saved.jsonl"
    before = digest(root)
    done = run("repair", root, "--salvage", out)
    assert done.code == 0
    assert len(out.read_text().splitlines()) == COUNT
    told = f"{COUNT - LOST} messages written, and {LOST} that no reader returns any more"
    assert done.notes == [f"diskq: stream {root}: {told}"]
    assert digest(root) == before


def test_it_is_salvaged_into_a_pipe(run, root):
    done = run("repair", root, "--salvage", "-")
    assert len(done.out.splitlines()) == COUNT


def test_a_file_is_not_written_over(run, root, tmp_path):
    out = tmp_path / "saved.jsonl"
    out.write_text("mine")
    done = run("repair", root, "--salvage", out)
    assert (done.code, out.read_text()) == (2, "mine")


def test_json_and_messages_do_not_mix(run, root):
    assert run("repair", root, "--salvage", "-", "--json").code == 2

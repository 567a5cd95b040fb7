# `diskq verify` and `diskq info`: what they say of a path, and with which code they end.

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from diskq.engine.queue.fifo_queue import Queue
from diskq.options import QueueOptions
from tests.cli.conftest import PROGRAM, fill
from tests.tools.damaged import KINDS, flip, made

GOLDEN = Path(__file__).parent.parent / "golden"
WHOLE = GOLDEN / "nsq" / "basic" / "data"
TORN = GOLDEN / "sej" / "torn_tail" / "data"
DAMAGED = GOLDEN / "nsq" / "corrupt_len" / "data"
STREAM = GOLDEN / "diskq" / "three_parts" / "data"

# --- verify ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, code, verdict", [(WHOLE, 0, "clean"), (TORN, 1, "torn"), (DAMAGED, 1, "damaged")]
)
def test_the_exit_code_is_the_verdict(run, path, code, verdict):
    done = run("verify", path)
    assert done.code == code
    assert done.out.splitlines()[1].startswith(verdict.encode())


def test_several_things_have_a_line_each_and_the_worst_decides(run):
    done = run("verify", WHOLE, STREAM, DAMAGED)
    assert [line.split()[0] for line in done.out.splitlines()[1:4]] == [b"clean", b"clean", b"damaged"]
    assert done.code == 1


def test_what_is_wrong_is_reported_with_its_byte(run):
    lines = run("verify", DAMAGED).out.decode().splitlines()
    assert any(
        "corrupt.diskqueue.000001.dat, byte 312" in line and "(6 messages lost)" in line for line in lines
    )


def test_damage_is_reported_with_what_to_do_about_it(run):
    assert f"`diskq repair {DAMAGED}`" in run("verify", DAMAGED).notes[-1]
    assert run("verify", TORN).notes == []


def test_where_nothing_is_known_it_could_not_look(run, tmp_path):
    done = run("verify", tmp_path, WHOLE)
    assert done.code == 2
    assert done.notes == [f"diskq: error: {tmp_path}: there is nothing here that diskq knows"]
    assert b"clean" in done.out


def test_a_path_that_is_not_there_could_not_be_looked_at(run, tmp_path):
    assert run("verify", tmp_path / "none").code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_what_must_not_be_read_could_not_be_looked_at(run, data):
    fill(data, b"one")
    (data / "q.diskqueue.000000.dat").chmod(0)
    assert run("verify", data).code == 2


def test_json_has_it_all(run):
    told = json.loads(run("verify", DAMAGED, "--json").out)
    (store,) = told["things"]
    assert (told["verdict"], store["messages"], store["lost"]) == ("damaged", 34, 6)
    # A length that reaches beyond the file looks like a write that was cut off.
    assert [(finding["at"], finding["kind"]) for finding in store["findings"]] == [(312, "torn")]
    assert set(store["findings"][0]) == {
        *("severity", "kind", "path", "at", "size", "offset", "what", "lost")
    }


def test_quiet_says_nothing(run, tmp_path):
    done = run("verify", "--quiet", DAMAGED, tmp_path)
    assert (done.out, done.notes, done.code) == (b"", [], 2)


def test_a_file_stands_for_what_it_belongs_to(run):
    done = run("verify", next((STREAM / "parts" / "000001").iterdir()))
    assert done.out.splitlines()[1].split()[:2] == [b"clean", b"stream"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ctrl_c_ends_it_at_once_and_says_how_far_it_came(data):
    with Queue(data, "q", options=QueueOptions(durability="memory")) as queue:
        for _ in range(300):
            queue.put_many([b"x" * 1000] * 1000)
    process = subprocess.Popen(
        [PROGRAM, "verify", *[data] * 50], stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        while not any("q.diskqueue" in path for path in files_of(process.pid)):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert b"interrupted after" in err


def files_of(pid: int) -> list[str]:
    """What the process has open at this moment."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(link))
    return found


# --- info -----------------------------------------------------------------------------------------


def test_info_says_what_is_there(run):
    told = json.loads(run("info", STREAM, "--json").out)
    (store,) = told["things"]
    assert (store["kind"], store["format"], store["messages"], store["segments"]) == (
        "stream",
        "triplet",
        60,
        10,
    )
    assert store["facts"]["partitions"] == 3
    assert store["facts"]["groups"]["group-α"]["offsets"] == {"0": 7, "1": 0, "2": 11}
    assert (store["oldest_ns"], store["times_of"]) == (1704164645000000006, "messages")


def test_info_counts_what_the_metadata_does_not(run):
    lines = run("info", GOLDEN / "nsq" / "stale_meta" / "data").out.decode().splitlines()
    assert "messages      12" in lines
    assert any(line.startswith("oldest") and line.endswith("(file)") for line in lines)


def test_info_says_at_least_where_it_does_not_know(run, data):
    with Queue(data, "q") as queue:
        queue.put_many([b"x"] * 10)
        queue.sync()
        queue.put(b"after what its owner has recorded")
        lines = run("info", data).out.decode().splitlines()
    assert "messages      at least 10" in lines


def test_info_names_the_holder(run, data):
    fill(data, b"one")
    with Queue(data, "q"):
        (store,) = json.loads(run("info", data, "--json").out)["things"]
    assert str(os.getpid()) in store["holder"]


def test_info_has_a_line_for_each_thing(run):
    done = run("info", GOLDEN / "nsq" / "two_queues" / "data", STREAM)
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == [b"queue", b"queue", b"stream"]
    assert done.code == 0


@pytest.mark.parametrize(
    "case", sorted(path.parent for path in GOLDEN.glob("[dns]*/*/data")), ids=lambda p: p.name
)
def test_info_counts_what_verify_counts(run, case):
    (first, *_) = json.loads(run("info", case / "data", "--json").out)["things"]
    (found, *_) = json.loads(run("verify", case / "data", "--json").out)["things"]
    assert first["kind"] == found["kind"]
    if first["messages"] is not None and found["verdict"] == "clean":
        assert first["messages"] == found["messages"] or not first["is_exact"]


def test_info_of_a_store_says_what_the_next_open_does(run, tmp_path):
    case = shutil.copytree(GOLDEN / "taskflux" / "cases" / "C02-crc-middle", tmp_path / "store")
    (store,) = json.loads(run("info", case, "--json").out)["things"]
    assert store["facts"]["next_open"] == "mends"
    assert len(store["next_open"]) == 1


def test_info_where_nothing_is_known_could_not_look(run, tmp_path):
    assert run("info", tmp_path).code == 2


# --- a root with one store of every kind ----------------------------------------------------------


@pytest.fixture
def root(tmp_path):
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        made(kind, str(tmp_path / kind))
    return tmp_path


def _data_file(root, kind):
    patterns = {"stream": "parts/*/*.data", "journal": "jnl/*.jnl", "jobs": "data/log/*.log"}
    return sorted((root / kind).glob(patterns.get(kind, "*.diskqueue.000*.dat")))[0]


def test_of_a_root_everything_is_verified_whatever_lies_in_it(run, root):
    done = run("verify", root)
    assert done.code == 0
    assert sorted(line.split()[1].decode() for line in done.out.splitlines()[1:]) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_root_what_is_damaged_is_named_and_the_rest_is_clean(run, root, kind):
    flip(_data_file(root, kind), 1000)
    done = run("verify", root)
    lines = [line.split() for line in done.out.decode().splitlines()[1 : len(KINDS) + 1]]
    assert {line[1]: line[0] for line in lines} == {
        each: "damaged" if each == kind else "clean" for each in KINDS
    }
    assert done.code == 1


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_root_what_is_damaged_is_repaired(run, root, kind):
    flip(_data_file(root, kind), 1000)
    assert run("repair", root, "--apply").code == 0
    assert run("verify", root).code == 0


def test_info_of_a_root_tells_of_every_kind(run, root):
    told = json.loads(run("info", root, "--json").out)
    assert sorted(each["kind"] for each in told["things"]) == sorted(KINDS)

# `diskq convert`, as people and scripts use it.

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from diskq.engine.journal.journal import Journal
from diskq.engine.stream.stream import Stream
from diskq.options import StreamOptions
from diskq.tools.convert.sources import entries
from diskq.tools.entries import Entry
from diskq.tools.stores import stores_at
from tests.cli.conftest import PROGRAM, Run, drain, fill


def a_journal(path: Path) -> Path:
    with Journal(path) as journal:
        journal.append_many([(b"k%d" % n, b"%d" % n, n * 10**9, n) for n in range(4)])
    return path


def there(path: Path) -> list[Entry]:
    return [entry for store in stores_at(path) for entry in entries(store)]


def values(path: Path) -> list[bytes]:
    return [entry.value for entry in there(path)]


def test_a_queue_becomes_a_journal(run: Run, data: Path, tmp_path: Path) -> None:
    fill(data, b"one", b"two")
    done = run("convert", data, tmp_path / "j", "--to", "sej")
    assert (done.code, done.out) == (0, b"")
    assert done.notes == [f"diskq: 2 messages (6 B) converted to sej {tmp_path}/j"]
    assert values(tmp_path / "j") == [b"one", b"two"]
    assert drain(data) == [b"one", b"two"]


def test_lines_of_json_go_out_and_come_in(run: Run, tmp_path: Path) -> None:
    a_journal(tmp_path / "j")
    lines = run("convert", tmp_path / "j", "-", "--text").out
    first = b'{"offset":0,"timestamp":"1970-01-01T00:00:00Z","type":0,"key_text":"k0","text":"0"}'
    assert lines.splitlines()[0] == first
    done = run("convert", "-", tmp_path / "copy", "--to", "sej", stdin=lines)
    assert done.code == 0
    assert there(tmp_path / "copy") == there(tmp_path / "j")


def test_what_the_other_verbs_print_comes_in(run: Run, tmp_path: Path) -> None:
    with Stream(tmp_path / "s", options=StreamOptions(partition_count=2)) as stream:
        stream.append_many([(b"k%d" % n, b"%d" % n, n) for n in range(5)])
    a_journal(tmp_path / "j")
    lines = run("stream", "read", tmp_path / "s", "--json").out
    run("convert", "-", tmp_path / "s2", "--to", "triplet", stdin=lines)
    assert there(tmp_path / "s2") == there(tmp_path / "s")
    lines = run("journal", "read", tmp_path / "j", "--json").out
    run("convert", "-", tmp_path / "j2", "--to", "sej", stdin=lines)
    assert there(tmp_path / "j2") == there(tmp_path / "j")


def test_a_file_of_lines_or_a_pipe_is_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text('{"text":"a"}\n')
    (tmp_path / "link").symlink_to("lines")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text('{"text":"a"}\n'))
    writer.start()
    for name in ("lines", "link", "pipe"):
        assert run("convert", tmp_path / name, tmp_path / f"of-{name}", "--to", "sej").code == 0
        assert values(tmp_path / f"of-{name}") == [b"a"]
    writer.join()


def test_what_would_be_lost_is_reported_and_nothing_is_there(run: Run, tmp_path: Path) -> None:
    done = run("convert", a_journal(tmp_path / "j"), tmp_path / "q", "--to", "nsq")
    assert done.code == 1
    assert done.notes == [
        f"diskq: error: journal {tmp_path}/j: this loses: key (4 messages have one), timestamp (4 messages "
        "have one), type (3 messages have one); add --lossy to leave it out"
    ]
    assert not (tmp_path / "q").exists()


def test_with_lossy_it_is_reported_and_done(run: Run, tmp_path: Path) -> None:
    done = run("convert", a_journal(tmp_path / "j"), tmp_path / "q", "--to", "nsq", "--lossy")
    assert done.code == 0
    assert done.notes[0].startswith("diskq: warning: this loses: key (4 messages have one), timestamp")
    assert values(tmp_path / "q") == [b"0", b"1", b"2", b"3"]


def test_a_dry_run_tells_what_there_is(run: Run, tmp_path: Path) -> None:
    done = run("convert", a_journal(tmp_path / "j"), tmp_path / "q", "--to", "nsq", "--dry-run")
    assert done.code == 0
    assert done.notes[0] == f"diskq: 4 messages (4 B) would be converted to nsq {tmp_path}/q"
    assert "this loses: key (4" in done.notes[1]
    assert not (tmp_path / "q").exists()


def test_programs_get_one_object(run: Run, data: Path, tmp_path: Path) -> None:
    fill(data, b"one")
    told = json.loads(run("convert", data, tmp_path / "s", "--to", "triplet", "--json").out)
    assert (told["messages"], told["to"], told["invented"]) == (1, "triplet", {"key": 1, "timestamp": 1})


@pytest.mark.parametrize(
    "options, wanted",
    [
        (["--since", "1970-01-01T00:00:02Z"], [b"2", b"3"]),
        (["--until", "1970-01-01T00:00:01Z"], [b"0"]),
        (["--start-offset", "1", "--end-offset", "2"], [b"1", b"2"]),
        (["--max-messages", "2"], [b"0", b"1"]),
    ],
    ids=["since", "until", "offsets", "limit"],
)
def test_a_part_may_be_chosen(run: Run, tmp_path: Path, options: list[str], wanted: list[bytes]) -> None:
    run("convert", a_journal(tmp_path / "j"), tmp_path / "to", "--to", "sej", *options)
    assert values(tmp_path / "to") == wanted


def test_one_of_several_queues_may_be_chosen(run: Run, data: Path, tmp_path: Path) -> None:
    fill(data, b"a", name="one")
    fill(data, b"b", name="two")
    assert run("convert", data, tmp_path / "j", "--to", "sej", "--queue", "two").code == 0
    assert values(tmp_path / "j") == [b"b"]
    assert run("convert", data, tmp_path / "q", "--to", "nsq").code == 0
    assert [store.name for store in stores_at(tmp_path / "q")] == ["one", "two"]


def test_journals_below_a_root_come_into_one(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        a_journal(tmp_path / "root" / name)
    assert run("convert", tmp_path / "root", tmp_path / "j", "--to", "sej").code == 0
    assert values(tmp_path / "j") == 2 * [b"0", b"1", b"2", b"3"]


def test_it_is_appended(run: Run, tmp_path: Path) -> None:
    a_journal(tmp_path / "j")
    done = run("convert", "-", tmp_path / "j", "--to", "sej", "--append", stdin=b'{"text":"more"}\n')
    assert done.code == 0
    assert values(tmp_path / "j")[-1] == b"more"


@pytest.mark.parametrize(
    "argv, code, reason",
    [
        (["j", "to"], 2, "--to is needed, one of: nsq, triplet, sej, taskflux, jsonl"),
        (["j", "-", "--to", "sej"], 2, "TARGET - is for lines of JSON"),
        (["j", "-", "--json"], 2, "TARGET - is for lines of JSON"),
        (["j", "to", "--to", "nsq", "--key", "random"], 2, "key is of no use for messages of nsq"),
        (["j", "to", "--to", "sej", "--queue", "q"], 2, "it has no queues to choose from"),
        (["q", "to", "--to", "sej", "--queue", "no"], 1, "q: there is no queue 'no'"),
        (["j", "to", "--to", "sej", "--partition-count", "0"], 2, "a whole number from 1 on"),
        (["j", "to", "--to", "taskflux", "--priority", "high"], 2, "priority is key or json:FIELD"),
        (["nowhere", "to", "--to", "sej"], 1, "nowhere: no such file"),
        (["empty", "to", "--to", "sej"], 1, "empty: there is nothing here that diskq knows"),
        (["j", "j", "--to", "sej"], 1, "it exists already: append to it, or convert into another place"),
        (["j", "no/where", "--to", "sej"], 1, "no: no such directory"),
        (["j", "to", "--to", "sej", "--append"], 1, "to: there is nothing to append to"),
        (["bad", "to", "--to", "sej"], 1, "bad, line 2: it has no value"),
        (["j", "to", "--to", "sej", "--max-message-size", "0"], 1, "(offset 0): a value of 1 bytes"),
        (["j", "to", "--to", "taskflux", "--lossy", "--priority", "json:n"], 1, "message 1 (offset 0)"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_in_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], code: int, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    a_journal(tmp_path / "j")
    (tmp_path / "q").mkdir()
    fill(tmp_path / "q", b"one")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").write_text('{"text":""}\n{}\n')
    done = run("convert", *argv)
    assert done.code == code
    assert reason in done.notes[-1]
    assert not (tmp_path / "to").exists()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        for _ in range(15):
            journal.append_many([(b"", b"x" * 20, 0, 0)] * 10_000)
    command = [PROGRAM, "convert", str(tmp_path / "j"), str(tmp_path / "s"), "--to", "jsonl"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        while not (tmp_path / ".s.converting").exists() and process.poll() is None:
            pass
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert [path.name for path in tmp_path.iterdir()] == ["j"]

# `diskq checkpoint`: puts everything into the files, reports what it did, and refuses what is open.

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from diskq.engine.journal.journal import Journal
from diskq.engine.queue.fifo_queue import Queue
from diskq.storage.fs import OsFileSystem
from tests.tools.damaged import digest
from tests.tools.power_cuts import KINDS, as_version_2, log_of, lost, on_disk


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_power_cut_it_says_how_much_came_from_the_log(run, tmp_path, kind):
    cut = lost(kind)
    store = on_disk(cut, tmp_path)
    assert b"not yet in the files" in run("info", tmp_path).out
    done = run("checkpoint", tmp_path)
    assert (done.code, done.notes) == (0, [])
    assert f"{store}: everything is in its files now, ".encode() in done.out
    assert b"bytes of it from the redo log" in done.out
    verified = run("verify", tmp_path)
    assert verified.code == 0
    assert b"redo log" not in verified.out + run("info", tmp_path).out
    assert sorted(cut.kind.read(str(tmp_path))) == sorted(cut.synced)


def test_what_was_closed_is_not_touched(run, tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    with Queue(path, "events") as queue:
        queue.put(b"x")
    before = digest(path)
    done = run("checkpoint", path)
    assert done.code == 0
    assert done.out == f"queue {path} events: it was closed, everything is in its files\n".encode()
    assert digest(path) == before


def test_all_stores_below_a_directory_are_done(run, tmp_path):
    for name in ("a", "b"):
        on_disk(lost("journal"), tmp_path / "journals" / name)
    on_disk(lost("queue"), tmp_path / "data")
    done = json.loads(run("checkpoint", tmp_path, "--json").out)
    assert [(each["kind"], each["was_needed"], each["error"]) for each in done["things"]] == [
        ("queue", True, None),
        ("journal", True, None),
        ("journal", True, None),
    ]
    assert all(each["restored"] > 0 for each in done["things"])
    assert not any(
        each["was_needed"] for each in json.loads(run("checkpoint", tmp_path, "--json").out)["things"]
    )


def test_a_store_that_is_open_is_refused_and_the_others_are_done(run, tmp_path):
    on_disk(lost("journal"), tmp_path / "b")
    with Journal(tmp_path / "a"):
        done = run("checkpoint", tmp_path, "--wait", "0s")
    assert done.code == 1
    assert f"journal {tmp_path / 'b'}: everything is in its files now".encode() in done.out
    (note,) = done.notes
    assert f"error: journal {tmp_path / 'a'}: " in note
    assert "close it there first: that does the same" in note


def test_a_log_of_another_version_is_refused(run, tmp_path):
    store = on_disk(lost("journal"), tmp_path)
    as_version_2(OsFileSystem(), log_of(store))
    for command in ("checkpoint", "verify", "info", "repair"):
        done = run(command, tmp_path)
        assert done.code == (1 if command == "checkpoint" else 2)
        assert "a log of format version 2" in done.notes[0]


@pytest.mark.parametrize(
    "put, what",
    [
        (lambda path: path.symlink_to("/etc/hostname"), "a symbolic link where a file should be"),
        (lambda path: path.mkdir(), "a directory where a file should be"),
        (os.mkfifo, "a named pipe where a file should be"),  # it is not waited for
    ],
)
def test_something_else_in_place_of_the_log_is_refused(run, tmp_path, put, what):
    log = Path(log_of(on_disk(lost("journal"), tmp_path)))
    log.unlink()
    put(log)
    for command in ("checkpoint", "verify", "info", "repair"):
        done = run(command, tmp_path)
        assert done.code in (1, 2)
        assert f"{log}: {what}" in done.notes[0]


def test_a_path_that_is_not_there_is_an_error(run, tmp_path):
    done = run("checkpoint", tmp_path / "none")
    assert (done.code, done.out) == (2, b"")
    assert "No such file" in done.notes[0] or "no such file" in done.notes[0]


def test_an_empty_directory_needs_nothing(run, tmp_path):
    """So the first start of a program does not fail."""
    path = tmp_path / "data"
    path.mkdir()
    done = run("checkpoint", path)
    assert (done.code, done.notes) == (0, [f"diskq: {path}: it is empty"])


def test_a_directory_of_something_else_is_an_error(run, tmp_path):
    (tmp_path / "letters.txt").write_bytes(b"dear all")
    done = run("checkpoint", tmp_path)
    assert done.code == 2
    assert "there is nothing here that diskq knows" in done.notes[0]

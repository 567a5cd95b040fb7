# The journal noun: its verbs, and what comes of them.

from __future__ import annotations

import base64
import json
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader_offset import JournalCommittedOffset, read_journal_offset
from diskq.messages import NULL_TIMESTAMP
from diskq.options import JournalOptions
from tests.cli.conftest import frames, start

DAY = 86_400 * 10**9
VERBS = ["send", "read", "count", "tail", "offset", "reset", "old", "timestamp", "file", "dump", "info"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Ten messages, 0 to 9 by their values, a second apart since 1970, types in turn; three in a file."""
    made = tmp_path / "web"
    with Journal(made, options=JournalOptions(segment_size=100)) as journal:
        for number in range(10):
            journal.append(b"value %d" % number, b"k", number * 10**9, number % 3)
    return made


def files(path: Path) -> list[Path]:
    return sorted((path / "jnl").glob("*.jnl"))


def values(out: bytes) -> list[int]:
    return [int(line.removeprefix(b"value ")) for line in out.splitlines()]


def tree(path: Path) -> dict[str, bytes | None]:
    return {str(each): each.read_bytes() if each.is_file() else None for each in path.rglob("*")}


@pytest.mark.parametrize("command", [[], *([verb] for verb in VERBS)], ids=" ".join)
def test_every_command_has_help_with_examples(run, command):
    done = run("journal", *command, "--help")
    assert done.code == 0
    assert b"examples:\n  diskq journal" in done.out


@pytest.mark.parametrize(
    "words, expected",
    [
        ([], range(10)),
        (["--start", "4"], range(4, 10)),
        (["--start", "3", "--end", "5"], [3, 4]),
        (["--start", "1970-01-01T00:00:03.5Z", "--end", "1970-01-01T00:00:07Z"], [4, 5, 6]),
        (["--type", "2"], [2, 5, 8]),
        (["--type", "2", "--max-messages", "2"], [2, 5]),
        (["--start", "newest"], []),
        (["--end", "100"], range(10)),
    ],
)
def test_a_stretch_is_scanned_and_counted_and_ends(run, path, words, expected):
    before = tree(path)
    done = run("journal", "read", path, *words)
    assert (done.code, values(done.out)) == (0, list(expected))
    if "--max-messages" not in words:
        assert run("journal", "count", path, *words).out == b"%d\n" % len(expected)
    assert tree(path) == before


def test_messages_are_printed_in_the_format_that_is_asked_for(run, path):
    assert run("journal", "read", path, "-n", 1, "--length-prefixed").out == frames(b"value 0")
    lines = run("journal", "read", path, "--format", "json", "--start", 9).out
    assert json.loads(lines) == {
        "offset": 9,
        "timestamp": "1970-01-01T00:00:09Z",
        "type": 0,
        "key": "aw==",
        "value": base64.b64encode(b"value 9").decode(),
    }


def test_a_file_is_dumped_to_its_end_and_no_further(run, path):
    found = [values(run("journal", "dump", each).out) for each in files(path)]
    assert len(found) > 2
    assert [number for some in found for number in some] == list(range(10))
    told = [json.loads(run("journal", "file", each, "--json").out) for each in files(path)]
    assert [(each["first_offset"], each["messages"]) for each in told] == [
        (some[0], len(some)) for some in found
    ]
    assert [each["is_last"] for each in told] == [False] * (len(told) - 1) + [True]
    assert run("journal", "dump", path / "jnl" / "x.jnl").code == 1


@pytest.mark.exhaustive
def test_the_last_messages_are_shown_and_then_what_comes(run, path):
    assert values(run("journal", "tail", path, "-n", 4).out) == [6, 7, 8, 9]
    assert len(run("journal", "tail", path, "--max-messages", 99).out.splitlines()) == 10
    with start("journal", "tail", path, "--follow", "--max-messages", 1, stdout=-1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"value 9\n"
        assert run("journal", "send", path, "value 10").notes == ["diskq: 1 sent"]
        assert process.stdout.readline() == b"value 10\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


def test_a_reader_goes_on_at_the_offset_that_was_asked_for(run, path):
    for place, offset in (("4", 4), ("oldest", 0), ("newest", 10), ("1970-01-01T00:00:03Z", 3)):
        assert run("journal", "reset", path, "--reader", "bill", "--to", place).out == b"bill %d\n" % offset
        found = read_journal_offset(path, "bill")
        assert found is not None
        assert found.offset == offset
    told = json.loads(run("journal", "offset", path, "--json").out)
    assert told == {"first_offset": 0, "next_offset": 10, "readers": {"bill": 3}}
    assert run("journal", "reset", path, "--reader", "bill", "--to", "11").code == 1
    with JournalCommittedOffset(path, "bill"):
        done = run("journal", "reset", path, "--reader", "bill", "--to", "1", "--wait", "0s")
    assert done.code == 1
    assert "--wait 30s" in done.notes[-1]


def test_a_file_whose_last_message_is_from_the_future_is_as_old_as_its_file(run, tmp_path):
    path = tmp_path / "future"
    with Journal(path, options=JournalOptions(segment_size=100)) as journal:
        journal.append(b"x" * 90, timestamp=datetime(2150, 1, 1, tzinfo=UTC))
        journal.append_many([b"x" * 90] * 3)
    first, *later = files(path)
    assert later
    done = run("journal", "old", path, "--days", 1)
    assert done.out == b""
    assert "is stamped 2150-01-01T00:00:00Z, in the future" in done.notes[0]
    os.utime(first, (1.7e9, 1.7e9))
    assert run("journal", "old", path, "--days", 1).out.decode().split() == [str(first)]


def test_files_are_old_when_they_are_and_every_reader_has_passed_them(run, path):
    names = [str(each) for each in files(path)]
    assert run("journal", "old", path, "--days", 1).out.decode().split() == names[:-1]
    assert run("journal", "old", path, "--days", 99999).out == b""
    behind = json.loads(run("journal", "file", names[1], "--json").out)["next_offset"]
    run("journal", "reset", path, "--reader", "slow", "--to", behind)
    assert run("journal", "old", path).out.decode().split() == names[:2]
    run("journal", "reset", path, "--reader", "slow", "--to", behind - 1)
    assert run("journal", "old", path).out.decode().split() == names[:1]


def test_the_time_of_a_message_is_printed(run, path):
    assert run("journal", "timestamp", path, "--offset", 7).out == b"1970-01-01T00:00:07Z\n"
    with Journal(path) as journal:
        journal.append(b"", timestamp=NULL_TIMESTAMP)
    assert run("journal", "timestamp", path, "--offset", 10).out == b"none\n"
    assert run("journal", "timestamp", path, "--offset", 11).code == 1


def test_what_is_put_is_there_with_its_key_type_and_time(run, tmp_path):
    path = tmp_path / "new"
    assert run("journal", "send", path, "x").code == 1
    words = ["--create", "--key", "ada", "--type", 200, "--timestamp", "1970-01-01T00:00:05Z"]
    assert run("journal", "send", path, "--length-prefixed", *words, stdin=frames(b"a\n", b"")).code == 0
    lines = [json.loads(line) for line in run("journal", "read", path, "--json").out.splitlines()]
    assert [(each["value"], each["key"], each["type"]) for each in lines] == [
        ("YQo=", "YWRh", 200),
        ("", "YWRh", 200),
    ]
    assert {each["timestamp"] for each in lines} == {"1970-01-01T00:00:05Z"}
    assert run("journal", "send", path, "x", "--type", 256).code == 2
    with Journal(path):
        done = run("journal", "send", path, "x", "--wait", "0s")
    assert done.code == 1
    assert "--wait 30s" in done.notes[-1]


@pytest.mark.parametrize("verb", ["read", "count", "tail", "offset", "old"])
def test_where_no_journal_is_it_says_so_and_makes_none(run, tmp_path, verb):
    done = run("journal", verb, tmp_path / "nowhere")
    assert (done.code, done.out) == (1, b"")
    (tmp_path / "place").mkdir()
    assert "no journal here" in run("journal", verb, tmp_path / "place").notes[-1]
    assert list((tmp_path / "place").iterdir()) == []

# The stream noun: what a person types, and what comes of it.

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import signal
import subprocess
import time
from hashlib import sha256
from pathlib import Path

import pytest

from diskq.cli import command_parser, main
from diskq.cli.core.parsing import parse
from diskq.cli.core.times import moment, show_moment
from diskq.cli.stream import parser as stream
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup
from diskq.engine.stream.stream import Stream
from diskq.options import StreamOptions
from diskq.storage.fs import OsFileSystem
from tests.cli.conftest import Terminal, frames, program, start, until
from tests.golden.streams import case, every_stream, golden_stream
from tests.reference import triplet_oracle as oracle

VERBS = ["create", "send", "read", "tail", "lookup", "vacuum", "stats", "groups", "info"]

SECOND = 1_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a stream is to be."""
    return tmp_path / "s"


def fill(path: Path, *messages: bytes | tuple[str, bytes] | tuple[str, bytes, int], **settings: int) -> None:
    """A stream of one partition, if nothing else is said."""
    told = {"partition_count": 1} | settings
    whole = [message if isinstance(message, tuple) else ("k", message) for message in messages]
    triples = [(m[0].encode(), m[2] if len(m) > 2 else number, m[1]) for number, m in enumerate(whole)]
    oracle.write_stream(path, triples, **told)


def append(path: Path, *bodies: bytes) -> None:
    with Stream(path) as stream:
        stream.append_many(bodies)


def values(path: Path, partition: int = 0) -> list[bytes]:
    return [message.value for message in oracle.read_partition(path, partition)]


# --- in general -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["stream"], *(["stream", verb] for verb in VERBS)])
def test_every_command_has_help_with_examples(run, command):
    done = run(*command, "--help")
    assert done.code == 0
    assert b"examples:\n  diskq stream" in done.out


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_with_a_value_says_its_default(verb, capsys):
    with pytest.raises(SystemExit):
        main(["stream", verb, "--help"])
    options = capsys.readouterr().out.partition("options:")[2].partition("examples:")[0]
    for option in options.split("\n  -")[1:]:
        head, text = option.split(" ", 1)
        says_default = "(default: " in " ".join(text.split())
        takes_value = text.split()[0].isupper() or text.startswith("{")
        assert says_default or not takes_value or (verb, head) == ("lookup", "-at"), f"-{head}"


@pytest.mark.parametrize(
    "command",
    [
        ["stream", "nonsense"],
        ["stream", "create"],
        ["stream", "create", "s", "--segment-size", "64megs"],
        ["stream", "create", "s", "--segment-size", "0"],
        ["stream", "create", "s", "--partition-count", "0"],
        ["stream", "create", "s", "--partition-count", "1000000"],
        ["stream", "create", "s", "--retention-max-age", "1w"],
        ["stream", "create", "s", "--encoding", "json"],
        ["stream", "send", "s", "hello", "--lines"],
        ["stream", "send", "s", "hello", "--timestamp", "2013-07-04T10:00:00"],
        ["stream", "read", "s", "--start", "first"],
        ["stream", "read", "s", "--start", "oldest", "--start-offset", "5"],
        ["stream", "read", "s", "--start", "at-offset"],
        ["stream", "read", "s", "--start-offset", "-5"],
        ["stream", "read", "s", "--start", "5", "--since", "-1h"],
        ["stream", "read", "s", "--end", "never"],
        ["stream", "read", "s", "--end", "wait", "--end-offset", "5"],
        ["stream", "read", "s", "--json", "--lines"],
        ["stream", "read", "s", "unasked"],
        ["stream", "tail", "s", "-n", "-1"],
        ["stream", "lookup", "s"],
        ["stream", "lookup", "s", "--at", "yesterday"],
        ["stream", "vacuum", "s", "--max-age", "48"],
        ["stream", "groups", "s", "--reset", "g"],
        ["stream", "groups", "s", "--reset", "g", "--to", "at-offset"],
        ["stream", "groups", "s", "--to", "oldest"],
    ],
)
def test_what_makes_no_sense_is_2_and_says_how_it_is_used(run, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "s", b"one")
    done = run(*command)
    assert done.code == 2
    assert done.notes[0].startswith("usage: diskq")
    assert "error: " in done.notes[-1]


READERS = [
    ["read", "PATH"],
    ["tail", "PATH"],
    ["lookup", "PATH", "--at", "-1h"],
    ["vacuum", "PATH", "--max-age", "1h"],
    ["stats", "PATH"],
    ["groups", "PATH"],
]


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
def test_where_there_is_no_stream_says_so_and_makes_none(run, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("empty").mkdir()
    for path, told in [
        ("nowhere", "no such directory"),
        ("file", "not a directory"),
        ("empty", "there is no stream here"),
    ]:
        done = run("stream", *(path if word == "PATH" else word for word in command))
        assert (done.code, done.notes) == (1, [f"diskq: error: {path}: {told}"])
    assert sorted(os.listdir()) == ["empty", "file", "stdin"]


@pytest.mark.parametrize("verb", ["read", "tail", "lookup"])
def test_a_partition_that_is_not_there_is_reported_with_those_that_are(run, path, verb):
    fill(path, partition_count=4)
    done = run("stream", verb, path, "--partition", 4, *(["--at", "-1h"] if verb == "lookup" else []))
    assert done.code == 1
    assert done.notes == [f"diskq: error: {path}: there is no partition 4: there are 0 to 3"]


def test_settings_that_cannot_be_read_are_reported(run, path):
    fill(path)
    (path / "settings.json").write_text('{"partition_count": "three"}')
    done = run("stream", "send", path, "one")
    assert done.code == 1
    assert "found partition_count 'three', supported: a whole number" in done.notes[-1]


def command_lines(text: str) -> list[list[str]]:
    """Return the commands of `diskq stream` in an example, without the explanations beside them."""
    lines = [line.split("diskq stream ", 1)[1] for line in text.splitlines() if "diskq stream " in line]
    told = [re.split(r"   |[|<>]", line)[0] for line in lines]
    return [["stream", *shlex.split(line)] for line in told]


def test_every_example_is_a_command():
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    shown = [text for name, text in vars(stream).items() if name.startswith("EXAMPLES")]
    found = command_lines("\n".join([readme, *shown]))
    verbs = {parse(command_parser(), line).run.__name__ for line in found}
    assert {"create", "send", "read", "tail", "vacuum"} <= verbs
    assert "_show_help" not in verbs
    assert len(found) > 30


# --- create ---------------------------------------------------------------------------------------


def test_create_makes_a_stream_as_go_diskq_would(run, path):
    done = run("stream", "create", path / "deep")
    assert done.code == 0
    assert done.out.decode() == (
        f"created {path / 'deep'}: partition-count=3 segment-size=32.0MiB "
        "retention-max-bytes=none retention-max-age=none encoding=fixed\n"
    )
    assert oracle.partitions(path / "deep") == [0, 1, 2]
    assert (path / "deep" / "settings.json").read_bytes() == b"{}\n"
    assert not (path / "deep" / "owner").exists()


def test_create_writes_the_settings_that_are_given(run, path):
    done = run(
        *("stream", "create", path, "--partition-count", 5, "--segment-size", "1KiB"),
        *("--retention-max-bytes", "2KiB", "--retention-max-age", "1h30m", "--encoding", "varuint"),
    )
    assert done.out.split(b": ", 1)[1] == (
        b"partition-count=5 segment-size=1.0KiB retention-max-bytes=2.0KiB retention-max-age=1h30m "
        b"encoding=varuint\n"
    )
    assert oracle.settings(path) == {
        "partition_count": 5,
        "segment_size_bytes": 1024,
        "retention_max_bytes": 2048,
        "retention_max_age": 5400 * SECOND,
        "encoding": "varuint",
    }


def test_create_of_a_stream_that_is_there_changes_what_is_given_and_nothing_else(run, path):
    run("stream", "create", path, "--partition-count", 1, "--segment-size", "1KiB")
    run("stream", "send", path, "one")
    done = run("stream", "create", path, "--retention-max-age", "7d")
    assert done.out.startswith(b"settings of ")
    assert oracle.settings(path) == {
        "partition_count": 1,
        "segment_size_bytes": 1024,
        "retention_max_age": 7 * 86400 * SECOND,
    }
    assert values(path) == [b"one"]


@pytest.mark.parametrize("command", [["create"], ["send", "--create", "one"]])
def test_a_directory_that_is_something_elses_is_left_alone(run, path, command):
    path.mkdir()
    (path / "settings.json").write_text('{"editor": "vi"}')
    (path / "notes").touch()
    verb, *rest = command
    done = run("stream", verb, path, *rest)
    told = f"diskq: error: {path}: here is no stream, but notes: choose a directory of its own"
    assert (done.code, done.notes) == (1, [told])
    assert sorted(os.listdir(path)) == ["notes", "settings.json"]


def test_a_stream_keeps_its_encoding(run, path):
    run("stream", "create", path)
    done = run("stream", "create", path, "--encoding", "varuint")
    assert done.code == 1
    assert "found a stream with encoding fixed" in done.notes[-1]


@pytest.mark.parametrize("verb", ["create", "send"])
def test_a_stream_that_is_being_written_names_its_writer(run, path, verb):
    with Stream(path):
        done = run("stream", verb, path, *(["one"] if verb == "send" else []), "--wait", "0s")
    assert done.code == 1
    assert f"is in use by process {os.getpid()} on " in done.notes[-1]
    assert done.notes[-1].endswith("; or wait for it: --wait 30s")


@pytest.mark.exhaustive
def test_a_stream_that_is_being_written_is_waited_for(run, path):
    with start("stream", "send", path, "--create", "--lines", stdin=subprocess.PIPE) as other:
        assert other.stdin is not None
        until(lambda: (path / "owner").exists())
        other.stdin.close()
        assert run("stream", "send", path, "two", "--wait", "30s").code == 0


def test_a_crash_of_ours_keeps_no_process_out(run, path):
    """go-diskq leaves its owner file, and refuses until it is removed by hand (D9, D17)."""
    with start("stream", "send", path, "--create", "--lines", stdin=subprocess.PIPE) as other:
        until(lambda: (path / "owner").exists() and (path / "owner").stat().st_size == 16)
        other.kill()
        other.wait()
    assert (path / "owner").exists()
    assert run("stream", "send", path, "one").code == 0
    assert not (path / "owner").exists()


def test_what_a_crash_of_go_diskqs_left_is_taken_over_with_take_over(run, tmp_path):
    path = golden_stream("live_owner", tmp_path)
    done = run("stream", "send", path, "one", "--wait", "0s")
    assert done.code == 1
    assert "a go-diskq producer" in done.notes[-1]
    assert "--take-over" in done.notes[-1]
    assert "True" not in done.notes[-1]
    assert run("stream", "send", path, "one", "--take-over").code == 0


# --- write ----------------------------------------------------------------------------------------


def test_all_of_stdin_is_one_message_and_its_place_is_reported(run, path):
    fill(path, b"before")
    done = run("stream", "send", path, "--whole", stdin=b"a\nb\n")
    assert (done.code, done.out, done.notes) == (0, b"partition=0 offset=1\n", ["diskq: 1 sent"])
    assert values(path) == [b"before", b"a\nb\n"]


def test_arguments_are_messages_byte_for_byte(run, path):
    fill(path)
    done = run("stream", "send", path, "--key", "k", "one", os.fsdecode(b"\xff two"), "--", "--three")
    assert done.out == b"partition=0 offset=0..2\n"
    assert values(path) == [b"one", b"\xff two", b"--three"]


def test_a_key_decides_on_the_partition(run, path):
    fill(path, partition_count=3)
    for key, partition in [("aaa", 0), ("bbb", 1), ("customer-00", 2)]:
        assert run("stream", "send", path, "--key", key, "x").out == b"partition=%d offset=0\n" % partition
        (message,) = oracle.read_partition(path, partition)
        assert message.key == key.encode()


def test_without_a_key_each_message_gets_one_of_its_own(run, path):
    fill(path)
    run("stream", "send", path, "one", "two")
    first, second = (message.key for message in oracle.read_partition(path, 0))
    assert len(first) == len(second) == 32
    assert first != second


@pytest.mark.parametrize(
    "text, expected",
    [
        ("2013-07-04T10:00:00.000000001Z", 1_372_932_000_000_000_001),
        ("2013-07-04 06:00 America/New_York", 1_372_932_000_000_000_000),
        ("1372932000000000001", 1_372_932_000_000_000_001),
        ("1968-01-01T00:00:00Z", -63_158_400_000_000_000),
    ],
)
def test_a_timestamp_is_written_as_it_is_given(run, path, text, expected):
    """go-diskq's --timestamp refuses every value (D17)."""
    fill(path)
    assert run("stream", "send", path, "one", "--timestamp", text).code == 0
    assert oracle.read_partition(path, 0)[0].timestamp == expected


def test_a_timestamp_may_be_so_long_ago(run, path):
    fill(path)
    run("stream", "send", path, "one", "--timestamp", "-1h")
    age = time.time_ns() - oracle.read_partition(path, 0)[0].timestamp
    assert 3600 * SECOND <= age < 3700 * SECOND


def test_lines_of_stdin_are_messages(run, path):
    fill(path)
    done = run("stream", "send", path, "--lines", "--key", "k", stdin=b"one\n\ntwo\r\nthree")
    assert (done.out, done.notes) == (b"partition=0 offset=0..3\n", ["diskq: 4 sent"])
    assert values(path) == [b"one", b"", b"two\r", b"three"]


def test_stdin_may_be_length_prefixed(run, path):
    fill(path)
    run("stream", "send", path, "--length-prefixed", stdin=frames(b"a\nb", b"\0"))
    assert values(path) == [b"a\nb", b"\0"]


def test_lines_of_json_bring_key_and_time(run, path):
    fill(path)
    lines = b'{"PartitionKey":"k","TimestampUTC":"1970-01-01T00:00:07Z","Data":"b25l"}\n{"Data":"dHdv"}\n'
    at = show_moment(9 * SECOND)
    assert run("stream", "send", path, "--json", "--key", "own", "--timestamp", at, stdin=lines).code == 0
    first, second = oracle.read_partition(path, 0)
    assert first[2:] == (7 * SECOND, b"k", b"one")
    assert second[2:] == (9 * SECOND, b"own", b"two")


def test_what_stands_before_a_bad_line_is_written_and_reported(run, path):
    fill(path)
    done = run("stream", "send", path, "--json", stdin=b'{"Data":"b25l"}\n{"Data":"dHdv"}\n{}\n')
    assert done.code == 1
    assert done.out == b"partition=0 offset=0..1\n"
    assert done.notes[0] == "diskq: 2 sent"
    assert done.notes[1].startswith("diskq: error: line 3 is no message: it has no Data; one is {")
    assert values(path) == [b"one", b"two"]


@pytest.mark.parametrize("word", ["memory", "written", "synced"])
def test_every_durability_and_batch_keeps_the_order(run, path, word):
    fill(path)
    lines = [b"%d" % number for number in range(100)]
    options = ["--durability", word, "--batch", 7]
    done = run("stream", "send", path, "--lines", *options, stdin=b"\n".join(lines))
    assert done.out == b"partition=0 offset=0..99\n"
    assert values(path) == lines


def test_create_makes_the_stream_that_is_not_there(run, path):
    refused = run("stream", "send", path, "one")
    assert refused.code == 1
    assert refused.notes[-1].endswith("make one with `diskq stream create`, or let --create make it")
    assert not path.exists()
    assert run("stream", "send", path, "--create", "--key", "k", "one").code == 0
    assert oracle.partitions(path) == [0, 1, 2]


def test_a_message_that_is_too_large_is_refused_with_advice(run, path):
    fill(path)
    done = run("stream", "send", path, "xyz", "--max-message-size", "2B")
    assert done.code == 1
    assert done.notes[-1] == (
        "diskq: error: message of 3 bytes: allowed are 0 to 2 bytes; "
        "see --min-message-size, --max-message-size"
    )


def test_empty_messages_are_refused_where_go_diskq_reads(run, path):
    """Its readers stop there for ever (D2)."""
    fill(path)
    assert run("stream", "send", path, "", "--min-message-size", 1).code == 1
    assert run("stream", "send", path, "").code == 0
    assert values(path) == [b""]


def test_what_a_crash_left_is_repaired_and_reported(run, tmp_path):
    path = golden_stream("torn_data", tmp_path)
    done = run("stream", "send", path, "one")
    assert done.code == 0
    assert any(note.startswith("diskq: warning: ") for note in done.notes)


# --- read -----------------------------------------------------------------------------------------


@every_stream
def test_read_writes_every_message(run, name, tmp_path):
    """Also after what a crash tore, and after an empty one, where go-diskq stops (D2, D6)."""
    path = golden_stream(name, tmp_path)
    done = run("stream", "read", path, "--json")
    assert done.code == 0
    told = [json.loads(line) for line in done.out.splitlines()]
    for partition, messages in case(name).messages.items():
        shown = [row for row in told if row["PartitionIndex"] == partition]
        assert [(row["Offset"], moment(row["TimestampUTC"])) for row in shown] == [
            (message.offset, message.timestamp_ns) for message in messages
        ]
        values = [base64.b64decode(row["Data"]) for row in shown]
        assert [(len(value), sha256(value).hexdigest()) for value in values] == [
            (message.size, message.sha256) for message in messages
        ]


def test_read_writes_lines_and_removes_nothing(run, path):
    fill(path, b"one", b"two")
    for _ in range(2):
        done = run("stream", "read", path)
        assert (done.code, done.out, done.notes) == (0, b"one\ntwo\n", [])
    assert values(path) == [b"one", b"two"]


@pytest.mark.parametrize(
    "framing, expected",
    [
        ("--raw", b"onea\nb"),
        ("--base64", b"b25l\nYQpi\n"),
        ("--length-prefixed", frames(b"one", b"a\nb")),
    ],
)
def test_read_writes_other_forms(run, path, framing, expected):
    fill(path, b"one", b"a\nb")
    assert run("stream", "read", path, framing).out == expected


@pytest.mark.parametrize("option", ["--json", "-v", "--verbose"])
def test_read_writes_json_under_go_diskqs_name_as_well(run, path, option):
    fill(path, ("key", b"one", 1_372_932_000_500_000_000))
    assert run("stream", "read", path, option).out == (
        b'{"PartitionKey":"key","TimestampUTC":"2013-07-04T10:00:00.5Z","Data":"b25l",'
        b'"PartitionIndex":0,"Offset":0}\n'
    )


def test_what_read_writes_write_takes(run, path, tmp_path):
    path = golden_stream("three_parts", tmp_path)
    lines = run("stream", "read", path, "--json").out
    run(
        "stream",
        "create",
        tmp_path / "copy",
        "--segment-size",
        case("three_parts").settings["segment_size_bytes"],
    )
    assert run("stream", "send", tmp_path / "copy", "--json", stdin=lines).code == 0
    assert oracle.read_stream(tmp_path / "copy") == oracle.read_stream(path)


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--start", "oldest"], "01234"),
        (["--start", "newest"], "4"),
        (["--start", "active"], "34"),
        (["--start", "active-oldest"], "34"),
        (["--start", "2"], "234"),
        (["--start", "5"], ""),
        # go-diskq takes the next four, and goes on as if they said 0 (D17).
        (["--start-offset", "2"], "234"),
        (["--start", "at-offset", "--start-offset", "2"], "234"),
        (["--end", "at-offset", "--end-offset", "2"], "012"),
        (["--start", "at-offset", "--start-offset", "1", "--end", "at-offset", "--end-offset", "3"], "123"),
        (["--end", "3"], "0123"),
        (["--start", "3", "--end", "1"], ""),
        (["--start", show_moment(SECOND)], "234"),
        (["--since", show_moment(SECOND)], "234"),
        (["--since", show_moment(SECOND + 1)], "234"),
        (["--since", show_moment(SECOND - 1)], "1234"),
        (["--since", "-1h"], ""),
        (["-n", "2"], "01"),
        (["-n", "2", "--start", "4"], "4"),
    ],
)
def test_read_begins_and_ends_where_the_options_say(run, path, options, expected):
    # 22 bytes each: the fourth begins a segment.
    fill(path, *(("k", b"%d" % n, n * SECOND) for n in range(5)), segment_size_bytes=66)
    done = run("stream", "read", path, "--raw", *options)
    assert (done.code, done.out.decode()) == (0, expected)


def test_read_takes_partitions_as_they_are_asked_for(run, path):
    fill(path, ("aaa", b"0"), ("bbb", b"1"), ("customer-00", b"2"), partition_count=3)
    assert run("stream", "read", path, "--raw", "-p", 1).out == b"1"
    assert sorted(run("stream", "read", path, "-p", 0, "--partition", 2).out.split()) == [b"0", b"2"]
    assert sorted(run("stream", "read", path).out.split()) == [b"0", b"1", b"2"]


def test_an_offset_that_is_not_there_is_reported_with_those_that_are(run, tmp_path):
    """Where go-diskq waits for ever (D3)."""
    path = golden_stream("vacuumed", tmp_path)
    first, *_, last = case("vacuumed").messages[0]
    for offset, what in [(first.offset - 1, "is gone"), (last.offset + 2, "is not there yet")]:
        done = run("stream", "read", path, "--start", offset)
        assert done.code == 1
        assert done.notes == [
            f"diskq: error: offset {offset} of {path}[0] {what}: the first is {first.offset}, "
            f"the next is {last.offset + 1}; "
            "`diskq stream stats` shows the offsets of each partition; --partition reads one"
        ]


def test_what_could_not_be_read_is_reported(run, path):
    with Stream(path, options=StreamOptions(partition_count=1)) as stream:
        stream.append_many([b"%04d" % number for number in range(2000)])
    with (path / "parts/000000/00000000000000000000.data").open("r+b") as file:
        file.seek(50_000)
        file.write(b"X")
    done = run("stream", "read", path)
    assert done.code == 0
    assert 1800 < len(done.out.split()) < 2000
    assert any("messages are lost" in note for note in done.notes)


def test_newlines_in_lines_are_warned_of_once(run, path):
    fill(path, *[b"a\nb"] * 1000)
    done = run("stream", "read", path)
    assert done.out == b"a\nb\n" * 1000
    assert done.notes == [
        "diskq: warning: a message with newlines looks like several: see --base64, --length-prefixed"
    ]


# --- read, as a group -----------------------------------------------------------------------------


def test_a_group_goes_on_where_it_was(run, path):
    fill(path, b"0", b"1", b"2", b"3", b"4")
    done = run("stream", "read", path, "--raw", "--group", "g", "-n", 2)
    assert (done.out, done.notes) == (b"01", ["diskq: 2 read as group 'g'"])
    assert committed(path, "g") == {0: 1}
    assert run("stream", "read", path, "--raw", "--group", "g").out == b"234"
    assert run("stream", "read", path, "--raw", "--group", "g").out == b""
    assert run("stream", "read", path, "--raw", "--group", "other").out == b"01234"


def test_start_is_for_a_group_that_has_committed_nothing(run, path):
    fill(path, b"0", b"1", b"2", b"3", b"4")
    assert run("stream", "read", path, "--raw", "--group", "g", "--start", 2, "-n", 1).out == b"2"
    assert run("stream", "read", path, "--raw", "--group", "g", "--start", 0).out == b"34"


def test_a_group_that_had_read_everything_gets_what_came_since(run, path):
    """go-diskq's never gets it (D4)."""
    fill(path, b"one")
    run("stream", "read", path, "--group", "g")
    run("stream", "send", path, "two")
    assert run("stream", "read", path, "--group", "g").out == b"two\n"


def test_groups_of_go_diskqs_are_gone_on_with(run, tmp_path):
    path = golden_stream("three_parts", tmp_path)
    name, offsets = next((name, of) for name, of in oracle.read_markers(path).items() if len(of) == 3)
    lines = run("stream", "read", path, "--group", name, "--json").out.splitlines()
    got = {(row["PartitionIndex"], row["Offset"]) for row in map(json.loads, lines)}
    done = {partition: -1 if offset is None else offset for partition, offset in offsets.items()}
    messages = case("three_parts").messages
    assert got == {(p, m.offset) for p in messages for m in messages[p] if m.offset > done[p]}


def test_what_another_of_the_group_reads_is_left_to_it(run, path):
    fill(path, b"one", b"two", partition_count=2)
    claim = group_of(path, "g").claim(0)
    assert claim is not None
    done = run("stream", "read", path, "--group", "g")
    claim.release()
    assert done.notes[0] == "diskq: partition 0: read by another process of group 'g'"


def test_a_group_that_retention_has_overtaken_gets_advice_how_to_go_on(run, tmp_path):
    path = golden_stream("vacuumed", tmp_path)
    commit(path, "late", 3)
    done = run("stream", "read", path, "--group", "late")
    assert done.code == 1
    assert "offset 4 of" in done.notes[-1]
    advice = done.notes[-1].split("`")[1]
    assert run(*advice.split()[1:]).code == 0
    assert run("stream", "read", path, "--group", "late").code == 0


# --- tail -----------------------------------------------------------------------------------------


def test_tail_writes_the_last_ones(run, path):
    fill(path, *(b"%d" % number for number in range(100)))
    assert run("stream", "tail", path).out.split() == [b"%d" % number for number in range(90, 100)]
    assert run("stream", "tail", path, "-n", 2).out.split() == [b"98", b"99"]
    assert run("stream", "tail", path, "-n", 0).out == b""
    assert len(run("stream", "tail", path, "-n", 1000).out.split()) == 100


def test_tail_writes_the_latest_of_all_partitions_in_order(run, path):
    keys = ["aaa", "bbb", "customer-00"]
    fill(path, *((keys[n % 3], b"%d" % n, n * SECOND) for n in range(30)), partition_count=3)
    assert run("stream", "tail", path, "-n", 4).out.split() == [b"26", b"27", b"28", b"29"]
    assert run("stream", "tail", path, "-n", 2, "--partition", 0).out.split() == [b"24", b"27"]


def test_tail_keeps_the_order_of_a_partition_whatever_the_times(run, path):
    fill(path, *(("k", b"%d" % second, second * SECOND) for second in (5, 9, 2, 3)))
    assert run("stream", "tail", path, "-n", 3).out.split() == [b"9", b"2", b"3"]


@every_stream
def test_tail_of_what_go_diskq_left_is_the_end_of_it(run, name, tmp_path):
    path = golden_stream(name, tmp_path)
    for partition, messages in case(name).messages.items():
        done = run("stream", "tail", path, "-n", 3, "--partition", partition, "--json")
        shown = [json.loads(line)["Offset"] for line in done.out.splitlines()]
        assert shown == [message.offset for message in messages[-3:]]


# --- lookup ---------------------------------------------------------------------------------------


def looked_up(done) -> dict[int, int | None]:
    rows = [json.loads(line) for line in done.out.splitlines()]
    return {row["PartitionIndex"]: row["Offset"] for row in rows}


@every_stream
def test_lookup_finds_what_the_definition_says(run, name, tmp_path):
    """Also in a segment of one message, where go-diskq answers 0 (D11)."""
    path = golden_stream(name, tmp_path)
    is_torn = name.startswith("torn")
    messages = oracle.read_stream(path, may_be_torn=is_torn)
    for when in {lookup.when for lookup in case(name).lookups}:
        right = {partition: oracle.offset_after(found, when) for partition, found in messages.items()}
        done = run("stream", "lookup", path, "--at", when, "--json")
        if set(right.values()) == {None}:
            assert done.code == 1
        else:
            assert looked_up(done) == right


def test_lookup_shows_the_message_that_it_found(run, path):
    fill(path, ("k", b"one", 5 * SECOND), ("k", b"two", 7 * SECOND), partition_count=2)
    partition = oracle.fnv1(b"k") % 2
    at = show_moment(5 * SECOND)
    header, *rows = run("stream", "lookup", path, "--at", at).out.decode().splitlines()
    assert header.split() == ["partition", "offset", "time"]
    expected = [[str(partition), "1", "1970-01-01T00:00:07Z"], [str(1 - partition), "none", "-"]]
    assert [row.split() for row in rows] == sorted(expected)
    both = run("stream", "lookup", path, "--at", at, "--at-or-after", "--partition", partition, "--json")
    assert looked_up(both) == {partition: 0}


def test_lookup_that_finds_nothing_is_an_error_that_says_so(run, path):
    fill(path, ("k", b"one", 5 * SECOND))
    done = run("stream", "lookup", path, "--at", show_moment(5 * SECOND))
    assert (done.code, done.out) == (1, b"")
    assert done.notes == [
        f"diskq: error: no message of {path} is later than 1970-01-01T00:00:05Z: "
        f"`diskq stream stats {path}` shows the times that are there"
    ]


def test_lookup_is_right_where_time_steps_back(run, path):
    fill(path, *(("k", b"x", second * SECOND) for second in (1, 9, 2, 3, 10)))
    assert looked_up(run("stream", "lookup", path, "--at", show_moment(2 * SECOND), "--json")) == {0: 1}
    assert looked_up(run("stream", "lookup", path, "--at", show_moment(9 * SECOND), "--json")) == {0: 4}


# --- stats ----------------------------------------------------------------------------------------


@every_stream
def test_stats_for_programs_have_go_diskqs_names(run, name, tmp_path):
    """And its numbers, where those are right (D18)."""
    path = golden_stream(name, tmp_path)
    told = json.loads(run("stream", "stats", path, "--json").out)
    theirs = case(name).statistics
    assert told.keys() == theirs.keys()
    messages = case(name).messages
    assert told["Path"] == str(path)
    assert told["TotalOffsets"] == sum(map(len, messages.values()))
    for partition in told["Partitions"]:
        assert partition.keys() == theirs["Partitions"][0].keys()
        its_own = messages[partition["PartitionIndex"]]
        if its_own:
            assert partition["OldestOffset"] == its_own[0].offset
            assert partition["NewestOffset"] == its_own[-1].offset
            assert moment(partition["NewestTimestamp"]) == its_own[-1].timestamp_ns


def test_stats_are_facts_and_a_table(run, path):
    fill(path, *(("k", b"%d" % n, n * SECOND) for n in range(5)), segment_size_bytes=66)
    lines = run("stream", "stats", path).out.decode().splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines[:4])
    assert facts == {"stream": str(path), "messages": "5", "bytes": "110 (110 B)", "age": "4s"}
    assert lines[4].split() == ["written", "by", "-"]
    header, row = (line.split() for line in lines[6:])
    assert header == ["partition", "messages", "oldest", "newest", "from", "to", "segments", "size"]
    times = ["1970-01-01T00:00:00Z", "1970-01-01T00:00:04Z"]
    assert row == ["0", "5", "0", "4", *times, "2", "110", "B"]


def test_stats_of_an_empty_stream_tell_no_times(run, path):
    fill(path)
    row = run("stream", "stats", path).out.decode().splitlines()[-1]
    assert row.split() == ["0", "0", "-", "-", "-", "-", "1", "0", "B"]


def test_stats_name_the_writer(run, path, tmp_path):
    with Stream(path):
        assert f"process {os.getpid()} on " in run("stream", "stats", path).out.decode()
    left = run("stream", "stats", golden_stream("live_owner", tmp_path)).out.decode()
    assert "a go-diskq producer, or it crashed" in left


# --- vacuum ---------------------------------------------------------------------------------------


def aging(path: Path, *ages: int, **settings: int) -> None:
    """Segments of one message each, with these ages in hours, and an empty one that is active."""
    now = time.time_ns()
    messages = [("k", b"%d" % age, now - age * 3600 * SECOND) for age in ages]
    fill(path, *messages, segment_size_bytes=1, **settings)


def test_vacuum_removes_what_its_options_say_whatever_the_settings(run, path):
    """go-diskq's passes over its options where there are settings (D17)."""
    aging(path, 30, 20, 10, 5, retention_max_age=100 * 3600 * SECOND)
    done = run("stream", "vacuum", path, "--max-age", "15h")
    assert (done.code, done.out) == (0, b"partition=0 segments=2 bytes=46 oldest=2\n")
    assert done.notes == ["diskq: 2 segments removed, 46 B"]
    assert values(path) == [b"10", b"5"]


def test_vacuum_tells_of_a_message_stamped_in_the_future(run, path):
    aging(path, -1000, 20, 10)
    done = run("stream", "vacuum", path, "--max-age", "15h")
    assert done.out == b""
    assert "partition 0, segment 0: a message is stamped" in done.notes[0]
    assert done.notes[0].endswith("kept, with all after it")
    first = min((path / "parts" / "000000").glob("*.data"))
    os.utime(first, (1.7e9, 1.7e9))
    assert b"segments=2 " in run("stream", "vacuum", path, "--max-age", "15h").out


def test_vacuum_does_as_the_settings_say(run, path):
    aging(path, 30, 20, 10, 5, retention_max_age=15 * 3600 * SECOND)
    assert run("stream", "vacuum", path).notes == ["diskq: 2 segments removed, 46 B"]
    assert run("stream", "vacuum", path).notes == ["diskq: 0 segments removed, 0 B"]


def test_vacuum_bounds_the_bytes_of_each_partition(run, path):
    aging(path, 4, 3, 2, 1)
    assert run("stream", "vacuum", path, "--max-bytes", 50).notes == ["diskq: 2 segments removed, 44 B"]
    assert values(path) == [b"2", b"1"]
    assert run("stream", "vacuum", path, "--max-bytes", 0).code == 0
    assert values(path) == []


def test_vacuum_keeps_what_is_young_in_an_old_segment(run, path):
    """go-diskq's removes a segment for its oldest message (D7)."""
    now = time.time_ns()
    old, young = ("k", b"old", now - 3600 * SECOND), ("k", b"young", now - 60 * SECOND)
    fill(path, old, young, segment_size_bytes=40)
    assert run("stream", "vacuum", path, "--max-age", "30m").notes == ["diskq: 0 segments removed, 0 B"]
    assert values(path) == [b"old", b"young"]


def test_vacuum_tells_what_it_would_do(run, path):
    aging(path, 30, 20, 10, 5)
    done = run("stream", "vacuum", path, "--max-age", "15h", "--dry-run")
    assert done.out == b"partition=0 segments=2 bytes=46 oldest=2\n"
    assert done.notes == ["diskq: 2 segments would be removed, 46 B"]
    assert len(values(path)) == 4


def test_vacuum_spares_what_groups_have_not_committed(run, path):
    aging(path, 30, 20, 10, 5)
    commit(path, "fast", 3)
    commit(path, "slow", 0)
    assert run("stream", "vacuum", path, "--max-age", "1h", "--keep-for-groups").notes == [
        "diskq: 1 segment removed, 23 B"
    ]
    assert len(values(path)) == 3


def test_vacuum_works_while_a_producer_is_open(run, path):
    """go-diskq refuses, also after a crash."""
    with Stream(path, options=StreamOptions(partition_count=1, segment_size=1)) as stream:
        stream.append_many([b"one", b"two", b"three"], timestamp=0)
        assert run("stream", "vacuum", path, "--max-age", "1h").notes[0].startswith("diskq: 3 segments")
        stream.append(b"four")
    assert values(path) == [b"four"]


def test_vacuum_that_fails_says_so(run, path):
    """Where go-diskq's says that all is well (D17)."""
    aging(path, 30)
    data = path / "parts/000000/00000000000000000000.index"
    data.unlink()
    (data / "in the way").mkdir(parents=True)
    done = run("stream", "vacuum", path, "--max-bytes", 0)
    assert done.code == 1
    assert "directory" in done.notes[-1].lower()


def test_vacuum_without_any_bound_says_how_to_give_one(run, path):
    aging(path, 30)
    done = run("stream", "vacuum", path)
    assert done.code == 1
    assert done.notes[0].startswith(f"diskq: error: {path} keeps everything: add --max-age or --max-")
    assert len(values(path)) == 1


# --- groups ---------------------------------------------------------------------------------------


def group_of(path: Path, name: str) -> ConsumerGroup:
    fs = OsFileSystem()
    return ConsumerGroup(fs, StreamFiles(fs, str(path)), name)


def commit(path: Path, name: str, offset: int, partition: int = 0) -> None:
    with group_of(path, name).committed_offset(partition) as committed_offset:
        committed_offset.commit(offset)


def committed(path: Path, name: str) -> dict[int, int | None]:
    return oracle.read_markers(path)[name]


def test_groups_tell_how_far_they_are(run, path):
    fill(path, b"0", b"1", b"2", b"3", b"4")
    commit(path, "billing", 1)
    group_of(path, "mail").committed_offset(0).close()
    header, *rows = run("stream", "groups", path).out.decode().splitlines()
    assert header.split() == ["group", "partition", "committed", "lag"]
    assert [row.split() for row in rows] == [["billing", "0", "1", "3"], ["mail", "0", "-", "5"]]
    told = [json.loads(line) for line in run("stream", "groups", path, "--json").out.splitlines()]
    assert told[0] == {"Group": "billing", "PartitionIndex": 0, "Committed": 1, "Lag": 3}
    assert told[1]["Committed"] is None


def test_groups_of_go_diskqs_are_shown_as_well(run, tmp_path):
    path = golden_stream("three_parts", tmp_path)
    told = [json.loads(line) for line in run("stream", "groups", path, "--json").out.splitlines()]
    shown = {(row["Group"], row["PartitionIndex"]): row["Committed"] for row in told}
    markers = oracle.read_markers(path)
    assert shown == {(name, p): offset for name, of in markers.items() for p, offset in of.items()}
    ends = {partition: len(messages) for partition, messages in case("three_parts").messages.items()}
    for row in told:
        done = 0 if row["Committed"] is None else row["Committed"] + 1
        assert row["Lag"] == ends[row["PartitionIndex"]] - done


def test_the_lag_of_a_group_that_retention_has_overtaken_is_what_is_left(run, tmp_path):
    path = golden_stream("vacuumed", tmp_path)
    commit(path, "late", 3)
    messages = case("vacuumed").messages[0]
    (told,) = (json.loads(line) for line in run("stream", "groups", path, "--json").out.splitlines())
    assert told["Lag"] == len(messages)


def test_a_group_may_have_any_name(run, path):
    fill(path, b"one")
    (path / "groups" / os.fsdecode(b"\xff\x1b[31m")).mkdir(parents=True)
    (path / "groups" / os.fsdecode(b"\xff\x1b[31m") / "000000").touch()
    row = run("stream", "groups", path).out.decode().splitlines()[1]
    assert row.split() == ["\\xff\\x1b[31m", "0", "-", "1"]


def test_a_stream_without_groups_says_so(run, path):
    fill(path)
    assert run("stream", "groups", path).notes == [f"diskq: no group has read {path}"]


@pytest.mark.parametrize(
    "to, next_offset",
    [
        ("oldest", 0),
        ("newest", 4),
        ("3", 3),
        ("5", 5),
        (show_moment(2 * SECOND), 3),
        ("now", 5),
    ],
)
def test_a_group_is_moved_to_where_the_options_say(run, path, to, next_offset):
    fill(path, *(("k", b"x", second * SECOND) for second in range(5)))
    commit(path, "g", 1)
    done = run("stream", "groups", path, "--reset", "g", "--to", to)
    assert (done.code, done.out) == (0, b"partition=0 offset=%d\n" % next_offset)
    assert committed(path, "g") == {0: next_offset - 1 if next_offset else None}


@pytest.mark.parametrize(
    "name, to, told",
    [
        ("mistyped", "oldest", "no group 'mistyped' has read {path}: there are g"),
        ("a/b", "oldest", "group name 'a/b': it may not contain '/' nor begin with '.'"),
        (
            "g",
            "9",
            "offset 9 of {path}[0] is not there yet: the first is 0, the next is 2; "
            "`diskq stream stats` shows the offsets of each partition; --partition reads one",
        ),
    ],
)
def test_a_group_that_cannot_be_moved_stays_where_it_is(run, path, name, to, told):
    fill(path, b"one", b"two")
    commit(path, "g", 1)
    done = run("stream", "groups", path, "--reset", name, "--to", to)
    assert (done.code, done.notes) == (1, [f"diskq: error: {told.format(path=path)}"])
    assert oracle.read_markers(path) == {"g": {0: 1}}


def test_a_group_is_not_moved_under_its_reader(run, path):
    fill(path, b"one", b"two", partition_count=2)
    for partition in (0, 1):
        commit(path, "g", 0, partition)
    claim = group_of(path, "g").claim(1)
    assert claim is not None
    done = run("stream", "groups", path, "--reset", "g", "--to", "oldest")
    claim.release()
    assert done.code == 1
    assert f"partition 1 of {path} is being read as group 'g'" in done.notes[-1]
    assert committed(path, "g") == {0: 0, 1: 0}


# --- as a process: pipes and signals --------------------------------------------------------------


def test_an_interrupted_write_keeps_and_tells_what_came_so_far(path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    fill(path)
    with start("stream", "send", path, "--lines", **pipes) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntw")
        process.stdin.flush()
        data = path / "parts/000000/00000000000000000000.data"
        until(lambda: data.exists() and data.stat().st_size > 0)
        process.send_signal(signal.SIGINT)
        # Its stdin is still open: it must not wait for more.
        assert process.wait(30) == 130
        assert process.stdout is not None
        assert process.stdout.read() == b"partition=0 offset=0\n"
    assert values(path) == [b"one"]


@pytest.mark.exhaustive
def test_a_pipe_in_and_a_pipe_out(path):
    lines = b"".join(b"%d\n" % number for number in range(100_000))
    written = program("stream", "send", path, "--create", "--lines", "--key", "k", input=lines)
    assert written.notes == ["diskq: 100000 sent"]
    assert program("stream", "read", path).out == lines


@pytest.mark.exhaustive
def test_a_closed_pipe_is_no_traceback(path):
    fill(path, *[b"x" * 1000] * 1000)
    with start("stream", "read", path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 1
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_closed_pipe_loses_nothing_for_a_group(run, path):
    fill(path, b"one", b"two")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = program("stream", "read", path, "--group", "g", stdout=writer)
    finally:
        os.close(writer)
    assert done.code == 1
    assert done.notes == [
        "diskq: the reader of stdout has ended: what was not written comes again for group 'g'",
        "diskq: 0 read as group 'g'",
    ]
    assert run("stream", "read", path, "--group", "g").out == b"one\ntwo\n"


def test_a_full_disk_behind_stdout_loses_nothing_for_a_group(run, path):
    fill(path, b"one")
    with open("/dev/full", "wb") as full:
        done = program("stream", "read", path, "--group", "g", stdout=full)
    assert done.code == 1
    assert done.notes[-1] == "diskq: error: stdout: No space left on device"
    assert run("stream", "read", path, "--group", "g").out == b"one\n"


def test_tail_follows_what_another_process_writes(path):
    fill(path, b"before", segment_size_bytes=200)
    with start("stream", "tail", path, "-f", "-n", 1, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"before\n"
        for _ in range(2):  # it comes, goes, and comes again
            with Stream(path) as stream:
                for body in (b"one", b"two", b"three" * 100, b"four"):
                    stream.append(body)
                    assert process.stdout.readline() == body + b"\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_tail_follows_partitions_that_come_later(path):
    fill(path, b"before")
    with start("stream", "tail", path, "-f", "-n", 1, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"before\n"
        with Stream(path, options=StreamOptions(partition_count=3)) as stream:
            for key in ("aaa", "bbb", "customer-00"):
                stream.append(key.encode(), key=key)
                assert process.stdout.readline() == key.encode() + b"\n"
        process.send_signal(signal.SIGINT)


@pytest.mark.exhaustive
def test_read_waits_for_the_offset_it_is_to_end_with(path):
    fill(path, b"one")
    with start("stream", "read", path, "--end", "2", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        append(path, b"two", b"three", b"four")
        assert process.stdout.read() == b"two\nthree\n"
    assert process.returncode == 0


def test_an_interrupted_group_has_committed_what_it_wrote(run, path):
    fill(path, b"one")
    with start("stream", "read", path, "--group", "g", "--end", "wait", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        append(path, b"two")
        # Who goes on to the next one has committed the one before.
        assert process.stdout.readline() == b"two\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    again = run("stream", "read", path, "--group", "g").out
    assert again in (b"", b"two\n")


def test_a_group_takes_over_from_one_that_was_killed(path):
    fill(path, b"one")
    pipes = {"stdout": subprocess.PIPE}
    with start("stream", "read", path, "--group", "g", "--end", "wait", **pipes) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"one\n"
        with start("stream", "read", path, "--group", "g", "--end", "wait", **pipes) as second:
            assert second.stdout is not None
            first.kill()
            append(path, b"two")
            lines = iter(second.stdout.readline, b"two\n")
            assert set(lines) <= {b"one\n"}
            second.send_signal(signal.SIGINT)


# --- at a terminal --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command, last",
    [
        (["stats"], "24 B"),
        pytest.param(["groups"], "billing", marks=pytest.mark.exhaustive),
        pytest.param(
            ["lookup", "--at", "1969-12-31T23:59:59Z"],
            "1970-01-01T00:00:00Z",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_terminal_shows_tables(path, command, last):
    fill(path, b"one")
    group_of(path, "billing").committed_offset(0).close()
    verb, *options = command
    with Terminal() as terminal:
        assert program("stream", verb, path, *options, stdout=terminal.outer).code == 0
        assert "───" in terminal.read_until(last)


@pytest.mark.exhaustive
@pytest.mark.parametrize("verb", ["read", "tail"])
def test_a_message_does_not_command_a_terminal(path, verb):
    fill(path, b"\x1b[31mred")
    with Terminal() as terminal:
        program("stream", verb, path, stdout=terminal.outer)
        assert terminal.read_until("red").strip() == "\\x1b[31mred"


@pytest.mark.exhaustive
def test_a_terminal_shows_progress(path):
    fill(path)
    with Terminal() as terminal:
        options = ["--group", "g", "--end", "wait"]
        with start(
            "stream", "read", path, *options, stdout=subprocess.PIPE, stderr=terminal.outer
        ) as process:
            terminal.read_until("reading")
            process.send_signal(signal.SIGINT)
        terminal.read_until("0 read as group")

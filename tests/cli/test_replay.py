# `diskq stream replay` and `diskq journal replay`: from where, at which pace, to where; and where it stopped.

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from diskq import Journal, JournalReader, Stream, StreamOptions
from diskq.cli.replay import replay as replays
from diskq.engine.stream.reader import ReadableStream
from diskq.messages import JournalMessage, Message
from tests.cli.conftest import drain, start, until

SECOND = 10**9
NOUNS = ["stream", "journal"]
MAX = ["--speed", "max"]


def make(noun: str, path: Path, *messages: tuple[str, float]) -> Path:
    """Messages with these keys, and at these seconds since 1970; a value is its number."""
    if noun == "stream":
        with Stream(path, options=StreamOptions(partition_count=2)) as stream:
            for number, (key, second) in enumerate(messages):
                stream.append(b"%d" % number, key, round(second * SECOND))
    else:
        with Journal(path) as journal:
            for number, (key, second) in enumerate(messages):
                journal.append(b"%d" % number, key, round(second * SECOND), number % 3)
    return path


@pytest.fixture(params=NOUNS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Ten messages, 0 to 9 by their values, a second apart since 1970."""
    noun = request.param
    return noun, make(noun, tmp_path / "source", *((f"k{number}", number) for number in range(10)))


def messages_of(path: Path) -> list[Message]:
    stream = ReadableStream(path)
    found = []
    for partition in stream.partitions():
        with stream.open(partition) as reader:
            found += reader.read_many(10**6)
    return sorted(found, key=lambda message: int(message.value))


def journal_of(path: Path) -> list[JournalMessage]:
    with JournalReader(path) as reader:
        return reader.read_many(10**6)


@pytest.mark.parametrize(
    "words, expected",
    [
        ([], range(10)),
        (["--until", "1970-01-01T00:00:06.999999999Z"], range(7)),
        (
            ["--since", "1970-01-01T00:00:03.999999999Z", "--until", "1970-01-01T00:00:06.999999999Z"],
            range(4, 7),
        ),
        (["-n", "3"], range(3)),
        (["--since", "now"], []),
        (["--until", "1969-01-01T00:00:00Z"], []),
    ],
)
def test_a_stretch_goes_to_stdout_in_the_order_of_its_times(run, source, words, expected):
    noun, path = source
    done = run(noun, "replay", path, *MAX, *words)
    assert (done.code, [int(line) for line in done.out.splitlines()]) == (0, list(expected))
    assert done.notes[0].startswith(f"diskq: {len(expected)} replayed")


def test_what_it_says_at_its_end_goes_on_from_there(run, source):
    noun, path = source
    first = run(noun, "replay", path, *MAX, "-n", 4)
    told = first.notes[-1].partition("go on with ")[2].split()
    second = run(noun, "replay", path, *MAX, *told)
    assert (first.out + second.out).split() == [b"%d" % number for number in range(10)]
    assert second.notes == ["diskq: 6 replayed"]


def test_the_speed_and_the_longest_gap_are_kept(run, tmp_path):
    path = make("journal", tmp_path / "j", ("", 0), ("", 20), ("", 10_000))
    began = time.monotonic()
    done = run("journal", "replay", path, "--speed", 100, "--max-gap", "300ms")
    assert (done.out, time.monotonic() - began >= 0.5) == (b"0\n1\n2\n", True)


def test_json_is_that_of_reading(run, source):
    noun, path = source
    lines = run(noun, "replay", path, *MAX, "--json", "-n", 1).out
    as_read = run(noun, "read", path, "--json").out.splitlines()
    assert lines.strip() in as_read
    assert json.loads(lines)


# --- into other things ----------------------------------------------------------------------------


def test_into_a_queue_go_the_values(run, source, data):
    noun, path = source
    done = run(noun, "replay", path, *MAX, "--into-queue", data, "q", "--create")
    assert (done.code, done.out) == (0, b"")
    assert drain(data) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("keeps", [True, False])
def test_into_a_stream_keys_are_kept_and_times_if_asked_for(run, source, tmp_path, keeps):
    noun, path = source
    words = ["--keep-timestamps"] if keeps else []
    assert run(noun, "replay", path, *MAX, "--into", tmp_path / "new", "--create", *words).code == 0
    found = messages_of(tmp_path / "new")
    assert [message.key for message in found] == [b"k%d" % number for number in range(10)]
    recent = datetime.now(UTC).timestamp() - 3600
    assert [message.timestamp.timestamp() > recent for message in found] == [not keeps] * 10


def test_a_journal_with_all_that_is_in_it_is_the_same_again(run, tmp_path):
    path = make("journal", tmp_path / "old", ("a", 1), ("", 2), ("b", 3))
    done = run(
        "journal", "replay", path, *MAX, "--into-journal", tmp_path / "new", "--create", "--keep-timestamps"
    )
    assert done.code == 0
    assert journal_of(tmp_path / "new") == journal_of(path)


def test_a_stream_may_be_replayed_into_itself_once(run, tmp_path):
    path = make("stream", tmp_path / "s", ("a", 1), ("b", 2))
    assert run("stream", "replay", path, *MAX, "--into", path).code == 0
    assert [message.value for message in messages_of(path)] == [b"0", b"0", b"1", b"1"]


HANDLERS = """

def plain(message): print(message.key.decode(), flush=True)
async def later(message): print(message.value.decode(), flush=True)
def at_three(message):
    if message.value == b"3": raise ValueError("three")
nothing = 5
"""


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "handlers_of_mine.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("handlers")
def test_a_function_is_called_with_each_message(run, source):
    noun, path = source
    for name, expected in [("plain", b"k0\nk1\n"), ("later", b"0\n1\n")]:
        done = run(noun, "replay", path, *MAX, "-n", 2, "--call", f"handlers_of_mine:{name}")
        assert (done.code, done.out) == (0, expected)


@pytest.mark.usefixtures("handlers")
def test_a_function_that_fails_stops_it_before_that_message(run, tmp_path):
    path = make("journal", tmp_path / "j", *(("k", number) for number in range(5)))
    done = run("journal", "replay", path, *MAX, "--call", "handlers_of_mine:at_three")
    assert done.code == 1
    assert "3 replayed; go on with --start-offset 3" in done.notes[0]
    assert "handlers_of_mine:at_three raised ValueError: three (at offset 3" in done.notes[1]


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    "words, code, said",
    [
        (["--speed", "0"], 2, "a speed is a number above 0"),
        (["--speed", "fast"], 2, "a speed is a number above 0"),
        (["--since", "-1h", "--start-offset", "1"], 2, "contradict"),
        (["--until", "now", "--end-offset", "1"], 2, "contradict"),
        (["--into", "a", "--call", "b:c"], 2, "exclude each other"),
        (["--into", "a", "--json"], 2, "--json is for stdout"),
        (["--keep-timestamps"], 2, "goes with --into"),
        (["--call", "handlers_of_mine"], 2, "module:function"),
        (["--call", "no_such_module:f"], 2, "no module 'no_such_module'"),
        (["--call", "handlers_of_mine:f"], 2, "has no 'f'"),
        (["--call", "handlers_of_mine:nothing"], 2, "is no function"),
        (["--into", "nowhere"], 1, "nowhere: no such directory; make it, or let --create make it"),
        (["--into-journal", "nowhere"], 1, "let --create make it"),
        (["--into-queue", ".", "q"], 1, "no queue 'q' in .; make it, or let --create make it"),
        (["--start-offset", "99"], 1, "offset 99"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused_in_one_line(run, source, words, code, said):
    noun, path = source
    done = run(noun, "replay", path, *words)
    assert (done.code, done.out) == (code, b"")
    assert said in done.notes[-1]


def test_a_path_with_nothing_to_replay_is_reported(run, tmp_path):
    assert "there is no stream here" in run("stream", "replay", tmp_path).notes[-1]
    assert "there is no journal here" in run("journal", "replay", tmp_path).notes[-1]


# --- Ctrl-C ---------------------------------------------------------------------------------------


def test_ctrl_c_tells_where_it_stopped_and_nothing_is_missing_or_there_twice(run, tmp_path, data):
    path = make("stream", tmp_path / "s", *((f"k{number}", number / 50) for number in range(2000)))
    with start("stream", "replay", path, "--into-queue", data, "q", "--create") as process:
        until(lambda: any(each.stat().st_size > 200 for each in data.glob("q.diskqueue.0*.dat")))
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        told = process.stderr.read().decode()
        assert process.wait() == 130
    words = told.partition("go on with ")[2].split()
    assert run("stream", "replay", path, *MAX, *words, "--into-queue", data, "q").code == 0
    assert drain(data) == [b"%d" % number for number in range(2000)]


@pytest.mark.exhaustive
def test_a_reader_that_goes_away_ends_it(tmp_path):
    path = make("stream", tmp_path / "s", *(("k", 0) for _ in range(10_000)))
    read, write = os.pipe()
    with start("stream", "replay", path, *MAX, stdout=write, stderr=subprocess.DEVNULL) as process:
        os.close(write)
        os.close(read)
        assert process.wait() == 1


@pytest.mark.parametrize("text, expected", [("1", 1.0), ("0.5", 0.5), ("1e2", 100.0), ("max", None)])
def test_speeds_as_people_write_them(text, expected):
    assert replays.speed(text) == expected

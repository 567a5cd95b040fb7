# The spool noun: what a person types, and what comes of it.

from __future__ import annotations

import base64
import json
import os
import signal
import time
import types
from pathlib import Path
from typing import Any

import pytest
import trio

import diskq
from diskq import Queue
from diskq.cli import main
from diskq.cli.spool import status
from diskq.engine.queue.files import QueuePosition
from diskq.engine.spool.dead_letters import DeadLetter, DeadLetters
from diskq.engine.spool.files import SPOOL, SpoolFiles, SpoolState, SpoolStatus
from diskq.storage.barrier import Barrier
from diskq.storage.fs import OsFileSystem
from tests.cli.conftest import Terminal, drain, fill, frames, program, start, until
from tests.sampling import first

VERBS = [["status"], ["send"], ["run"], ["dead", "list"], ["dead", "replay"], ["dead", "purge"], ["info"]]
TIME = 1_372_932_000 * 10**9  # 2013-07-04T10:00:00Z


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A spool that no process has open, with a message."""
    directory = tmp_path / "spool"
    directory.mkdir()
    fill(directory, b"one", name=SPOOL)
    return directory


def letters(path: Path, *reasons: str) -> list[DeadLetter]:
    """Dead letters a-0, a-1, ... in the spool."""
    added = [
        DeadLetter(f"a-{number}", reason, TIME + number, number + 1, b"body %d" % number)
        for number, reason in enumerate(reasons)
    ]
    with DeadLetters(path) as found:
        found._add(added)
    return added


def left(path: Path) -> list[str]:
    with DeadLetters(path) as found:
        return [letter.id for letter in found.list()]


def say(path: Path, **status: Any) -> None:
    """What a spool that is at work says of itself."""
    state = SpoolState(is_open=True, tail=QueuePosition(0, 7), status=SpoolStatus(**status))
    Barrier(replacements=(SpoolFiles(str(path)).state_as(state),)).execute(OsFileSystem())


# --- in general -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], ["dead"], *VERBS], ids=" ".join)
def test_every_command_has_help_with_examples(run, command):
    done = run("spool", *command, "--help")
    assert done.code == 0
    assert b"examples:\n  diskq spool" in done.out


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_option_with_a_value_says_its_default(verb, capsys):
    with pytest.raises(SystemExit):
        main(["spool", *verb, "--help"])
    options = capsys.readouterr().out.partition("options:")[2].partition("examples:")[0]
    for option in options.split("\n  -")[1:]:
        head, text = option.split(" ", 1)
        takes_value = text.startswith(("N ", "SIZE", "DURATION", "{"))
        assert "(default: " in " ".join(text.split()) or not takes_value, f"-{head}"


@pytest.mark.parametrize(
    "command",
    [
        ["nonsense"],
        ["status"],
        ["status", "spool", "--interval", "1s"],
        ["dead", "list"],
        ["dead", "replay", "spool"],
        ["dead", "purge", "spool"],
        ["dead", "purge", "spool", "a-0", "--all"],
        ["dead", "purge", "spool", "--nonsense"],
        ["send", "spool", "hello", "--whole"],
        ["run", "spool"],
        ["run", "spool", "--exec", "true", "--backoff-max", "0s"],
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_2_and_says_how_it_is_used(run, path, monkeypatch, command):
    monkeypatch.chdir(path.parent)
    letters(path, "why")
    done = run("spool", *command)
    assert done.code == 2
    assert done.notes[0].startswith("usage: diskq")
    assert "error: " in done.notes[-1]
    assert left(path) == ["a-0"]


@pytest.mark.parametrize(
    "verb",
    [*VERBS[:2], *VERBS[3:4], ["info"], ["dead", "purge", "--all"], ["run", "--exec", "true"]],
    ids=" ".join,
)
@pytest.mark.parametrize("what", ["nothing", "other files"])
def test_where_no_spool_is_it_says_so_and_makes_none(run, tmp_path, verb, what):
    place = tmp_path / "place"
    if what == "other files":
        place.mkdir()
        fill(place, b"a message", name="events")
    before = sorted(os.listdir(place)) if place.exists() else None
    done = run("spool", *verb, place)
    assert (done.code, done.out) == (1, b"")
    assert "no such directory" in done.notes[-1] or "there is no spool here" in done.notes[-1]
    assert (sorted(os.listdir(place)) if place.exists() else None) == before


# --- sending --------------------------------------------------------------------------------------


def test_what_is_sent_is_delivered_by_the_next_that_has_the_spool(run, path):
    assert run("spool", "send", path, "two", "three").notes == ["diskq: 2 sent"]
    assert run("spool", "send", path, "--length-prefixed", stdin=frames(b"4\n", b"")).notes == [
        "diskq: 2 sent"
    ]
    taken: list[bytes] = []

    async def deliver(batch: diskq.Batch) -> None:
        taken.extend(batch)

    async def work() -> None:
        async with diskq.open_spool(path, deliver=deliver) as spool:
            await spool.drained()

    trio.run(work)
    assert taken == [b"one", b"two", b"three", b"4\n", b""]


def test_a_spool_is_made_where_it_is_wished(run, tmp_path):
    place = tmp_path / "far" / "away"
    done = run("spool", "send", place, "hello")
    assert (done.code, place.exists()) == (1, False)
    assert "--create" in done.notes[-1]
    assert run("spool", "send", place, "hello", "--create").code == 0
    assert run("spool", "send", place, "again", "--create").code == 0
    assert drain(place, SPOOL) == [b"hello", b"again"]


def test_a_spool_is_not_made_among_other_files(run, tmp_path):
    (tmp_path / "notes.txt").touch()
    done = run("spool", "send", tmp_path, "hello", "--create")
    assert done.code == 1
    assert "there is no spool here" in done.notes[-1]


def test_the_holder_is_named_and_how_to_wait(run, path):
    with Queue(path, SPOOL):
        done = run("spool", "send", path, "two", "--wait", "1ms")
    assert done.code == 1
    assert f"in use by process {os.getpid()}" in done.notes[-1]
    assert "--wait 30s" in done.notes[-1]


# --- its status -----------------------------------------------------------------------------------


def told(out: bytes) -> dict[str, str]:
    return {line[:14].strip(): line[14:] for line in out.decode().splitlines()}


def test_the_status_of_a_spool_that_no_process_has(run, path):
    letters(path, "why", "and why")
    facts = told(run("spool", "status", path).out)
    assert facts["waiting"] == "1 message (4.0 KiB)"
    assert facts["state"] == "not being delivered"
    assert facts["dead letters"] == "2"
    assert "rates" not in facts
    assert facts["last open in"].startswith(f"process {os.getpid()}")


def test_the_status_of_a_spool_at_work_is_what_it_says(run, path, monkeypatch):
    now = float(time.time_ns() // 10**9)
    monkeypatch.setattr(status, "time", types.SimpleNamespace(time=lambda: now))
    say(
        path,
        depth=12,
        bytes=3000,
        accepted_at=now - 125,
        delivered=7,
        failed_tries=5,
        dead_letters=3,
        failures=4,
        attempts=4,
        last_error="HTTP\x1b[31m 503",
        is_paused=True,
        next_try_at=now + 60,
        arrival_rate=123.4,
        delivery_rate=0.5,
    )
    with Queue(path, SPOOL):
        facts = told(run("spool", "status", path).out)
        found = json.loads(run("spool", "status", path, "--json").out)
    assert facts["waiting"] == "12 messages (2.9 KiB), the oldest for 2m5s"
    assert facts["state"] == "paused, next try in 1m"
    assert facts["attempts"] == "4 of its first batch"
    assert facts["last error"] == "HTTP\\x1b[31m 503"
    assert facts["rates"] == "123/s in, 0.5/s out"
    assert facts["dead letters"] == "3"
    assert facts["delivered"] == "7 since it was opened, after 5 failed tries"
    assert facts["open in"].startswith(f"process {os.getpid()}")
    assert (found["depth"], found["is_at_work"], found["is_paused"]) == (12, True, True)
    assert found["oldest_age"] == 125
    assert found["holder"]["pid"] == os.getpid()


@pytest.mark.parametrize(
    "status, state",
    [
        ({}, "idle"),
        ({"depth": 1}, "delivering"),
        ({"depth": 1, "failures": 2}, "trying again"),
        ({"depth": 1, "failures": 2, "next_try_at": 1.0}, "trying again now"),
        ({"is_paused": True}, "paused"),
    ],
)
def test_the_state_in_words(run, path, status, state):
    say(path, **status)
    with Queue(path, SPOOL):
        assert told(run("spool", "status", path).out)["state"] == state


def test_what_a_dead_process_said_does_not_count(run, path):
    say(path, depth=99, is_paused=True, arrival_rate=5.0, last_error="HTTP 503")
    facts = told(run("spool", "status", path).out)
    assert facts["waiting"].startswith("1 message ")
    assert facts["state"] == "not being delivered"
    assert facts["last error"] == "HTTP 503"


def test_a_process_that_sends_is_not_at_work_on_it(run, path):
    with Queue(path, SPOOL):
        assert told(run("spool", "status", path).out)["state"] == "in use by a process that does not deliver"


def snapshot(path: Path) -> dict[Path, tuple[bytes, int]]:
    files = [file for file in path.rglob("*") if file.is_file()]
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def test_looking_changes_nothing(run, path):
    letters(path, "why")
    say(path)
    before = snapshot(path)
    run("spool", "status", path)
    run("spool", "dead", "list", path)
    assert snapshot(path) == before


@pytest.mark.parametrize("is_json", first(1, [False, True]))
def test_following_it_in_a_pipe_is_a_line_each_time(path, is_json):
    options = ["--json"] if is_json else []
    with start("spool", "status", path, "--follow", "--interval", "50ms", *options, stdout=-1) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    for line in lines:
        if is_json:
            assert json.loads(line)["depth"] == 1
        else:
            assert line.partition(" ")[2] == "1 waiting (4.0 KiB), not being delivered\n"


def test_following_it_at_a_terminal_is_a_line_that_changes(path):
    letters(path, "why")
    with (
        Terminal() as terminal,
        start(
            "spool", "status", path, "--follow", "--interval", "50ms",
            stdout=terminal.outer, stderr=terminal.outer, stdin=terminal.outer,
        ) as process,
    ):  # fmt: skip
        assert "not being delivered, 1 dead" in terminal.read_until("1 dead")
        fill(path, b"two", name=SPOOL)
        terminal.read_until("2 waiting")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


# --- a command that delivers ----------------------------------------------------------------------


def delivering(path: Path, command: str, *options: object) -> list[object]:
    return ["spool", "run", path, "--exec", command, "--backoff-max", "10ms", *options]


def test_a_command_delivers_batches_in_order(path):
    fill(path, b"two", b"three", name=SPOOL)
    out = path.parent / "out"
    command = f'echo "$DISKQ_ATTEMPTS/$DISKQ_MESSAGES" >> {out}; cat >> {out}'
    done = program(*delivering(path, command, "--batch", 2, "--drain"))
    assert (done.code, done.notes) == (0, ["diskq: 3 delivered, 0 waiting"])
    assert out.read_text() == "1/2\none\ntwo\n1/1\nthree\n"
    assert drain(path, SPOOL) == []


def test_a_command_that_fails_is_tried_again_with_the_same_batch(path):
    out = path.parent / "out"
    # The first try is to be tried again, the second one fails, the third is through.
    command = f'cat >> {out}; case $DISKQ_ATTEMPTS in 1) exit 75;; 2) echo "no such host" >&2; exit 6;; esac'
    done = program(*delivering(path, command, "--drain"))
    assert done.code == 0
    assert out.read_bytes() == b"one\n" * 3
    assert any("exit code 6: no such host" in line for line in done.notes)
    assert done.notes[-1] == "diskq: 1 delivered, 0 waiting"


def test_what_a_command_refuses_is_given_up_where_that_is_wished(path):
    command = 'test $DISKQ_ATTEMPTS = 1 && exit 75; echo "HTTP 400" >&2; exit 22'
    done = program(*delivering(path, command, "--drain", "--on-failure", "give_up"))
    assert done.notes[-1] == "diskq: 0 delivered, 1 given up, 0 waiting"
    with DeadLetters(path) as found:
        assert [(letter.reason, letter.body) for letter in found.list()] == [
            ("exit code 22: HTTP 400", b"one")
        ]


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(path):
    out = path.parent / "out"
    # Only a later try gets to the end; of the first nothing goes on.
    # A slow machine may end that one, too: the next one begins its file again.
    command = f"test $DISKQ_ATTEMPTS = 1 && (sleep 120; echo late >> {out}); cat > {out}"
    began = time.monotonic()
    done = program(*delivering(path, command, "--drain", "--timeout", "200ms"))
    assert done.code == 0
    assert time.monotonic() - began < 100
    assert out.read_bytes() == b"one\n"


@pytest.mark.parametrize("how", first(1, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
def test_a_batch_stays_where_delivering_is_interrupted(path, how):
    out = path.parent / "out"
    with start(*delivering(path, f"echo begun >> {out}; sleep 60; echo late >> {out}")) as process:
        until(lambda: out.exists() and out.read_bytes() == b"begun\n")
        process.send_signal(how)
        assert process.wait() == 130
    assert drain(path, SPOOL) == [b"one"]
    assert out.read_bytes() == b"begun\n"


# --- dead letters ---------------------------------------------------------------------------------


def test_dead_letters_are_shown(run, path):
    letters(path, "HTTP 400", "too\nlong")
    first, second = run("spool", "dead", "list", path).out.decode().splitlines()[1:]
    assert first.split() == ["a-0", "2013-07-04T10:00:00Z", "1", "6", "B", "HTTP", "400", "body", "0"]
    assert "too\\nlong" in second


def test_dead_letters_for_programs(run, path):
    (_, letter) = letters(path, "HTTP 400", "HTTP 413")
    done = run("spool", "dead", "list", path, "--json", "a-1")
    assert json.loads(done.out) == {
        "id": "a-1",
        "reason": "HTTP 413",
        "timestamp": "2013-07-04T10:00:00.000000001Z",
        "attempts": 2,
        "size": 6,
        "body": base64.b64encode(letter.body).decode(),
    }


def test_dead_letters_are_shown_while_a_process_has_the_spool(run, path):
    letters(path, "why")
    with Queue(path, SPOOL), DeadLetters(path) as held:
        held._add([DeadLetter("b-0", "later", TIME + 9, 1, b"")])
        done = run("spool", "dead", "list", path, "--json")
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == ["a-0", "b-0"]


def test_no_dead_letters(run, path):
    for verb in (["list"], ["purge", "--all"], ["replay", "--all"]):
        done = run("spool", "dead", *verb, path)
        assert (done.code, done.out) == (0, b"")
    assert not list(path.glob("dead.*"))


def test_letters_are_replayed(run, path):
    letters(path, "a", "b", "c")
    done = run("spool", "dead", "replay", path, "a-2", "a-0")
    assert (done.code, done.out, done.notes) == (0, b"a-0\na-2\n", ["diskq: 2 replayed"])
    assert left(path) == ["a-1"]
    assert drain(path, SPOOL) == [b"one", b"body 0", b"body 2"]


def test_letters_are_purged(run, path):
    letters(path, "a", "b", "c")
    assert json.loads(run("spool", "dead", "purge", path, "--json", "a-1").out) == {"purged": ["a-1"]}
    done = run("spool", "dead", "purge", path, "--all")
    assert (done.code, done.out, done.notes) == (0, b"a-0\na-2\n", ["diskq: 2 purged"])
    assert left(path) == []
    assert drain(path, SPOOL) == [b"one"]


@pytest.mark.parametrize("verb", ["list", "replay", "purge"])
def test_an_id_that_is_not_there_is_reported_and_nothing_is_done(run, path, verb):
    letters(path, "a")
    done = run("spool", "dead", verb, path, "a-0", "a-7")
    assert (done.code, done.out) == (1, b"")
    assert "no dead letter a-7" in done.notes[-1]
    assert left(path) == ["a-0"]
    assert drain(path, SPOOL) == [b"one"]


@pytest.mark.parametrize("verb", first(1, ["replay", "purge"]))
def test_dead_letters_of_a_spool_in_use_are_left_alone_and_the_holder_is_named(path, verb):
    letters(path, "a")

    async def never(batch: diskq.Batch) -> None:
        await trio.sleep_forever()

    async def work() -> None:
        async with diskq.open_spool(path, deliver=never):
            command = ["spool", "dead", verb, path, "--all", "--wait", "1ms"]
            done = await trio.to_thread.run_sync(lambda: program(*command))
            assert done.code == 1
            assert f"in use by process {os.getpid()}" in done.notes[-1]

    trio.run(work)
    assert left(path) == ["a-0"]

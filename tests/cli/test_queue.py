# The queue noun: what a person types, and what comes of it.

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from diskq import Queue
from diskq.cli import main
from diskq.tools.view.queue import look
from tests.cli.conftest import Terminal, drain, fill, frames, program, start, until

VERBS = ["send", "receive", "peek", "info", "clear"]


# --- in general -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], ["queue"], *(["queue", verb] for verb in VERBS)])
def test_every_command_has_help_with_examples(run, command):
    done = run(*command, "--help")
    assert done.code == 0
    assert b"examples:\n  diskq queue" in done.out


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_with_a_value_says_its_default(verb, capsys):
    with pytest.raises(SystemExit):
        main(["queue", verb, "--help"])
    options = capsys.readouterr().out.partition("options:")[2].partition("examples:")[0]
    for option in options.split("\n  -")[1:]:
        head, text = option.split(" ", 1)
        takes_value = text.startswith(("N ", "SIZE", "DURATION", "{"))
        assert "(default: " in " ".join(text.split()) or not takes_value, f"-{head}"


@pytest.mark.parametrize("command", [[], ["queue"]])
def test_an_unfinished_command_shows_its_help(run, command):
    done = run(*command)
    assert done.code == 2
    assert b"examples:" in done.out


def test_the_version_is_the_packages(run):
    assert run("--version").out.startswith(b"diskq 0.")


@pytest.mark.parametrize(
    "command",
    [
        ["nonsense"],
        ["queue", "send", "data"],
        ["queue", "send", "data", "q", "--nonsense"],
        ["queue", "receive", "data", "q", "unasked"],
        ["queue", "receive", "data", "q", "-n", "0"],
        ["queue", "receive", "data", "q", "--linger", "1s"],
        ["queue", "receive", "data", "q", "--lines", "--base64"],
        ["queue", "send", "data", "q", "--max-bytes", "64"],
        ["queue", "send", "data", "q", "--max-bytes", "64megs"],
        ["queue", "send", "data", "q", "hello", "--whole"],
        ["queue", "clear", "data", "q"],
    ],
)
def test_what_makes_no_sense_is_2_and_says_how_it_is_used(run, data, monkeypatch, command):
    monkeypatch.chdir(data.parent)
    fill(data)
    done = run(*command)
    assert done.code == 2
    assert done.notes[0].startswith("usage: diskq")
    assert "error: " in done.notes[-1]


@pytest.mark.parametrize(
    "command, told",
    [
        (["send", "nowhere", "q", "x"], "nowhere: no such directory; make it, or let --create make it"),
        (["send", "file", "q", "x"], "file: not a directory; make it, or let --create make it"),
        (["receive", "nowhere", "q"], "nowhere: no such directory"),
        (["receive", "data", "mistyped"], "no queue 'mistyped' in data: there are q"),
        (["peek", "data", "mistyped"], "no queue 'mistyped' in data: there are q"),
        (["clear", "data", "mistyped", "--yes"], "no queue 'mistyped' in data: there are q"),
        (["info", "data", "mistyped"], "no queue 'mistyped' in data: there are q"),
        (["send", "data", "a/b", "x"], "queue name 'a/b': it may not contain '/' or '..' nor begin with '.'"),
        (
            ["send", "data", "q", "xyz", "--max-message-size", "2B"],
            "message of 3 bytes: allowed are 0 to 2 bytes; raise --max-message-size",
        ),
    ],
)
def test_what_cannot_be_done_is_1_and_one_line(run, data, monkeypatch, command, told):
    monkeypatch.chdir(data.parent)
    Path("file").touch()
    fill(data, b"one")
    done = run("queue", *command)
    assert done.code == 1
    assert done.notes[-1] == f"diskq: error: {told}"
    assert drain(data) == [b"one"]


def test_debug_shows_where_an_error_comes_from(run, data):
    assert "Traceback" in run("queue", "peek", data, "q", "--debug").notes[0]
    assert "Traceback" in run("--debug", "queue", "peek", data, "q").notes[0]


@pytest.mark.parametrize("verb", ["send", "receive", "clear"])
def test_a_queue_that_another_process_has_is_named_with_its_holder(run, data, verb):
    with Queue(data, "q"):
        extra = {"send": ["x"], "clear": ["--yes"]}.get(verb, [])
        done = run("queue", verb, data, "q", *extra, "--wait", "0s")
    assert done.code == 1
    assert f"is in use by process {os.getpid()} on " in done.notes[-1]
    assert done.notes[-1].endswith("; or wait for it: --wait 30s")


def test_a_queue_that_another_process_has_is_waited_for(run, data):
    queue = Queue(data, "q")
    queue.put(b"one")
    soon = threading.Timer(0.05, queue.close)
    soon.start()
    try:
        assert run("queue", "receive", data, "q", "--wait", "30s").out == b"one\n"
    finally:
        soon.join()


def test_what_was_repaired_is_reported(run, data):
    fill(data, b"one")
    with (data / "q.diskqueue.000000.dat").open("ab") as file:
        file.write(b"\0\0\0\7torn")
    done = run("queue", "receive", data, "q")
    assert done.out == b"one\n"
    assert done.notes[0].startswith("diskq: warning: ")
    assert "8 bytes from 7 dropped" in done.notes[0]


# --- send -----------------------------------------------------------------------------------------


def test_arguments_are_messages_byte_for_byte(run, data):
    done = run("queue", "send", data, "q", "one", os.fsdecode(b"\xff two"), "")
    assert (done.code, done.notes) == (0, ["diskq: 3 sent"])
    assert drain(data) == [b"one", b"\xff two", b""]


def test_messages_may_stand_behind_options(run, data):
    assert run("queue", "send", data, "q", "--durability", "synced", "one", "--", "--two").code == 0
    assert drain(data) == [b"one", b"--two"]


def test_lines_of_stdin_are_messages(run, data):
    assert run("queue", "send", data, "q", stdin=b"one\n\ntwo\r\nthree").notes == ["diskq: 4 sent"]
    assert drain(data) == [b"one", b"", b"two\r", b"three"]


def test_nothing_on_stdin_is_nothing_to_send(run, data):
    assert run("queue", "send", data, "q").notes == ["diskq: 0 sent"]


def test_stdin_may_be_length_prefixed(run, data):
    run("queue", "send", data, "q", "--length-prefixed", stdin=frames(b"a\nb", b"", b"\0"))
    assert drain(data) == [b"a\nb", b"", b"\0"]


def test_stdin_may_be_one_message(run, data):
    run("queue", "send", data, "q", "--whole", stdin=b"a\nb\n")
    assert drain(data) == [b"a\nb\n"]


@pytest.mark.parametrize("word", ["memory", "written", "synced"])
def test_every_durability_and_batch_keeps_the_order(run, data, word):
    lines = [b"%d" % number for number in range(100)]
    run("queue", "send", data, "q", "--durability", word, "--batch", 7, stdin=b"\n".join(lines))
    assert drain(data) == lines


def test_create_makes_the_directory_and_those_above_it(run, tmp_path):
    assert run("queue", "send", tmp_path / "a" / "b", "q", "one", "--create").code == 0
    assert drain(tmp_path / "a" / "b") == [b"one"]


def test_what_was_sent_before_an_error_is_reported(run, data):
    done = run("queue", "send", data, "q", "--length-prefixed", stdin=frames(b"one", b"two") + b"\0\0\0\5cut")
    assert done.code == 1
    assert done.notes[0] == "diskq: 2 sent"
    assert "the input ends 7 bytes into a message" in done.notes[1]
    assert drain(data) == [b"one", b"two"]


def test_a_full_queue_refuses_and_says_what_to_do(run, data):
    done = run("queue", "send", data, "q", "--max-bytes", "64KiB", stdin=b"x" * 100_000 + b"\n" + b"y")
    assert done.code == 1
    assert done.notes[-1].endswith("; receive or clear it, free space, or raise --max-bytes")


def test_a_full_queue_may_drop_its_oldest(run, data):
    lines = [b"%05d" % number for number in range(20_000)]
    done = run(
        "queue",
        "send",
        data,
        "q",
        "--max-bytes",
        "64KiB",
        "--on-full",
        "drop_oldest",
        stdin=b"\n".join(lines),
    )
    assert done.notes == ["diskq: 20000 sent"]
    left = drain(data)
    assert 0 < len(left) < 10_000
    assert left == lines[-len(left) :]


def test_files_roll_at_the_size_that_is_given(run, data):
    run("queue", "send", data, "q", "--segment-size", "50B", *["x" * 20] * 4)
    assert len(list(data.glob("q.diskqueue.00000*.dat"))) == 2


# --- receive --------------------------------------------------------------------------------------


def test_receive_drains_and_stops(run, data):
    fill(data, b"one", b"two")
    done = run("queue", "receive", data, "q")
    assert (done.code, done.out, done.notes) == (0, b"one\ntwo\n", ["diskq: 2 received"])
    assert drain(data) == []


def test_receive_of_an_empty_queue_is_no_error(run, data):
    fill(data)
    assert run("queue", "receive", data, "q").code == 0


def test_n_bounds_what_is_received(run, data):
    bodies = [b"%d" % number for number in range(1200)]
    fill(data, *bodies)
    assert run("queue", "receive", data, "q", "-n", 1100).out.split() == bodies[:1100]
    assert drain(data) == bodies[1100:]


def test_what_send_takes_receive_gives(run, data):
    stream = frames(b"a\nb", b"", b"c" * 3000)
    run("queue", "send", data, "q", "--length-prefixed", stdin=stream)
    assert run("queue", "receive", data, "q", "--length-prefixed").out == stream


def test_base64_is_one_line_a_message(run, data):
    fill(data, b"a\nb", b"")
    lines = run("queue", "receive", data, "q", "--base64").out.split(b"\n")
    assert [base64.b64decode(line) for line in lines] == [b"a\nb", b"", b""]


def test_newlines_in_lines_are_warned_of_once(run, data):
    fill(data, *[b"a\nb"] * 1000)
    done = run("queue", "receive", data, "q")
    assert done.out == b"a\nb\n" * 1000
    assert [note for note in done.notes if "warning" in note] == [
        "diskq: warning: a message with newlines looks like several: see --base64, --length-prefixed"
    ]


def test_lost_messages_are_not_waited_for(run, data):
    fill(data, b"x" * 100)
    with (data / "q.diskqueue.000000.dat").open("r+b") as file:
        file.seek(50)
        file.write(b"y")
    done = run("queue", "receive", data, "q")
    assert (done.code, done.out) == (0, b"")
    assert done.notes[0].startswith("diskq: warning: ")


# --- peek, info, clear ----------------------------------------------------------------------------


def test_peek_shows_the_first_and_they_stay(run, data):
    bodies = [b"%d" % number for number in range(20)]
    fill(data, *bodies)
    assert run("queue", "peek", data, "q").out.split() == bodies[:10]
    assert run("queue", "peek", data, "q", "-n", 15).out.split() == bodies[:15]
    assert drain(data) == bodies


def test_peek_of_an_empty_queue_shows_nothing(run, data):
    fill(data)
    assert run("queue", "peek", data, "q").out == b""


def test_peek_shows_what_is_in_a_queue_that_another_process_has(run, data):
    with Queue(data, "q") as queue:
        queue.put_many([b"one", b"two", b"three"])
        queue.get()
        queue.sync()
        assert run("queue", "peek", data, "q").out == b"two\nthree\n"
        assert queue.get() == b"two"


def test_peek_reports_what_cannot_be_read(run, data):
    fill(data, b"x" * 5000, b"y" * 5000)
    with (data / "q.diskqueue.000000.dat").open("r+b") as file:
        file.seek(50)
        file.write(b"y")
    done = run("queue", "peek", data, "q")
    assert (done.code, done.out) == (0, b"y" * 5000 + b"\n")
    assert "checksum mismatch" in done.notes[0]


def test_peek_of_a_long_queue_does_not_read_all_of_it(run, data):
    fill(data, *[b"x" * 1_000_000] * 12)
    with (data / "q.diskqueue.000000.dat").open("r+b") as file:
        file.seek(11_000_000)
        file.write(b"y")
    done = run("queue", "peek", data, "q", "-n", 2)
    assert (len(done.out), done.notes) == (2_000_002, [])


def test_info_lists_the_queues_in_plain_lines(run, data):
    fill(data, b"one", name="first")
    fill(data, name="second")
    header, first, second = run("queue", "info", data).out.decode().splitlines()
    assert header.split() == [
        "queue",
        "messages",
        "bytes",
        "files",
        "read",
        "at",
        "write",
        "at",
        "open",
        "in",
    ]
    assert first.split() == ["first", "1", "4.0", "KiB", "1", "0:0", "0:7", "-"]
    assert second.split() == ["second", "0", "0", "B", "0", "0:0", "0:0", "-"]


def test_info_of_one_queue_is_a_fact_a_line(run, data):
    fill(data, b"one")
    os.truncate(data / "q.diskqueue.000000.dat", 5)
    facts = dict(line.split("  ", 1) for line in run("queue", "info", data, "q").out.decode().splitlines())
    assert facts["queue"].strip() == "q"
    assert facts["to repair"].strip() == "byte 7 of file 0 is recorded as written, but it ends at 5"


def test_info_for_programs_is_json(run, data):
    with Queue(data, "q") as queue:
        queue.put(b"one")
        queue.sync()
        found = json.loads(run("queue", "info", data, "q", "--json").out)
    assert found["depth"] == 1
    assert found["read"] == {"file": 0, "byte": 0}
    assert found["write"] == {"file": 0, "byte": 7}
    assert found["is_open"] is True
    assert found["holder"]["pid"] == os.getpid()
    assert [view["name"] for view in json.loads(run("queue", "info", data, "--json").out)] == ["q"]


def test_info_of_a_directory_without_queues_says_so(run, data):
    done = run("queue", "info", data)
    assert (done.code, done.notes) == (0, [f"diskq: no queues in {data}"])


def test_empty_removes_all(run, data):
    fill(data, b"one", b"two")
    assert run("queue", "clear", data, "q", "--yes").notes == ["diskq: 2 removed"]
    assert drain(data) == []


# --- as a process: pipes, signals, disks ----------------------------------------------------------


def test_a_pipe_in_and_a_pipe_out(tmp_path):
    lines = b"".join(b"%d\n" % number for number in range(100_000))
    sent = program("queue", "send", tmp_path / "data", "q", "--create", input=lines)
    assert sent.notes == ["diskq: 100000 sent"]
    assert program("queue", "receive", tmp_path / "data", "q").out == lines


def test_a_closed_pipe_loses_nothing(data):
    bodies = [b"%d" % number for number in range(1000)]
    fill(data, *bodies)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = program("queue", "receive", data, "q", stdout=writer)
    finally:
        os.close(writer)
    assert done.code == 1
    assert done.notes == [
        "diskq: the reader of stdout has ended: what was not written stays in the queue",
        "diskq: 0 received",
    ]
    assert drain(data) == bodies


def test_a_full_disk_behind_stdout_loses_nothing(data):
    fill(data, b"one")
    with open("/dev/full", "wb") as full:
        done = program("queue", "receive", data, "q", stdout=full)
    assert done.code == 1
    assert done.notes[-1] == "diskq: error: stdout: No space left on device"
    assert drain(data) == [b"one"]


def test_a_reader_of_info_that_went_away_gets_no_traceback(data):
    fill(data)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = program("queue", "info", data, stdout=writer)
    finally:
        os.close(writer)
    assert (done.code, done.notes) == (1, [])


def test_follow_lets_others_send_until_it_is_interrupted(data):
    with start("queue", "receive", data, "q", "--follow", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for body in (b"one", b"two"):
            assert program("queue", "send", data, "q", "--wait", "30s", body.decode()).code == 0
            assert process.stdout.readline() == body + b"\n"
        # Interrupted before it has let go of the queue, it would leave what it wrote last to be read again.
        until(lambda: not (look(str(data), "q").has_messages or look(str(data), "q").is_open))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err.decode().splitlines() == ["diskq: 2 received"]
    assert drain(data) == []


def test_an_interrupted_send_keeps_what_came_so_far(data):
    with start("queue", "send", data, "q", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntw")
        process.stdin.flush()
        file = data / "q.diskqueue.000000.dat"
        until(lambda: file.exists() and file.stat().st_size > 0)
        process.send_signal(signal.SIGINT)
        # Its stdin is still open: it must not wait for more.
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read().decode().splitlines() == ["diskq: 1 sent"]
    assert drain(data) == [b"one"]


# --- at a terminal --------------------------------------------------------------------------------


@pytest.mark.parametrize("command, last", [(["info"], "0:19"), (["peek", "q"], "\\x1b[31mred")])
def test_a_terminal_shows_tables(data, command, last):
    verb, *name = command
    fill(data, b"one", b"\x1b[31mred")
    with Terminal() as terminal:
        assert program("queue", verb, data, *name, stdout=terminal.outer).code == 0
        assert "───" in terminal.read_until(last)


def test_a_message_does_not_command_a_terminal(data):
    fill(data, b"\x1b[31mred")
    with Terminal() as terminal:
        program("queue", "receive", data, "q", stdout=terminal.outer)
        assert terminal.read_until("red").strip() == "\\x1b[31mred"


def test_a_terminal_shows_progress(data):
    with (
        Terminal() as terminal,
        start("queue", "send", data, "q", stdin=subprocess.PIPE, stderr=terminal.outer) as process,
    ):
        terminal.read_until("sending")
        process.communicate(b"one\n")
        terminal.read_until("1 sent")


@pytest.mark.parametrize("answer, code, left", [("y\n", 0, []), ("\n", 1, [b"one"])])
def test_emptying_asks_first(data, answer, code, left):
    fill(data, b"one")
    with (
        Terminal() as terminal,
        start("queue", "clear", data, "q", stdin=terminal.outer, stderr=terminal.outer) as process,
    ):
        terminal.read_until("Remove all messages (1) of queue 'q'? [y/N] ")
        terminal.type(answer)
        process.communicate()
    assert process.returncode == code
    assert drain(data) == left


def test_without_rich_a_terminal_gets_plain_lines(data):
    fill(data, b"one")
    without_rich = "import sys; sys.modules['rich'] = None; from diskq.cli import main; sys.exit(main())"
    with Terminal() as terminal:
        command = [sys.executable, "-c", without_rich, "queue", "peek", str(data), "q"]
        subprocess.run(command, stdout=terminal.outer, check=True)
        assert terminal.read_until("one").split() == ["#", "size", "message", "1", "3", "B", "one"]

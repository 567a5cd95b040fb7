# Reading a stream without an event loop. Law: each message is handed to one caller, in the order of its
# partition, a waiting call misses none, and a group's members share the partitions.

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import diskq
from diskq.errors import NotFoundError, OffsetOutOfRangeError
from diskq.testing import CrashFS
from tests.engine import streams

ROOT = streams.ROOT
SOON = 0.05
LONG = 20.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


def in_memory(count: int = 0, partitions: int = 1) -> tuple[CrashFS, diskq.Stream]:
    fs = CrashFS()
    stream = diskq.Stream(ROOT, fs=fs, partition_count=partitions)
    stream.append_many(streams.items(streams.triples(count)))
    return fs, stream


def values(messages: list[diskq.Message]) -> list[bytes]:
    return [message.value for message in messages]


def expected(count: int) -> list[bytes]:
    return [value for _, _, value in streams.triples(count)]


# --- reading ----------------------------------------------------------------------------------


def test_all_messages_of_a_partition_come_in_order() -> None:
    fs, stream = in_memory(1000)
    with stream, diskq.StreamReader(ROOT, end="close", fs=fs) as reader:
        assert [message.value for message in reader] == expected(1000)
        assert reader.has_ended


def test_partitions_take_turns() -> None:
    fs, stream = in_memory(3000, partitions=3)
    with stream, diskq.StreamReader(ROOT, end="close", fs=fs) as reader:
        found = list(reader)
    assert sorted(values(found)) == sorted(expected(3000))
    turns = [message.partition for message in found[:1000]]
    assert len(set(turns)) > 1
    for partition in range(3):
        offsets = [message.offset for message in found if message.partition == partition]
        assert offsets == sorted(offsets)


def test_many_messages_in_one_call_are_bounded_by_number_and_bytes() -> None:
    fs, stream = in_memory(100)
    with stream, diskq.StreamReader(ROOT, end="close", fs=fs) as reader:
        assert values(reader.read_many(30)) == expected(100)[:30]
        assert len(reader.read_many(30, max_bytes=100)) == 2
        assert len(reader.read_many(30, max_bytes=1)) == 1
        assert len(reader.read_many(1000)) == 67
        assert reader.read_many(1000) == []


def test_a_read_that_may_not_wait_returns_none_where_there_is_nothing() -> None:
    fs, stream = in_memory()
    with stream, diskq.StreamReader(ROOT, fs=fs) as reader:
        assert reader.read(0) is None
        stream.append(b"x")
        assert values(reader.read_many(2, timeout=0)) == [b"x"]


def test_a_read_waits_no_longer_than_its_timeout() -> None:
    fs, stream = in_memory()
    with stream, diskq.StreamReader(ROOT, fs=fs) as reader:
        began = time.monotonic()
        assert reader.read(SOON) is None
        assert time.monotonic() - began >= SOON


def test_the_last_offset_to_read_ends_it() -> None:
    fs, stream = in_memory(10)
    with stream, diskq.StreamReader(ROOT, [0], end=3, fs=fs) as reader:
        assert values(list(reader)) == expected(10)[:4]


def test_it_begins_at_its_start() -> None:
    fs, stream = in_memory(10)
    with stream, diskq.StreamReader(ROOT, start={0: 7}, end="close", fs=fs) as reader:
        assert reader.position == {0: 7}
        assert reader.lag() == {0: 3}
        reader.seek("newest")
        assert values(list(reader)) == expected(10)[9:]


def test_a_position_that_does_not_exist_is_refused() -> None:
    fs, stream = in_memory(10)
    with stream:
        with pytest.raises(OffsetOutOfRangeError):
            diskq.StreamReader(ROOT, start=11, fs=fs)
        with pytest.raises(NotFoundError):
            diskq.StreamReader("/elsewhere", fs=fs)
        with diskq.StreamReader(ROOT, [0], fs=fs) as reader:
            with pytest.raises(ValueError, match="partition 7 is not read"):
                reader.seek("oldest", partition=7)
            with pytest.raises(ValueError, match="max_messages"):
                reader.read_many(0)


def test_a_closed_reader_refuses_calls() -> None:
    fs, stream = in_memory(1)
    with stream:
        reader = diskq.StreamReader(ROOT, fs=fs)
        assert repr(reader) == "<StreamReader '/s': partitions 0, open>"
        reader.close()
        reader.close()
        assert repr(reader).endswith("closed>")
        with pytest.raises(ValueError, match="is closed"):
            reader.read(0)


# --- waiting ----------------------------------------------------------------------------------


def test_a_waiting_read_returns_what_another_process_writes(path: str) -> None:
    diskq.Stream(path, partition_count=2).close()
    with diskq.StreamReader(path) as reader:
        assert reader.read(0) is None
        program = f"import time, diskq; time.sleep(0.2); diskq.Stream({path!r}).append(b'news', b'k')"
        with subprocess.Popen([sys.executable, "-W", "ignore", "-c", program]):
            message = reader.read(LONG)
        assert message is not None
        assert message.value == b"news"


def test_partitions_that_are_made_later_are_read(path: str) -> None:
    with diskq.Stream(path, partition_count=1) as stream:
        stream.append(b"1")
    with diskq.StreamReader(path) as reader:
        assert values(reader.read_many(9)) == [b"1"]
        timer = threading.Timer(SOON, _widen, (path,))
        timer.start()
        found = {m.value for m in (reader.read(LONG) for _ in range(20)) if m is not None}
    timer.join()
    assert found == {b"%d" % number for number in range(20)}


def _widen(path: str) -> None:
    with diskq.Stream(path, partition_count=4) as stream:
        stream.append_many([(b"key-%d" % number, b"%d" % number) for number in range(20)])


@pytest.mark.parametrize("fs", [None, CrashFS()], ids=["watched", "polled"])
def test_threads_that_wait_are_handed_each_message_once(fs: CrashFS | None, path: str) -> None:
    found: list[bytes] = []
    stream = diskq.Stream(path, fs=fs, partition_count=3)
    reader = diskq.StreamReader(path, fs=fs)

    def work() -> None:
        with contextlib.suppress(ValueError):  # it is closed
            while (message := reader.read(LONG)) is not None:
                found.append(message.value)

    with stream:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(300):
            stream.append(b"%d" % number)
            if number % 50 == 0:
                time.sleep(0.01)
        end = time.monotonic() + LONG
        while len(found) < 300 and time.monotonic() < end:
            time.sleep(0.001)
        reader.close()
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
    assert Counter(found) == Counter(b"%d" % number for number in range(300))


def test_a_seek_serves_a_thread_that_waits(path: str) -> None:
    found: list[diskq.Message | None] = []
    with diskq.Stream(path, partition_count=1) as stream, diskq.StreamReader(path) as reader:
        stream.append(b"x")
        assert reader.read() is not None
        thread = threading.Thread(target=lambda: found.append(reader.read(LONG)))
        thread.start()
        time.sleep(SOON)
        reader.seek("oldest")
        thread.join(LONG)
    assert [message.value for message in found if message is not None] == [b"x"]


# --- groups -----------------------------------------------------------------------------------


def test_a_group_continues_after_what_was_committed() -> None:
    fs, stream = in_memory(10)
    with stream:
        with diskq.StreamReader(ROOT, group="g", end="close", fs=fs) as reader:
            messages = reader.read_many(6)
            reader.commit(messages[3])
            assert reader.committed == {0: 3}
        with diskq.StreamReader(ROOT, group="g", end="close", fs=fs) as reader:
            assert values(list(reader)) == expected(10)[4:]
            reader.commit()
            reader.sync()
        with diskq.StreamReader(ROOT, group="g", end="close", fs=fs) as reader:
            assert list(reader) == []


def test_with_autocommit_the_next_read_commits_the_last_one() -> None:
    fs, stream = in_memory(10)
    with stream:
        with diskq.StreamReader(ROOT, group="g", autocommit=True, end="close", fs=fs) as reader:
            for number, message in enumerate(reader):
                assert reader.committed == {0: number - 1 if number else None}
                if message.offset == 4:
                    break
            with pytest.raises(ZeroDivisionError), reader:
                1 / 0  # noqa: B018
        with diskq.StreamReader(ROOT, group="g", end="close", fs=fs) as reader:
            assert reader.position == {0: 4}


def test_the_end_of_the_block_commits_what_was_read_with_autocommit() -> None:
    fs, stream = in_memory(10)
    with stream:
        with diskq.StreamReader(ROOT, group="g", autocommit=True, fs=fs) as reader:
            reader.read_many(3)
        with diskq.StreamReader(ROOT, group="g", fs=fs) as reader:
            assert reader.position == {0: 3}


def test_a_commit_needs_a_group_and_a_claimed_partition() -> None:
    fs, stream = in_memory(10, partitions=2)
    with stream, diskq.StreamReader(ROOT, fs=fs) as reader:
        message = reader.read()
        assert message is not None
        with pytest.raises(ValueError, match="in no group"):
            reader.commit(message)
        with pytest.raises(ValueError, match="in no group"):
            reader.sync()
        with pytest.raises(ValueError, match="autocommit is for a group"):
            diskq.StreamReader(ROOT, autocommit=True, fs=fs)
        with diskq.StreamReader(ROOT, [1], group="g", fs=fs) as one:
            with pytest.raises(ValueError, match="not one that this member"):
                one.commit(diskq.Position(0, 0))
            with pytest.raises(TypeError, match="messages that were read"):
                one.commit(b"message")  # type: ignore[arg-type]


def test_a_member_takes_over_what_another_one_gives_back(path: str) -> None:
    with diskq.Stream(path, partition_count=2) as stream:
        first = diskq.StreamReader(path, group="g", claim_interval=SOON)
        with diskq.StreamReader(path, group="g", claim_interval=SOON) as second:
            assert (first.partitions, second.partitions) == ((0, 1), ())
            stream.append(b"x", b"key")
            assert second.read(0) is None
            timer = threading.Timer(2 * SOON, first.close)
            timer.start()
            message = second.read(LONG)
            timer.join()
            assert message is not None
            assert second.partitions == (0, 1)


MEMBER = """
import sys, diskq
with diskq.StreamReader(sys.argv[1], group="g", claim_interval=0.1) as reader:
    print("reads", flush=True)
    for message in reader:
        print(message.value.decode(), flush=True)
        reader.commit(message)
        reader.sync()
        print("committed", flush=True)
"""


@pytest.mark.slow
def test_a_killed_member_is_replaced_and_what_it_committed_is_not_repeated(path: str) -> None:
    with diskq.Stream(path, partition_count=1) as stream:
        member = subprocess.Popen([sys.executable, "-c", MEMBER, path], stdout=subprocess.PIPE, text=True)
        assert member.stdout is not None
        assert member.stdout.readline() == "reads\n"
        stream.append_many([b"1", b"2"])
        assert [member.stdout.readline() for _ in range(4)] == ["1\n", "committed\n", "2\n", "committed\n"]
        with diskq.StreamReader(path, group="g", claim_interval=0.1) as other:
            stream.append(b"3")
            assert [member.stdout.readline() for _ in range(2)] == ["3\n", "committed\n"]
            member.send_signal(signal.SIGKILL)
            member.wait()
            stream.append(b"4")
            message = other.read(LONG)
            assert message is not None
            assert message.value == b"4"
        member.stdout.close()


# --- forks ------------------------------------------------------------------------------------


def _use(reader: diskq.StreamReader, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        reader.read(0)
    except diskq.ForkedError as error:
        answers.put(str(error))


def test_a_child_of_a_fork_is_refused(path: str) -> None:
    with diskq.Stream(path, partition_count=1) as stream:
        stream.append(b"x")
        with diskq.StreamReader(path, group="g") as reader:
            context = multiprocessing.get_context("fork")
            answers: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
            child = context.Process(target=_use, args=(reader, answers))
            child.start()
            assert path in answers.get()
            child.join()
            message = reader.read(0)
            assert message is not None

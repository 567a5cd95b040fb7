# The FIFO queue on a sound disk. Law: what is handed out has left the queue, what is peeked at has not; and
# the files are those that go-diskqueue would have made by the same calls.

from __future__ import annotations

import errno
import os
import random
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskq.engine.queue.fifo_queue import Queue
from diskq.errors import FullError, LockedError, MessageSizeError, NotFoundError, QueueNameError
from diskq.options import QueueOptions
from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.testing import CrashFS, FaultFS
from tests.engine.queues import (
    LOCK,
    ROOT,
    STATE,
    WAL,
    bodies,
    body,
    contents,
    data,
    disk,
    drained,
    failing_disk,
    flip,
    listed,
    meta,
    opened,
    records,
    size,
    taken,
)
from tests.reference import nsq_oracle
from tests.sampling import examples


def told(fs: CrashFS) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """What the metadata says: depth, read position, write position."""
    depth, read, write, _ = fs.read(meta()).split(b"\n", 3)
    (a, b), (c, d) = read.split(b","), write.split(b",")
    return int(depth), (int(a), int(b)), (int(c), int(d))


# --- putting and taking -----------------------------------------------------------------------


def test_a_message_comes_out_as_it_went_in():
    """TestDiskQueue: a new queue is empty, a put makes it one deep, reading returns the same bytes."""
    with opened(disk()) as queue:
        assert queue.depth == 0
        queue.put(b"test")
        assert queue.depth == 1
        assert queue.get() == b"test"
        assert queue.depth == 0


def test_messages_come_out_in_the_order_in_which_they_went_in():
    with opened(disk(), segment_size=1000) as queue:
        queue.put_many(bodies(50))
        for number in range(50, 60):
            queue.put(body(number))
        assert drained(queue) == bodies(60)


def test_an_empty_queue_gives_nothing_and_stays_usable():
    with opened(disk()) as queue:
        assert taken(queue) is None
        assert queue.peek() is None
        assert queue.get_many(10) == []
        queue.put(b"")
        assert queue.get() == b""


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_are_a_message_and_bytes_come_out(kind):
    with opened(disk()) as queue:
        queue.put(kind(b"one"))
        queue.put_many([kind(b"two")])
        some = drained(queue)
        assert some == [b"one", b"two"]
        assert [type(one) for one in some] == [bytes, bytes]


def test_what_changes_after_it_was_put_was_copied_before():
    with opened(disk()) as queue:
        body = bytearray(b"before")
        queue.put(body, durability="memory")
        queue.put_many([body], durability="memory")
        body[:] = b"after!"
        assert drained(queue) == [b"before", b"before"]


def test_put_many_returns_how_many_and_takes_any_iterable():
    with opened(disk()) as queue:
        queue.put_many(body(number) for number in range(7))
        queue.put_many([])
        assert queue.depth == 7


@pytest.mark.parametrize("wrong", ["text", 7, None, ["list"]])
def test_what_is_not_bytes_is_refused_before_anything_is_written(wrong):
    fs = disk()
    with opened(fs) as queue:
        with pytest.raises(TypeError, match="a message is bytes, not"):
            queue.put(wrong)
        with pytest.raises(TypeError, match="a message is bytes, not"):
            queue.put_many([b"good", wrong])
        assert (queue.depth, queue.statistics().accepted) == (0, 0)
    assert not [name for name in listed(fs) if name.endswith("0.dat")]


def test_text_is_refused_with_a_hint():
    with opened(disk()) as queue, pytest.raises(TypeError, match="encode it first"):
        queue.put("text")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [b"", b"12", b"x" * 11])
def test_a_message_of_the_wrong_size_is_refused_before_anything_is_written(wrong):
    with opened(disk(), min_message_size=3, max_message_size=10) as queue:
        for put in (lambda: queue.put(wrong), lambda: queue.put_many([b"good", wrong])):
            with pytest.raises(MessageSizeError) as refused:
                put()
            assert (refused.value.size, refused.value.minimum, refused.value.maximum) == (len(wrong), 3, 10)
        assert queue.depth == 0
        queue.put(b"123")
        queue.put(b"1234567890")
        assert queue.depth == 2


# --- how many at once ---------------------------------------------------------------------------


@pytest.fixture
def ten():
    """A queue of ten messages of ten bytes, over three files."""
    with opened(disk(), segment_size=60) as queue:
        queue.put_many(bodies(10, 10))
        assert queue.statistics().files == 3
        yield queue


def test_get_many_returns_up_to_max_items(ten):
    assert ten.get_many(6) == bodies(6, 10)
    assert ten.get_many(6) == bodies(4, 10, start=6)
    assert ten.get_many(6) == []


def test_get_many_returns_up_to_max_bytes(ten):
    assert ten.get_many(10, max_bytes=69) == bodies(6, 10)
    assert ten.get_many(10, max_bytes=40) == bodies(4, 10, start=6)


def test_one_is_taken_however_large_it_is(ten):
    assert ten.get_many(10, max_bytes=1) == bodies(1, 10)
    assert ten.get_many(10, max_bytes=0) in ([], bodies(1, 10, start=1))


def test_none_wanted_is_none_taken(ten):
    assert ten.get_many(0) == []
    assert ten.peek_many(0) == []
    assert ten.depth == 10


# --- peeking ------------------------------------------------------------------------------------


def test_peeking_shows_the_message_that_is_taken_next():
    """TestDiskQueuePeek/roll: peek = message, depth unchanged; read = message, depth one less."""
    sent = bodies(10, 10)
    with opened(disk(), segment_size=10 * 14 - 1) as queue:
        queue.put_many(sent)
        for number, expected in enumerate(sent):
            assert queue.peek() == expected
            assert queue.depth == 10 - number
            assert queue.get() == expected
            assert queue.depth == 9 - number
        queue.clear()


def test_peeking_twice_shows_the_same_message():
    """TestDiskQueuePeek/peek-read: peeking twice gives the same message; read then advances."""
    with opened(disk()) as queue:
        queue.put_many([b"one", b"two"])
        assert [queue.peek(), queue.peek(), queue.get(), queue.peek()] == [b"one", b"one", b"one", b"two"]


def test_after_a_take_peeking_shows_the_next():
    """TestDiskQueuePeek/read-peek: after a read, peek shows the next message and leaves depth."""
    with opened(disk()) as queue:
        queue.put_many([b"one", b"two", b"three"])
        queue.get()
        assert queue.peek() == b"two"
        assert queue.depth == 2


def test_advance_removes_what_was_peeked_at(ten):
    assert ten.peek_many(8) == bodies(8, 10)
    ten.advance(5)
    assert ten.depth == 5
    assert ten.peek_many(100) == bodies(5, 10, start=5)
    ten.advance(0)
    ten.advance(5)
    assert ten.peek_many(100) == []


def test_advance_goes_no_further_than_was_peeked(ten):
    ten.peek_many(3)
    for count in (4, -1, 4):
        with pytest.raises(ValueError, match=f"cannot advance over {count} messages: 3 were peeked at"):
            ten.advance(count)
    ten.advance(3)
    with pytest.raises(ValueError, match="0 were peeked at"):
        ten.advance(1)
    assert drained(ten) == bodies(7, 10, start=3)


def test_taking_begins_with_what_was_peeked_at(ten):
    ten.peek_many(4)
    assert ten.get() == body(0, 10)
    assert ten.get_many(6) == bodies(6, 10, start=1)
    assert drained(ten) == bodies(3, 10, start=7)


def test_what_was_peeked_at_is_there_when_the_queue_is_opened_again():
    fs = disk()
    with opened(fs, segment_size=60) as queue:
        queue.put_many(bodies(10, 10))
        queue.peek_many(8)
        queue.advance(3)
    assert told(fs) == (7, (0, 42), (2, 28))
    assert contents(fs) == bodies(7, 10, start=3)


def test_messages_that_come_after_a_peek_come_after_what_was_peeked_at(ten):
    ten.peek_many(2)
    ten.put(b"later")
    assert ten.peek_many(100) == [*bodies(10, 10), b"later"]


# --- against a list -------------------------------------------------------------------------------

acts = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 200)),
        st.tuples(st.just("put_many"), st.lists(st.integers(0, 200), max_size=12)),
        st.tuples(st.just("memory"), st.integers(0, 200)),
        st.tuples(st.just("take"), st.just(0)),
        st.tuples(st.sampled_from(["take_many", "peek_many", "advance"]), st.integers(0, 9)),
        st.tuples(st.just("take_bytes"), st.integers(0, 500)),
        st.tuples(st.just("peek_bytes"), st.integers(0, 500)),
        st.tuples(st.sampled_from(["sync", "reopen", "kill", "empty"]), st.just(0)),
    ),
    max_size=40,
)


def by_bytes(messages: list[bytes], most: int) -> list[bytes]:
    found: list[bytes] = []
    for message in messages:
        if found and sum(map(len, found)) + len(message) > most:
            break
        found.append(message)
    return found


@given(acts)
@settings(max_examples=examples(150), deadline=None)
def test_the_queue_does_what_a_list_would_do(acts):
    fs = disk()
    options: dict[str, Any] = {"segment_size": 300, "sync_every": 7}
    queue = opened(fs, **options)
    model: list[bytes] = []
    peeked = number = 0
    for act, value in acts:
        if act in ("put", "memory"):
            number += 1
            model.append(body(number, value))
            queue.put(model[-1], durability="memory" if act == "memory" else None)
        elif act == "put_many":
            batch = [body(number + index, each) for index, each in enumerate(value)]
            number += len(batch)
            model += batch
            queue.put_many(batch)
        elif act == "take":
            assert taken(queue) == (model.pop(0) if model else None)
            peeked = max(0, peeked - 1)
        elif act == "take_many":
            assert queue.get_many(value) == model[:value]
            del model[:value]
            peeked = max(0, peeked - value)
        elif act == "peek_many":
            assert queue.peek_many(value) == model[:value]
            peeked = max(peeked, min(value, len(model)))
        elif act == "advance":
            value = min(value, peeked)
            queue.advance(value)
            del model[:value]
            peeked -= value
        elif act == "take_bytes":
            some = queue.get_many(1000, max_bytes=value)
            assert some == by_bytes(model, value)[: len(some)]
            assert some or not model or not value
            del model[: len(some)]
            peeked = max(0, peeked - len(some))
        elif act == "peek_bytes":
            seen = queue.peek_many(1000, max_bytes=value)
            assert seen == by_bytes(model, value)[: len(seen)]
            peeked = max(peeked, len(seen))
        elif act == "empty":
            queue.clear()
            model.clear()
            peeked = 0
        elif act == "sync":
            queue.sync()
        else:
            if act == "kill":
                queue.flush()
                queue.sync()
                fs = fs.kill()
            else:
                queue.close()
            queue = opened(fs, **options)
            peeked = 0
        assert queue.depth == len(model)
    queue.close()
    assert contents(fs) == model


# --- the files ------------------------------------------------------------------------------------


def test_a_file_is_left_before_it_would_grow_past_its_limit():
    """TestDiskQueueRoll: ten messages fill a file exactly, the 11th goes into the next."""
    fs = disk()
    record = 4 + 10
    with opened(fs, segment_size=10 * record) as queue:
        for number in range(11):
            queue.put(body(number, 10))
            assert queue.depth == number + 1
        queue.sync()
        assert told(fs)[2] == (1, record)
        assert size(fs, data(0)) == 10 * record
        for depth in range(11, 0, -1):
            assert queue.depth == depth
            assert queue.get() == body(11 - depth, 10)


def test_a_message_larger_than_the_limit_has_a_file_of_its_own():
    fs = disk()
    with opened(fs, segment_size=100) as queue:
        queue.put_many([b"small", b"x" * 1000, b"small", b"small"])
        assert [size(fs, data(number)) for number in range(3)] == [9, 1004, 18]
        assert drained(queue) == [b"small", b"x" * 1000, b"small", b"small"]


@pytest.mark.parametrize("length, place", [(96, (0, 100)), (97, (1, 0))])
def test_metadata_names_no_byte_of_a_file_that_is_larger_than_the_limit(length, place):
    """go-diskqueue 1.0 goes by the size: it would look for files after the one being written, for ever."""
    fs = disk()
    with opened(fs, segment_size=100) as queue:
        queue.put(b"x" * length)
        queue.sync()
        assert told(fs)[2] == place
        assert drained(queue) == [b"x" * length]
        queue.put(b"next")
    with opened(fs, segment_size=100) as queue:
        assert not queue.repairs
        assert drained(queue) == [b"next"]


sizes = st.lists(st.integers(0, 60), max_size=60)


@given(sizes, st.integers(1, 200))
@settings(deadline=None)
def test_files_are_what_the_peer_would_have_made(tmp_path_factory, sizes, segment_size):
    sent = [body(number, length) for number, length in enumerate(sizes)]
    theirs = tmp_path_factory.mktemp("theirs")
    meta_told = nsq_oracle.write_dir(theirs, "q", sent, segment_size)
    fs = disk()
    with opened(fs, segment_size=segment_size) as queue:
        queue.put_many(sent)
    ours = {name: fs.read(f"{ROOT}/{name}") for name in listed(fs) if name.endswith(".dat")}
    if meta_told.write_position > segment_size:
        # One message that is larger than a file: go-diskqueue 1.0 has left that file, 1.1 does so next.
        meta_told = meta_told._replace(write_file=meta_told.write_file + 1, write_position=0)
    assert ours.pop("q.diskqueue.meta.dat").startswith(b"%d\n%d,%d\n%d,%d\n" % meta_told)
    del meta_told
    assert ours == {path.name: path.read_bytes() for path in theirs.iterdir() if "meta" not in path.name}


def test_empty_asks_as_that_of_the_standard_library_and_removes_nothing():
    with opened(disk(), segment_size=100) as queue:
        assert queue.empty()
        queue.put_many(bodies(30, 10))
        got = []
        while not queue.empty():
            got.append(queue.get())
        assert got == bodies(30, 10)
        queue.put(b"peeked at")
        queue.peek()
        assert not queue.empty()


def test_a_queue_whose_messages_are_all_damaged_is_empty_although_its_depth_is_not_known(quiet_log):
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(3, 10))
    with opened(fs) as queue:
        fs.write_durably(data(0), bytes(size(fs, data(0))))
        assert queue.depth == 3
        assert queue.empty()
        assert queue.depth == 0


def test_clear_removes_all_files_and_goes_on_in_the_next():
    """TestDiskQueueEmpty: 100 puts over several files, 3 reads; empty removes everything; 100 more work."""
    fs = disk()
    with opened(fs, segment_size=100) as queue:
        queue.put_many(bodies(100, 10))
        queue.get_many(3)
        assert queue.depth == 97
        files = queue.statistics().files
        queue.clear()
        assert queue.depth == 0
        assert listed(fs) == [".diskq", "q.diskqueue.meta.dat"]
        depth, read, write = told(fs)
        assert (depth, read) == (0, write)
        assert write == (files, 0), "numbers go on"
        for number in range(100):
            queue.put(body(number, 10))
            assert queue.depth == number + 1
        assert drained(queue) == bodies(100, 10)
        assert queue.depth == 0


def test_metadata_follows_writing_and_reading():
    """TestDiskQueueSyncAfterRead: the metadata shows a put, then a put and a read, after the timeout."""
    fs = disk()
    with opened(fs, sync_timeout=0.05) as queue:
        queue.put(b"x" * 1000)
        fs.clock += 0.05
        assert queue.log.note(), "a barrier is due"
        queue.sync()
        assert told(fs) == (1, (0, 0), (0, 1004))
        queue.put(b"y" * 1000)
        assert queue.get() == b"x" * 1000
        fs.clock += 0.05
        assert queue.log.note()
        queue.sync()
        assert told(fs) == (1, (0, 1004), (0, 2008))


def test_the_first_call_after_the_timeout_executes_the_sync(tmp_path):
    """The queue has no thread that could do it. Messages before pass without a look at the policy."""
    with Queue(tmp_path, "q", options=QueueOptions(sync_timeout=0.01, sync_every=10**9)) as queue:
        for act in (lambda: queue.put(b"one"), lambda: taken(queue)):
            barriers = queue.statistics().barriers
            end = time.monotonic() + 30
            while queue.statistics().barriers == barriers:
                act()
                assert time.monotonic() < end
    assert queue.statistics().accepted < 10**9


@pytest.mark.parametrize("every", [1, 2, 10])
def test_the_last_of_sync_every_messages_written_makes_a_sync(every):
    """N17: the peer asks for equality, and misses a count that jumps past."""
    with opened(disk(), sync_every=every) as queue:
        for _ in range(3):
            barriers = queue.statistics().barriers
            for number in range(every - 1):
                queue.put(body(number))
            assert queue.statistics().barriers == barriers
            queue.put(body(every))
            assert queue.statistics().barriers == barriers + 1
            assert queue.unsynced_bytes == 0
        queue.put_many(bodies(3 * every))
        assert queue.statistics().barriers == barriers + 2


@pytest.mark.parametrize("every", [1, 2, 10])
def test_after_sync_every_messages_were_consumed_the_next_call_makes_a_sync(every):
    """A message that was handed over must not be lost to a failing sync, so it comes before the next one."""
    with opened(disk(), sync_every=every) as queue:
        queue.put_many(bodies(2 * every + 2))
        queue.sync()
        for _ in range(2):
            barriers = queue.statistics().barriers
            for _ in range(every):
                queue.get()
            assert queue.statistics().barriers == barriers
            queue.get()
            assert queue.statistics().barriers == barriers + 1
            queue.sync()


def test_a_queue_reopened_with_another_file_size_goes_on_where_it_was():
    """TestDiskQueueResize: positions after 9 and 19 puts, all in order, and no .bad file."""
    fs = disk()
    record = 4 + 10
    with opened(fs, segment_size=8 * record) as queue:
        queue.put_many(bodies(9, 10))
    assert told(fs) == (9, (0, 0), (1, record))
    with opened(fs, segment_size=10 * record) as queue:
        queue.put_many(bodies(10, 10, start=20))
        assert queue.depth == 19
        queue.sync()
        assert told(fs)[2] == (2, record)
        assert drained(queue) == bodies(9, 10) + bodies(10, 10, start=20)
        assert queue.depth == 0
    assert not [name for name in listed(fs) if name.endswith(".bad")]


def test_files_larger_than_the_limit_are_read_to_their_end():
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(100))
    with opened(fs, segment_size=50) as queue:
        queue.put(b"next")
        assert size(fs, data(0)) == 100 * 104
        assert size(fs, data(1)) == 8
        assert drained(queue) == [*bodies(100), b"next"]


def test_what_is_consumed_is_removed_with_the_next_barrier():
    fs = disk()
    with opened(fs, segment_size=200) as queue:
        queue.put_many(bodies(10))
        queue.get_many(5)
        queue.sync()
        assert listed(fs)[1:] == [f"q.diskqueue.{number:06d}.dat" for number in range(5, 10)] + [
            "q.diskqueue.meta.dat"
        ]
        assert listed(fs, f"{ROOT}/.diskq")[:-3] == [
            f"q.diskqueue.{number:06d}.dat.sums" for number in range(5, 10)
        ]


def test_four_writers_and_four_readers_lose_nothing_and_read_nothing_twice(tmp_path):
    """TestDiskQueueTorture: what was acknowledged is the depth after reopening, and is drained exactly."""
    mutex = threading.Lock()
    acknowledged: list[bytes] = []
    received: list[bytes] = []

    def write(queue: Queue, writer: int) -> None:
        rng = random.Random(writer)
        for number in range(500):
            message = b"%d/%d/" % (writer, number) + rng.randbytes(rng.randrange(100))
            with mutex:
                queue.put(message)
                acknowledged.append(message)

    def read(queue: Queue) -> None:
        while True:
            with mutex:
                message = taken(queue)
                if message is None:
                    return
                received.append(message)

    def run(act, *arguments) -> None:
        threads = [threading.Thread(target=act, args=args) for args in arguments]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    options = QueueOptions(segment_size=10_000, sync_every=1000)
    with Queue(tmp_path, "q", options=options) as queue:
        run(write, *((queue, writer) for writer in range(4)))
    with Queue(tmp_path, "q", options=options) as queue:
        assert queue.depth == len(acknowledged) == 2000
        run(read, *((queue,) for _ in range(4)))
        assert queue.depth == 0
    assert received == acknowledged


def test_a_consumer_that_keeps_up_leaves_no_files():
    """N1: go-diskqueue sets such a file aside as bad, and keeps it for ever."""
    fs = disk()
    with opened(fs, segment_size=300) as queue:
        for number in range(100):
            queue.put(body(number))
            assert queue.get() == body(number)
        queue.sync()
        assert listed(fs) == [".diskq", "q.diskqueue.000049.dat", "q.diskqueue.meta.dat"]
        assert not queue.repairs


# --- the end of a queue ---------------------------------------------------------------------------


def test_close_makes_everything_durable():
    """N3: the peer syncs its metadata, but not the data that it names."""
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(5))
        queue.put(b"held", durability="memory")
        queue.get()
    assert contents(fs.crash()) == [*bodies(4, start=1), b"held"]


def test_delete_removes_everything_but_the_lock():
    """N13: Delete of the peer deletes nothing."""
    fs = disk()
    queue = opened(fs, segment_size=1000)
    queue.put_many(bodies(10))
    for number in range(3):
        queue.put(body(number), durability="synced")  # one of the files, then of the redo log
    assert fs.size_of(f"{ROOT}/.diskq/q.redo")
    queue.peek()
    queue.delete()
    assert listed(fs) == [".diskq"]
    assert listed(fs, f"{ROOT}/.diskq") == ["q.lock"]
    assert contents(fs.crash()) == []
    with opened(fs) as queue:
        assert queue.repairs == ()
        queue.put(b"again")
        assert queue.get() == b"again"


def test_after_clear_a_crash_brings_nothing_back_and_loses_nothing_new():
    """N6: the peer removes the metadata and writes none; a crash then loses new messages."""
    fs = disk()
    queue = opened(fs)
    queue.put_many(bodies(10), durability="synced")
    queue.clear()
    queue.put(b"new", durability="synced")
    assert contents(fs.crash()) == [b"new"]
    assert contents(fs.kill()) == [b"new"]


def test_an_empty_queue_can_be_emptied():
    with opened(disk()) as queue:
        queue.clear()
        queue.clear()
        queue.put(b"one")
        queue.peek()
        queue.clear()
        assert queue.peek() is None
        assert queue.depth == 0


# --- names and directories ------------------------------------------------------------------------

GOOD_NAMES = ["q", "topic:channel#ephemeral", "a b", "100%", "%d%s", "ünï-çødé", "_", "a.b", "x" * 200, "-f"]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_name_that_nsqd_could_have_made_is_a_name(tmp_path, name):
    with Queue(tmp_path, name) as queue:
        queue.put(name.encode())
    with Queue(tmp_path, name) as queue:
        assert queue.get() == name.encode()
    assert (tmp_path / f"{name}.diskqueue.000000.dat").exists()


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "a/b",
        "/absolute",
        "../../evil",
        "a..b",
        "a\0b",
        "a\n",
        "a\tb",
        "a\x7fb",
        "x" * 201,
        "ü" * 101,
        "\ud800",
    ],
)
def test_a_name_that_would_leave_its_directory_or_break_a_line_is_refused(tmp_path, name):
    with pytest.raises(QueueNameError) as refused:
        Queue(tmp_path, name)
    assert refused.value.name == name
    assert repr(name) in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [7, b"bytes", Path("path")])
def test_a_name_is_a_str(tmp_path, name):
    with pytest.raises(TypeError, match="a queue's name is a str, not"):
        Queue(tmp_path, name)


def test_a_directory_is_a_str_or_a_path(tmp_path):
    Queue(str(tmp_path), "q").close()
    with pytest.raises(TypeError, match="not bytes"):
        Queue(os.fsencode(tmp_path), "q")  # type: ignore[arg-type]


def test_a_percent_sign_in_the_directory_is_a_character_like_any_other(tmp_path):
    """N12: the peer uses the path as a format string."""
    directory = tmp_path / "100%d of %s"
    directory.mkdir()
    with Queue(directory, "q%d") as queue:
        queue.put(b"one")
    assert (directory / "q%d.diskqueue.000000.dat").exists()


def test_a_queue_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NotFoundError) as refused:
        Queue(tmp_path / "nowhere", "q", create=False)
    assert str(tmp_path / "nowhere") in str(refused.value)
    assert "'q'" in str(refused.value)


def test_a_directory_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as refused:
        Queue(tmp_path / "file", "q")
    assert str(tmp_path / "file") in str(refused.value)


def test_a_file_in_the_place_of_the_private_directory_is_refused(tmp_path):
    (tmp_path / ".diskq").touch()
    with pytest.raises(NotADirectoryError) as refused:
        Queue(tmp_path, "q")
    assert str(tmp_path / ".diskq") in str(refused.value)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.EPERM])
@pytest.mark.parametrize("verb", ["make_directory", "open"])
def test_a_directory_that_may_not_be_written_is_named(error, verb):
    fs = failing_disk()
    fs.fail(verb, error=error)
    with pytest.raises(OSError, match=ROOT) as refused:
        opened(fs)
    assert refused.value.errno == error
    fs.heal()
    opened(fs).close()


def test_a_queue_that_is_open_is_refused_and_its_holder_named(tmp_path):
    """N8: the peer has no lock, and two processes on one queue destroy each other's messages."""
    with Queue(tmp_path, "q") as queue:
        queue.put(b"one")
        with pytest.raises(LockedError) as refused:
            Queue(tmp_path, "q")
        assert f"queue 'q' in {tmp_path} is in use by process {os.getpid()}" in str(refused.value)
        queue.put(b"two")
        assert drained(queue) == [b"one", b"two"]
    Queue(tmp_path, "q").close()


def test_a_refused_open_leaves_everything_as_it_was():
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(3))
        before = fs.files()
        for _ in range(3):
            with pytest.raises(LockedError):
                opened(fs)
        assert fs.files() == before


def test_queues_in_one_directory_do_not_know_of_each_other(tmp_path):
    names = ["q", "qq", "q.diskqueue", "q.diskqueue.meta", "topic", "topic:channel"]
    queues = {name: Queue(tmp_path, name, options=QueueOptions(segment_size=50)) for name in names}
    for name, queue in queues.items():
        queue.put_many([name.encode() * 3] * 10)
    queues["topic"].clear()
    queues.pop("qq").delete()
    for queue in queues.values():
        queue.close()
    for name in queues:
        with Queue(tmp_path, name) as queue:
            assert drained(queue) == ([] if name == "topic" else [name.encode() * 3] * 10)
            assert not queue.repairs


def test_files_are_for_their_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        with Queue(tmp_path, "q") as queue:
            queue.put(b"secret")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes.pop(".diskq") == 0o700
    assert set(modes.values()) == {0o600}, modes


def test_a_planted_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    directory = tmp_path / "queue"
    directory.mkdir()
    queue = Queue(directory, "q")
    os.symlink(victim, directory / "q.diskqueue.000000.dat")
    with pytest.raises(OSError, match="symbolic"):
        queue.put(b"overwrites")
    queue.close()
    assert victim.read_bytes() == b"precious"


def test_the_compiled_calls_and_a_python_disk_make_the_same_files(tmp_path):
    files = []
    systems: list[FileSystem] = [OsFileSystem(), FaultFS(OsFileSystem())]
    for number, fs in enumerate(systems):
        directory = tmp_path / str(number)
        directory.mkdir()
        with Queue(directory, "q", options=QueueOptions(segment_size=20_000, sync_every=50), fs=fs) as queue:
            for index in range(300):
                queue.put(body(index, index))
                if index % 3 == 0:
                    queue.get()
            queue.put_many(bodies(1000))
            queue.get_many(100)
        files.append(
            {
                path.relative_to(directory): path.read_bytes()
                for path in directory.rglob("*")
                if path.is_file() and path.suffix not in (".lock", ".state")
            }
        )
    assert files[0] == files[1]
    assert len(files[0]) > 5


# --- durability -----------------------------------------------------------------------------------


def test_memory_messages_wait_in_memory_and_are_written_in_order():
    fs = disk()
    with opened(fs, durability="memory") as queue:
        queue.put(b"one")
        queue.put_many([b"two", b"three"])
        assert not queue.log.is_flushed
        assert fs.size_of(data()) in (None, 0)
        assert queue.depth == 3
        queue.put(b"four", durability="written")
        assert queue.log.is_flushed
        assert fs.read(data()) == records(b"one", b"two", b"three", b"four")


def test_memory_messages_are_lost_with_their_process_and_no_others():
    fs = disk()
    queue = opened(fs, durability="memory")
    queue.put(b"written", durability="written")
    queue.put(b"held")
    assert contents(fs.kill()) == [b"written"]
    queue.flush()
    assert contents(fs.kill()) == [b"written", b"held"]


def test_memory_messages_can_be_taken_before_they_are_written():
    with opened(disk(), durability="memory") as queue:
        queue.put(b"one")
        assert queue.peek() == b"one"
        assert queue.get() == b"one"


def test_much_that_waits_is_written_without_being_asked_for():
    fs = disk()
    with opened(fs, durability="memory") as queue:
        for number in range(600):
            queue.put(body(number, 1000))
        assert size(fs, data()) > 256 * 1024


@pytest.mark.parametrize("how", ["put", "put_many", "option", "sync"])
def test_synced_messages_survive_a_power_cut(how):
    """N2: the peer answers before it syncs."""
    fs = disk()
    queue = opened(fs, durability="synced" if how == "option" else "written")
    if how == "put":
        queue.put(b"one", durability="synced")
    elif how == "put_many":
        queue.put_many([b"one"], durability="synced")
    else:
        queue.put(b"one")
    if how == "sync":
        queue.sync()
    assert contents(fs.crash()) == [b"one"]


def test_written_messages_survive_a_kill():
    fs = disk()
    queue = opened(fs)
    queue.put_many(bodies(3))
    assert contents(fs.kill()) == bodies(3)


def test_more_than_may_wait_unsynced_is_synced_first():
    fs = disk()
    with opened(fs, max_unsynced=1000) as queue:
        for number in range(40):
            queue.put(body(number))
            assert queue.unsynced_bytes <= 1000
        queue.put_many(bodies(40))
        assert queue.unsynced_bytes <= 1000
        queue.put(b"x" * 2000)
        assert drained(queue) == [*bodies(40), *bodies(40), b"x" * 2000]


# --- a barrier in another thread ------------------------------------------------------------------


def test_messages_go_on_while_a_barrier_is_executed_and_are_not_covered_by_it():
    """N16: in the peer a sync stops all reading and writing."""
    fs = disk()
    queue = opened(fs)
    queue.put_many(bodies(5))
    ticket = queue.log.prepare(full=True)
    queue.put(b"later")
    assert queue.get() == body(0)
    is_replaced = ticket.barrier.execute(fs)
    queue.put(b"later still")
    queue.log.complete(ticket, is_replaced)
    assert told(fs) == (5, (0, 0), (0, 520)), "as it was when the ticket was taken"
    assert contents(fs.crash()) == bodies(5)
    assert queue.unsynced_bytes == 9 + 15
    assert drained(queue) == [*bodies(4, start=1), b"later", b"later still"]
    queue.close()


def test_one_sync_is_prepared_at_a_time():
    fs = disk()
    queue = opened(fs)
    ticket = queue.log.prepare(full=False)
    with pytest.raises(AssertionError, match="one sync at a time"):
        queue.log.prepare(full=False)
    queue.log.complete(ticket, ticket.barrier.execute(fs))
    queue.close()


# --- limits that change -----------------------------------------------------------------------


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_what_was_written_under_other_limits_is_delivered(is_killed):
    fs = disk()
    sent = [b"", b"1", b"x" * 5000, b"12345", b""]
    queue = opened(fs, max_message_size=5000)
    queue.put_many(sent)
    if not is_killed:
        queue.close()
    with opened(fs.kill(), min_message_size=3, max_message_size=10, segment_size=20) as queue:
        with pytest.raises(MessageSizeError):
            queue.put(b"12")
        with pytest.raises(MessageSizeError):
            queue.put(b"x" * 11)
        queue.put(b"123")
        assert drained(queue) == [*sent, b"123"]
        assert not queue.repairs


# --- the byte bound -----------------------------------------------------------------------------


def test_a_full_queue_rejects_and_takes_again_when_there_is_room():
    with opened(disk(), max_bytes=64 * 1024, on_full="reject") as queue:
        sent: list[bytes] = []
        with suppress(FullError):
            while True:
                queue.put(body(len(sent)))
                sent.append(body(len(sent)))
        assert queue.depth == len(sent) > 300
        with pytest.raises(FullError, match="max_bytes=65536"):
            queue.put(body(len(sent)))
        assert queue.get_many(200) == sent[:200]
        queue.put(b"there is room")
        assert drained(queue) == [*sent[200:], b"there is room"]


def test_of_a_batch_that_does_not_fit_it_is_known_how_many_are_in():
    with opened(disk(), max_bytes=64 * 1024, on_full="reject") as queue:
        with pytest.raises(FullError) as full:
            queue.put_many(bodies(2000))
        assert 300 < full.value.accepted == queue.depth < 700
        assert drained(queue) == bodies(full.value.accepted)


def test_a_message_that_would_never_fit_is_refused_and_nothing_is_given_up_for_it():
    with opened(disk(), max_bytes=64 * 1024, on_full="drop_oldest") as queue:
        queue.put_many(bodies(10))
        with pytest.raises(FullError):
            queue.put(b"x" * 64 * 1024)
        assert drained(queue) == bodies(10)


def filled(queue: Queue) -> list[bytes]:
    """Put until the first message is dropped. Returns what was put."""
    sent: list[bytes] = []
    while not queue.statistics().dropped:
        sent.append(body(len(sent)))
        queue.put(sent[-1])
    return sent


def test_drop_oldest_gives_up_whole_files_from_the_head():
    with opened(disk(), max_bytes=64 * 1024, on_full="drop_oldest") as queue:
        sent = filled(queue)
        dropped = queue.statistics().dropped
        assert queue.depth == len(sent) - dropped
        assert drained(queue) == sent[dropped:]
        assert queue.statistics().delivered == len(sent) - dropped


def test_drop_oldest_keeps_what_was_peeked_at_in_later_files():
    fs = disk()
    with opened(fs, max_bytes=64 * 1024, on_full="drop_oldest") as queue:
        sent = bodies(200)
        queue.put_many(sent)
        peeked = queue.peek_many(150)
        assert fs.size_of(data(1)), "they lie in more than one file"
        while queue.depth == len(sent):
            sent.append(body(len(sent)))
            queue.put(sent[-1])
        dropped = len(sent) - queue.depth
        assert 0 < dropped < len(peeked)
        assert queue.statistics().dropped == 0, "they are in hand"
        queue.advance(len(peeked))
        assert queue.depth == len(sent) - len(peeked)
        assert drained(queue) == sent[len(peeked) :]
        statistics = queue.statistics()
        assert (statistics.depth, statistics.dropped, statistics.delivered) == (0, 0, len(sent))


@pytest.mark.parametrize("processed", [0, 3, 150])
def test_what_was_dropped_in_hand_is_counted_once_as_processed_or_as_dropped(processed):
    with opened(disk(), max_bytes=64 * 1024, on_full="drop_oldest") as queue:
        sent = 200
        queue.put_many(bodies(sent))
        assert len(queue.peek_many(150)) == 150
        while queue.depth == sent:
            queue.put(body(sent))
            sent += 1
        dropped = sent - queue.depth
        assert 3 < dropped < 150
        queue.advance(processed)
        rest = drained(queue)
        queue.peek()
        statistics = queue.statistics()
        assert statistics.delivered == processed + len(rest)
        assert statistics.delivered + statistics.dropped == sent
        assert statistics.dropped == max(0, dropped - processed)


@pytest.mark.parametrize("on_full", ["reject", "drop_oldest"])
@pytest.mark.parametrize("durability", ["written", "synced"])
@pytest.mark.parametrize("size", [0, 20, 3000])
def test_the_bound_holds_on_the_disk_checksums_included(on_full, durability, size):
    bound = 64 * 1024
    fs = disk()
    with opened(fs, max_bytes=bound, on_full=on_full, durability=durability) as queue:
        number = is_full = 0
        while is_full < 300:
            try:
                queue.put(body(number, size))
            except FullError:
                break
            number += 1
            is_full += queue.statistics().dropped > 0
            if number % 16 == 0:
                sizes = [len(content) for path, content in fs.files().items() if ".dat" in path]
                on_disk = sum(sizes) - len(fs.read(meta()))
                assert queue.bytes_on_disk == on_disk <= bound


@pytest.mark.parametrize("on_full", ["wait", "reject", "drop_oldest"])
def test_a_queue_that_stays_full_stays_in_few_files(on_full):
    fs = disk()
    with opened(fs, max_bytes=128 * 1024, on_full=on_full) as queue:
        for number in range(1000):
            while True:
                try:
                    queue.put_nowait(body(number, 1000))
                    break
                except FullError:
                    queue.get()
        files = [path for path in fs.files() if path.endswith(".dat") and path != meta()]
    assert len(files) <= 10


bounded_acts = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 3000)),
        st.tuples(st.just("put_many"), st.lists(st.integers(0, 1500), max_size=25)),
        st.tuples(st.sampled_from(["take_many", "peek_many", "advance"]), st.integers(0, 40)),
        st.tuples(st.sampled_from(["sync", "reopen", "empty"]), st.just(0)),
    ),
    min_size=10,
    max_size=60,
)


@pytest.mark.parametrize("on_full", ["reject", "drop_oldest"])
@given(bounded_acts)
@settings(max_examples=examples(60), deadline=None)
def test_a_bounded_queue_loses_from_its_head_alone_and_only_where_that_is_the_policy(on_full, acts):
    bound = 64 * 1024
    fs = disk()
    queue = opened(fs, max_bytes=bound, on_full=on_full, sync_every=50)
    model = bodies(400 if on_full == "drop_oldest" else 450, start=1_000_000)  # nearly full
    queue.put_many(model)
    peeked = number = 0
    for act, value in acts:
        if act in ("put", "put_many"):
            lengths = value if act == "put_many" else [value]
            batch = [body(number + index, length) for index, length in enumerate(lengths)]
            number += len(batch)
            accepted = len(batch)
            try:
                queue.put_many(batch)
            except FullError as full:
                assert on_full == "reject"
                accepted = full.accepted
            model += batch[:accepted]
            dropped = len(model) - queue.depth
            assert on_full == "drop_oldest" or not dropped
            # What was peeked at and dropped is passed over by `advance`.
            gone = model[:dropped]
            del model[:dropped]
            forgotten = min(len(gone), peeked)
            peeked -= forgotten
            if forgotten:
                queue.advance(forgotten)
        elif act == "take_many":
            some = queue.get_many(value)
            assert some == model[:value]
            del model[:value]
            peeked = max(0, peeked - value)
        elif act == "peek_many":
            assert queue.peek_many(value) == model[:value]
            peeked = max(peeked, min(value, len(model)))
        elif act == "advance":
            count = min(value, peeked)
            queue.advance(count)
            del model[:count]
            peeked -= count
        elif act == "empty":
            queue.clear()
            model.clear()
            peeked = 0
        elif act == "sync":
            queue.sync()
        else:
            queue.close()
            queue = opened(fs, max_bytes=bound, on_full=on_full, sync_every=50)
            peeked = 0
        assert queue.depth == len(model)
        on_disk = sum(
            len(content) for path, content in fs.files().items() if path not in (LOCK, STATE, WAL, meta())
        )
        assert on_disk <= bound
        assert queue.bytes_on_disk >= on_disk
    queue.close()
    assert contents(fs) == model


# --- depth --------------------------------------------------------------------------------------


def test_at_the_end_of_the_queue_its_depth_is_0_whatever_was_lost_on_the_way():
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(5))
    flip(fs, data(), 104)
    with opened(fs) as queue:
        assert drained(queue) == []
        assert queue.depth == 0
        queue.put(b"next")
        assert queue.depth == 1


# --- statistics -----------------------------------------------------------------------------------


def test_statistics_count_what_happened_since_the_open():
    fs = disk()
    with opened(fs, segment_size=500) as queue:
        queue.put_many(bodies(20))
    with opened(fs, segment_size=1000) as queue:
        before = queue.statistics()
        assert (before.depth, before.accepted, before.delivered) == (20, 0, 0)
        assert (before.files, before.barriers) == (5, 1)
        queue.put_many(bodies(3))
        queue.get_many(7)
        queue.peek_many(5)
        statistics = queue.statistics()
        assert (statistics.depth, statistics.accepted, statistics.delivered) == (16, 3, 7)
        assert (statistics.dropped, statistics.lost, statistics.repairs) == (0, 0, ())
        assert statistics.unsynced_bytes == 3 * 104
        queue.sync()
        after = queue.statistics()
        assert after.barriers == statistics.barriers + 1
        assert after.unsynced_bytes == 0
        assert after.bytes_on_disk == sum(
            len(content) for path, content in fs.files().items() if path not in (LOCK, STATE, WAL, meta())
        )


def test_statistics_count_what_was_lost_to_damage():
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(100))
    flip(fs, data(), 50)
    with opened(fs) as queue:
        received = drained(queue)
        statistics = queue.statistics()
    assert (statistics.delivered, statistics.lost) == (len(received), 100 - len(received))
    assert 0 < statistics.lost <= 41

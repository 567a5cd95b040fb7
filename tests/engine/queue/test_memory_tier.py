# Memory in front of the disk. Law: first in, first out, over both; what is received in time is never
# written, and what is written was never received.

from __future__ import annotations

import errno
import random
from collections import deque
from typing import Any

import pytest

from diskq._native.queue.memory_tier import PLACE_SIZE
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.queue.work import QueueWork
from diskq.errors import FullError, MessageSizeError, StorageFailedError
from diskq.options import DURABILITY_WORDS, QueueOptions
from diskq.storage.budget import DiskBudget
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS
from tests.engine.queues import (
    ROOT,
    bodies,
    body,
    contents,
    disk,
    drained,
    failing_disk,
    meta,
    opened,
    records,
    taken,
)

KIB = 1024


def first(fs: FileSystem, memory_size: int = 64 * KIB, **options: Any) -> Queue:
    """A queue with memory first."""
    return opened(fs, durability="memory", memory_size=memory_size, **options)


def written(fs: CrashFS) -> bytes:
    """What is in its files, one after the other."""
    files = fs.files()
    return b"".join(files[path] for path in sorted(files) if path.startswith(f"{ROOT}/q.diskqueue.0"))


def found_after_kill(fs: CrashFS) -> list[bytes]:
    return contents(fs.kill())


# --- in memory --------------------------------------------------------------------------------


def test_what_is_received_in_time_is_never_written():
    fs = disk()
    with first(fs) as queue:
        before = fs.operations
        for number in range(10_000):
            queue.put(body(number))
            if number % 3 == 2:
                assert queue.get_many(3) == bodies(3, start=number - 2)
        queue.put_many(bodies(100))
        assert queue.get() == body(9999)
        assert queue.get_many(1000) == bodies(100)
        assert fs.operations == before, fs.journal
        assert queue.statistics().accepted == queue.statistics().delivered == 10_100
        assert queue.statistics().barriers == 1, "that of the open"
    assert written(fs) == b""


def test_what_is_peeked_at_and_received_in_time_is_never_written():
    fs = disk()
    with first(fs) as queue:
        before = fs.operations
        queue.put_many(bodies(10))
        assert queue.peek() == body(0)
        assert queue.peek_many(4) == bodies(4)
        assert queue.depth == 10
        queue.advance(3)
        assert queue.get() == body(3)
        with pytest.raises(ValueError, match="cannot advance"):
            queue.advance(1)
        assert queue.peek_many(100, max_bytes=250) == bodies(2, start=4)
        queue.advance(2)
        assert drained(queue) == bodies(4, start=6)
        assert fs.operations == before


def test_memory_holds_as_much_as_it_may_and_says_how_much():
    fs = disk()
    with first(fs, memory_size=10 * (100 + PLACE_SIZE)) as queue:
        for number in range(10):
            queue.put(body(number))
        assert queue.statistics().memory_bytes == 10 * (100 + PLACE_SIZE)
        assert queue.statistics().unsynced_bytes == queue.statistics().files == 0
        assert written(fs) == b""
        queue.put(body(10))
        assert queue.statistics().memory_bytes <= 10 * (100 + PLACE_SIZE)
        assert queue.depth == 11
        assert written(fs) == records(*bodies(3)), "the oldest quarter made room"
        assert drained(queue) == bodies(11)
        assert queue.statistics().memory_bytes == 0


def test_empty_messages_take_memory_too():
    with first(disk(), memory_size=100 * PLACE_SIZE) as queue:
        queue.put_many([b""] * 1000)
        assert queue.statistics().memory_bytes <= 100 * PLACE_SIZE
        assert drained(queue) == [b""] * 1000


def test_a_message_larger_than_memory_goes_to_the_files_after_those_before_it():
    fs = disk()
    with first(fs, memory_size=1000) as queue:
        queue.put(b"small")
        queue.put(bytes(1000))
        assert written(fs) == records(b"small", bytes(1000))
        queue.put(b"next")
        assert written(fs) == records(b"small", bytes(1000))
        assert drained(queue) == [b"small", bytes(1000), b"next"]


def test_a_wrong_message_is_refused_as_without_a_memory_tier():
    with first(disk(), max_message_size=10, min_message_size=1) as queue:
        with pytest.raises(TypeError):
            queue.put("text")  # type: ignore[arg-type]
        with pytest.raises(MessageSizeError):
            queue.put(b"x" * 11)
        with pytest.raises(MessageSizeError):
            queue.put_many([b"good", b""])
        queue.put(bytearray(b"good"))
        assert drained(queue) == [b"good"]


@pytest.mark.parametrize("durability", ["written", "synced"])
def test_it_is_for_messages_that_may_be_in_memory(durability):
    with pytest.raises(ValueError, match=f"memory_size is for durability=\"memory\".*'{durability}'"):
        QueueOptions(durability=durability, memory_size=1)


# --- and in the files -------------------------------------------------------------------------


@pytest.mark.parametrize("file_size", [200, 3000, 100_000])
def test_order_is_kept_over_memory_and_files(file_size):
    fs = disk()
    with first(fs, memory_size=2 * KIB, segment_size=file_size) as queue:
        queue.put_many(bodies(100))
        assert queue.get_many(10) == bodies(10)
        for number in range(100, 120):
            queue.put(body(number))
        assert drained(queue) == bodies(110, start=10)
        before = fs.operations
        queue.put_many(bodies(5))
        assert drained(queue) == bodies(5)
        assert fs.operations == before, "all is consumed, and memory comes first again"


def test_closing_writes_what_waits_and_nothing_that_was_received():
    fs = disk()
    with first(fs) as queue:
        queue.put_many(bodies(10))
        queue.get_many(4)
    assert written(fs) == records(*bodies(6, start=4))
    assert contents(fs) == bodies(6, start=4)


def test_a_kill_takes_what_waits_in_memory_and_sync_saves_it():
    fs = disk()
    queue = first(fs)
    queue.put_many(bodies(3))
    assert found_after_kill(fs) == []
    queue.sync()
    queue.put_many(bodies(3, start=3))
    assert contents(fs.crash()) == bodies(3)
    assert drained(queue) == bodies(6)
    queue.close()


@pytest.mark.parametrize("word", ["written", "synced"])
def test_a_stronger_word_keeps_its_promise_and_its_place(word):
    fs = disk()
    with first(fs) as queue:
        queue.put_many(bodies(3))
        queue.get()
        queue.put(b"strong", durability=word)
        after = fs.kill() if word == "written" else fs.crash()
        assert contents(after) == [*bodies(2, start=1), b"strong"]
        queue.put(b"weak")
        assert contents(fs.kill()) == [*bodies(2, start=1), b"strong"]
        queue.put_many([b"strong, too", b"and more"], durability=word)
        assert drained(queue) == [*bodies(2, start=1), b"strong", b"weak", b"strong, too", b"and more"]


def test_a_sync_that_is_due_leaves_memory_alone():
    fs = disk()
    with first(fs, memory_size=KIB, sync_every=5) as queue:
        queue.put_many(bodies(20))
        barriers = queue.statistics().barriers
        queue.get_many(5)
        queue.get_many(5)
        assert queue.statistics().barriers > barriers
        assert queue.statistics().memory_bytes > 0
        assert drained(queue) == bodies(10, start=10)


def test_the_depth_of_the_metadata_is_that_of_the_files():
    fs = disk()
    with first(fs, memory_size=KIB, sync_every=5) as queue:
        queue.put_many(bodies(20))
        in_files = 20 - queue.steps.tier.count
        queue.get_many(5)
        queue.get_many(1)  # a barrier was due
        assert queue.depth == 14
        assert fs.read(meta()).startswith(b"%d\n" % (in_files - 5))


# --- peeked at in memory, and then written ----------------------------------------------------


@pytest.mark.parametrize("file_size", [250, 3000])
@pytest.mark.parametrize("by", ["pressure", "written", "sync", "sync, twice"])
def test_what_is_peeked_at_may_be_written_meanwhile(by, file_size):
    fs = disk()
    with first(fs, memory_size=3 * KIB, segment_size=file_size) as queue:
        queue.put_many(bodies(15))
        assert queue.peek_many(10) == bodies(10)
        more = 0
        if by == "pressure":
            more = 10
            queue.put_many(bodies(10, start=15))
        elif by == "written":
            more = 1
            queue.put(body(15), durability="written")
        else:
            queue.sync()
        if by == "sync, twice":
            queue.sync()
        assert written(fs).startswith(records(*bodies(1)))
        assert queue.depth == 15 + more
        assert queue.peek_many(12) == bodies(12)
        queue.advance(9)
        assert found_after_kill(fs)[:1] == bodies(1), "no barrier has told yet"
        assert queue.depth == 6 + more
        queue.sync()
        assert contents(fs.crash()) == bodies(6 + more, start=9)
        assert queue.statistics().delivered == 9
        assert drained(queue) == bodies(6 + more, start=9)
        assert queue.statistics().accepted == queue.statistics().delivered == 15 + more


def test_what_was_peeked_at_and_not_received_is_there_after_a_close():
    fs = disk()
    with first(fs) as queue:
        queue.put_many(bodies(5))
        assert queue.peek_many(3) == bodies(3)
        queue.advance(1)
    assert contents(fs) == bodies(4, start=1)


def test_what_is_peeked_at_may_begin_in_the_files_and_end_in_memory():
    fs = disk()
    with first(fs) as queue:
        queue.put_many(bodies(5), durability="written")
        queue.put_many(bodies(5, start=5))
        assert queue.peek_many(8) == bodies(8)
        assert queue.peek_many(100, max_bytes=650) == bodies(6)
        queue.advance(4)
        assert queue.get_many(2) == bodies(2, start=4)
        assert queue.peek_many(2) == bodies(2, start=6)
        queue.sync()
        queue.advance(2)
        assert drained(queue) == bodies(2, start=8)


def test_a_large_message_of_the_files_keeps_its_place_before_those_in_memory():
    with first(disk()) as queue:
        queue.put_many([b"a", bytes(500)], durability="written")
        queue.put(b"b")
        assert queue.get_many(10, max_bytes=100) == [b"a"]
        assert queue.get_many(10, max_bytes=1000) == [bytes(500), b"b"]


def test_emptying_takes_memory_too_and_what_is_peeked_at():
    fs = disk()
    with first(fs) as queue:
        queue.put_many(bodies(5), durability="written")
        queue.put_many(bodies(5, start=5))
        queue.peek_many(7)
        queue.clear()
        assert queue.depth == queue.statistics().memory_bytes == 0
        queue.advance(7)
        queue.put(b"new")
        assert drained(queue) == [b"new"]
        assert queue.statistics().accepted == 11
    assert contents(fs) == []


def test_deleting_leaves_nothing():
    fs = disk()
    queue = first(fs)
    queue.put_many(bodies(5))
    queue.delete()
    assert contents(fs) == []


# --- no room ----------------------------------------------------------------------------------


def test_a_full_disk_loses_nothing_while_the_process_lives():
    fs = failing_disk()
    with first(fs, memory_size=2 * KIB) as queue:
        queue.put_many(bodies(12))
        fs.capacity(0)
        for _ in range(2):
            with pytest.raises(FullError):
                queue.put(body(12))
            with pytest.raises(FullError):
                queue.sync()
        assert queue.depth == 12
        assert queue.get_many(4) == bodies(4), "consumers go on"
        queue.put_many(bodies(4, start=12))
        assert queue.depth == 12, "and what they left is room"
        with pytest.raises(FullError) as told:
            queue.put_many(bodies(8, start=16))
        assert told.value.accepted == 0
        fs.capacity(None)
        queue.put_many(bodies(8, start=16))
        queue.sync()
        assert drained(queue) == bodies(20, start=4)
    assert contents(fs) == []


def test_a_batch_that_met_a_full_disk_midway_can_be_repeated_from_where_it_ended():
    fs = failing_disk()
    with first(fs, memory_size=2 * KIB) as queue:
        fs.capacity(10 * KIB)
        batch = bodies(200)
        with pytest.raises(FullError) as told:
            queue.put_many(batch)
        accepted = told.value.accepted
        assert 12 < accepted < 200
        assert queue.depth == accepted
        fs.capacity(None)
        queue.put_many(batch[accepted:])
        assert drained(queue) == batch


def test_messages_that_never_fit_on_the_disk_are_reported_at_the_close():
    fs = failing_disk()
    queue = first(fs)
    queue.put_many(bodies(3), durability="synced")
    queue.put_many(bodies(3, start=3))
    fs.capacity(0)
    with pytest.raises(FullError):
        queue.close()
    assert contents(fs.inner) == bodies(3)


def test_what_is_peeked_at_and_does_not_fit_on_the_disk_stays_where_it_is():
    fs = failing_disk()
    with first(fs, memory_size=3 * KIB, segment_size=400) as queue:
        queue.put_many(bodies(15))
        assert queue.peek_many(10) == bodies(10)
        for room in (5 * KIB, 400, 400):
            fs.capacity(room)
            with pytest.raises(FullError):
                queue.sync()
            assert queue.depth == 15
            assert queue.peek_many(10) == bodies(10)
        fs.capacity(None)
        queue.advance(8)
        assert drained(queue) == bodies(7, start=8)


def test_a_failed_disk_promises_nothing_any_more():
    fs = failing_disk()
    queue = first(fs)
    queue.put_many(bodies(3))
    fs.fail("sync_files", error=errno.EIO)
    with pytest.raises(StorageFailedError):
        queue.sync()
    with pytest.raises(StorageFailedError):
        queue.put(b"more")
    with pytest.raises(StorageFailedError):
        queue.get_many(1)
    queue.close()


@pytest.mark.parametrize("on_full", ["wait", "reject", "drop_oldest"])
@pytest.mark.parametrize("length", [0, 10, 300, 5000])
@pytest.mark.parametrize("memory_size", [8 * KIB, 1024 * KIB])
def test_the_bound_on_disk_leaves_room_for_what_is_in_memory(on_full, length, memory_size):
    fs = disk()
    bound = 96 * KIB
    rng = random.Random(length)
    expected: deque[bytes] = deque()
    queue = first(fs, memory_size=memory_size, max_bytes=bound, on_full=on_full)
    number = 0
    for _ in range(120):
        count = rng.randrange(1, 1 + 20_000 // (length + 100))
        batch = bodies(count, max(9, length), number) if length else [b""] * count
        try:
            queue.put_many(batch)
            accepted = len(batch)
        except FullError as full:
            assert on_full != "drop_oldest"
            accepted = full.accepted
        expected += batch[:accepted]
        number += len(batch)
        if rng.random() < 0.2:
            queue.sync()
        if rng.random() < 0.3:
            some = queue.get_many(rng.randrange(200))
            while expected and some and expected[0] != some[0]:
                assert on_full == "drop_oldest"
                expected.popleft()
            assert some == [expected.popleft() for _ in some]
        assert queue.bytes_on_disk <= bound
    queue.close()
    assert sum(len(content) for path, content in fs.files().items() if ".diskqueue.0" in path) <= bound


def test_what_waits_in_memory_is_dropped_with_the_files_where_that_is_the_policy():
    fs = disk()
    with first(fs, memory_size=KIB * KIB, max_bytes=64 * KIB, on_full="drop_oldest") as queue:
        for number in range(2000):
            queue.put(body(number))
        statistics = queue.statistics()
        assert statistics.dropped > 1000
        assert queue.depth == 2000 - statistics.dropped
        assert drained(queue) == bodies(2000 - statistics.dropped, start=statistics.dropped)


# --- against a model --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_memory_and_files_are_one_queue(seed):
    rng = random.Random(seed)
    fs = disk()
    options = {
        "memory_size": rng.choice([200, 1000, 5000]),
        "segment_size": rng.choice([150, 2000, 100_000]),
        "sync_every": rng.choice([3, 50, 2500]),
        "max_unsynced": rng.choice([300, 100_000]),
    }
    model: deque[bytes] = deque()
    queue = first(fs, **options)
    made = 0
    for _ in range(250):
        act = rng.choice(["put", "put", "put_many", "take", "take", "take_many", "peek", "pass_on", "rare"])
        word = rng.choices(DURABILITY_WORDS, [20, 1, 1])[0]
        if act == "put":
            made += 1
            model.append(body(made, rng.randrange(9, 250)))
            queue.put(model[-1], durability=word)
        elif act == "put_many":
            batch = [body(made + i, rng.randrange(9, 150)) for i in range(rng.randrange(20))]
            made += len(batch)
            model += batch
            queue.put_many(batch, durability=word)
        elif act == "take":
            assert taken(queue) == (model.popleft() if model else None)
        elif act == "take_many":
            some = queue.get_many(rng.randrange(1, 30), max_bytes=rng.choice([1, 500, 10**9]))
            assert some or not model
            assert some == [model.popleft() for _ in some]
        elif act == "peek":
            peeked = queue.peek_many(rng.randrange(1, 10), max_bytes=rng.choice([1, 300, 10**9]))
            assert peeked == list(model)[: len(peeked)]
            assert peeked or not model
            if rng.random() < 0.5:
                made += 1
                model.append(body(made))
                queue.put(model[-1], durability=word)
            count = rng.randrange(len(peeked) + 1)
            queue.advance(count)
            for _ in range(count):
                model.popleft()
        elif act == "pass_on":
            made += 1
            if queue.steps.tail.pass_on([body(made)]):
                assert not model
        else:
            rare = rng.choice(["sync", "empty", "reopen", "has_message"])
            if rare == "sync":
                queue.sync()
                assert contents(fs.crash(rng)) == list(model)
            elif rare == "empty":
                queue.clear()
                model.clear()
            elif rare == "has_message":
                assert queue.steps.head.has_message() == bool(model)
            else:
                queue.close()
                queue = first(fs, **options)
        statistics = queue.statistics()
        assert queue.depth == len(model)
        assert statistics.memory_bytes <= options["memory_size"]
        assert statistics.repairs == ()
    assert drained(queue) == list(model)
    queue.close()


# --- with others ------------------------------------------------------------------------------


@pytest.mark.parametrize("on_full", ["reject", "drop_oldest"])
def test_disk_space_for_messages_in_memory_is_reserved_in_a_shared_budget(on_full):
    fs = disk()
    budget = DiskBudget(512 * KIB)
    options: dict[str, Any] = {"memory_size": 100 * KIB, "on_full": on_full, "segment_size": 20 * KIB}
    queues = [first(fs, name=name, budget=budget, **options) for name in ("a", "b", "c")]
    rng = random.Random(1)
    models: list[list[bytes]] = [[], [], []]
    made = 0
    for _ in range(600):
        index = rng.randrange(3)
        batch = bodies(rng.randrange(1, 40), 200, made)
        made += len(batch)
        try:
            queues[index].put_many(batch)
            models[index] += batch
        except FullError as full:
            models[index] += batch[: full.accepted]
        index = rng.randrange(3)
        for message in queues[index].get_many(rng.randrange(30)):
            at = models[index].index(message)
            assert at == 0 or on_full == "drop_oldest"
            del models[index][: at + 1]
        if rng.random() < 0.1:
            queues[index].sync()
        statistics = budget.statistics()
        assert statistics.granted <= budget.max_bytes
        assert sum(len(content) for content in fs.files().values()) <= budget.max_bytes
    for queue in queues:
        queue.close()
    assert sum(len(content) for content in fs.files().values()) <= budget.max_bytes
    for name, model in zip("abc", models, strict=True):
        found = contents(fs, name=name)
        assert found == model[len(model) - len(found) :]
        assert len(found) == len(model) or on_full == "drop_oldest"


def test_leases_are_not_for_messages_without_a_place():
    with first(disk()) as queue, pytest.raises(ValueError, match="places in the files"):
        QueueWork(queue)

# Queues without Trio that share a budget: leases, refusals, what is counted, and what a crash leaves.

from __future__ import annotations

import contextlib
import errno
from typing import Any

import pytest

from diskq.engine.log.engine import Admission, Mode
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.stream.groups import ConsumerGroup
from diskq.engine.stream.retention import retain
from diskq.engine.stream.stream import Stream
from diskq.errors import FullError
from diskq.options import StreamOptions
from diskq.storage.budget import DiskBudget
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS
from tests.engine.queues import abandoned, bodies, disk, drained, failing_disk, opened
from tests.engine.streams import triples
from tests.engine.transactions import stage, transaction

KIB = 1024


def size_on(fs: CrashFS) -> int:
    return sum(map(len, fs.files().values()))


def filled(queue: Queue, length: int = 1000) -> int:
    sent = 0
    with contextlib.suppress(FullError):
        while True:
            queue.put(bytes(length))
            sent += 1
    return sent


def two(fs: FileSystem, budget: DiskBudget, **options: object) -> tuple[Queue, Queue]:
    return opened(fs, "a", budget=budget, **options), opened(fs, "b", budget=budget, **options)


@pytest.mark.parametrize("on_full", ["reject", "wait"])
def test_a_refusal_names_the_budget_and_there_is_space_when_another_member_was_drained(on_full):
    a, b = two(disk(), DiskBudget(1024 * KIB), on_full=on_full)
    with a, b:
        count = filled(a)
        with pytest.raises(FullError, match=r"queue 'b' in /q holds .* budget of max_bytes=1048576"):
            b.put_many([bytes(1000)] * 50)
        assert b.depth == 0
        assert len(drained(a)) == count
        a.sync()
        b.put_many([bytes(1000)] * 50)
        assert b.depth == 50


def test_all_files_are_counted_and_stay_within_it():
    fs, budget = disk(), DiskBudget(512 * KIB)
    with (
        opened(fs, "a", budget=budget, on_full="drop_oldest") as a,
        opened(fs, "b", budget=budget, on_full="reject") as b,
    ):
        for number in range(3000):
            a.put(bytes(number % 700))
            if number % 3 == 0:
                try:
                    b.put(bytes(number % 500))
                except FullError:
                    b.get_many(20)
            assert size_on(fs) <= 512 * KIB, budget.statistics()
        statistics = budget.statistics()
        assert statistics.granted <= 512 * KIB - statistics.headroom
        assert a.statistics().dropped > 0
        assert b.statistics().dropped == 0


def test_what_waits_to_be_removed_is_counted_until_a_barrier_has_removed_it():
    fs, budget = disk(), DiskBudget(1024 * KIB)
    a, b = two(fs, budget, on_full="reject", sync_every=10**6, sync_timeout=1e6)
    with a, b:
        filled(a)
        before = budget.statistics().granted
        a.get_many(600)  # whole files of it: they go with the next barrier
        assert budget.statistics().granted == before
        a.sync()
        assert budget.statistics().granted < before - 500 * KIB


def test_a_closed_member_takes_its_bytes_with_it():
    budget = DiskBudget(1024 * KIB)
    a, b = two(disk(), budget)
    with b:
        with a:
            filled(a)
            assert budget.statistics().free < 16 * KIB
        assert len(budget.statistics().members) == 1
        assert budget.statistics().free > 900 * KIB


def test_one_that_cannot_be_opened_is_no_member():
    fs, budget = failing_disk(), DiskBudget(1024 * KIB)
    fs.fail("pwrite", error=errno.EIO, times=None)
    with pytest.raises(OSError, match="Input/output"):
        opened(fs, "a", budget=budget)
    assert budget.statistics().members == ()


def test_a_queue_opens_though_its_files_are_more_than_the_budget_and_can_be_drained():
    fs = disk()
    with opened(fs, "a") as a:
        a.put_many(bodies(2000, 1000))
    budget = DiskBudget(256 * KIB)
    a, b = two(fs, budget)
    with a, b:
        for queue in (a, b):
            with pytest.raises(FullError):
                queue.put(b"no")
        assert drained(a) == bodies(2000, 1000)
        a.sync()
        a.put(b"yes")
        b.put(b"yes")
        assert size_on(fs) < 256 * KIB


def test_each_members_own_bound_holds_in_a_budget():
    with opened(disk(), "a", budget=DiskBudget(1024 * KIB), max_bytes=128 * KIB, on_full="reject") as a:
        filled(a)
        with pytest.raises(FullError, match="max_bytes=131072"):
            a.put(bytes(1000))
        assert 90 < a.depth < 128


# --- a full disk ------------------------------------------------------------------------------


def test_a_full_disk_leaves_all_members_whole_and_they_go_on_when_there_is_room():
    fs, budget = failing_disk(), DiskBudget(4096 * KIB)
    queues = two(fs, budget, segment_size=16 * KIB)
    sent: list[list[bytes]] = [[], []]
    reasons: set[str] = set()

    def put(index: int, body: bytes) -> bool:
        try:
            queues[index].put(body)
        except FullError as full:
            reasons.add(full.reason[:16])
            return False
        sent[index].append(body)
        return True

    fs.capacity(100 * KIB)
    for number, body in enumerate(bodies(1000, 300)):
        put(number % 2, body)
    assert 100 < sum(map(len, sent)) < 400
    assert reasons == {"the disk is full"}
    used = budget.statistics().used
    first = queues[0].get_many(150)
    queues[0].sync()  # consumed files are gone: there is room again
    assert budget.statistics().used < used - 30 * KIB
    assert put(1, b"again")
    fs.capacity(None)
    assert put(0, b"more")
    assert put(1, b"more")
    assert first + drained(queues[0]) == sent[0]
    assert drained(queues[1]) == sent[1]
    for queue in queues:
        queue.close()


def test_after_a_kill_a_full_budget_is_full_again_and_nothing_is_lost():
    fs, options = disk(), {"on_full": "reject"}
    a, b = two(fs, DiskBudget(512 * KIB), **options)
    counts = filled(a), filled(b)
    after = abandoned(a, fs)
    a, b = two(after, DiskBudget(512 * KIB), **options)
    with a, b:
        for queue in (a, b):
            with pytest.raises(FullError):
                queue.put_many([bytes(1000)] * 64)
        assert size_on(after) <= 512 * KIB
        assert len(drained(a)) == counts[0]
        assert b.depth >= counts[1]


# --- streams ----------------------------------------------------------------------------------


def stream(fs: FileSystem, budget: DiskBudget, **options: Any) -> Stream:
    return Stream("/s", options=StreamOptions(budget=budget, **options), fs=fs)


def appended(its: Stream, count: int, length: int = 500) -> int:
    """Send `count` messages; return how many were accepted before one was refused."""
    for number in range(count):
        try:
            its.append(bytes(length), key=b"%d" % number)
        except FullError:
            return number
    return count


def test_all_files_of_a_stream_are_counted():
    fs, budget = disk(), DiskBudget(2048 * KIB)
    with stream(fs, budget, on_full="reject", partition_count=2) as its:
        for length in (0, 1, 100, 4000):
            its.append_many([(b"%d" % number, bytes(length)) for number in range(200_000 // (length + 100))])
            its.sync()
            assert size_on(fs) <= budget.statistics().used
        before = budget.statistics().used
        assert before < size_on(fs) + 1024 * KIB // 3
    with stream(fs, budget, on_full="reject", partition_count=2):
        assert before - 64 * KIB < budget.statistics().used < before + 64 * KIB


def test_checksums_and_index_are_counted_on_the_compiled_fast_path():
    budget = DiskBudget(4096 * KIB)
    with stream(disk(), budget, partition_count=1, sync_every=10**6) as its:
        assert its.steps._disk_share is not None
        its.append(b"", b"k")
        its.steps.router.is_awake = True
        count = 0
        append = its.steps.router.appender(Mode.STAGED, Admission.COUNTED).append
        while append(b"", b"k") is not None:
            count += 1
        assert count > 200
        assert 0 <= its.steps._disk_share.left(its.steps.router) < 8 * KIB


def test_a_stream_in_a_budget_is_synced_after_sync_every_records_as_any_other():
    with stream(disk(), DiskBudget(4096 * KIB), partition_count=1, sync_every=10) as its:
        its.append(b"x")
        assert its.log.gates[0].left == 8, "the tenth comes to be counted"


@pytest.mark.parametrize("on_full", ["reject", "wait"])
def test_a_stream_is_refused_at_the_budget_and_goes_on_when_there_is_room(on_full):
    fs, budget = disk(), DiskBudget(1024 * KIB)
    with stream(fs, budget, on_full=on_full, partition_count=1) as its:
        count = appended(its, 5000)
        assert 500 < count < 2000
        with pytest.raises(FullError, match=r"stream /s holds .* budget of max_bytes=1048576 that 1 share"):
            its.append_many([bytes(500)] * 50)
        assert its.next_offsets == (count,)
        retain(fs, its.files, now_ns=0, max_bytes=1)  # as another process's vacuum does
        assert appended(its, 300) == 300
        assert size_on(fs) <= 1024 * KIB


def test_what_its_retention_does_not_keep_goes_when_room_is_wanted():
    fs, budget = disk(), DiskBudget(1024 * KIB)
    with (
        stream(fs, budget, on_full="reject", partition_count=1, retention_max_bytes=200 * KIB) as its,
        opened(fs, "a", budget=budget, on_full="reject") as a,
    ):
        kept = filled(a) - 600
        a.get_many(600)
        a.sync()
        assert appended(its, 5000) == 5000
        assert size_on(fs) <= 1024 * KIB
        assert a.depth == kept


def test_a_stream_drops_its_oldest_segments_of_whichever_partition():
    fs, budget = disk(), DiskBudget(1024 * KIB)
    with stream(fs, budget, on_full="drop_oldest", partition_count=2) as its:
        for number in range(4000):
            its.append(bytes(500), key=b"%d" % number)
            if number % 50 == 0:
                assert size_on(fs) <= 1024 * KIB
        firsts = [its.files.partition(index).bases()[0] for index in range(2)]
        assert min(firsts) > 500
        assert its.append_many([bytes(500)] * 200)


def test_a_stream_keeps_what_groups_have_to_read_if_it_is_set_to():
    fs, budget = disk(), DiskBudget(1024 * KIB)
    options: dict[str, Any] = {"on_full": "drop_oldest", "partition_count": 1, "keep_for_groups": True}
    with stream(fs, budget, **options) as its:
        appended(its, 200)
        with ConsumerGroup(fs, its.files, "g").committed_offset(0) as committed_offset:
            committed_offset.commit(100)
        count = 200 + appended(its, 5000)
        assert 500 < count < 2000
        assert its.files.partition(0).bases()[0] <= 101
        assert appended(its, 1) == 0


def test_a_transaction_that_finds_no_room_is_refused_before_it_is_committed():
    fs, budget = disk(), DiskBudget(1024 * KIB)
    with stream(fs, budget, on_full="reject", partition_count=1) as its:
        staged = stage(fs, {0: triples(600, 700)}, count=1)
        appended(its, 5000)
        before = its.next_offsets
        with pytest.raises(FullError, match="budget"):
            its.commit(transaction(staged))
        assert its.next_offsets == before
        retain(fs, its.files, now_ns=0, max_bytes=1)
        assert its.commit(transaction(staged))
        assert its.next_offsets[0] == before[0] + 600


def test_a_queue_and_a_stream_share_and_the_older_of_them_drops_for_the_other():
    fs, budget = disk(), DiskBudget(1024 * KIB)
    with (
        stream(fs, budget, on_full="drop_oldest", partition_count=1, sync_every=10) as old,
        opened(fs, "new", budget=budget, on_full="drop_oldest") as new,
        opened(fs, "rest", budget=budget, on_full="reject") as rest,
    ):
        appended(old, 900)
        kept = filled(rest)
        with pytest.raises(FullError):
            new.put_many([bytes(1000)] * 80)  # the other one is asked, and does so when it is used next
        appended(old, 20)
        assert old.files.partition(0).bases()[0] > 0
        new.put_many([bytes(1000)] * 80)
        assert new.depth == 80
        assert rest.depth == kept

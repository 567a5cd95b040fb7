# A sync of the active segment alone, beside one that also covers the rest. Law: what it covers is durable and
# can be received, whichever of the two ends first; and each has a handle of its own.

from __future__ import annotations

import errno

import pytest

import diskq
from diskq.engine.log.sync import Sync
from diskq.testing import CrashFS, FaultFS
from tests.engine import stores

SMALL = diskq.PriorityOptions(preallocate=False, soft_limit=200)


def opened(options: diskq.PriorityOptions | None = None) -> tuple[diskq.PriorityStore, FaultFS[CrashFS]]:
    disk = stores.failing_disk()
    return diskq.PriorityStore(stores.ROOT, options=options, fs=disk), disk


def add(store: diskq.PriorityStore, *payloads: bytes) -> None:
    """Add messages that wait for a sync, as a channel does."""
    store.steps.add(store.queue(), [*payloads], 0, "synced")


def log_sync(store: diskq.PriorityStore) -> Sync:
    assert store.log.is_log_ready
    sync = store.log.prepare_log()
    assert sync is not None
    return sync


def left_in(disk: FaultFS[CrashFS]) -> list[bytes]:
    with diskq.PriorityStore(stores.ROOT, fs=disk.inner.crash()) as store:
        return [record.body for record in store.get_many(store.queue(), 100)]


def test_what_it_covers_is_durable_and_can_be_received():
    store, disk = opened()
    add(store, b"a", b"b")
    sync = log_sync(store)
    add(store, b"c")
    assert not sync.has_metadata
    sync.barrier.execute(disk)
    store.log.complete(sync, True)
    assert left_in(disk)[:2] == [b"a", b"b"]
    assert [record.body for record in store.get_many(store.queue(), 9)] == [b"a", b"b"]
    assert store.steps.is_durable(1)
    assert not store.steps.is_durable(2)
    store.close()


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_at_a_time_either_may_end_first(is_first):
    store, disk = opened()
    add(store, b"a")
    files = store.log.prepare(full=True)
    add(store, b"b")
    alone = log_sync(store)
    assert not {*files.barrier.files} & {*alone.barrier.files}
    for sync in (alone, files) if is_first else (files, alone):
        sync.barrier.execute(disk)
        store.log.complete(sync, True)
    assert store.steps.is_durable(1)
    assert [record.body for record in store.get_many(store.queue(), 9)] == [b"a", b"b"]
    assert left_in(disk) == [b"a", b"b"]
    store.close()


def test_one_at_a_time_and_none_in_a_new_segment_before_its_name_is_durable():
    store, disk = opened(SMALL)
    add(store, b"a")
    first = log_sync(store)
    assert not store.log.is_log_ready
    assert store.log.prepare_log() is None
    first.barrier.execute(disk)
    store.log.complete(first, True)
    add(store, b"x" * 200)
    add(store, b"in the next segment")
    assert store.log.pending
    assert not store.log.is_log_ready
    assert store.log.prepare_log() is None
    files = store.log.prepare(full=False)
    add(store, b"b")
    assert not store.log.is_log_ready
    assert store.log.prepare_log() is None
    files.barrier.execute(disk)
    store.log.complete(files, True)
    second = log_sync(store)
    second.barrier.execute(disk)
    store.log.complete(second, True)
    assert left_in(disk) == [b"a", b"x" * 200, b"in the next segment", b"b"]
    store.close()


def handles(disk: FaultFS[CrashFS], base: int) -> int:
    """How many handles of that segment are open."""
    return sum(path.endswith(f"{base:019}.log") for path in disk.inner.open_files())


@pytest.mark.parametrize("is_under_way", [False, True])
def test_the_second_handle_of_a_segment_is_closed_when_the_next_one_begins(is_under_way):
    store, disk = opened(SMALL)
    add(store, b"a")
    sync = log_sync(store)
    assert handles(disk, 0) == 2
    if not is_under_way:
        sync.barrier.execute(disk)
        store.log.complete(sync, True)
    add(store, b"x" * 200)
    add(store, b"in the next segment")
    assert handles(disk, 0) == (2 if is_under_way else 1)
    if is_under_way:
        sync.barrier.execute(disk)
        store.log.complete(sync, True)
        assert handles(disk, 0) == 1
    store.log.sync()
    assert handles(disk, 0) == 0
    add(store, b"b")
    sync = log_sync(store)
    sync.barrier.execute(disk)
    store.log.complete(sync, True)
    store.close()
    assert not [*disk.inner.open_files()]


def test_without_a_descriptor_for_it_the_files_are_synced():
    store, disk = opened()
    add(store, b"a")
    disk.fail("open", error=errno.EMFILE, path="*.log")
    assert store.log.prepare_log() is None
    assert log_sync(store).barrier.files
    store.log.release()

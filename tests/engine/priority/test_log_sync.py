# A sync of the active segment alone, without the rest. Law: what it covers is durable and can be received;
# and one sync of a segment is in flight at a time.

from __future__ import annotations

import diskq
from diskq.engine.log.sync import Sync
from diskq.engine.log.writer import MOST_WAITING
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


def test_there_is_none_while_one_that_covers_the_rest_is_executed():
    store, disk = opened()
    add(store, b"a")
    files = store.log.prepare(full=True)
    add(store, b"b")
    assert not store.log.is_log_ready
    assert store.log.prepare_log() is None
    files.barrier.execute(disk)
    store.log.complete(files, True)
    assert store.steps.is_durable(0)
    assert not store.steps.is_durable(1)
    alone = log_sync(store)
    alone.barrier.execute(disk)
    store.log.complete(alone, True)
    assert store.steps.is_durable(1)
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


def test_a_segment_stays_open_until_its_sync_is_executed_however_many_follow():
    store, disk = opened(SMALL)
    add(store, b"a")
    sync = log_sync(store)
    for _ in range(2 * MOST_WAITING):
        add(store, b"x" * 200)
    assert [*disk.inner.open_files()].count(f"{stores.ROOT}/data/log/{0:019}.log") == 1
    sync.barrier.execute(disk)
    store.log.complete(sync, True)
    assert store.steps.is_durable(0)
    store.close()
    assert not [*disk.inner.open_files()]

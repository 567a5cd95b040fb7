# A large store. Law: a backlog costs memory, and neither time when it is sent to nor when it is opened.
#
# The suite takes 20,000 messages. `make soak` takes as many as DISKQ_SOAK_RECORDS says, a million for what
# is promised: an open in 3 s, 250 bytes beyond the payload, 20 ms at most for a `send` beside a snapshot.

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from diskq.engine.priority.store import PriorityStore
from diskq.options import PriorityOptions

RECORDS = int(os.environ.get("DISKQ_SOAK_RECORDS", "20000"))
# Of a short run the machine's other work is too large a part.
IS_LONG = RECORDS >= 1_000_000

BATCH = 1000


def filled(directory: Path) -> PriorityStore:
    store = PriorityStore(directory, options=PriorityOptions(snapshot_segments=100), takes_snapshots=False)
    for start in range(0, RECORDS, BATCH):
        numbers = range(start, start + BATCH)
        store.put_many(store.queue(), [b"%0100d" % n for n in numbers], [n % 10 for n in numbers])
    store.sync()
    return store


@pytest.mark.slow
@pytest.mark.timeout(60 + RECORDS / 1000)
def test_a_snapshot_of_many_keeps_no_sender_waiting_and_is_opened_soon(tmp_path: Path) -> None:
    slowest = 0.0
    with filled(tmp_path) as store:
        snapshot = store.steps.begin_snapshot()
        assert snapshot is not None
        writer = threading.Thread(target=snapshot.write)
        writer.start()
        sent = 0
        while writer.is_alive():
            begun = time.perf_counter()
            store.steps.add(store.queue(), [b"meanwhile"], 3, "written")
            slowest = max(slowest, time.perf_counter() - begun)
            sent += 1
            time.sleep(0.001)
        writer.join()
        store.sync()
        store.steps.finish_snapshot(snapshot)
        assert store.queue().table.allocated < 250 * RECORDS
    begun = time.perf_counter()
    with PriorityStore(tmp_path) as store:
        seconds = time.perf_counter() - begun
        assert store.statistics().stored == RECORDS + sent
        records = store.get_many(store.queue(), RECORDS + sent)
        keys = [(record.priority, record.id) for record in records]
        assert keys == sorted(keys)
    if IS_LONG:
        assert slowest < 0.020
        assert seconds < 3


@pytest.mark.slow
@pytest.mark.timeout(60 + RECORDS / 1000)
def test_the_rate_does_not_fall_with_the_backlog(tmp_path: Path) -> None:
    with PriorityStore(tmp_path / "small") as small, filled(tmp_path / "large") as large:
        small.put_many(small.queue(), [b"%0100d" % n for n in range(1000)], [n % 10 for n in range(1000)])
        best = {small: float("inf"), large: float("inf")}
        for _ in range(20):  # in turn: what else the machine does meets both
            for store in best:
                best[store] = min(best[store], rounds(store))
    if IS_LONG:
        assert best[large] < best[small] * 1.25


def rounds(store: PriorityStore) -> float:
    """Seconds for a thousand messages received, acknowledged and sent again, in batches of 100."""
    begun = time.perf_counter()
    for _ in range(10):
        records = store.get_many(store.queue(), 100)
        assert len(records) == 100
        store.ack_many(store.queue(), records)
        store.put_many(store.queue(), [b"%0100d" % record.id for record in records], 5)
    return time.perf_counter() - begun

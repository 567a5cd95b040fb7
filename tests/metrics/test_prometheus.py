# The results of a scrape.

from __future__ import annotations

import gc
import sys
import threading
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import diskq
from diskq.hub.replication import Progress, ReplicationStatistics
from diskq.metrics.prometheus import DiskqCollector
from diskq.testing import CrashFS
from tests.channels.queue.test_statistics import everything


@pytest.fixture
def disk() -> CrashFS:
    fs = CrashFS()
    for path in ("/", "/q", "/w"):
        fs.make_directory_durably(path)
    return fs


def scraped(collector: DiskqCollector) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """By name and labels, as Prometheus reads it."""
    registry = CollectorRegistry()
    registry.register(collector)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [sample for family in families for sample in family.samples]
    found = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(found) == len(samples), "a name and labels come once"
    return found


def value(collector: DiskqCollector, metric: str, /, **labels: str) -> float:
    (found,) = (
        value
        for (each, its), value in scraped(collector).items()
        if each == metric and labels.items() <= dict(its).items()
    )
    return found


async def test_a_scrape_tells_how_things_are(disk):
    collector = DiskqCollector()
    async with diskq.open_queue("/q", "events", fs=disk) as queue:
        with collector.watch(queue, "events", host="a"):
            await queue.send_many([b"1", b"2", b"3"])
            await queue.receive()
            assert (
                value(collector, "diskq_accepted_messages_total", kind="queue", name="events", host="a") == 3
            )
            assert value(collector, "diskq_delivered_messages_total") == 1
            assert value(collector, "diskq_depth_messages") == 2
            assert value(collector, "diskq_written_bytes_total") == 3 * 5


async def test_barriers_are_a_histogram(disk):
    collector = DiskqCollector()
    async with diskq.open_queue("/q", "events", fs=disk) as queue:
        collector.watch(queue, "events")
        await queue.send(b"x", durability="synced")
        count = value(collector, "diskq_barrier_seconds_count")
        assert count >= 1
        assert value(collector, "diskq_barrier_seconds_bucket", le="+Inf") == count
        assert value(collector, "diskq_barrier_seconds_sum") == 0  # this disk's clock stands still


async def test_everything_can_be_watched_at_once_and_scraped_from_a_thread(disk, autojump_clock):
    collector = DiskqCollector()
    progress = Progress()
    progress(ReplicationStatistics(delivered=7))
    collector.watch(progress, "copy")
    async with everything(disk) as stores:
        for kind, store in stores.items():
            collector.watch(store, kind)
        await trio.testing.wait_all_tasks_blocked()
        found = await trio.to_thread.run_sync(scraped, collector)
    kinds = {dict(labels)["kind"] for _, labels in found}
    assert kinds == {kind.replace(" ", "_") for kind in stores} | {"replication"}
    lags = {
        dict(labels)["kind"]: lag
        for (name, labels), lag in found.items()
        if name == "diskq_lag_messages" and lag
    }
    assert lags == {"consumer": 1, "scanner": 1, "shard_scanner": 1}
    assert {dict(labels).get("partition") for name, labels in found if name == "diskq_next_offset"} >= {
        "0",
        "1",
    }


def test_a_spool_of_threads_is_a_spool(tmp_path):
    collector = DiskqCollector()
    with diskq.Spool(tmp_path / "s", lambda batch: None, drain_timeout=30) as spool:
        collector.watch(spool, "letters")
        spool.put_many([b"1", b"2", b"3"])
    assert value(collector, "diskq_accepted_messages_total", kind="spool", name="letters") == 3
    assert value(collector, "diskq_delivered_messages_total") == 3
    assert value(collector, "diskq_depth_messages") == 0


# --- what is watched ------------------------------------------------------------------------------


async def test_a_store_that_is_not_watched_any_more_is_not_reported(disk):
    collector = DiskqCollector()
    async with diskq.open_queue("/q", "events", fs=disk) as queue:
        with collector.watch(queue, "events"):
            assert scraped(collector)
        assert not scraped(collector)


def test_a_collected_store_is_forgotten_and_its_name_is_free(disk):
    collector = DiskqCollector()
    budget = diskq.DiskBudget(1024 * 1024)
    collector.watch(budget, "all")
    assert scraped(collector)
    del budget
    gc.collect()
    assert not scraped(collector)
    again = diskq.DiskBudget(1024 * 1024)
    collector.watch(again, "all")


def test_two_of_a_kind_have_different_labels():
    collector = DiskqCollector()
    one, two = diskq.DiskBudget(1024 * 1024), diskq.DiskBudget(1024 * 1024)
    collector.watch(one, "all")
    with pytest.raises(ValueError, match="there is a budget 'all' with these labels already"):
        collector.watch(two, "all")
    collector.watch(two, "all", host="b")
    assert len({labels for _, labels in scraped(collector)}) == 2


@pytest.mark.parametrize("label", ["kind", "le", "__name__", "0th", "a-b"])
def test_a_label_is_ones_own_and_has_a_labels_name(label):
    with pytest.raises(ValueError, match="cannot be a label's name"):
        DiskqCollector().watch(diskq.DiskBudget(1024 * 1024), "all", **{label: "x"})


def test_what_has_no_metrics_is_refused():
    with pytest.raises(TypeError, match="a SimpleNamespace has no metrics"):
        DiskqCollector().watch(SimpleNamespace(statistics=None), "x")


# --- counters -------------------------------------------------------------------------------------


def test_a_counter_that_is_read_in_between_does_not_fall():
    collector, progress = DiskqCollector(), Progress()
    collector.watch(progress, "copy")
    told = []
    for messages in (5, 4, 6):
        progress(ReplicationStatistics(delivered=messages))
        told.append(value(collector, "diskq_delivered_messages_total"))
    assert told == [5, 5, 6]


async def test_counters_never_fall_while_another_thread_scrapes(disk):
    interval = sys.getswitchinterval()
    collector = DiskqCollector()
    seen: list[Any] = []
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.is_set():
            seen.append(scraped(collector))

    async with diskq.open_queue("/q", "events", fs=disk) as queue:
        collector.watch(queue, "events")
        thread = threading.Thread(target=scrape)
        sys.setswitchinterval(1e-5)
        try:
            thread.start()
            while len(seen) < 5:
                await queue.send_many([b"x"] * 10)
                await queue.receive_many(10)
        finally:
            is_over.set()
            sys.setswitchinterval(interval)
            await trio.to_thread.run_sync(thread.join)
    for before, after in pairwise(seen):
        for key, count in before.items():
            assert after[key] >= count or not key[0].endswith("_total")


class Broken(diskq.QueueChannel):
    """Raises an unexpected error."""

    def statistics(self) -> Any:
        raise ZeroDivisionError("not to be had")


async def test_a_store_that_raises_is_left_out_and_the_others_are_reported(disk, caplog):
    collector = DiskqCollector()
    async with diskq.open_queue("/q", "events", fs=disk) as queue:
        broken = Broken(queue._loop)
        with collector.watch(broken, "broken"), collector.watch(queue, "events"):
            await queue.send(b"1")
            assert value(collector, "diskq_depth_messages", name="events") == 1
            assert not [labels for _, labels in scraped(collector) if ("name", "broken") in labels]
    assert {record.diskq_event for record in caplog.records} == {"unreadable"}

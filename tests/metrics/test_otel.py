# What an OpenTelemetry reader collects.

from __future__ import annotations

from typing import Any, cast

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import diskq
from diskq.metrics import METRICS
from diskq.metrics.otel import instrument
from diskq.testing import CrashFS


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def meter(reader):
    provider = MeterProvider([reader])
    yield provider.get_meter("test")
    provider.shutdown()


@pytest.fixture
def disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably("/q")
    return fs


def collected(reader):
    """By name: unit, and what was observed, with its attributes."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    metrics = [
        metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]
    return {
        metric.name: (
            metric.unit,
            [(point.value, dict(point.attributes)) for point in metric.data.data_points],
        )
        for metric in metrics
    }


async def test_a_collection_tells_how_things_are(meter, reader, disk):
    async with diskq.open_queue("/q", "events", fs=disk) as queue:
        with instrument(meter, queue, "events", host="a"):
            for number in (1, 2):
                await queue.send(b"x", durability="synced")
                found = collected(reader)
                its = {"kind": "queue", "name": "events", "host": "a"}
                assert found["diskq_accepted_messages"] == ("{message}", [(number, its)])
                assert found["diskq_barrier_seconds_count"][1][0][0] >= number
                assert found["diskq_barrier_seconds_sum"][0] == "s"
        assert not collected(reader)


async def test_two_things_have_one_instrument(meter, reader, disk, caplog):
    budget = diskq.DiskBudget(1024 * 1024)
    async with diskq.open_queue("/q", "events", fs=disk, budget=budget) as queue:
        instrument(meter, queue, "events")
        instrument(meter, budget, "all")
        used = collected(reader)["diskq_disk_bytes"][1]
    assert [attributes["kind"] for _, attributes in used] == ["queue", "budget", "budget"]
    assert caplog.messages == []


async def test_one_collection_reads_once(meter, reader, monkeypatch):
    budget = diskq.DiskBudget(1024 * 1024)
    asked = []
    told = budget.statistics()

    def statistics():
        asked.append(1)
        return told

    monkeypatch.setattr(budget, "statistics", statistics)
    instrument(meter, budget, "all")
    for _ in range(3):
        collected(reader)
    assert len(asked) == 3


def test_every_metric_has_an_instrument(reader):
    names = []

    class Recorder:
        def __getattr__(self, verb):
            return lambda name, callbacks, unit, what: names.append((verb.rpartition("_")[2], name))

    instrument(cast(Any, Recorder()), diskq.DiskBudget(1024 * 1024), "all")
    for metric in METRICS:
        if metric.kind == "histogram":
            assert {("counter", f"{metric.name}_count"), ("counter", f"{metric.name}_sum")} <= {*names}
        else:
            assert (metric.kind, metric.name) in names

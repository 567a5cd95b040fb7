"""Measure streams beside the system calls that go-diskq makes for the same work, and nothing else.

go-diskq itself is not measured: a ratio to its calls alone is about the least that the ratio to go-diskq is.
"""

from __future__ import annotations

from typing import Any

from benchmarks.floors import STREAM, calls
from benchmarks.harness import GoBench, Measurement, Scale, Work
from benchmarks.system_calls import GoCalls

ROUNDS = 5
SECTIONS = STREAM

# A million messages are then 13 segments.
SEGMENT = 10_000_000


def measurements(scale: Scale) -> dict[str, Measurement]:
    many, fewer = scale(1_000_000), scale(300_000)
    return {
        "send": _ours("send", count=many),
        "send 3": _ours("send", count=many, partitions=3),
        "send 16": _ours("send", count=many, tasks=16),
        "send_many": _ours("send", count=many, batch=100),
        calls("Push"): _calls("push", count=fewer),
        calls("Push, 3 partitions"): _calls("push", count=fewer, partitions=3),
        calls("Push, 16 goroutines"): _calls("push", count=fewer, producers=16),
        **durable(scale),
        "consume": _ours("consume", count=many),
        "consume batched": _ours("consume", count=many, batch=100),
        "columns": _ours("columns", count=scale(4_000_000)),
        calls("Consumer"): _calls("consume", count=fewer),
        calls("Read"): _calls("read", count=many),
        **moments(scale),
        **waiting(scale),
    }


def durable(scale: Scale) -> dict[str, Measurement]:
    return {
        "synced 1": _ours("send", count=scale(3_000), durability="synced"),
        "synced 16": _ours("send", count=scale(40_000, least=1_600), tasks=16, durability="synced"),
        "synced 256": _ours("send", count=scale(150_000, least=2_560), tasks=256, durability="synced"),
        calls("Push and Sync"): _calls("push", count=scale(1_000), sync=True),
        calls("Push and Sync, 16 goroutines"): _calls("push", count=scale(1_000), sync=True, producers=16),
        calls("Push and Sync, 256 goroutines"): _calls("push", count=scale(1_024), sync=True, producers=256),
    }


def moments(scale: Scale) -> dict[str, Measurement]:
    messages, many = 1_000_000, scale(100_000_000)
    if scale.name == "smoke":
        messages = 100_000
    filled = _ours("fill", count=messages, segment_size=SEGMENT)
    return {
        "lookup": _ours("lookup", after=filled, count=scale(50_000), messages=messages),
        "cold": _ours("lookup_cold", after=filled, count=scale(5_000), messages=messages),
        calls("GetOffsetAfter"): _calls("lookup", count=scale(5_000), segment_size=SEGMENT),
        "lookup in many": _ours(
            "lookup", after=_ours("sparse", messages=many), count=scale(50_000), messages=many
        ),
    }


def waiting(scale: Scale) -> dict[str, Measurement]:
    slow, seconds = scale(500), 2.0
    if scale.name == "smoke":
        seconds = 0.1
    return {
        "latency": _ours("latency", count=scale(50_000)),
        "latency 1 ms": _ours("latency", count=slow, pace=0.001),
        calls("Push to Consumer"): _calls("latency", count=scale(50_000)),
        calls("Push to Consumer, 1 ms apart"): _calls("latency", count=slow, pace="1ms"),
        "across": _ours("latency_across", count=scale(20_000)),
        "across 1 ms": _ours("latency_across", count=slow, pace=0.001),
        calls("Push to Consumer, across processes"): _calls("across", count=scale(20_000)),
        calls("Push to Consumer, across processes, 1 ms apart"): _calls("across", count=slow, pace="1ms"),
        "idle": _ours("idle", seconds=seconds),
    }


def _ours(work: str, after: Work | None = None, **options: Any) -> Work:
    return Work(work, options, module="stream_works", after=after)


def _calls(act: str, **options: Any) -> GoBench:
    return GoBench(act, GoCalls, **options)

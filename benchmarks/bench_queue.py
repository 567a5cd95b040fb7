"""The FIFO queue beside go-diskqueue, and beside the queues that Python users have today."""

from __future__ import annotations

from typing import Any

from benchmarks.floors import QUEUE
from benchmarks.harness import GoBench, Measurement, Scale, Work

ROUNDS = 5
SECTIONS = QUEUE

# A second or so each, at rates of a 2026 laptop; a peer's as many as it does in that time.
RELAXED_COUNTS = {
    "queuelib": 400_000,
    "sqlite3": 50_000,
    "persist-queue": 20_000,
    "diskcache": 10_000,
    "litequeue": 3_000,
    "localqueue": 4_000,
    "LMDB": 100_000,
    "RocksDB": 100_000,
    "Redis": 5_000,
    "persist-queue file": 3_000,
    "NATS": 5_000,
}
DURABLE_COUNTS = {
    "queuelib": 4_000,
    "sqlite3": 4_000,
    "persist-queue": 3_000,
    "diskcache": 2_000,
    "litequeue": 3_000,
    "localqueue": 3_000,
    "LMDB": 4_000,
    "RocksDB": 4_000,
    "Redis": 4_000,
}


def measurements(scale: Scale) -> dict[str, Measurement]:
    """Return the measurements: message counts as for go-diskqueue, fewer for strict and synced sends."""
    many, kib, strict = scale(1_000_000), scale(300_000), {"count": scale(400_000), "checkpoint_slice": 0}
    return {
        "send": Work("send", {"count": many}),
        "send 16": Work("send", {"count": many, "tasks": 16}),
        "send_many": Work("send", {"count": many, "batch": 100}),
        "send strict": Work("send", strict),
        "send strict 16": Work("send", {**strict, "tasks": 16}),
        "go put": GoBench("put", count=many),
        "go put 16": GoBench("put", count=many, producers=16),
        "receive": Work("receive", {"count": many}),
        "receive_many": Work("receive", {"count": many, "batch": 100}),
        "go get": GoBench("get", count=many),
        "both": Work("both", {"count": scale(500_000)}),
        "both batched": Work("both", {"count": scale(500_000), "batch": 100}),
        "go putget": GoBench("putget", count=scale(500_000)),
        "send 1 KiB": Work("send", {"count": kib, "size": 1024}),
        "send_many 1 KiB": Work("send", {"count": kib, "size": 1024, "batch": 100}),
        "go put 1 KiB": GoBench("put", count=kib, size=1024),
        "latency": Work("latency", {"count": scale(100_000)}),
        "go latency": GoBench("latency", count=scale(100_000)),
        "trio hand-over": Work("hand_over", {"count": scale(100_000)}),
        "latency 1 ms": Work("latency", {"count": scale(500), "pace": 0.001}),
        "go latency 1 ms": GoBench("latency", count=scale(500), pace="1ms"),
        "slow disk": Work("slow_disk", {"seconds": max(0.1, 2.0 * scale.factor)}),
        "turns": Work("turns", {"count": scale(400_000, least=2_000)}),
        **long_queues(scale),
        "many queues": Work("many_queues", {"count": scale(1_000, least=20), "rounds": scale(50, least=5)}),
        **python_queues(scale),
    }


def long_queues(scale: Scale) -> dict[str, Measurement]:
    count = scale(10_000_000, least=2_000)
    if scale.name == "quick":
        count = 1_000_000
    sample = min(scale(500_000, least=1_000), count // 4)
    filled = Work("fill", {"count": count})
    return {
        "long queue": Work("long_queue", {"count": count, "sample": sample}, after=filled),
        "short queue": Work("short_queue", {"count": 1_000, "sample": max(1_000, sample)}),
    }


def python_queues(scale: Scale) -> dict[str, Measurement]:
    never = {"sync_every": 2**62, "sync_timeout": 1e9}
    return {
        "Queue": _peer("Queue", scale(500_000)),
        "Queue, never synced": _peer("Queue", scale(500_000), **never),
        "channel": Work("send_then_receive", {"count": scale(500_000)}),
        **{peer: _peer(peer, scale(count)) for peer, count in RELAXED_COUNTS.items()},
        "durable 1": _synced(1, scale(3_000)),
        "go syncput": GoBench("syncput", count=scale(1_500)),
        "durable 64": _synced(64, scale(100_000, least=1_280)),
        **{
            f"{peer}, synced": _peer(peer, scale(count), durable=True)
            for peer, count in DURABLE_COUNTS.items()
        },
    }


def _synced(tasks: int, count: int) -> Work:
    return Work("send", {"count": count, "tasks": tasks, "durability": "synced"})


def _peer(peer: str, count: int, **options: Any) -> Work:
    return Work("measure", {"peer": peer, "count": count, **options}, module="peers")

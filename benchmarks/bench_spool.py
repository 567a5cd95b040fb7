"""The spool with a destination that is there, beside loops of get and ack over other Python queues."""

from __future__ import annotations

from benchmarks.floors import SPOOL
from benchmarks.harness import Measurement, Scale, Work

ROUNDS = 5
SECTIONS = SPOOL

# A second or so each, at rates of a 2026 laptop.
COUNTS = {"localqueue": 5_000, "persist-queue ack": 8_000, "persist-queue file": 2_000}


def measurements(scale: Scale) -> dict[str, Measurement]:
    many = scale(300_000, least=1_000)
    return {
        "steady": Work("steady", {"count": many}, module="spool_works"),
        "steady, send_many": Work("steady", {"count": many, "batch": 100}, module="spool_works"),
        "steady, memory": Work("steady", {"count": many, "durability": "memory"}, module="spool_works"),
        "drain": Work("drain", {"count": many}, module="spool_works"),
        "leases": Work("leases", {"count": scale(100_000, least=1_000)}, module="spool_works"),
        "leases, batched": Work("leases", {"count": many, "batch": 100}, module="spool_works"),
        **{
            peer: Work(
                "get_and_ack", {"peer": peer, "count": scale(count, least=1_000)}, module="spool_works"
            )
            for peer, count in COUNTS.items()
        },
    }

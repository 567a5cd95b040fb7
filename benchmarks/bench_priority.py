"""A store of priority queues, beside what Python users have for jobs that are acknowledged."""

from __future__ import annotations

from benchmarks.floors import PRIORITY
from benchmarks.harness import Measurement, Scale, Work

ROUNDS = 5
SECTIONS = PRIORITY

# Some seconds each, at rates of a 2026 laptop, which a backlog lowers to 200/s and 80/s.
GETS = {"localqueue": 600, "persist-queue ack": 2_000, "litequeue": 300}


def work(name: str, **options: object) -> Work:
    return Work(name, options, module="priority_works")


def measurements(scale: Scale) -> dict[str, Measurement]:
    backlog, million = scale(100_000, least=1_000), scale(1_000_000, least=1_000)
    exchanged = scale(300_000, least=1_000)
    return {
        "synced 1": work("send_synced", count=scale(2_000)),
        "synced 64": work("send_synced", count=scale(80_000, least=640), tasks=64),
        **{f"{peer} put": work("put_durably", peer=peer, count=scale(1_500)) for peer in GETS},
        "localqueue put_many(64)": work(
            "put_durably", peer="localqueue", count=scale(80_000, least=640), batch=64
        ),
        "sqlite3 put": Work(
            "put", {"peer": "sqlite3", "count": scale(3_000), "durable": True}, module="peers"
        ),
        "redis put 64": work("put_durably", peer="redis", count=scale(40_000, least=640), batch=64),
        "drain": work("receive_and_ack", backlog=backlog, count=backlog // 2),
        "drain 1": work("receive_and_ack", backlog=backlog, count=backlog // 5, batch=1),
        **{
            f"{peer} get": work("get_and_ack", peer=peer, backlog=backlog, count=scale(count))
            for peer, count in GETS.items()
        },
        "redis get 100": work("get_and_ack", peer="redis", backlog=backlog, count=backlog // 2, batch=100),
        **{
            f"backlog {name}": work("at_backlog", backlog=scale(size, least=100), count=exchanged)
            for name, size in (("1k", 1_000), ("100k", 100_000), ("1M", 1_000_000))
        },
        "backlog 1M distinct": work("at_backlog", backlog=million, count=exchanged, distinct=True),
        "million": Work(
            "many", {"count": million}, module="priority_works", after=work("fill", count=million)
        ),
    }

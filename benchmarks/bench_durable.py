"""Durable sends of queues, streams and journals, beside the disk, go-diskqueue and sqlite3.

A shared disk is ten times slower in one second than in the next. So each work takes half a second, and there
are more rounds than elsewhere.
"""

from __future__ import annotations

from typing import Any

from benchmarks.floors import DURABLE, RAW, go_synced
from benchmarks.harness import GoBench, Measurement, Scale, Work

ROUNDS = 9
SECTIONS = DURABLE

_MODULES = {"queue": "works", "stream": "stream_works", "journal": "journal_works"}
_COUNTS = {1: 2_000, 16: 20_000, 256: 100_000}


def measurements(scale: Scale) -> dict[str, Measurement]:
    return {
        **{f"{kind} {tasks}": _ours(scale, kind, tasks) for kind in _MODULES for tasks in _COUNTS},
        **{
            go_synced(producers): GoBench("syncput", count=scale(1_280, least=producers), producers=producers)
            for producers in _COUNTS
        },
        RAW: Work("raw_fdatasync", {"count": scale(3_000)}),
        "sqlite3": Work("put", {"peer": "sqlite3", "count": scale(3_000), "durable": True}, module="peers"),
    }


def _ours(scale: Scale, kind: str, tasks: int) -> Work:
    count = scale(_COUNTS[tasks], least=100 if tasks == 1 else 10 * tasks)
    options: dict[str, Any] = {"count": count, "tasks": tasks, "durability": "synced"}
    return Work("send", options, module=_MODULES[kind])

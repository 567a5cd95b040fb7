"""Measure journals beside the system calls that sej makes for the same work, and a bound written in Go.

sej itself is not measured: a ratio to its calls alone is about the least that the ratio to sej is. Where its
work is not in its calls (Append fills a buffer, Scan empties one), the floor is a ratio to a bound: a program
in Go of this project (gojournal) that does the least of that work. It is not sej, and takes less time.
"""

from __future__ import annotations

from typing import Any

from benchmarks.floors import JOURNAL, go_bound, sej_calls
from benchmarks.harness import GoBench, Measurement, Scale, Work
from benchmarks.system_calls import GoCalls, GoJournal

ROUNDS = 5
SECTIONS = JOURNAL

# 26 bytes, a key of 8 and a value of 100.
RECORD = 134


def measurements(scale: Scale) -> dict[str, Measurement]:
    many, synced = scale(1_000_000), scale(1_000)
    return {
        "send": _ours("send", count=many),
        "send 16": _ours("send", count=many, tasks=16),
        "send_many": _ours("send", count=many, batch=100),
        "send_many 1000": _ours("send", count=many, batch=1000),
        go_bound("buffered Append"): GoBench("append", GoJournal, count=many),
        go_bound("Scan"): GoBench("scan", GoJournal, count=many),
        sej_calls("Append"): _calls("append", count=many),
        sej_calls("Append and Flush"): _calls("flush", count=many),
        "synced 1": _ours("send", count=synced, durability="synced"),
        "synced 16": _ours("send", count=scale(40_000, least=1_600), tasks=16, durability="synced"),
        sej_calls("Append, Flush and Sync"): _calls("flush", count=synced, sync=True),
        sej_calls("Append, Flush and Sync, 16 goroutines"): _calls(
            "flush", count=synced, sync=True, producers=16
        ),
        "scan": _ours("scan", count=many),
        "scan batched": _ours("scan", count=many, batch=100),
        "columns": _ours("columns", count=scale(4_000_000)),
        sej_calls("Scan"): _calls("scan", count=many),
        "idle": _ours("idle", seconds=0.1 if scale.name == "smoke" else 2.0),
    }


def _ours(work: str, **options: Any) -> Work:
    return Work(work, options, module="journal_works")


def _calls(act: str, **options: Any) -> GoBench:
    return GoBench(act, GoCalls, record=RECORD, **options)

# What `diskq top` shows of each store: cells, JSON, and the sum of all. Law: what is unknown is "-", in
# JSON null; what is not exact is marked.

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from diskq.cli.core import units
from diskq.cli.core.terminal import printable, shown
from diskq.tools.watch.samples import Sample, SamplePart
from diskq.tools.watch.watch import WatchReading

__all__ = [
    "COLUMNS",
    "NUMERIC",
    "SORTS",
    "Column",
    "as_json",
    "cells",
    "part_cells",
    "sort_key",
    "sparkline",
    "totals",
]

_SECOND = 10**9
_BARS = "▁▂▃▄▅▆▇█"
_FEW = 100


class Column(NamedTuple):
    """A column, and its rank: columns of high ranks are left out first if the space is too small."""

    name: str
    rank: int


COLUMNS = (
    Column("kind", 2),
    Column("name", 1),
    Column("holder", 6),
    Column("in/s", 1),
    Column("in B/s", 5),
    Column("out/s", 1),
    Column("out B/s", 7),
    Column("depth", 1),
    Column("lag", 2),
    Column("oldest", 3),
    Column("sync", 3),
    Column("disk", 3),
    Column("files", 8),
    Column("problems", 5),
    Column("last minute", 4),
)
NUMERIC = (
    "in/s",
    "in B/s",
    "out/s",
    "out B/s",
    "depth",
    "lag",
    "oldest",
    "sync",
    "disk",
    "files",
    "problems",
)
SORTS = ("name", "in/s", "out/s", "depth", "lag", "oldest", "sync", "disk")
"""Columns to sort by, in the order in which a key selects them; names ascend, all others descend."""


# --- text -----------------------------------------------------------------------------------------


def cells(reading: WatchReading, bars: int = 20) -> dict[str, str]:
    """Return the cells by column; the last minute takes up to `bars` characters."""
    store, sample = reading.store, reading.sample
    found = {
        "kind": store.kind,
        "name": shown(os.path.join(store.path, store.name) if store.name else store.path),
    }
    if sample is None:
        return found | {"problems": printable((reading.failure or "").encode())}
    return found | {
        "holder": _holder(sample.holder),
        "in/s": _rate(reading.messages_in),
        "in B/s": _bytes_rate(reading.bytes_in),
        "out/s": _rate(reading.messages_out),
        "out B/s": _bytes_rate(reading.bytes_out),
        "depth": _depth(sample),
        "lag": _number(_lag(sample)),
        "oldest": _age(reading),
        "sync": "-" if reading.sync_seconds is None else _duration(reading.sync_seconds),
        "disk": _disk(sample),
        "files": str(sample.segments),
        "problems": str(len(sample.problems)) if sample.problems else "-",
        "last minute": sparkline(reading.history, bars),
    }


def part_cells(reading: WatchReading, part: SamplePart) -> dict[str, str]:
    """Return the cells of one of its readers, or queues."""
    rate = reading.parts_out.get(part.name)
    return {
        "name": f"  {shown(part.name) or '(the default)'}",
        "out/s": _rate(rate),
        "lag": _number(part.lag),
    }


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last `width` values as bars, relative to the highest; no bars without values."""
    last = values[-width:] if width > 0 else ()
    most = max(last, default=0.0)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] if most else _BARS[0] for value in last)


def totals(readings: Sequence[WatchReading], bars: int = 20) -> dict[str, str]:
    """Return the cells of the sum of all."""
    rates: dict[str, Callable[[WatchReading], float | None]] = {
        "in/s": lambda each: each.messages_in,
        "in B/s": lambda each: each.bytes_in,
        "out/s": lambda each: each.messages_out,
        "out B/s": lambda each: each.bytes_out,
    }
    samples = [reading.sample for reading in readings if reading.sample is not None]
    found = {"kind": "all", "name": f"{len(readings)} {'store' if len(readings) == 1 else 'stores'}"}
    for name, of in rates.items():
        found[name] = (_bytes_rate if "B" in name else _rate)(_sum(of(each) for each in readings))
    problems = sum(len(sample.problems) for sample in samples) + len(readings) - len(samples)
    return found | {
        "depth": _number(_sum(sample.depth for sample in samples)),
        "disk": units.show_size(sum(sample.size for sample in samples)),
        "files": str(sum(sample.segments for sample in samples)),
        "problems": str(problems) if problems else "-",
        "last minute": sparkline(_added([reading.history for reading in readings]), bars),
    }


def _added(histories: Sequence[Sequence[float]]) -> list[float]:
    """Return the sums of rates; histories are aligned at their ends."""
    longest = max(map(len, histories), default=0)
    return [
        sum(history[len(history) - back] for history in histories if len(history) >= back)
        for back in range(longest, 0, -1)
    ]


def _sum(values: Any) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _holder(holder: str | None) -> str:
    """Return it without the time since when, for the table."""
    return "-" if holder is None else printable(holder.split(" on ")[0].replace("process ", "").encode())


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= _FEW or rate == int(rate) else f"{rate:.1f}"


def _bytes_rate(rate: float | None) -> str:
    return "-" if rate is None else units.show_size(round(rate))


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _depth(sample: Sample) -> str:
    text = _number(sample.depth)
    beside = [f"{sample.in_flight:,} out"] if sample.in_flight else []
    beside += [f"{sample.dead_letters:,} dead"] if sample.dead_letters else []
    text += f" ({', '.join(beside)})" if beside else ""
    return text if sample.is_exact or sample.depth is None else f"~{text}"


def _lag(sample: Sample) -> int | None:
    """Return the largest lag of its readers; None for priority stores, whose queues have no lag."""
    lags = [part.lag for part in sample.parts if part.lag is not None]
    return max(lags) if lags and sample.store.kind != "jobs" else None


def _age(reading: WatchReading) -> str:
    if reading.age is None or reading.sample is None:
        return "-"
    age = units.show_duration(int(reading.age) * _SECOND)
    return age if reading.sample.is_oldest_exact else f"file {age}"


def _duration(seconds: float) -> str:
    return units.show_duration(int(seconds * _SECOND))


def _disk(sample: Sample) -> str:
    size = units.show_size(sample.size)
    bound = sample.status.bound if sample.status is not None else None
    if bound is None or bound.max_bytes < 0:
        return size
    whose = " shared" if bound.is_shared else ""
    return f"{size} ({bound.used / bound.max_bytes:.0%} of {units.show_size(bound.max_bytes)}{whose})"


# --- order ----------------------------------------------------------------------------------------


def sort_key(column: str) -> Callable[[WatchReading], tuple[Any, ...]]:
    """Return the key for `sorted`: by that column, then by name; unknown values come last."""

    def known(reading: WatchReading) -> float | None:
        sample = reading.sample
        if sample is None:
            return None
        return {
            "in/s": reading.messages_in,
            "out/s": reading.messages_out,
            "depth": sample.depth,
            "lag": _lag(sample),
            "oldest": reading.age,
            "sync": reading.sync_seconds,
            "disk": sample.size,
        }.get(column)

    def key(reading: WatchReading) -> tuple[Any, ...]:
        value = known(reading)
        return value is None, -(value or 0), reading.store.path, reading.store.name

    return key


# --- for programs ---------------------------------------------------------------------------------


def as_json(reading: WatchReading) -> dict[str, Any]:
    """Return all that is known of it: bytes, seconds, rates per second."""
    store, sample = reading.store, reading.sample
    facts: dict[str, Any] = {"kind": store.kind, "path": shown(store.path), "name": shown(store.name)}
    if sample is None:
        return facts | {"failure": reading.failure}
    status = sample.status
    return facts | {
        "holder": sample.holder,
        "messages_in": reading.messages_in,
        "bytes_in": reading.bytes_in,
        "messages_out": reading.messages_out,
        "bytes_out": reading.bytes_out,
        "depth": sample.depth,
        "is_exact": sample.is_exact,
        "oldest_age": reading.age,
        "oldest_of": None if reading.age is None else "message" if sample.is_oldest_exact else "file",
        "in_flight": sample.in_flight,
        "dead_letters": sample.dead_letters,
        "parts": [
            {"name": shown(part.name), "lag": part.lag, "messages_out": reading.parts_out.get(part.name)}
            for part in sample.parts
        ],
        "sync": reading.sync_seconds,
        "longest_sync": None if status is None else status.longest_ns / _SECOND,
        "size": sample.size,
        "bound": status.bound._asdict() if status is not None and status.bound.max_bytes >= 0 else None,
        "segments": sample.segments,
        "problems": list(sample.problems),
    }

"""From point to point: rates by size, durable rates by producers, reading, and the cost of a backlog.

Beside the peers, and beside what the machine does with the same bytes and no queue (benchmarks/limits.c).
No row has a floor: these are the figures that the report (benchmarks/summary.py) sets side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.floors import Row, Section
from benchmarks.harness import GoBench, Measurement, Scale, Work
from benchmarks.limits import Act, Limit
from diskq.options import QueueOptions

ROUNDS = 3

SIZES = {"16 B": 16, "128 B": 128, "1 KiB": 2**10, "8 KiB": 2**13, "64 KiB": 2**16, "1 MiB": 2**20}
PRODUCERS = (1, 4, 16, 64, 256)
BACKLOGS = {"1 k": 10**3, "10 k": 10**4, "100 k": 10**5, "1 M": 10**6, "10 M": 10**7, "100 M": 10**8}
SMALL = 16
"""Bytes of a message of a backlog: 100 M of them are 2 GB."""

# --- how fast to the page cache ----------------------------------------------------------------------------

# The number of messages of 16 bytes that take about half a second; of larger ones there are fewer, and of
# large ones every system gets as many: then the rate depends on how many bytes are unsynced at the end.
_SENDS = {"queue send": 400_000, "queue send_many": 1_000_000}
_SENDS |= {"stream send_many": 500_000, "journal send_many": 800_000}
_WRITES: dict[Act, int] = {"write": 400_000, "writev": 1_500_000, "memcpy": 10_000_000}
_PUTS = {
    "go-diskqueue": 200_000,
    "queuelib": 200_000,
    "sqlite3": 30_000,
    "LMDB": 50_000,
    "RocksDB": 100_000,
    "diskcache": 6_000,
    "persist-queue": 10_000,
    "litequeue": 10_000,
    "localqueue": 8_000,
    "Redis": 5_000,
    "NATS": 4_000,
}
_MOST_BYTES = 256 * 2**20
_LARGE_BYTES = 128 * 2**20

# With large messages, its sync interval is more bytes than diskq leaves unsynced: it gets an interval of as
# many bytes.
_AS_BOUNDED = "go-diskqueue, as bounded"
_OURS = QueueOptions()
_SYNC_EVERY = {
    point: most for point, size in SIZES.items() if (most := _OURS.max_unsynced // size) < _OURS.sync_every
}


def _sending(point: str) -> Section:
    ours = "queue send"
    peers = [*_PUTS, _AS_BOUNDED] if point in _SYNC_EVERY else _PUTS
    rows = [Row(ours, _at(ours, point), _at(peer, point)) for peer in peers]
    rows += [Row(path, _at(path, point), _at("limit write", point)) for path in _SENDS]
    rows += [Row(path, _at(path, point), _at("limit writev", point)) for path in _SENDS if "many" in path]
    rows.append(Row("queue send_many", _at("queue send_many", point), _at("limit memcpy", point)))
    return Section(f"To the page cache: {point}", tuple(rows))


def _sent(scale: Scale, point: str, size: int) -> Iterator[tuple[str, Measurement]]:
    batch = max(2, min(100, 4 * 2**20 // size))

    least = batch if scale.name == "smoke" else max(batch, 32)

    def fewer(count: int) -> int:
        if point in _SYNC_EVERY:
            return max(least, int(_LARGE_BYTES * scale.factor) // size)
        # A message costs as much as some 500 bytes do: so that each takes about as long at every size.
        return max(least, min(scale(count) * 512 // (512 + size), int(_MOST_BYTES * scale.factor) // size))

    for name, count in _SENDS.items():
        kind, path = name.split()
        options = {"count": fewer(count), "size": size} | ({"batch": batch} if path == "send_many" else {})
        yield name, Work("send", options, module=_MODULES[kind])
    for act, count in _WRITES.items():
        yield f"limit {act}", Limit(act, fewer(count), size, batch if act == "writev" else 1)
    for peer, count in _PUTS.items():
        if peer == "go-diskqueue":
            yield peer, GoBench("put", count=fewer(count), size=size)
            if point in _SYNC_EVERY:
                every = _SYNC_EVERY[point]
                yield _AS_BOUNDED, GoBench("put", count=fewer(count), size=size, sync_every=every)
        else:
            yield peer, Work("put", {"peer": peer, "count": fewer(count), "size": size}, module="peers")


_MODULES = {
    "queue": "works",
    "stream": "stream_works",
    "journal": "journal_works",
    "priority": "priority_works",
}

# --- diskq's paths, and the peers' paths that take many at once ----------------------------------------

_BYTES, _AT_ONCE = "100 B", "100 at once"
_PATHS = {"queue": 500_000, "stream": 500_000, "journal": 500_000, "priority": 100_000}
_LIMITS: dict[str, Act] = {"send": "write", "send_many": "writev"}
_BATCHES = {
    "sqlite3": 200_000,
    "LMDB": 500_000,
    "RocksDB": 300_000,
    "localqueue": 100_000,
    "Redis": 60_000,
    "NATS": 10_000,
}
_EACH_PATH = Section(
    f"Each path: {_BYTES}",
    tuple(
        Row(f"{kind} {call}", f"{kind} {call} @ {_BYTES}", f"limit {limit} @ {_BYTES}")
        for kind in _PATHS
        for call, limit in _LIMITS.items()
    ),
)
_IN_BATCHES = Section(
    f"In batches: {_AT_ONCE}",
    tuple(
        Row("queue", f"queue @ {_AT_ONCE}", f"{peer} @ {_AT_ONCE}") for peer in (*_BATCHES, "limit writev")
    ),
)


def _each_path(scale: Scale) -> Iterator[tuple[str, Measurement]]:
    for kind, count in _PATHS.items():
        for call, times in (("send", 1), ("send_many", 2)):
            options = {"count": scale(times * count)} | ({"batch": 100} if call == "send_many" else {})
            yield f"{kind} {call}", Work("send", options, module=_MODULES[kind])
    yield "limit write", Limit("write", scale(1_000_000))
    yield "limit writev", Limit("writev", scale(5_000_000), batch=100)


def _in_batches(scale: Scale) -> Iterator[tuple[str, Measurement]]:
    yield "queue", Work("send", {"count": scale(1_000_000), "batch": 100})
    for peer, count in _BATCHES.items():
        yield peer, Work("put", {"peer": peer, "count": scale(count), "batch": 100}, module="peers")
    yield "limit writev", Limit("writev", scale(5_000_000), batch=100)


# --- how fast to stable storage -------------------------------------------------------------------

_SYNCED = ("queue", "stream", "journal", "priority")
_SYNCED_PEERS = ("go-diskqueue", "sqlite3", "LMDB", "RocksDB", "localqueue", "Redis")
_AT_A_TIME = "queue send_many"


def _durable(producers: int) -> Section:
    point = str(producers)
    rows = [Row("queue", _at("queue", point), _at(peer, point)) for peer in _SYNCED_PEERS]
    rows += [Row(kind, _at(kind, point), _at("limit fdatasync", point)) for kind in _SYNCED]
    if producers > 1:  # in one call, as those peers take them
        batched = (*_SYNCED_PEERS[1:], "limit fdatasync")
        rows += [Row(_AT_A_TIME, _at(_AT_A_TIME, point), _at(peer, point)) for peer in batched]
    return Section(f"Durable: producers: {point}", tuple(rows))


def _synced(scale: Scale, producers: int) -> Iterator[tuple[str, Measurement]]:
    # As many syncs at any number of producers, or nearly.
    least = 4 * producers
    count = scale(600 * producers, least=least)
    for kind in _SYNCED:
        options: dict[str, Any] = {"count": count, "tasks": producers}
        if kind == "priority":
            yield kind, Work("send_synced", options, module="priority_works")
        else:
            yield kind, Work("send", options | {"durability": "synced"}, module=_MODULES[kind])
    if producers > 1:
        yield _AT_A_TIME, Work("send", {"count": count, "batch": producers, "durability": "synced"})
    yield "limit fdatasync", Limit("sync", count, 100, producers)
    for peer in _SYNCED_PEERS:
        if peer == "go-diskqueue":
            yield peer, GoBench("syncput", count=scale(600, least=producers), producers=producers)
        else:
            batched = {"peer": peer, "count": count, "batch": producers, "durable": True}
            yield peer, Work("put", batched, module="peers")


# --- how fast to read --------------------------------------------------------------------------------------

_READS = {
    "queue receive": ("works", "receive", {}),
    "queue receive_many": ("works", "receive", {"batch": 100}),
    "stream receive_many": ("stream_works", "consume", {"batch": 100}),
    "journal receive_many": ("journal_works", "scan", {"batch": 100}),
    "stream columns": ("stream_works", "columns", {}),
    "journal columns": ("journal_works", "columns", {}),
}
_SCANS = {"sqlite3": 300_000, "LMDB": 500_000, "RocksDB": 200_000, "Redis": 30_000}
_READING = Section(
    "Reading: 100 B",
    (
        Row("queue receive", "queue receive @ 100 B", "go-diskqueue @ 100 B"),
        *(Row("stream columns", "stream columns @ 100 B", f"{peer} @ 100 B") for peer in _SCANS),
        *(Row(path, f"{path} @ 100 B", "limit read @ 100 B") for path in _READS),
        *(Row(path, f"{path} @ 100 B", "limit memcpy @ 100 B") for path in _READS if "columns" in path),
    ),
)


def _read(scale: Scale) -> Iterator[tuple[str, Measurement]]:
    for path, (module, work, options) in _READS.items():
        count = scale(5_000_000 if work == "columns" else 500_000)
        yield path, Work(work, {"count": count, **options}, module=module)
    yield "go-diskqueue", GoBench("get", count=scale(300_000))
    for peer, count in _SCANS.items():
        filled = {"peer": peer, "count": scale(count)}
        yield peer, Work("scan", filled, module="peers", after=Work("fill", filled, module="peers"))
    yield "limit read", Limit("read", scale(10_000_000))
    yield "limit memcpy", Limit("memcpy", scale(10_000_000))


# --- what a backlog costs ----------------------------------------------------------------------------------

# How far each goes, and how many are put and got there.
_KEPT = {
    "queuelib": (10**6, 50_000),
    "sqlite3": (10**7, 10_000),
    "LMDB": (10**7, 20_000),
    "RocksDB": (10**6, 5_000),
    "localqueue": (10**5, 100),
    "Redis": (10**6, 2_000),
}


def _kept(point: str, backlog: int) -> Section:
    rows = [Row("queue", _at("queue", point), _at("queue", "1 k"))] if point != "1 k" else []
    rows += [
        Row("queue", _at("queue", point), _at(peer, point))
        for peer, (most, _) in _KEPT.items()
        if backlog <= most
    ]
    return Section(f"Backlog: {point}", tuple(rows))


def _at_backlog(scale: Scale, backlog: int) -> Iterator[tuple[str, Measurement]]:
    kept = [peer for peer, (most, _) in _KEPT.items() if backlog <= most]
    if scale.name == "smoke":
        backlog = min(backlog, 2_000)
    options = {"count": backlog, "size": SMALL}
    exchanged = {"backlog": backlog, "size": SMALL}
    yield (
        "queue",
        Work(
            "backlog",
            {**exchanged, "count": scale(200_000)},
            module="sweep_works",
            after=Work("fill", options),
        ),
    )
    for peer in kept:
        named = {"peer": peer}
        filled = Work("fill", {**named, **options}, module="peers")
        exchange = {**named, **exchanged, "count": scale(_KEPT[peer][1])}
        yield peer, Work("peer_backlog", exchange, module="sweep_works", after=filled)


# --- all of it ---------------------------------------------------------------------------------------------


def _at(system: str, point: str) -> str:
    return f"{system} @ {point}"


SECTIONS = (
    *(_sending(point) for point in SIZES),
    _EACH_PATH,
    _IN_BATCHES,
    *(_durable(producers) for producers in PRODUCERS),
    _READING,
    *(_kept(point, backlog) for point, backlog in BACKLOGS.items()),
)
_SOON = (
    "16 B",
    "64 KiB",
    "producers: 1",
    "producers: 16",
    "producers: 256",
    "100 B",
    "1 k",
    "1 M",
    _AT_ONCE,
)
QUICK_SECTIONS = tuple(
    section for section in SECTIONS if section.title.endswith(tuple(f": {end}" for end in _SOON))
)


def measurements(scale: Scale) -> dict[str, Measurement]:
    found: dict[str, Measurement] = {}
    for point, size in SIZES.items():
        found |= {_at(name, point): each for name, each in _sent(scale, point, size)}
    for producers in PRODUCERS:
        found |= {_at(name, str(producers)): each for name, each in _synced(scale, producers)}
    found |= {_at(name, _BYTES): each for name, each in (*_each_path(scale), *_read(scale))}
    found |= {_at(name, _AT_ONCE): each for name, each in _in_batches(scale)}
    for point, backlog in BACKLOGS.items():
        found |= {_at(name, point): each for name, each in _at_backlog(scale, backlog)}
    return found

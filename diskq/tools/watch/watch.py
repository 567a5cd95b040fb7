# Stores watched for a while: rates, from samples some seconds apart. Law: a rate is a difference of counters
# over the time between two samples; nothing is waited for here, and nothing is kept but a minute of it.

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from diskq.errors import DiskqError
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.tools.stores import Store, stores_below
from diskq.tools.watch.gauge import Gauge, gauge_of
from diskq.tools.watch.samples import Sample

__all__ = ["StoreWatch", "WatchReading"]

# Rates are over this many seconds: consumed messages of a queue are recorded about every two seconds.
_OVER = 4.0
# This many rates are kept, one for each look: a minute's, at one look a second.
_KEPT = 60
# The stores at a path are looked for again after this many seconds.
_AGAIN = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReading:
    """What is shown of a store. Rates are per second, None if they are not known (yet)."""

    sample: Sample | None
    """None: the store could not be read."""
    store: Store
    failure: str | None = None
    """The reason why the store could not be read."""
    messages_in: float | None = None
    bytes_in: float | None = None
    messages_out: float | None = None
    bytes_out: float | None = None
    parts_out: Mapping[str, float | None] = field(default_factory=dict)
    """Messages that each part processed."""
    sync_seconds: float | None = None
    """Average seconds of its writer's barriers, between the writer's last two notes."""
    history: tuple[float, ...] = ()
    """`messages_in` from look to look, of the last minute or so."""
    age: float | None = None
    """Age of the oldest message, or of the file that holds it, in seconds."""


class StoreWatch:
    """The stores at some paths, sampled repeatedly. For one thread at a time."""

    def __init__(self, paths: Iterable[AnyPath], *, fs: FileSystem | None = None) -> None:
        self._fs = fs or OsFileSystem()
        self._paths = list(map(as_path, paths))
        self._meters: dict[Store, _Meter] = {}
        self._looked_at = -_AGAIN
        self.bare: tuple[str, ...] = ()
        """The paths at which no store was found by the last search."""

    def look(self) -> list[WatchReading]:
        """Return all stores as they are now, in the order of the paths, those of one path by name.

        A new store at a path is seen after some seconds, a removed one is left out. Raises OSError if one of
        the paths cannot be read.
        """
        now = self._fs.monotonic()
        if not self._meters or now - self._looked_at >= _AGAIN:
            self._looked_at = now
            there = {path: stores_below(path, fs=self._fs) for path in self._paths}
            self.bare = tuple(path for path, stores in there.items() if not stores)
            self._meters = {
                store: self._meters.get(store) or _Meter(self._fs, store)
                for store in chain.from_iterable(there.values())
            }
        return [meter.look() for meter in self._meters.values()]


class _Meter:
    """One store, and its last samples."""

    def __init__(self, fs: FileSystem, store: Store) -> None:
        self._fs = fs
        self._store = store
        self._gauge: Gauge | None = None
        self._samples: deque[Sample] = deque()
        self._history: deque[float] = deque(maxlen=_KEPT)
        self._sync_seconds: float | None = None

    def look(self) -> WatchReading:
        try:
            if self._gauge is None:
                self._gauge = gauge_of(self._store, fs=self._fs)
            sample = self._gauge.sample()
        except (OSError, DiskqError) as failure:
            # The store may be gone, or made anew: start again with it.
            self._gauge = None
            self._samples.clear()
            return WatchReading(sample=None, store=self._store, failure=str(failure))
        self._add(sample)
        first = self._samples[0]
        return WatchReading(
            sample=sample,
            store=self._store,
            messages_in=_rate(first, sample, first.messages_in, sample.messages_in),
            bytes_in=_rate(first, sample, first.bytes_in, sample.bytes_in),
            messages_out=_rate(first, sample, first.messages_out, sample.messages_out),
            bytes_out=_rate(first, sample, first.bytes_out, sample.bytes_out),
            parts_out=_rates_of_parts(first, sample),
            sync_seconds=self._sync_seconds,
            history=tuple(self._history),
            age=None
            if sample.oldest_ns is None
            else max(0.0, self._fs.wall_clock() - sample.oldest_ns / 1e9),
        )

    def _add(self, sample: Sample) -> None:
        if self._samples:
            before = self._samples[-1]
            rate = _rate(before, sample, before.messages_in, sample.messages_in)
            if rate is not None:
                self._history.append(rate)
        self._note_syncs(sample)
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at - self._samples[1].at >= _OVER:
            self._samples.popleft()

    def _note_syncs(self, sample: Sample) -> None:
        now = sample.status
        before = self._samples[-1].status if self._samples else None
        if now is None:
            self._sync_seconds = None
        elif before is None or before.pid != now.pid or now.barriers < before.barriers:
            self._sync_seconds = now.spent_ns / max(1, now.barriers) / 1e9
        elif now.barriers > before.barriers:
            self._sync_seconds = (now.spent_ns - before.spent_ns) / (now.barriers - before.barriers) / 1e9


def _rate(first: Sample, last: Sample, before: int | None, now: int | None) -> float | None:
    """Return the rate per second; None for a single sample, or a counter that is not known."""

    seconds = last.at - first.at
    if before is None or now is None or seconds <= 0:
        return None
    return max(0, now - before) / seconds


def _rates_of_parts(first: Sample, last: Sample) -> dict[str, float | None]:
    before = {part.name: part.done for part in first.parts}
    return {part.name: _rate(first, last, before.get(part.name), part.done) for part in last.parts}

# The watched stores, and their values at a scrape. Law: reading disturbs no other thread, no counter ever
# falls while its store is watched, and a store that was closed or collected is not reported any more.
#
# A scrape runs in a thread of its own, while Trio's thread, or another, uses the same stores. That is safe,
# because `statistics()` may be called in any thread: it makes no system call and iterates over nothing that
# another thread changes. Its values are of adjacent moments: each was true, all together need not have been.
# A counter that is a difference of two may be read between them: of the last reported value and the present
# one the larger is reported.

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from diskq.errors import DiskqError
from diskq.metrics.table import METRICS, PARTS, Metric, kind_of
from diskq.storage.log_events import Log
from diskq.storage.sync_times import Durations

__all__ = ["Labels", "MetricSample", "Watch", "Watched", "Watchlist", "samples_of"]

log = Log("metrics")

_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_OWN_LABELS = {"kind", "name", "partition", "shard", "member", "le"}

Labels = tuple[tuple[str, str], ...]


class Watched(Protocol):
    """An open store, or anything else with statistics."""

    def statistics(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of one store."""

    metric: Metric
    labels: Labels
    value: float | Durations


# --- from statistics ------------------------------------------------------------------------------

_BY_CLASS: dict[str, list[tuple[Metric, str]]] = {}
for _metric in METRICS:
    for _class, _field in _metric.fields.items():
        _BY_CLASS.setdefault(_class, []).append((_metric, _field))


def samples_of(statistics: object, labels: Labels) -> Iterator[MetricSample]:
    """Yield the samples of `statistics`. A mapping of several gets the label `shard`, its key."""
    if isinstance(statistics, Mapping):
        for number, each in statistics.items():
            yield from samples_of(each, (*labels, ("shard", str(number))))
        return
    for base in type(statistics).__mro__:
        for metric, field in _BY_CLASS.get(base.__name__, ()):
            value = getattr(statistics, field)
            if isinstance(value, Mapping):
                for number, each in value.items():
                    yield MetricSample(metric, (*labels, ("partition", str(number))), each)
            elif isinstance(value, tuple):
                yield MetricSample(metric, labels, len(value))
            elif value is not None:
                yield MetricSample(metric, labels, value if isinstance(value, Durations) else float(value))
        if base.__name__ in PARTS:
            field, label = PARTS[base.__name__]
            parts = getattr(statistics, field)
            named = parts.items() if isinstance(parts, Mapping) else ((part.name, part) for part in parts)
            for name, part in named:
                yield from samples_of(part, (*labels, (label, str(name))))


# --- what is watched ------------------------------------------------------------------------------


class Watch:
    """A watch on a store: it ends when it is closed, also as a context manager, or the store is collected."""

    def __init__(self, watchlist: Watchlist, store: Watched, labels: Labels) -> None:
        self._watchlist = watchlist
        self._store = weakref.ref(store)
        self._reported: dict[tuple[str, Labels], float] = {}  # counters
        self.labels = labels

    def close(self) -> None:
        """Stop reporting the store. Idempotent."""
        self._watchlist.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_gone(self) -> bool:
        """True if the store was garbage-collected."""
        return self._store() is None

    def read(self) -> Iterator[MetricSample]:
        """Yield the store's present values; none if it was collected."""
        store = self._store()
        if store is None:
            return
        for sample in samples_of(_look(store), self.labels):
            if sample.metric.kind == "counter":
                assert not isinstance(sample.value, Durations)
                key = sample.metric.name, sample.labels
                self._reported[key] = most = max(sample.value, self._reported.get(key, 0.0))
                yield MetricSample(sample.metric, sample.labels, most)
            else:
                yield sample


def _look(store: Any) -> object:
    """Return the statistics of a store; a reader first looks at the files, which others may write."""
    look = getattr(store, "look", None)
    if look is not None:
        try:
            return look()
        except (DiskqError, OSError) as failure:
            log.report("lag_unknown", "lag is not known: %s", failure, error=failure)
    return store.statistics()


class Watchlist:
    """All watches of one exporter. It may be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # never held while a disk is read: Trio's thread may want it
        self._reading = threading.Lock()
        self._watches: dict[Labels, Watch] = {}

    def watch(self, store: Watched, name: str, labels: Mapping[str, str]) -> Watch:
        """Report a store under these labels, `kind` and `name`. Raises TypeError, ValueError."""
        for label in labels:
            if label in _OWN_LABELS or _LABEL.fullmatch(label) is None:
                raise ValueError(f"{label!r} cannot be a label's name, or is one that diskq sets")
        own = {"kind": kind_of(store), "name": name}
        key = tuple(sorted((own | {label: str(value) for label, value in labels.items()}).items()))
        with self._lock:
            if key in self._watches and not self._watches[key].is_gone:
                raise ValueError(f"there is a {own['kind']} {name!r} with these labels already")
            self._watches[key] = watch = Watch(self, store, key)
        return watch

    def forget(self, watch: Watch) -> None:
        with self._lock:
            if self._watches.get(watch.labels) is watch:
                del self._watches[watch.labels]

    def read(self) -> list[MetricSample]:
        """Return the present values of all stores."""
        with self._lock:
            self._watches = {key: watch for key, watch in self._watches.items() if not watch.is_gone}
            watches = list(self._watches.values())
        samples: list[MetricSample] = []
        with self._reading:
            for watch in watches:
                try:
                    samples += list(watch.read())
                except Exception as failure:  # any error: the other stores are still reported
                    name = dict(watch.labels)["name"]
                    log.report(
                        "unreadable",
                        "the values of %r are left out of a scrape: %s",
                        name,
                        type(failure).__name__,
                        path=name,
                        error=failure,
                        exc_info=failure,
                    )
        return samples

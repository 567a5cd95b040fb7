# OpenTelemetry: observable instruments, which an exporter reads.
#
# Law: one collection reads each store once, however many instruments it reads. A collection reads every
# instrument; so when one is read a second time, another collection has begun.

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from diskq.metrics.table import METRICS, Metric
from diskq.metrics.watching import Labels, MetricSample, Watch, Watched, Watchlist
from diskq.storage.sync_times import Durations

__all__ = ["instrument"]

_Callback = Callable[[CallbackOptions], Iterable[Observation]]


def instrument(meter: Meter, store: Watched, name: str, **attributes: str) -> Watch:
    """Report an open store to the meter until the watch is closed or the store is garbage-collected.

        meter = opentelemetry.metrics.get_meter("shop")
        async with diskq.open_queue("data", "events") as queue:
            with instrument(meter, queue, "events"):
                ...

    The instruments are made with a meter's first store; their names and units are those of `METRICS`, and a
    histogram becomes two counters, its count and its sum. The watch does not keep the store alive. This may
    be called in any thread. Raises TypeError if the store has no metrics, ValueError if another store of its
    kind has the same attributes, or if an attribute's name is not valid for a label.
    """
    with _lock:
        instruments = _of_meters.get(meter)
        if instruments is None:
            instruments = _of_meters[meter] = _Instruments(meter)
    return instruments.watchlist.watch(store, name, attributes)


class _Instruments:
    """The instruments of one meter."""

    def __init__(self, meter: Meter) -> None:
        self.watchlist = Watchlist()
        self._lock = threading.Lock()
        self._asked: set[str] = set()
        self._found: dict[str, list[MetricSample]] = {}
        for metric in METRICS:
            self._make(meter, metric)

    def _make(self, meter: Meter, metric: Metric) -> None:
        name, unit, what = metric.name, metric.unit, metric.help
        if metric.kind == "gauge":
            meter.create_observable_gauge(name, [self._callback(metric)], unit, what)
        elif metric.kind == "counter":
            meter.create_observable_counter(name, [self._callback(metric)], unit, what)
        else:
            count, total = self._callback(metric, "_count"), self._callback(metric, "_sum")
            meter.create_observable_counter(f"{name}_count", [count], "1", f"{what} How many.")
            meter.create_observable_counter(f"{name}_sum", [total], unit, f"{what} All together.")

    def _callback(self, metric: Metric, suffix: str = "") -> _Callback:
        return partial(self._observe, metric.name, suffix)

    def _observe(self, name: str, suffix: str, _: CallbackOptions) -> list[Observation]:
        with self._lock:
            if not self._asked or name + suffix in self._asked:
                self._asked.clear()
                self._found = {}
                for sample in self.watchlist.read():
                    self._found.setdefault(sample.metric.name, []).append(sample)
            self._asked.add(name + suffix)
            return [_observation(sample.labels, sample.value, suffix) for sample in self._found.get(name, ())]


def _observation(labels: Labels, value: float | Durations, suffix: str) -> Observation:
    if isinstance(value, Durations):
        value = value.count if suffix == "_count" else value.seconds
    return Observation(value, dict(labels))


_lock = threading.Lock()
_of_meters: weakref.WeakKeyDictionary[Meter, _Instruments] = weakref.WeakKeyDictionary()

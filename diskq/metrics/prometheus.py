# prometheus_client: a collector that reads the stores at each scrape.

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from diskq.metrics.table import METRICS
from diskq.metrics.watching import MetricSample, Watch, Watched, Watchlist
from diskq.storage.sync_times import BOUNDS, Durations

__all__ = ["DiskqCollector"]

_LIMITS = (*(repr(bound) for bound in BOUNDS), "+Inf")


class DiskqCollector(Collector):
    """Reports open stores to Prometheus: `REGISTRY.register(DiskqCollector())`.

        collector = DiskqCollector()
        prometheus_client.REGISTRY.register(collector)
        async with diskq.open_queue("data", "events") as queue:
            with collector.watch(queue, "events"):
                ...

    It may be used from any thread; a scrape does not delay the tasks that use the stores.
    """

    def __init__(self) -> None:
        self._watchlist = Watchlist()

    def watch(self, store: Watched, name: str, **labels: str) -> Watch:
        """Report a store with the label `name` and these, until the watch is closed or the store is
        collected.

        The watch does not keep the store alive. Raises TypeError if the store has no metrics, ValueError if
        another store of its kind has the same labels, or if a label's name is not valid.
        """
        return self._watchlist.watch(store, name, labels)

    def describe(self) -> list[Family]:
        """Return an empty list: at the registration no store need be open."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yield all metrics with their present values."""
        found: dict[str, list[MetricSample]] = {}
        for sample in self._watchlist.read():
            found.setdefault(sample.metric.name, []).append(sample)
        for metric in METRICS:
            if metric.name in found:
                family = Family(metric.name, metric.help, metric.kind)
                for sample in found[metric.name]:
                    _add(family, sample)
                yield family


def _add(family: Family, sample: MetricSample) -> None:
    name, labels, value = family.name, dict(sample.labels), sample.value
    if isinstance(value, Durations):
        for limit, count in zip(_LIMITS, accumulate(value.buckets), strict=True):
            family.add_sample(f"{name}_bucket", {**labels, "le": limit}, count)
        family.add_sample(f"{name}_count", labels, value.count)
        family.add_sample(f"{name}_sum", labels, value.seconds)
    else:
        family.add_sample(f"{name}_total" if family.type == "counter" else name, labels, value)

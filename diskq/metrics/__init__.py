"""Metrics of open stores: for Prometheus (`diskqueue[prometheus]`) and OpenTelemetry (`diskqueue[otel]`).

Nothing is counted here: each scrape or export calls `statistics()`, in a thread of its own.
`diskq.metrics.prometheus.DiskqCollector` and `diskq.metrics.otel.instrument` use the same names, those of
`METRICS`; docs/metrics.md lists them.
"""

from __future__ import annotations

from diskq.metrics.table import METRICS, Metric
from diskq.metrics.watching import Watch

__all__ = ["METRICS", "Metric", "Watch"]

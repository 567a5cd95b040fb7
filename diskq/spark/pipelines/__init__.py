"""Pipelines on Spark: whole jobs, each a function that can be killed at any moment and called again.

aggregate     counts, bytes and rates in windows of time, by key or by an expression
replay        Parquet, or a stream, back into a stream
reshard       a stream into one with another number of partitions
merge         many streams into one, without duplicates
dedupe_merge  what a hub's clients have sent into a stream, without duplicates

Without Spark, `diskq.open_table` makes Parquet files of a stream, and `diskq verify` checks it.

At the command line: `diskq pipeline`. More: docs/pipelines.md.
"""

from __future__ import annotations

from diskq.spark.pipelines.aggregating import BY_KEY, Aggregated, aggregate, json_field
from diskq.spark.pipelines.merging import dedupe_merge, merge
from diskq.spark.pipelines.progress import Progress
from diskq.spark.pipelines.replaying import replay
from diskq.spark.pipelines.resharding import reshard
from diskq.spark.pipelines.rounds import Copied

__all__ = [
    "BY_KEY",
    "Aggregated",
    "Copied",
    "Progress",
    "aggregate",
    "dedupe_merge",
    "json_field",
    "merge",
    "replay",
    "reshard",
]

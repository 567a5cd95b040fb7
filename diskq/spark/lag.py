# How far a streaming query is behind. Spark has no place for a figure of a source written in Python, but what
# is needed is in the progress that it reports: the offsets of the last batch, and the latest ones.

from __future__ import annotations

import json
from typing import Any

from diskq.spark.errors import DiskqSparkError
from diskq.spark.offsets import Places

__all__ = ["offsets_behind"]


def offsets_behind(progress: Any) -> dict[tuple[str, int], int] | None:
    """Return the number of messages after the last batch of a query, by topic and partition.

    `progress` is one of `StreamingQuery.recentProgress`, or `lastProgress`, or what a listener gets. Kafka's
    source has the least, the most and the average of these in its metrics. None if no source of the query is
    diskq's, or there was no batch yet.
    """
    sources = [] if progress is None else progress["sources"]
    found: dict[tuple[str, int], int] = {}
    is_known = False
    for source in sources:
        done, latest = (_offsets(source[name]) for name in ("endOffset", "latestOffset"))
        if done is None or latest is None:
            continue
        is_known = True
        for part, offset in latest.items():
            found[part] = found.get(part, 0) + max(0, offset - done.get(part, 0))
    return found if is_known else None


def _offsets(place: Any) -> dict[tuple[str, int], int] | None:
    try:
        streams = Places.from_json(json.loads(place) if isinstance(place, str) else place).streams
    except (DiskqSparkError, ValueError, TypeError):
        return None
    return {(topic, part): offset for topic, at in streams.items() for part, offset in at.partitions.items()}

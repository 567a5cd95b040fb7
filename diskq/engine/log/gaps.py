# What readers of a log tell about messages that they cannot read.

from __future__ import annotations

from diskq.engine.log.reader import SkippedBytes
from diskq.storage.log_events import Log

__all__ = ["report_gap", "unreached_end"]

log = Log("reading")


def report_gap(gap: SkippedBytes) -> None:
    log.report(
        "gap",
        "%s",
        gap,
        path=gap.path,
        offset=gap.offset,
        count=gap.count,
        dropped_bytes=gap.end - gap.start,
        reason=gap.reason,
    )


def unreached_end(path: str, byte: int, offset: int, limit: int) -> SkippedBytes:
    """Return the loss of all messages from `offset` to `limit`, though they were there at the open."""
    return SkippedBytes(
        path=path,
        start=byte,
        end=byte,
        offset=offset,
        count=limit - offset,
        reason="the end that there was at the open cannot be reached",
    )

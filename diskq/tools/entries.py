# One message, whatever its files are like: what a tool carries from one format to another. Law: what a
# format does not have is None, never a made-up value.

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Entry"]


class Entry(NamedTuple):
    """A message, with what its format keeps of it."""

    value: bytes
    key: bytes | None = None
    """Streams and journals."""
    timestamp_ns: int | None = None
    """Streams and journals; nanoseconds since 1970."""
    type: int | None = None
    """Journals; 0 to 255."""
    priority: int | None = None
    """Jobs; the smallest is received first."""
    queue: str | None = None
    """Queues and jobs."""
    partition: int | None = None
    """Streams."""
    offset: int | None = None
    """Streams and journals."""
    id: int | None = None
    """Jobs."""

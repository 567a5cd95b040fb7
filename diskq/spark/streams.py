# The streams of a read, opened in place.

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diskq.spark.errors import DiskqSparkError
from diskq.spark.layouts.choice import find_layout, open_layout
from diskq.spark.layouts.layout import Layout, Span
from diskq.spark.options import ReadOptions, StreamSelection

__all__ = ["NamedStream", "kinds_of", "open_streams", "paths_of"]

logger = logging.getLogger("diskq.spark")


@dataclass(frozen=True, slots=True)
class NamedStream:
    """A stream, and its name in the column `topic`."""

    topic: str
    path: str
    kind: str
    """One of options.LAYOUTS."""
    layout: Layout

    def spans(self, selection: StreamSelection) -> dict[int, Span]:
        """Return the partitions that are read, ascending. Raises DiskqError, OSError."""
        there = self.layout.spans()
        return {number: there[number] for number in selection.of(self.topic, list(there))}


def open_streams(options: ReadOptions, pins: Mapping[str, Any] | None = None) -> list[NamedStream]:
    """Open the selected streams, by name; those with a pin as they were when it was made.

    Raises DiskqError, OSError.
    """
    opened = []
    for topic, path in sorted(paths_of(options.selection).items()):
        kind = options.layout or find_layout(path)
        pinned = None if pins is None else pins.get(topic)
        opened.append(NamedStream(topic, path, kind, open_layout(kind, path, pinned, options.min_partitions)))
    return opened


def kinds_of(options: ReadOptions) -> set[str]:
    """Return their options.LAYOUTS. Raises DISKQ_NOT_FOUND if one does not exist, OSError."""
    paths = paths_of(options.selection).values()
    return {options.layout} if options.layout else {find_layout(path) for path in paths}


def paths_of(selection: StreamSelection) -> Mapping[str, str]:
    """Return the paths of the streams, by topic; with a pattern, those that exist now."""
    if selection.streams is not None:
        return selection.streams
    from diskq.spark.layouts.queue import log_at, queue_names

    matches = re.compile(selection.pattern).fullmatch
    try:
        names = [name for name in os.listdir(selection.root) if matches(name)]
    except (FileNotFoundError, NotADirectoryError):
        raise DiskqSparkError(
            "DISKQ_NOT_FOUND", f"{selection.root}: there is no such directory of streams"
        ) from None
    paths = {name: os.path.join(selection.root, name) for name in names}
    found = {name: path for name, path in paths.items() if log_at(path) is not None}
    found |= {
        name: os.path.join(selection.root, name) for name in queue_names(selection.root) if matches(name)
    }
    if not found:
        logger.warning("%s: no stream has a name like %r", selection.root, selection.pattern)
    return found

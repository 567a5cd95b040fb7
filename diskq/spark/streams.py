# The streams that a read is of, opened where they lie.

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from diskq.spark.errors import DiskqSparkError
from diskq.spark.layouts import Layout, Span, layout_of, open_layout
from diskq.spark.options import ReadOptions, Selection

__all__ = ["NamedStream", "open_streams", "paths_of"]

logger = logging.getLogger("diskq.spark")


@dataclass(frozen=True, slots=True)
class NamedStream:
    """A stream, and what it is called in the column `topic`."""

    topic: str
    path: str
    kind: str
    """One of options.LAYOUTS."""
    layout: Layout

    def spans(self, selection: Selection) -> dict[int, Span]:
        """The partitions of it that are read, ascending. Raises DiskqError, OSError."""
        there = self.layout.spans()
        return {number: there[number] for number in selection.of(self.topic, list(there))}


def open_streams(options: ReadOptions) -> list[NamedStream]:
    """Those that are selected, by name. Raises DISKQ_NOT_FOUND and what else says DiskqError; OSError."""
    opened = []
    for topic, path in sorted(paths_of(options.selection).items()):
        kind = options.layout or layout_of(path)
        opened.append(NamedStream(topic, path, kind, open_layout(kind, path)))
    return opened


def paths_of(selection: Selection) -> Mapping[str, str]:
    """Where the streams are, by topic; with a pattern, those that are there now."""
    if selection.streams is not None:
        return selection.streams
    matches = re.compile(selection.pattern).fullmatch
    try:
        names = [name for name in os.listdir(selection.root) if matches(name)]
    except (FileNotFoundError, NotADirectoryError):
        raise DiskqSparkError(
            "DISKQ_NOT_FOUND", f"{selection.root}: there is no such directory, in which streams would be"
        ) from None
    paths = {name: os.path.join(selection.root, name) for name in names}
    found = {name: path for name, path in paths.items() if os.path.isdir(os.path.join(path, "parts"))}
    if not found:
        logger.warning("%s: no stream has a name like %r", selection.root, selection.pattern)
    return found

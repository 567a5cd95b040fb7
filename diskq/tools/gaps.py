# Offsets whose messages are known to be gone for good. Law: a repair notes a gap after it has looked for the
# messages and kept all that could be read; a gap that is not noted here is a finding.
#
# Offsets of streams and journals are never given twice: where a repair leaves out a damaged stretch, a
# segment ends before it, and another one begins after it. Without a note that would look like a segment that
# was removed. The file `.diskq/gaps` is text: one line for each gap, and a checksum.

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from diskq.storage.barrier import read_small
from diskq.storage.checksums import checked, is_checked
from diskq.storage.fs import FileSystem

__all__ = ["Gap", "gaps_as", "known_gaps", "unknown_parts"]

_HEAD = b"diskq gaps 1\n"
_LINE = re.compile(rb"([0-9]{1,6}) ([0-9]{1,19}) ([0-9]{1,19})\n")
_LARGEST = 64 * 1024 * 1024


class _GapFiles(Protocol):
    """The files of a store, as far as gaps need them."""

    gaps: str


class Gap(NamedTuple):
    """Messages start:end of a partition; a journal is partition 0."""

    partition: int
    start: int
    end: int


def known_gaps(fs: FileSystem, files: _GapFiles) -> list[Gap]:
    """Return the noted gaps in order, or none if the file cannot be read. Raises OSError."""
    content = read_small(fs, files.gaps, _LARGEST) or b""
    if not content.startswith(_HEAD):
        return []
    found, at = [], len(_HEAD)
    while (line := _LINE.match(content, at)) is not None:
        found.append(Gap(*map(int, line.groups())))
        at = line.end()
    return found if is_checked(content, at) else []


def gaps_as(gaps: Iterable[Gap]) -> bytes:
    """Return the content of the file."""
    lines = b"".join(b"%d %d %d\n" % gap for gap in _joined(gaps))
    return checked(_HEAD + lines)


def unknown_parts(gap: Gap, known: Iterable[Gap]) -> list[Gap]:
    """Return the parts of the gap that are not noted."""
    parts, start = [], gap.start
    for other in sorted(each for each in known if each.partition == gap.partition):
        if other.start > start and start < gap.end:
            parts.append(Gap(gap.partition, start, min(gap.end, other.start)))
        start = max(start, other.end)
    if start < gap.end:
        parts.append(Gap(gap.partition, start, gap.end))
    return parts


def _joined(gaps: Iterable[Gap]) -> list[Gap]:
    joined: list[Gap] = []
    for gap in sorted(gaps):
        if joined and joined[-1].partition == gap.partition and gap.start <= joined[-1].end:
            joined[-1] = joined[-1]._replace(end=max(joined[-1].end, gap.end))
        else:
            joined.append(gap)
    return joined

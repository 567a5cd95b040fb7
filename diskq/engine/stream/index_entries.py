# The layout of single entries of go-diskq's index and timeindex ("rows" in code). Law: the layout stands here
# and in the compiled modules alone, and they agree. Format: docs/format/triplet.md.

from __future__ import annotations

import struct

from diskq._native.stream.codec import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE

__all__ = ["INDEX_ROW", "TIMEINDEX_ROW"]

INDEX_ROW = struct.Struct("<QQQ")
"""Offset, byte in the data file, size of the record."""
TIMEINDEX_ROW = struct.Struct("<Qq")
"""Offset, timestamp in nanoseconds since the Unix epoch."""

assert INDEX_ROW.size == INDEX_ROW_SIZE
assert TIMEINDEX_ROW.size == TIMEINDEX_ROW_SIZE

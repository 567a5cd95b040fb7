# Messages by column, as the codecs make them: the compiled modules put keys, values, their offsets and the
# times of all messages of a piece into buffers, in the layout of Arrow. No object is made for a message.

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Columns", "has_missing_times"]


class Columns(Protocol):
    """Messages with consecutive offsets, by column: `diskq._native.stream.codec.StreamColumns` is one.

    Those of a journal (`diskq._native.journal.codec.JournalColumns`) have two more buffers: `types` of u8,
    and `time_validity`, a bit for each message, or None if all have a time.
    """

    @property
    def records(self) -> int: ...

    @property
    def timestamps(self) -> Any:
        """A buffer of i64, nanoseconds since 1970; None: the format keeps none."""

    @property
    def keys(self) -> Any:
        """A buffer; None: the format keeps none."""

    @property
    def key_offsets(self) -> Any: ...

    @property
    def values(self) -> Any: ...

    @property
    def value_offsets(self) -> Any: ...

    @property
    def offset_width(self) -> int:
        """Bytes of each of those offsets: 4, or 8 if they do not fit in 4."""


def has_missing_times(piece: Columns) -> bool:
    """True if a message of the piece has no time, as in a journal."""
    return getattr(piece, "time_validity", None) is not None

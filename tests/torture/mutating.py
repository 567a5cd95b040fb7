# Bytes that are nearly right. Law: the same seed gives the same bytes.
#
# What decoders die of is not noise but a length that is one too many: so numbers in the bytes are replaced by
# numbers at the edges of their types, and whole pieces are moved, doubled, and cut.

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

__all__ = ["Mutator"]

_EDGES = (0, 1, 2, 4, 7, 8, 127, 128, 255, 256, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
_EDGES_64 = (*_EDGES, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_WIDTHS = (("<I", 4), (">I", 4), ("<Q", 8), (">Q", 8), ("<H", 2))


class Mutator:
    """A source of damaged copies of `seeds`."""

    def __init__(self, seeds: Sequence[bytes], seed: int, *, largest: int = 4096) -> None:
        self._seeds = [bytes(each) for each in seeds if each]
        self._random = random.Random(seed)
        self._largest = largest
        self._ways: tuple[Callable[[bytearray], None], ...] = (
            self._flip,
            self._set_byte,
            self._set_number,
            self._set_number,
            self._nudge_number,
            self._cut,
            self._remove,
            self._insert,
            self._double,
            self._zero,
            self._splice,
        )

    def next(self) -> bytes:
        """One more, changed in one to four places."""
        return self.change(self._random.choice(self._seeds))

    def change(self, data: bytes) -> bytes:
        """`data`, changed in one to four places."""
        content = bytearray(data)
        for _ in range(self._random.choice((1, 1, 1, 2, 2, 3, 4))):
            if not content:
                break
            self._random.choice(self._ways)(content)
        return bytes(content[: self._largest])

    def _at(self, content: bytearray, width: int = 1) -> int:
        return self._random.randrange(max(1, len(content) - width + 1))

    def _flip(self, content: bytearray) -> None:
        content[self._at(content)] ^= 1 << self._random.randrange(8)

    def _set_byte(self, content: bytearray) -> None:
        content[self._at(content)] = self._random.choice(
            (0, 1, 0x7F, 0x80, 0xFF, self._random.randrange(256))
        )

    def _set_number(self, content: bytearray) -> None:
        form, width = self._random.choice(_WIDTHS)
        number = self._random.choice(_EDGES_64 if width == 8 else _EDGES) % 2 ** (8 * width)
        at = self._at(content, width)
        content[at : at + width] = struct.pack(form, number)

    def _nudge_number(self, content: bytearray) -> None:
        form, width = self._random.choice(_WIDTHS)
        at = self._at(content, width)
        if at + width <= len(content):
            (number,) = struct.unpack_from(form, content, at)
            number = (number + self._random.choice((-8, -4, -1, 1, 4, 8))) % 2 ** (8 * width)
            content[at : at + width] = struct.pack(form, number)

    def _cut(self, content: bytearray) -> None:
        del content[self._at(content) :]

    def _remove(self, content: bytearray) -> None:
        at = self._at(content)
        del content[at : at + self._random.choice((1, 2, 4, 8, 20, 34))]

    def _insert(self, content: bytearray) -> None:
        at = self._at(content)
        content[at:at] = self._random.randbytes(self._random.choice((1, 2, 4, 8, 20)))

    def _double(self, content: bytearray) -> None:
        start = self._at(content)
        piece = content[start : start + self._random.choice((4, 8, 20, 34, 128))]
        at = self._at(content)
        content[at:at] = piece

    def _zero(self, content: bytearray) -> None:
        at = self._at(content)
        width = min(self._random.choice((4, 8, 64, 512)), len(content) - at)
        content[at : at + width] = bytes(width)

    def _splice(self, content: bytearray) -> None:
        other = self._random.choice(self._seeds)
        content[self._at(content) :] = other[self._random.randrange(len(other)) :]

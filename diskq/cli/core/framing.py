# Messages in a stream of bytes: how they come in through a pipe, and how they go out. Law: no I/O,
# and no more in memory than a chunk and one message.

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from diskq.cli.core.parsing import CommandError
from diskq.errors import MessageSizeError

__all__ = ["JOINERS", "SPLITTERS", "Frames", "LineFraming", "Splitter", "Whole", "batches"]

T = TypeVar("T")

_LENGTH = struct.Struct(">I")

# --- in -------------------------------------------------------------------------------------------


class Splitter(Protocol):
    """Finds the messages in chunks.

    Both raise MessageSizeError before a larger one is gathered, and after those before it were returned.
    """

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """The messages that end in this chunk."""

    def finish(self) -> Sequence[bytes]:
        """The input has ended: the message that the end ends. Raises CommandError inside a frame."""


class LineFraming:
    """A line is a message, without its newline, which the last one may lack; a carriage return stays."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        if not lines:
            _check(len(self._rest), self._most)
        return lines

    def finish(self) -> Sequence[bytes]:
        return [bytes(self._rest)] if self._rest else []


class Frames:
    """Length (u32, big endian), then so many bytes: any message, newlines and all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        self._rest += chunk
        bodies: list[bytes] = []
        at = 0
        while len(self._rest) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._rest, at)
            end = at + _LENGTH.size + size
            if not bodies:
                _check(size, self._most)
            if end > len(self._rest) or size > self._most:
                break
            bodies.append(bytes(self._rest[at + _LENGTH.size : end]))
            at = end
        del self._rest[:at]
        return bodies

    def finish(self) -> Sequence[bytes]:
        self.feed(b"")
        if self._rest:
            raise CommandError(
                f"the input ends {len(self._rest)} bytes into a message: "
                "--length-prefixed takes u32 big endian lengths, each with so many bytes behind it"
            )
        return []


class Whole:
    """All of it is one message."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._body = bytearray()

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        self._body += chunk
        _check(len(self._body), self._most)
        return []

    def finish(self) -> Sequence[bytes]:
        return [bytes(self._body)]


SPLITTERS: dict[str, Callable[[int], Splitter]] = {
    "lines": LineFraming,
    "length_prefixed": Frames,
    "whole": Whole,
}


def _check(size: int, most: int) -> None:
    if size > most:
        raise MessageSizeError(size, 0, most)


def batches(
    messages: Iterable[T],
    most: int,
    most_bytes: int,
    size_of: Callable[[T], int] = len,  # type: ignore[assignment]
) -> Iterator[list[T]]:
    """In order, at most `most` at a time, of together at most `most_bytes`, but one however large."""
    rest = iter(messages)
    while group := list(islice(rest, most)):
        start = size = 0
        for index, message in enumerate(group):
            size += size_of(message)
            if size > most_bytes and index > start:
                yield group[start:index]
                start, size = index, size_of(message)
        yield group[start:]


# --- out ------------------------------------------------------------------------------------------


def _as_lines(messages: Sequence[bytes]) -> bytes:
    return b"".join(message + b"\n" for message in messages)


def _as_frames(messages: Sequence[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(message)) + message for message in messages)


def _as_base64(messages: Sequence[bytes]) -> bytes:
    return b"".join(base64.b64encode(message) + b"\n" for message in messages)


def _as_json(messages: Sequence[bytes]) -> bytes:
    # As `diskq convert` has a message that is nothing but its bytes.
    return b"".join(b'{"value":"%b"}\n' % base64.b64encode(message) for message in messages)


JOINERS: dict[str, Callable[[Sequence[bytes]], bytes]] = {
    "lines": _as_lines,
    "length_prefixed": _as_frames,
    "base64": _as_base64,
    "raw": b"".join,
    "json": _as_json,
}

# Messages in a stream of bytes: splitting what comes in through a pipe, joining what goes out. Law: no I/O,
# and not more in memory than a chunk and one message.

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

    Both methods raise MessageSizeError before they gather a message that is too large, and after they have
    returned the messages before it.
    """

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """Return the messages that end in this chunk."""

    def finish(self) -> Sequence[bytes]:
        """Return the message that ends with the input. Raises CommandError inside a frame."""


class LineFraming:
    """A line is a message, without its newline; the last newline may be missing; carriage returns stay."""

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
    """A message is its length (u32, big endian) and that number of bytes, which may be any."""

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
                "--length-prefixed takes u32 big endian lengths, each with that number of bytes after it"
            )
        return []


class Whole:
    """The whole input is one message."""

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
    """Yield them in order: up to `most` at a time, of up to `most_bytes` together; one may be larger."""
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
    # As `diskq convert` writes a message that has only a value.
    return b"".join(b'{"value":"%b"}\n' % base64.b64encode(message) for message in messages)


JOINERS: dict[str, Callable[[Sequence[bytes]], bytes]] = {
    "lines": _as_lines,
    "length_prefixed": _as_frames,
    "base64": _as_base64,
    "raw": b"".join,
    "json": _as_json,
}

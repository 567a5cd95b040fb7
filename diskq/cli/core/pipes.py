# stdin and stdout, for messages. Law: neither blocks the Trio loop, and what was written has left the
# process.

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import trio

from diskq.cli.core.framing import JOINERS, SPLITTERS
from diskq.cli.core.stdio import stdin, stdout
from diskq.cli.core.terminal import note, printable, progress
from diskq.errors import FullError
from diskq.messages import JournalMessage, Message

__all__ = [
    "CHUNK",
    "OUT_BYTES",
    "OUT_MESSAGES",
    "MessageOutput",
    "Output",
    "Sent",
    "count_of_next",
    "read_source",
    "receiving_into",
]

M = TypeVar("M", Message, JournalMessage)
Send = Callable[[Iterable[bytes]], Awaitable[None]]

CHUNK = 1024 * 1024  # bytes
_MOST_AROUND = 1024 * 1024
"""Bytes that a line of JSON has at most beside its message in base64, which is a third longer."""


# --- in -------------------------------------------------------------------------------------------


async def read_source(args: argparse.Namespace, most: int, send: Send, send_json: Send | None = None) -> None:
    """Pass the messages of the command line to `send`; without any, those of stdin, as they come in.

    `send_json` is given lines of JSON instead, if the command line asks for that. Without an option that says
    how stdin is framed, it is lines. Raises MessageSizeError for a message of stdin of more than `most`
    bytes.
    """
    if args.messages:
        await send(map(os.fsencode, args.messages))
    elif args.framing == "json" and send_json is not None:
        await _read_stdin("lines", most * 4 // 3 + _MOST_AROUND, send_json)
    else:
        await _read_stdin(args.framing or "lines", most, send)


async def _read_stdin(framing: str, most: int, send: Send) -> None:
    splitter = SPLITTERS[framing](most)
    source = stdin.fileno()
    if is_typed := stdin.is_terminal():
        note("each line is a message; Ctrl-D ends" if framing == "lines" else "Ctrl-D ends")
    with progress("sending", _size_of(source), is_wanted=not is_typed) as advance:
        # Abandoned at Ctrl-C, so that no Enter is needed after it.
        while chunk := await trio.to_thread.run_sync(stdin.read, CHUNK, abandon_on_cancel=True):
            await send(splitter.feed(chunk))
            advance(len(chunk))
    await send(splitter.finish())


def _size_of(handle: int) -> int | None:
    status = os.fstat(handle)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class Sent:
    """The number of messages that a store has accepted."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def adding(self, count: int) -> Iterator[None]:
        """Count `count` messages after the block, or those that were accepted before the disk was full."""
        try:
            yield
        except FullError as full:
            self.count += full.accepted
            raise
        self.count += count


# --- out ------------------------------------------------------------------------------------------

# Bounds of a batch of messages that are written out, then removed (or committed).
OUT_MESSAGES = 500
OUT_BYTES = 1024 * 1024


class Output:
    """stdout, for messages."""

    def __init__(self, framing: str | None) -> None:
        self.written = 0
        self._join = JOINERS[framing or "lines"]
        self._is_lines = framing in (None, "lines")
        self._is_shown = self._is_lines and stdout.is_terminal()

    async def write(self, messages: list[bytes]) -> None:
        """Return when they have left this process. `Cancelled`: some of them may have."""
        if self._is_shown:
            messages = [stdout.encoded(printable(message)) for message in messages]
        elif self._is_lines and any(b"\n" in message for message in messages):
            note("warning: a message with newlines looks like several: see --base64, --length-prefixed")
            self._is_lines = False  # one warning is enough
        await trio.to_thread.run_sync(stdout.write, self._join(messages), abandon_on_cancel=True)
        self.written += len(messages)


class MessageOutput(Generic[M]):
    """stdout, for messages of a stream or a journal: their values, or lines of JSON with all fields."""

    def __init__(self, framing: str | None, as_json: Callable[[M], bytes]) -> None:
        self._as_json: Callable[[M], bytes] | None = as_json if framing == "json" else None
        self._output = Output(None if framing == "json" else framing)

    @property
    def written(self) -> int:
        return self._output.written

    async def write(self, messages: Sequence[M]) -> None:
        """As `Output.write`."""
        if self._as_json is None:
            await self._output.write([message.value for message in messages])
        else:
            await self._output.write([self._as_json(message) for message in messages])


class WrittenOutput(Protocol):
    """An output of messages of any kind."""

    @property
    def written(self) -> int:
        """The number of messages that have left the process."""


def count_of_next(output: WrittenOutput, most: int | None) -> int:
    """Return how many messages to take next for `output`, which gets `most` in all; None: no bound."""
    return OUT_MESSAGES if most is None else min(OUT_MESSAGES, most - output.written)


@contextmanager
def receiving_into(output: WrittenOutput) -> Iterator[None]:
    """Report how the block ended, which removes from a queue what it has written out."""
    try:
        yield
    except BrokenPipeError:
        note("the reader of stdout has ended: what was not written stays in the queue")
        raise
    finally:
        note(f"{output.written} received")

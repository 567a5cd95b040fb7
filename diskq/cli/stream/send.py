# `diskq stream create` and `send`. Law: offsets that are printed are in the stream, with the durability
# that was asked for, however the command ends.

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Any

from diskq.channels.stream.producer import StreamProducer, open_producer
from diskq.cli.core import units
from diskq.cli.core.directories import make_room
from diskq.cli.core.framing import batches
from diskq.cli.core.interrupts import run_async
from diskq.cli.core.json_input import message_of
from diskq.cli.core.opening import opened
from diskq.cli.core.parsing import CommandError, check_source, usage_errors
from diskq.cli.core.pipes import CHUNK, read_source
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, shown
from diskq.cli.stream.view import STREAMS_OWN, StreamView, is_stream
from diskq.options import StreamOptions
from diskq.tools.json_lines import STREAM

__all__ = ["create", "send"]

Fields = tuple[bytes | None, bytes, int | None]
"""Key, value and timestamp in nanoseconds; None: not given."""

# --- create ---------------------------------------------------------------------------------------


def create(args: argparse.Namespace) -> None:
    options = _options(
        partition_count=args.partition_count,
        segment_size=args.segment_size,
        retention_max_bytes=args.retention_max_bytes,
        retention_max_age=args.retention_max_age,
        encoding=args.encoding,
    )
    word = "settings of" if is_stream(args.path) else "created"
    _make_room(args.path)
    run_async(_create, args, options)
    settings = StreamView(args.path).settings
    facts = {
        "partition-count": str(settings.partitions),
        "segment-size": _size(settings.roll_size),
        "retention-max-bytes": _size(settings.retention_max_bytes),
        "retention-max-age": _duration(settings.retention_max_age_ns),
        "encoding": settings.encoding,
    }
    settings_text = " ".join(f"{name}={value}" for name, value in facts.items())
    stdout.print(f"{word} {shown(args.path)}: {settings_text}")


async def _create(args: argparse.Namespace, options: StreamOptions) -> None:
    async with _producer(args, options):
        pass


def _size(count: int | None) -> str:
    return "none" if count is None else units.show_size(count).replace(" ", "")


def _duration(nanoseconds: int | None) -> str:
    return "none" if nanoseconds is None else units.show_duration(nanoseconds)


# --- send -----------------------------------------------------------------------------------------


def send(args: argparse.Namespace) -> None:
    check_source(args)
    options = _options(
        durability=args.durability,
        sync_to=args.sync_to,
        segment_age=args.segment_age,
        min_message_size=args.min_message_size,
        max_message_size=args.max_message_size,
    )
    if args.create:
        _make_room(args.path)
    else:
        StreamView(args.path, "; make one with `diskq stream create`, or let --create make it")
    run_async(_send_all, args, options)


async def _send_all(args: argparse.Namespace, options: StreamOptions) -> None:
    sent: dict[int, range] = {}
    try:
        async with _producer(args, options) as producer:
            first = producer.statistics().next_offsets
            try:
                await _StreamInput(args, producer).send_all(options.max_message_size)
            finally:
                after = producer.statistics().next_offsets
                sent = {partition: range(first[partition], after[partition]) for partition in first}
    finally:
        try:
            for partition, offsets in sent.items():
                if offsets:
                    last = f"..{offsets[-1]}" if len(offsets) > 1 else ""
                    stdout.print(f"partition={partition} offset={offsets[0]}{last}")
        finally:
            note(f"{sum(map(len, sent.values()))} sent")


class _StreamInput:
    """Sends messages of the arguments, or of stdin, to the stream."""

    def __init__(self, args: argparse.Namespace, producer: StreamProducer) -> None:
        self._args = args
        self._producer = producer
        self._key = None if args.key is None else os.fsencode(args.key)
        self._line_numbers = count(1)

    async def send_all(self, most: int) -> None:
        """Send all of it. Raises MessageSizeError for a message of more than `most` bytes."""
        await read_source(self._args, most, self._send_values, self._send_lines)

    async def _send_values(self, values: Iterable[bytes]) -> None:
        await self._send((self._key, value, self._args.timestamp) for value in values)

    async def _send_lines(self, lines: Iterable[bytes]) -> None:
        """Send messages in JSON: all before the first invalid line. Raises CommandError for that line."""
        failures: list[CommandError] = []

        def messages() -> Iterator[Fields]:
            for number, line in zip(self._line_numbers, lines, strict=False):
                try:
                    entry = message_of(line, number, STREAM)
                except CommandError as failure:
                    failures.append(failure)
                    return
                yield (
                    self._key if entry.key is None else entry.key,
                    entry.value,
                    self._args.timestamp if entry.timestamp_ns is None else entry.timestamp_ns,
                )

        await self._send(messages())
        if failures:
            raise failures[0]

    async def _send(self, messages: Iterable[Fields]) -> None:
        for batch in batches(messages, self._args.batch, CHUNK, _size_of):
            await self._producer.send_many(batch)


def _size_of(message: Fields) -> int:
    return len(message[1])


# --- shared ---------------------------------------------------------------------------------------


def _make_room(path: str) -> None:
    if not is_stream(path):
        make_room(path, "stream", STREAMS_OWN)


@usage_errors()
def _options(**given: Any) -> StreamOptions:
    return StreamOptions(**given)


def _producer(
    args: argparse.Namespace, options: StreamOptions
) -> AbstractAsyncContextManager[StreamProducer]:
    return opened(lambda: open_producer(args.path, options=options, take_over=args.take_over), args.wait)

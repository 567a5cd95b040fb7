# `diskq stream read` and `tail`. Law: reading removes nothing; a group commits messages after they were
# written out, never before.

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import trio

from diskq.channels.stream.consumer import StreamConsumer, open_consumer
from diskq.cli.core.interrupts import run_async
from diskq.cli.core.last_slice import note_last_slice
from diskq.cli.core.parsing import CommandError
from diskq.cli.core.pipes import OUT_BYTES, OUT_MESSAGES, MessageOutput, count_of_next
from diskq.cli.core.places import Moment, Stop, end_of, start_of
from diskq.cli.core.stdio import stderr, stdout
from diskq.cli.core.terminal import note, progress
from diskq.cli.stream.view import StreamView, listed
from diskq.errors import OffsetOutOfRangeError
from diskq.messages import Message
from diskq.tools.json_lines import stream_line
from diskq.tools.stores import Store

__all__ = ["read", "tail"]


# --- read -----------------------------------------------------------------------------------------


def read(args: argparse.Namespace) -> None:
    start, end = start_of(args), end_of(args)
    view = StreamView(args.path)
    note_last_slice(Store("stream", args.path))
    wanted = view.partitions(args.partitions)
    where: Any = start
    if isinstance(start, Moment):
        where = {partition: view.offset_of(partition, start) for partition in wanted}
    output = MessageOutput(args.framing, stream_line)
    try:
        run_async(_read_all, args, wanted, where, end, output)
    except BrokenPipeError:
        if args.group is not None:
            note(f"the reader of stdout has ended: what was not written comes again for group {args.group!r}")
        raise
    except OffsetOutOfRangeError as failure:
        if args.group is None or failure.offset >= failure.first_offset:
            raise
        move = f"`diskq stream groups {args.path} --reset {args.group} --to oldest` moves the group there"
        raise CommandError(f"{failure}; {move}") from failure
    finally:
        if args.group is not None:
            note(f"{output.written} read as group {args.group!r}")


async def _read_all(
    args: argparse.Namespace, wanted: list[int], start: Any, end: Stop, output: MessageOutput[Message]
) -> None:
    partitions = None if args.partitions is None else wanted
    async with open_consumer(args.path, partitions, group=args.group, start=start, end=end) as consumer:
        _report_others(args, wanted, consumer)
        with _progress(args, end, consumer) as advance:
            while output.written != args.max_messages:
                most = count_of_next(output, args.max_messages)
                try:
                    async with consumer.receiving(most, max_bytes=OUT_BYTES) as messages:
                        await output.write(messages)
                except trio.EndOfChannel:
                    return
                advance(len(messages))


def _report_others(args: argparse.Namespace, wanted: list[int], consumer: StreamConsumer) -> None:
    others = sorted(set(wanted) - set(consumer.position))
    if others:
        what = "partition" if len(others) == 1 else "partitions"
        note(f"{what} {listed(others)}: read by another process of group {args.group!r}")


def _progress(args: argparse.Namespace, end: Stop, consumer: StreamConsumer) -> Any:
    total = None
    if end == "close" and stderr.is_terminal():
        total = sum(partition.lag or 0 for partition in consumer.look().partitions.values())
        total = total if args.max_messages is None else min(total, args.max_messages)
    return progress("reading", total, is_wanted=not stdout.is_terminal())


# --- tail -----------------------------------------------------------------------------------------


def tail(args: argparse.Namespace) -> None:
    view = StreamView(args.path)
    note_last_slice(Store("stream", args.path))
    last: dict[int, list[Message]] = {}
    ends: dict[int, int] = {}
    for partition in view.partitions(args.partitions):
        last[partition], ends[partition] = _last_of(view, partition, args.max_messages)
    run_async(_tail_all, args, _latest(last, args.max_messages), ends)


async def _tail_all(args: argparse.Namespace, last: list[Message], ends: Mapping[int, int]) -> None:
    output = MessageOutput(args.framing, stream_line)
    if last:
        await output.write(last)
    if args.follow:
        partitions = None if args.partitions is None else list(ends)
        async with open_consumer(args.path, partitions, start=ends) as consumer:
            while True:
                await output.write(await consumer.receive_many(OUT_MESSAGES, max_bytes=OUT_BYTES))


def _last_of(view: StreamView, partition: int, count: int) -> tuple[list[Message], int]:
    """Return up to `count` messages from the end of a partition, and the next offset."""
    with view.reader(partition) as reader:
        for is_last_try in (False, False, True):
            try:
                end = reader.next_offset()
                reader.seek(max(reader.first_offset(), end - count))
                break
            except OffsetOutOfRangeError:  # retention removed it meanwhile
                if is_last_try:
                    raise
        messages = reader.read_many(end - reader.position)
        for gap in reader.losses:
            note(f"warning: {gap}")
        return messages, reader.position


def _latest(by_partition: Mapping[int, list[Message]], count: int) -> list[Message]:
    """Return the last `count` of all, by their times; those of a partition stay in order."""
    ends = {partition: len(messages) for partition, messages in by_partition.items()}
    latest = []
    for _ in range(min(count, sum(ends.values()))):
        partition = max(
            (partition for partition, end in ends.items() if end),
            key=lambda partition: by_partition[partition][ends[partition] - 1].timestamp_ns,
        )
        ends[partition] -= 1
        latest.append(by_partition[partition][ends[partition]])
    return latest[::-1]

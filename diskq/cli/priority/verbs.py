# The verbs of `diskq priority` that change a store. Law: a message is removed after it is written out, never
# before; a command that stops early loses no message.

from __future__ import annotations

import argparse
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import count, groupby
from typing import TypeVar

import trio

from diskq.cli.core.directories import make_room
from diskq.cli.core.following import FileSystem, until
from diskq.cli.core.framing import batches
from diskq.cli.core.interrupts import run_async
from diskq.cli.core.json_input import message_of
from diskq.cli.core.opening import opened_engine, patient
from diskq.cli.core.parsing import CommandError, UsageError, check_confirmed, check_source, usage_errors
from diskq.cli.core.pipes import CHUNK, OUT_BYTES, Output, Sent, count_of_next, read_source, receiving_into
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, progress, shown
from diskq.cli.priority.view import check_store, is_store
from diskq.engine.priority.files import StoreFiles
from diskq.engine.priority.store import PriorityRecord, PriorityStore
from diskq.engine.priority.view import log_trace, look_at_store
from diskq.options import PriorityOptions
from diskq.tools.entries import Entry
from diskq.tools.json_lines import JOB, priority_line

__all__ = ["PriorityOutput", "create", "delete", "receive", "send", "snapshot"]

T = TypeVar("T")

# Names that an interrupted first open leaves, or TaskFlux.
_OURS = {"taskflux.settings.json", "data", ".diskq"}

# --- queues ---------------------------------------------------------------------------------------


def create(args: argparse.Namespace) -> None:
    limits = (args.max_messages, args.max_message_size, args.priority_range)
    if args.name is None and (any(limit is not None for limit in limits) or args.implementation != "H4"):
        raise UsageError("NAME is missing: the limits are those of a queue, not of the store")
    is_new = _make_room(args.path)
    with _opened(args, PriorityOptions(layout=args.layout)) as store:
        if args.name is not None:
            priority_range = (
                None if args.priority_range is None else (args.priority_range[0], args.priority_range[1])
            )
            with usage_errors():
                store.create_queue(
                    args.name,
                    implementation=args.implementation,
                    max_messages=args.max_messages,
                    max_message_size=args.max_message_size,
                    priority_range=priority_range,
                    durability="synced",
                )
    what = "" if args.name is None else f"queue {args.name!r} in "
    word = "created" if is_new or args.name is not None else "there already:"
    note(f"{word} {what}{shown(args.path)}")


def delete(args: argparse.Namespace) -> None:
    check_store(args.path)
    check_confirmed(args, lambda: _question(args))
    with _opened(args) as store:
        removed = store.queue(args.name).table.stored
        store.delete_queue(args.name, durability="synced")
    note(f"queue {args.name!r} removed, with {removed} messages")


def _question(args: argparse.Namespace) -> str:
    queue = look_at_store(args.path).queues.get(args.name)
    stored = 0 if queue is None else queue.table.stored
    return f"Remove queue {args.name!r} with all messages ({stored})?"


def snapshot(args: argparse.Namespace) -> None:
    check_store(args.path)
    with _opened(args) as store:
        is_taken = store.snapshot()
        covered = store.statistics().snapshot_lsn
    if is_taken:
        note(f"snapshot taken, up to command {covered}")
    else:
        note("nothing has changed since the last snapshot" if covered >= 0 else "nothing is in the store")


# --- send -----------------------------------------------------------------------------------------


def send(args: argparse.Namespace) -> None:
    check_source(args)
    if args.create:
        _make_room(args.path)
    else:
        check_store(args.path, "; make one with `diskq priority create`, or let --create make it")
    run_async(_send_all, args)


async def _send_all(args: argparse.Namespace) -> None:
    options = PriorityOptions()
    sent = Sent()
    numbers = count(1)

    async def send_entries(entries: Iterable[Entry]) -> None:
        for batch in batches(entries, args.batch, CHUNK, lambda entry: len(entry.value)):
            for name, group in groupby(batch, lambda entry: _first_of(args.queue, entry.queue, "")):
                some = list(group)
                priorities = [_first_of(args.priority, entry.priority, 0) for entry in some]
                queue = store.queue(name)
                with sent.adding(len(some)):
                    store.put_many(
                        queue, [entry.value for entry in some], priorities, durability=args.durability
                    )
                await trio.lowlevel.checkpoint_if_cancelled()  # for interrupts: nothing else waits here

    async def send_data(messages: Iterable[bytes]) -> None:
        await send_entries(map(Entry, messages))

    async def send_lines(lines: Iterable[bytes]) -> None:
        entries, failure = _entries_of(lines, numbers)
        await send_entries(entries)
        if failure is not None:
            raise failure

    try:
        async with _opened_in_trio(args, options) as store:
            await read_source(args, options.max_message_size, send_data, send_lines)
    finally:
        note(f"{sent.count} sent")


def _first_of(first: T | None, second: T | None, default: T) -> T:
    """Return the first that is not None."""
    if first is not None:
        return first
    return default if second is None else second


def _entries_of(lines: Iterable[bytes], numbers: Iterator[int]) -> tuple[list[Entry], CommandError | None]:
    """Return the messages before the first invalid line, and what is wrong with that line."""
    entries = []
    for line in lines:
        try:
            entries.append(message_of(line, next(numbers), JOB))
        except CommandError as failure:
            return entries, failure
    return entries, None


# --- receive --------------------------------------------------------------------------------------


class PriorityOutput:
    """stdout, for messages of priority queues."""

    def __init__(self, framing: str | None) -> None:
        self._is_json = framing == "json"
        self._output = Output(None if self._is_json else framing)

    @property
    def written(self) -> int:
        return self._output.written

    async def write(self, records: Sequence[PriorityRecord]) -> None:
        """Return when they have left this process. `Cancelled`: some of them may have."""
        await self._output.write(
            [priority_line(record) if self._is_json else record.body for record in records]
        )


def receive(args: argparse.Namespace) -> None:
    check_store(args.path)
    if args.follow:
        args.wait = float("inf")
    output = PriorityOutput(args.framing)
    with receiving_into(output):
        run_async(_receive_all, args, output)


async def _receive_all(args: argparse.Namespace, output: PriorityOutput) -> None:
    while True:
        async with _opened_in_trio(args) as store:
            queue = store.queue(args.queue or "")
            with progress("receiving", queue.table.ready, is_wanted=not stdout.is_terminal()) as advance:
                while output.written != args.max_messages:
                    wanted = count_of_next(output, args.max_messages)
                    records = store.get_many(queue, wanted, max_bytes=OUT_BYTES)
                    if not records:
                        break
                    await output.write(records)
                    store.ack_many(queue, records)
                    advance(len(records))
            before = log_trace(args.path)
        if not args.follow or output.written == args.max_messages:
            return
        await _commands(args.path, before)


async def _commands(path: str, before: Hashable) -> None:
    """Return when the log differs from `before`."""

    def watched(fs: FileSystem) -> tuple[list[str], list[str]]:
        files = StoreFiles.existing(fs, path)
        return [files.root, files.log], [files.segment(base) for base in files.segments()[-1:]]

    await until(lambda: log_trace(path) != before, watched)


# --- shared ---------------------------------------------------------------------------------------


def _opened(args: argparse.Namespace, options: PriorityOptions | None = None) -> PriorityStore:
    return patient(lambda: PriorityStore(args.path, options=options), args.wait)


def _opened_in_trio(
    args: argparse.Namespace, options: PriorityOptions | None = None
) -> AbstractAsyncContextManager[PriorityStore]:
    return opened_engine(lambda: PriorityStore(args.path, options=options), args.wait)


def _make_room(path: str) -> bool:
    """Make the directory of a store. False if there is a store already."""
    if os.path.isdir(path) and is_store(path):
        return False
    make_room(path, "store of priority queues", _OURS)
    return True

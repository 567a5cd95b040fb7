# Targets of a replay: stdout, a queue, a stream, a journal, or a function. Law: when `put` returns, its
# messages are in the target; when it raises, `landed` says how many of them are.

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import trio

from diskq.channels.journal.writer import JournalWriter, open_journal
from diskq.channels.queue.queue import QueueChannel, open_queue
from diskq.channels.replay import AnyMessage
from diskq.channels.stream.producer import StreamProducer, open_producer
from diskq.cli.core.directories import check_directory, make_directories, make_room
from diskq.cli.core.opening import opened
from diskq.cli.core.parsing import CommandError, UsageError
from diskq.cli.core.pipes import MessageOutput
from diskq.cli.journal.view import JOURNALS_OWN, check_journal, is_a_journal
from diskq.cli.stream.view import STREAMS_OWN, StreamView, is_stream
from diskq.errors import FullError
from diskq.messages import NULL_TIMESTAMP, JournalMessage
from diskq.options import StreamOptions
from diskq.tools.json_lines import journal_line, stream_line
from diskq.tools.view.queue import queue_names

__all__ = ["Sink", "check_sink", "opened_sink"]


class Sink(Protocol):
    """Takes messages in batches."""

    most: int
    """Messages in a batch at most."""

    async def put(self, messages: Sequence[AnyMessage]) -> None:
        """Return when they are in the target. `Cancelled`: none is; in a pipe, some may be."""

    def landed(self, failure: BaseException) -> int:
        """Return how many of them, the first ones, are in the target after `put` has raised `failure`."""


class _StoreSink:
    most = 500

    def landed(self, failure: BaseException) -> int:
        # In a stream they may be any of them (`rest` has the others). Then all of them come again.
        return failure.accepted if isinstance(failure, FullError) and not failure.rest else 0


class _Out(_StoreSink):
    def __init__(self, framing: str | None, as_json: Callable[[Any], bytes]) -> None:
        self._output: MessageOutput[Any] = MessageOutput(framing, as_json)

    async def put(self, messages: Sequence[AnyMessage]) -> None:
        await self._output.write(messages)


class _IntoQueue(_StoreSink):
    def __init__(self, queue: QueueChannel) -> None:
        self._queue = queue

    async def put(self, messages: Sequence[AnyMessage]) -> None:
        await self._queue.send_many([message.value for message in messages])


class _IntoStream(_StoreSink):
    def __init__(self, producer: StreamProducer, keeps_times: bool) -> None:
        self._producer = producer
        self._keeps_times = keeps_times

    async def put(self, messages: Sequence[AnyMessage]) -> None:
        # A journal's message without a key gets a random one, as every message of a stream without one.
        await self._producer.send_many(
            [
                (
                    message.key or (None if isinstance(message, JournalMessage) else b""),
                    message.value,
                    message.timestamp_ns if self._keeps_times else None,
                )
                for message in messages
            ]
        )


class _IntoJournal(_StoreSink):
    def __init__(self, journal: JournalWriter, keeps_times: bool) -> None:
        self._journal = journal
        self._keeps_times = keeps_times

    async def put(self, messages: Sequence[AnyMessage]) -> None:
        await self._journal.send_many([self._item(message) for message in messages])

    def _item(self, message: AnyMessage) -> tuple[bytes, bytes, int | None, int]:
        when = None
        if self._keeps_times:
            when = NULL_TIMESTAMP if message.timestamp_ns is None else message.timestamp_ns
        return message.key, message.value, when, getattr(message, "type", 0)


class _CallSink(_StoreSink):
    most = 1  # so that it is known for which messages it was called

    def __init__(self, name: str) -> None:
        self._name = name
        self._function = _function(name)
        self._is_async = inspect.iscoroutinefunction(self._function)

    async def put(self, messages: Sequence[AnyMessage]) -> None:
        for message in messages:
            try:
                if self._is_async:
                    await self._function(message)
                else:
                    # In a thread, so that Trio and Ctrl-C work meanwhile. A call that has begun is completed.
                    await trio.to_thread.run_sync(self._function, message)
            except Exception as failure:
                where = f"at offset {message.offset} of partition {message.partition}"
                raise CommandError(
                    f"{self._name} raised {type(failure).__name__}: {failure} ({where})"
                ) from failure


def _function(name: str) -> Callable[[AnyMessage], Any]:
    """Return the function. Raises UsageError if there is none, CommandError if the import fails."""
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise UsageError(f"--call names a function as module:function, not {name!r}")
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as failure:
        if isinstance(failure, ModuleNotFoundError) and module_name.startswith(failure.name or "."):
            raise UsageError(f"--call: there is no module {failure.name!r} here, or on PYTHONPATH") from None
        raise CommandError(f"--call: {module_name}: {type(failure).__name__}: {failure}") from failure
    finally:
        sys.path.pop(0)
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"--call: {module_name} has no {path!r}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"--call: {name} is no function")
    return found  # type: ignore[no-any-return]


# --- choice ---------------------------------------------------------------------------------------


def check_sink(args: argparse.Namespace) -> None:
    """Make or check the target. Raises UsageError, and CommandError if it is not there."""
    targets = [args.into_queue, args.into, args.into_journal, args.call]
    if sum(place is not None for place in targets) > 1:
        raise UsageError("--into, --into-queue, --into-journal and --call exclude each other")
    if args.framing and any(place is not None for place in targets):
        raise UsageError(f"--{args.framing.replace('_', '-')} is for stdout: leave it out, or the target")
    if args.keep_timestamps and args.into is None and args.into_journal is None:
        raise UsageError("--keep-timestamps goes with --into or --into-journal")
    if args.call is not None:
        _function(args.call)
    advice = "; make it, or let --create make it"
    if args.into_queue is not None:
        directory, name = args.into_queue
        if args.create:
            make_directories(directory)
        check_directory(directory, advice)
        if not args.create and name not in queue_names(directory):
            raise CommandError(f"no queue {name!r} in {directory}{advice}")
    elif args.into is not None and not is_stream(args.into):
        if not args.create:
            StreamView(args.into, advice)
        make_room(args.into, "stream", STREAMS_OWN)
    elif args.into_journal is not None and not is_a_journal(args.into_journal):
        if not args.create:
            check_journal(args.into_journal, advice)
        make_room(args.into_journal, "journal", JOURNALS_OWN)


@asynccontextmanager
async def opened_sink(args: argparse.Namespace) -> AsyncIterator[Sink]:
    """Open the target of the command line. Raises LockedError if another process writes to it."""
    word, keeps = args.durability, args.keep_timestamps
    if args.into_queue is not None:
        directory, name = args.into_queue
        async with opened(lambda: open_queue(directory, name, durability=word), args.wait) as queue:
            yield _IntoQueue(queue)
    elif args.into is not None:
        options = StreamOptions(durability=word)
        async with opened(lambda: open_producer(args.into, options=options), args.wait) as producer:
            yield _IntoStream(producer, keeps)
    elif args.into_journal is not None:
        async with opened(lambda: open_journal(args.into_journal, durability=word), args.wait) as journal:
            yield _IntoJournal(journal, keeps)
    elif args.call is not None:
        yield _CallSink(args.call)
    else:
        yield _Out(args.framing, journal_line if args.is_journal else stream_line)

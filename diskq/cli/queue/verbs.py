# The verbs of `diskq queue`. Law: a message is removed after it is written out, never before; a command that
# stops early loses no message.

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

import trio

from diskq.channels.queue.queue import QueueChannel, open_queue
from diskq.cli.core import units
from diskq.cli.core.directories import check_directory, make_directories
from diskq.cli.core.following import FileSystem, until
from diskq.cli.core.framing import batches
from diskq.cli.core.interrupts import run_async
from diskq.cli.core.opening import opened
from diskq.cli.core.parsing import CommandError, UsageError, check_confirmed, check_source, usage_errors
from diskq.cli.core.pipes import CHUNK, OUT_BYTES, Output, Sent, count_of_next, read_source, receiving_into
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, preview, progress, say, show_table
from diskq.engine.queue.files import QueueFiles
from diskq.options import QueueOptions
from diskq.tools.view.queue import QueueView, look, look_at_first, queue_names

__all__ = ["clear", "info", "peek", "receive", "send"]


# --- send -----------------------------------------------------------------------------------------


def send(args: argparse.Namespace) -> None:
    check_source(args)
    options = _options(args)
    if args.create:
        make_directories(args.directory)
    check_directory(args.directory, "; make it, or let --create make it")
    run_async(_send_all, args, options)


@usage_errors()
def _options(args: argparse.Namespace) -> QueueOptions:
    return QueueOptions(
        durability=args.durability,
        sync_to=args.sync_to,
        max_bytes=args.max_bytes,
        on_full=args.on_full,
        segment_size=args.segment_size,
        max_message_size=args.max_message_size,
    )


async def _send_all(args: argparse.Namespace, options: QueueOptions) -> None:
    sent = Sent()

    async def send(messages: Iterable[bytes]) -> None:
        for batch in batches(messages, args.batch, min(CHUNK, options.roll_size)):
            with sent.adding(len(batch)):
                await queue.send_many(batch)

    try:
        async with _opened(args, options) as queue:
            await read_source(args, options.max_message_size, send)
    finally:
        note(f"{sent.count} sent")


# --- receive --------------------------------------------------------------------------------------


def receive(args: argparse.Namespace) -> None:
    if args.linger is not None and not args.follow:
        raise UsageError("--linger goes with --follow: without it, no message can arrive meanwhile")
    check_directory(args.directory)
    if args.follow:
        args.wait = float("inf")
    else:
        _check_exists(args)
    output = Output(args.framing)
    with receiving_into(output):
        run_async(_receive_all, args, output)


async def _receive_all(args: argparse.Namespace, output: Output) -> None:
    while True:
        if args.follow:
            await _messages(args)
        async with _opened(args) as queue:
            with progress("receiving", queue.depth, is_wanted=not stdout.is_terminal()) as advance:
                while not queue.empty():
                    wanted = count_of_next(output, args.max_messages)
                    async with queue.receiving(wanted, max_bytes=OUT_BYTES) as bodies:
                        await output.write(bodies)
                    advance(len(bodies))
                    if output.written == args.max_messages:
                        return
        if not args.follow:
            return


async def _messages(args: argparse.Namespace) -> None:
    """Return when the files of the queue show messages."""

    def watched(fs: FileSystem) -> tuple[list[str], list[str]]:
        files = QueueFiles(fs, args.directory, args.name)
        return [files.directory], [files.data(number) for number in files.numbers()[-1:]]

    await until(lambda: look(args.directory, args.name).has_messages, watched)
    await trio.sleep(args.linger or 0)


# --- peek -----------------------------------------------------------------------------------------


def peek(args: argparse.Namespace) -> None:
    check_directory(args.directory)
    _check_exists(args)
    first = look_at_first(args.directory, args.name, args.max_messages)
    for loss in first.losses:
        note(f"warning: {loss}")
    if not stdout.is_terminal() or args.framing:
        run_async(Output(args.framing).write, first.bodies)
        return
    rows = [
        (str(number), units.show_size(len(body)), preview(body))
        for number, body in enumerate(first.bodies, 1)
    ]
    show_table(["#", "size", "message"], rows, numeric=["#", "size"])
    view = look(args.directory, args.name)
    if (rest := (view.depth or 0) - args.max_messages) > 0:
        note(f"and {rest} more" if view.is_exact else f"and about {rest} more")


# --- info -----------------------------------------------------------------------------------------


def info(args: argparse.Namespace) -> None:
    check_directory(args.directory)
    if args.name is not None:
        _check_exists(args)
    names = [args.name] if args.name is not None else queue_names(args.directory)
    views = [look(args.directory, name) for name in names]
    if args.json:
        found = [_as_json(view) for view in views]
        stdout.print(json.dumps(found if args.name is None else found[0], indent=2))
    elif args.name is not None:
        _show_one(views[0])
    elif views:
        columns = ["queue", "messages", "bytes", "files", "read at", "write at", "open in"]
        show_table(columns, [_row(view) for view in views], numeric=columns[1:4])
        for view in views:
            for problem in view.problems:
                note(f"{view.name}: {problem}")
    else:
        note(f"no queues in {args.directory}")


def _as_json(view: QueueView) -> dict[str, object]:
    return {
        **dataclasses.asdict(view),
        "read": {"file": view.read.file, "byte": view.read.byte},
        "write": {"file": view.write.file, "byte": view.write.byte},
    }


def _row(view: QueueView) -> tuple[str, ...]:
    size = units.show_size(view.bytes)
    return (
        view.name,
        _depth(view),
        size,
        str(view.files),
        _place(view.read),
        _place(view.write),
        _owner(view),
    )


def _show_one(view: QueueView) -> None:
    facts = {
        "queue": view.name,
        "messages": _depth(view),
        "bytes": f"{view.bytes} ({units.show_size(view.bytes)})",
        "files": str(view.files),
        "read at": _place(view.read),
        "write at": _place(view.write),
        "open in": _owner(view),
        "last open in": str(view.holder) if view.holder and not view.is_open else "",
    }
    for what, value in facts.items():
        if value:
            say(f"{what:14}{value}")
    for problem in view.problems:
        say(f"{'to repair':14}{problem}")
    for path in view.aside:
        say(f"{'set aside':14}{path}")


def _depth(view: QueueView) -> str:
    if view.depth is None:
        return "unknown"
    return f"{view.depth}" if view.is_exact else f"about {view.depth}"


def _place(position: tuple[int, int]) -> str:
    return ":".join(map(str, position))


def _owner(view: QueueView) -> str:
    if view.is_open is None:
        return f"perhaps {view.holder}"
    return str(view.holder) if view.is_open else "-"


# --- clear ----------------------------------------------------------------------------------------


def clear(args: argparse.Namespace) -> None:
    check_directory(args.directory)
    _check_exists(args)
    check_confirmed(args, lambda: _question(args))
    run_async(_clear_all, args)


def _question(args: argparse.Namespace) -> str:
    depth = _depth(look(args.directory, args.name))
    return f"Remove all messages ({depth}) of queue {args.name!r}?"


async def _clear_all(args: argparse.Namespace) -> None:
    async with _opened(args) as queue:
        removed = queue.depth
        await queue.clear()
    note(f"{removed} removed")


# --- shared ---------------------------------------------------------------------------------------


def _opened(
    args: argparse.Namespace, options: QueueOptions | None = None
) -> AbstractAsyncContextManager[QueueChannel]:
    return opened(lambda: open_queue(args.directory, args.name, options=options), args.wait)


def _check_exists(args: argparse.Namespace) -> None:
    """Raise CommandError if there is no such queue, which opening would make: the name is mistyped."""
    names = queue_names(args.directory)
    if args.name not in names:
        known = f"there are {', '.join(names)}" if names else "there are none"
        raise CommandError(f"no queue {args.name!r} in {args.directory}: {known}")

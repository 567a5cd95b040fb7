# `diskq spool run`: delivery with a command. Law: a batch is removed when the command has ended with 0, and
# not before; if this process or the command ends in another way, the batch stays.

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

import trio

from diskq.channels.spool.spool import open_spool
from diskq.cli.core.directories import make_directories
from diskq.cli.core.framing import JOINERS
from diskq.cli.core.interrupts import run_async
from diskq.cli.core.opening import opened
from diskq.cli.core.parsing import usage_errors
from diskq.cli.core.stdio import write_whole
from diskq.cli.core.terminal import note, pass_on, printable
from diskq.cli.spool.view import check_spool
from diskq.errors import Permanent, Retry
from diskq.messages import Batch
from diskq.options import SpoolOptions

__all__ = ["run"]

_LATER = 75  # EX_TEMPFAIL of sysexits.h
_GRACE = 2.0  # seconds for a command to end when it is asked to
_LONGEST_LINE = 200  # characters


def run(args: argparse.Namespace) -> None:
    with usage_errors():
        options = SpoolOptions(
            max_messages=args.batch,
            linger=args.linger,
            deliver_timeout=args.timeout,
            max_attempts=args.max_attempts,
            backoff_initial=min(SpoolOptions().backoff_initial, args.backoff_max),
            backoff_max=args.backoff_max,
            rate=args.rate,
        )
    if args.create:
        make_directories(args.path)
    else:
        check_spool(args.path, "; make it, or let --create make it")
    run_async(_run, args, options)


async def _run(args: argparse.Namespace, options: SpoolOptions) -> None:
    with _Watch() as watch:
        command = _Command(args, watch)
        async with opened(
            lambda: open_spool(args.path, command.deliver, options=options), args.wait
        ) as spool:
            try:
                if not args.drain:
                    await trio.sleep_forever()
                await spool.drained()
            finally:
                found = spool.statistics()
                dead = f", {found.buried} given up" if found.buried else ""
                note(f"{found.delivered} delivered{dead}, {found.depth} waiting")


class _Watch:
    """A process that kills the command with all that it has started as soon as this process is gone.

    Otherwise a command would go on beside that of the next `spool run`, with the same batch. The watch sees
    the end of its stdin, whatever has ended this process. PR_SET_PDEATHSIG would reach the shell alone, not
    what it has started, and would come when the thread ends that has started it.
    """

    def __enter__(self) -> _Watch:
        self._process = self._start()
        return self

    def _start(self) -> subprocess.Popen[bytes]:
        # The last line of stdin is the group of the command that runs, or empty.
        return subprocess.Popen(
            ["/bin/sh", "-c", 'while read -r next; do group=$next; done; kill -9 "-${group:?}"'],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @contextlib.contextmanager
    def over(self, group: int) -> Iterator[None]:
        """Watch this process group during the block."""
        self._note(str(group))
        try:
            yield
        finally:
            self._note("")

    def _note(self, group: str) -> None:
        line = f"{group}\n".encode()
        try:
            write_whole(self._input(), line, "stdin of the watch")
        except BrokenPipeError:  # somebody has ended it
            self.__exit__()
            self._process = self._start()
            write_whole(self._input(), line, "stdin of the watch")

    def _input(self) -> int:
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class _Command:
    def __init__(self, args: argparse.Namespace, watch: _Watch) -> None:
        self._command = args.exec
        self._watch = watch
        self._join = JOINERS[args.framing or "lines"]
        self._gives_up = args.on_failure == "give_up"

    async def deliver(self, batch: Batch) -> None:
        """Run the command with the batch as stdin. Raises Retry, Permanent."""
        variables = {"DISKQ_ATTEMPTS": str(batch.attempts), "DISKQ_MESSAGES": str(len(batch))}
        # It inherits stdout; stderr is captured, since its last line may be the reason, and then written. It
        # begins after a first line on stdin: by then it is watched.
        process = await trio.lowlevel.open_process(
            ["/bin/sh", "-c", 'read -r _ && exec /bin/sh -c "$1"', "sh", self._command],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | variables,
            start_new_session=True,
        )
        with self._watch.over(process.pid):
            try:
                said = await _communicate(process, b"\n" + self._join(batch))
            except BaseException:
                with trio.CancelScope(shield=True):
                    await _end(process)
                raise
        pass_on(said)
        if process.returncode == 0:
            return
        failure = _reason(process.returncode or 0, said)
        if self._gives_up and process.returncode != _LATER:
            raise Permanent(failure)
        raise Retry(reason=failure)


async def _communicate(process: trio.Process, data: bytes) -> bytes:
    """Give the process `data`, and return what it prints on stderr, when it has ended."""
    source, sink = process.stdin, process.stderr
    assert source is not None
    assert sink is not None
    said = bytearray()

    async def feed() -> None:
        with contextlib.suppress(trio.BrokenResourceError):  # it may end before it has read all of it
            await source.send_all(data)
        await source.aclose()

    async with sink, trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        async for chunk in sink:
            said += chunk
        await process.wait()
    return bytes(said)


def _reason(code: int, said: bytes) -> str:
    """Return how it ended, in a line."""
    how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    lines = said.strip().splitlines()
    return f"{how}: {printable(lines[-1])[:_LONGEST_LINE]}" if lines else how


async def _end(process: trio.Process) -> None:
    """End the command and all that it has started: SIGTERM, then SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _GRACE):
        await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

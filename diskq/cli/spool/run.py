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
from diskq.cli.core.opening import opened
from diskq.cli.core.parsing import usage_errors
from diskq.cli.core.terminal import note, printable
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
            max_items=args.batch,
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
    trio.run(_run, args, options)


async def _run(args: argparse.Namespace, options: SpoolOptions) -> None:
    command = _Command(args)
    async with opened(lambda: open_spool(args.path, command.deliver, options), args.wait) as spool:
        try:
            with _ended_by(signal.SIGTERM):
                if not args.drain:
                    await trio.sleep_forever()
                await spool.drained()
        finally:
            found = spool.statistics()
            dead = f", {found.buried} given up" if found.buried else ""
            note(f"{found.delivered} delivered{dead}, {found.depth} waiting")


@contextlib.contextmanager
def _ended_by(number: int) -> Iterator[None]:
    """Leave the block at this signal, as at Ctrl-C."""
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope:
        before = signal.signal(number, lambda *_: token.run_sync_soon(scope.cancel))
        try:
            yield
        finally:
            signal.signal(number, before)


class _Command:
    def __init__(self, args: argparse.Namespace) -> None:
        self._command = args.exec
        self._join = JOINERS[args.framing or "lines"]
        self._gives_up = args.on_failure == "give_up"

    async def deliver(self, batch: Batch) -> None:
        """Run the command with the batch as stdin. Raises Retry, Permanent."""
        variables = {"DISKQ_ATTEMPTS": str(batch.attempts), "DISKQ_MESSAGES": str(len(batch))}
        # It inherits stdout; stderr is captured, since its last line may be the reason, and then written.
        done = await trio.run_process(
            ["/bin/sh", "-c", self._command],
            stdin=self._join(batch),
            capture_stderr=True,
            check=False,
            env=os.environ | variables,
            start_new_session=True,
            deliver_cancel=_end,
        )
        os.write(2, done.stderr)
        if done.returncode == 0:
            return
        failure = _reason(done)
        if self._gives_up and done.returncode != _LATER:
            raise Permanent(failure)
        raise Retry(reason=failure)


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return how it ended, in a line."""
    code = done.returncode
    how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    lines = done.stderr.strip().splitlines()
    return f"{how}: {printable(lines[-1])[:_LONGEST_LINE]}" if lines else how


async def _end(process: trio.Process) -> None:
    """End the command and all that it has started: SIGTERM, then SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _GRACE):
        await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

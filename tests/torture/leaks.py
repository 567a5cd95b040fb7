"""Does anything grow? python -m tests.torture.leaks --messages 10000000

Each engine gets and gives away so many messages, in a process of its own. What it has open, how many
threads, and how much memory (bytes), is looked at after a tenth of them and then once in a while: it must
not grow any more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import diskq

__all__ = ["ENGINES", "FEW", "Sample", "growth", "main", "run"]

BATCH = 1000
BODY = b"x" * 100
SAMPLES = 40
FEW = 4
"""Descriptors more or less: those of a file that was used up stay open until the next sync is paid."""
MOST = 4 << 20
"""Bytes of memory that are no growth: what an allocator keeps."""


class Sample(NamedTuple):
    messages: int
    descriptors: int
    threads: int
    memory: int


def _sample(messages: int) -> Sample:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    descriptors = len(os.listdir("/proc/self/fd"))
    return Sample(messages, descriptors, threading.active_count(), pages * os.sysconf("SC_PAGE_SIZE"))


# --- each puts a batch, and takes it out or has it removed by retention -----------------------------


@contextlib.contextmanager
def _queue(directory: str) -> Iterator[Callable[[], object]]:
    with diskq.FifoQueue(directory, "q", diskq.QueueOptions(max_bytes_per_file=1 << 20)) as queue:

        def step() -> None:
            queue.put_many([BODY] * BATCH)
            assert len(queue.take_many(BATCH)) == BATCH

        yield step


@contextlib.contextmanager
def _stream(directory: str) -> Iterator[Callable[[], object]]:
    options = diskq.StreamOptions(partition_count=2, segment_size=1 << 20, retention_max_bytes=8 << 20)
    with diskq.Stream(directory, options) as stream:

        def step() -> None:
            stream.append_many([(b"%d" % (number % 7), BODY) for number in range(BATCH)])
            stream.vacuum()

        yield step


@contextlib.contextmanager
def _journal(directory: str) -> Iterator[Callable[[], object]]:
    """It keeps all that it is given: so few bytes to a message."""
    with diskq.Journal(directory, diskq.JournalOptions(segment_size=1 << 20)) as journal:
        yield lambda: journal.append_many([BODY[:10]] * BATCH)


@contextlib.contextmanager
def _jobs(directory: str) -> Iterator[Callable[[], object]]:
    with diskq.PriorityStore(directory, diskq.PriorityOptions()) as store:
        queue = store.queue()

        def step() -> None:
            store.enqueue_many(queue, [BODY] * BATCH, [number % 5 for number in range(BATCH)])
            store.ack_many(queue, store.dequeue_many(queue, BATCH))

        yield step


ENGINES = {"queue": _queue, "stream": _stream, "journal": _journal, "jobs": _jobs}


def run(name: str, messages: int) -> list[Sample]:
    """In this process. The first sample is after a tenth of the messages."""
    samples: list[Sample] = []
    batches = max(SAMPLES, messages // BATCH)
    with tempfile.TemporaryDirectory() as directory, ENGINES[name](directory) as step:
        for number in range(1, batches + 1):
            step()
            if number * 10 >= batches and number % max(1, batches // SAMPLES) == 0:
                samples.append(_sample(number * BATCH))
    return samples


def growth(samples: list[Sample]) -> dict[str, int]:
    """From the first half of the samples to the last half: descriptors, threads, bytes of memory."""
    half = len(samples) // 2
    early, late = samples[:half], samples[half:]
    return {
        "descriptors": max(s.descriptors for s in late) - max(s.descriptors for s in early),
        "threads": max(s.threads for s in late) - max(s.threads for s in early),
        "memory": min(s.memory for s in late) - max(s.memory for s in early),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.leaks", description=__doc__)
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="for each engine (default: a million)"
    )
    parser.add_argument("--only", choices=ENGINES, help="one engine")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps(run(args.only, args.messages)))
        return 0
    grew = False
    for name in [args.only] if args.only else ENGINES:
        command = [sys.executable, "-m", "tests.torture.leaks", "--child", "--only", name]
        out = subprocess.run(
            [*command, f"--messages={args.messages}"], stdout=subprocess.PIPE, check=True
        ).stdout
        samples = [Sample(*each) for each in json.loads(out)]
        more = growth(samples)
        is_more = more["descriptors"] > FEW or more["threads"] > 0 or more["memory"] > MOST
        grew = grew or is_more
        last = samples[-1]
        print(f"{name:10}{last.messages:>12,} messages", end="  ")
        print(f"{last.descriptors} descriptors ({more['descriptors']:+d})", end="  ")
        print(f"{last.threads} threads ({more['threads']:+d})", end="  ")
        print(f"{last.memory / 2**20:.1f} MiB ({more['memory'] / 2**20:+.2f})", end="  ")
        print("GROWS" if is_more else "", flush=True)
    return 1 if grew else 0


if __name__ == "__main__":
    sys.exit(main())

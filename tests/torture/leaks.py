"""Does anything grow? python -m tests.torture.leaks --messages 10000000

Each engine, and each kind of channel, gets and gives away so many messages, in a process of its own. What it
has open, how many threads, and how much memory (bytes), is looked at after a tenth of them and then once in
a while: it must not grow any more.

A file that was used up stays open until a sync has paid for it, so descriptors are looked at twice: as
they are, which tells what is owed and must stay below a bound; and at rest, after a sync, when not one may
be more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import NamedTuple

import trio

import diskq
from diskq.hub import HubClient, open_hub, replicate

__all__ = ["POOLED", "SUBJECTS", "Sample", "grown", "growth", "main", "most_owed", "run"]

BATCH = 1000
BODY = b"x" * 100
SAMPLES = 40
OWED = 8
"""Descriptors that wait for a sync, at most. One is due every 2,500 messages, and a segment takes more than
8,000: so each of two partitions has at most one segment waiting, of four files."""
OWED_BY_CHANNELS = 256
"""The same where a thread syncs while others go on: a slow disk decides, until the engine waits for it."""
POOLED = 2
"""Threads more or less: Trio keeps those that had something to do for ten seconds."""
MOST = 4 << 20
"""Bytes of memory that are no growth: what an allocator keeps."""


Act = Callable[[], Awaitable[object]]
Acts = tuple[Act, Act]
"""A step, which puts a batch and takes it; and a sync."""


class Sample(NamedTuple):
    messages: int
    files: dict[str, int]
    """What is open at rest: how many of each kind, digits apart."""
    owed: int
    """Descriptors that were open until the sync."""
    threads: int
    memory: int


def _open_files() -> Counter[str]:
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            place = os.readlink(f"/proc/self/fd/{number}")
            found[re.sub("[0-9a-f]*[0-9][0-9a-f]*", "N", os.path.basename(place))] += 1
    return found


def _memory() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _sample(messages: int, sync: Act) -> Sample:
    before = _open_files().total()
    await sync()
    files = _open_files()
    return Sample(messages, dict(files), before - files.total(), threading.active_count(), _memory())


# --- engines: each puts a batch, and takes it out or has it removed by retention --------------------

Engine = tuple[Callable[[], object], Callable[[], object]]

SMALL = 1 << 20
"""Bytes of a file, so that there are many."""


@contextlib.contextmanager
def _queue(directory: str) -> Iterator[Engine]:
    with diskq.Queue(directory, "q", options=diskq.QueueOptions(segment_size=SMALL)) as queue:

        def step() -> None:
            queue.put_many([BODY] * BATCH)
            assert len(queue.get_many(BATCH)) == BATCH

        yield step, queue.sync


STREAM = diskq.StreamOptions(partition_count=2, segment_size=SMALL, retention_max_bytes=8 * SMALL)
KEYED = [(b"%d" % (number % 7), BODY) for number in range(BATCH)]


@contextlib.contextmanager
def _stream(directory: str) -> Iterator[Engine]:
    with diskq.Stream(directory, options=STREAM) as stream:

        def step() -> None:
            stream.append_many(KEYED)
            stream.vacuum()

        yield step, stream.sync


@contextlib.contextmanager
def _journal(directory: str) -> Iterator[Engine]:
    """It keeps all that it is given: so few bytes to a message."""
    with diskq.Journal(directory, options=diskq.JournalOptions(segment_size=SMALL)) as journal:
        yield lambda: journal.append_many([BODY[:10]] * BATCH), journal.sync


@contextlib.contextmanager
def _jobs(directory: str) -> Iterator[Engine]:
    with diskq.PriorityStore(directory, options=diskq.PriorityOptions()) as store:
        queue = store.queue()

        def step() -> None:
            store.put_many(queue, [BODY] * BATCH, [number % 5 for number in range(BATCH)])
            store.ack_many(queue, store.get_many(queue, BATCH))

        yield step, store.sync


def _as_channel(
    engine: Callable[[str], AbstractContextManager[Engine]],
) -> Callable[[str], AbstractAsyncContextManager[Acts]]:
    @contextlib.asynccontextmanager
    async def opened(directory: str) -> AsyncIterator[Acts]:
        with engine(directory) as (step, sync):

            async def act() -> None:
                step()

            async def settle() -> None:
                sync()

            yield act, settle

    return opened


# --- channels: the same, with the threads that sync for them ----------------------------------------


@contextlib.asynccontextmanager
async def _open_queue(directory: str) -> AsyncIterator[Acts]:
    async with diskq.open_queue(directory, "q", segment_size=SMALL) as queue:

        async def step() -> None:
            await queue.send_many([BODY] * BATCH)
            assert len(await queue.receive_many(BATCH)) == BATCH

        yield step, queue.sync


@contextlib.asynccontextmanager
async def _working(directory: str) -> AsyncIterator[Acts]:
    """Leases: every seventh is given back first, and comes again."""
    async with (
        diskq.open_queue(directory, "q", segment_size=SMALL) as queue,
        queue.working() as work,
    ):

        async def step() -> None:
            await queue.send_many([BODY] * BATCH)
            left = BATCH
            while left:
                leases = await work.receive_many(left)
                again = [lease for lease in leases[::7] if lease.attempts == 1]
                work.nack(again)
                done = [lease for lease in leases if lease not in again]
                work.ack(done)
                left -= len(done)

        yield step, queue.sync


@contextlib.asynccontextmanager
async def _open_stream(directory: str) -> AsyncIterator[Acts]:
    async with (
        diskq.open_producer(directory, options=STREAM) as producer,
        diskq.open_consumer(directory, group="g", start="oldest") as consumer,
    ):

        async def step() -> None:
            await producer.send_many(KEYED)
            left = BATCH
            while left:
                messages = await consumer.receive_many(left)
                left -= len(messages)
            await consumer.commit(*messages)
            await producer.vacuum()

        async def sync() -> None:
            await consumer.sync()
            await producer.sync()

        yield step, sync


@contextlib.asynccontextmanager
async def _open_journal(directory: str) -> AsyncIterator[Acts]:
    async with (
        diskq.open_journal(directory, segment_size=SMALL) as journal,
        diskq.open_scanner(directory, reader="r") as scanner,
    ):

        async def step() -> None:
            await journal.send_many([BODY[:10]] * BATCH)
            left = BATCH
            while left:
                left -= len(await scanner.receive_many(left))
            await scanner.commit()

        async def sync() -> None:
            await scanner.sync()
            await journal.sync()

        yield step, sync


@contextlib.asynccontextmanager
async def _hub(directory: str) -> AsyncIterator[Acts]:
    """A journal that is copied into a hub's, in the same process."""
    mine, theirs = os.path.join(directory, "mine"), os.path.join(directory, "theirs")
    async with (
        diskq.open_journal(mine, segment_size=SMALL) as journal,
        open_hub(theirs) as hub,
        HubClient(f"localhost:{hub.port}", "leaks") as client,
    ):

        async def step() -> None:
            await journal.send_many([BODY[:10]] * BATCH)
            await replicate(mine, client, "j", follow=False)

        yield step, journal.sync


@contextlib.asynccontextmanager
async def _spool(directory: str) -> AsyncIterator[Acts]:
    async def deliver(bodies: object) -> None:
        pass

    small = diskq.QueueOptions(segment_size=SMALL)
    async with diskq.open_spool(directory, deliver=deliver, queue=small, max_messages=BATCH) as spool:

        async def step() -> None:
            await spool.send_many([BODY] * BATCH)
            await spool.drained()

        yield step, spool.sync


@contextlib.asynccontextmanager
async def _open_jobs(directory: str) -> AsyncIterator[Acts]:
    async with diskq.open_priority_store(directory) as store:
        queue = await store.create_queue("mail")

        async def step() -> None:
            await queue.send_many([BODY] * BATCH, 1)
            left = BATCH
            while left:
                records = await queue.receive_many(left)
                await queue.ack(records)
                left -= len(records)

        yield step, store.sync


Subject = Callable[[str], AbstractAsyncContextManager[Acts]]

ENGINES: dict[str, Subject] = {
    "queue": _as_channel(_queue),
    "stream": _as_channel(_stream),
    "journal": _as_channel(_journal),
    "jobs": _as_channel(_jobs),
}
CHANNELS: dict[str, Subject] = {
    "open_queue": _open_queue,
    "working": _working,
    "open_stream": _open_stream,
    "open_journal": _open_journal,
    "open_jobs": _open_jobs,
    "spool": _spool,
    "hub": _hub,
}
SUBJECTS = ENGINES | CHANNELS


def run(name: str, messages: int) -> list[Sample]:
    """In this process. The first sample is after a tenth of the messages."""
    with tempfile.TemporaryDirectory() as directory:
        return trio.run(_run, SUBJECTS[name], directory, messages)


async def _run(subject: Subject, directory: str, messages: int) -> list[Sample]:
    samples: list[Sample] = []
    batches = max(SAMPLES, messages // BATCH)
    async with subject(directory) as (step, sync):
        for number in range(1, batches + 1):
            await step()
            if number * 10 >= batches and number % max(1, batches // SAMPLES) == 0:
                samples.append(await _sample(number * BATCH, sync))
    return samples


def _most(samples: list[Sample]) -> Counter[str]:
    """Of each kind of file, the most that were open at rest."""
    most: Counter[str] = Counter()
    for sample in samples:
        most |= Counter(sample.files)
    return most


def grown(samples: list[Sample]) -> dict[str, int]:
    """The kinds of files of which more are open at rest in the last half of the samples.

    The first of its kind is none: a status, for one, is opened once, when a second has passed.
    """
    half = len(samples) // 2
    most = _most(samples[half:])
    return {kind: more for kind, more in (most - _most(samples[:half])).items() if most[kind] > 1}


def most_owed(name: str) -> int:
    return OWED if name in ENGINES else OWED_BY_CHANNELS


def growth(samples: list[Sample]) -> dict[str, int]:
    """From the first half of the samples to the last half: descriptors at rest, threads, bytes of memory; and
    how many descriptors were owed at most."""
    half = len(samples) // 2
    early, late = samples[:half], samples[half:]
    return {
        "descriptors": sum(grown(samples).values()),
        "owed": max(s.owed for s in samples),
        "threads": max(s.threads for s in late) - max(s.threads for s in early),
        "memory": min(s.memory for s in late) - max(s.memory for s in early),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.leaks", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="for each (default: a million)")
    parser.add_argument("--only", choices=SUBJECTS, help="one engine, or channel")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps(run(args.only, args.messages)))
        return 0
    grew = False
    for name in [args.only] if args.only else SUBJECTS:
        command = [sys.executable, "-m", "tests.torture.leaks", "--child", "--only", name]
        out = subprocess.run(
            [*command, f"--messages={args.messages}"], stdout=subprocess.PIPE, check=True
        ).stdout
        samples = [Sample(*each) for each in json.loads(out)]
        more = growth(samples)
        is_more = more["descriptors"] > 0 or more["threads"] > POOLED or more["memory"] > MOST
        is_more = is_more or more["owed"] > most_owed(name)
        grew = grew or is_more
        last = samples[-1]
        print(f"{name:12}{last.messages:>12,} messages", end="  ")
        open_files = sum(last.files.values())
        print(f"{open_files} descriptors ({more['descriptors']:+d}, {more['owed']} owed)", end="  ")
        print(f"{last.threads} threads ({more['threads']:+d})", end="  ")
        print(f"{last.memory / 2**20:.1f} MiB ({more['memory'] / 2**20:+.2f})", end="  ")
        print(f"GROWS {grown(samples)}" if is_more else "", flush=True)
    return 1 if grew else 0


if __name__ == "__main__":
    sys.exit(main())

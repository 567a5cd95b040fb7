# What journals do while they are measured, as works.py has it for the queue. Messages are 100 bytes with
# a key of 8: 134 bytes in a file.

from __future__ import annotations

from typing import Any

import trio

from benchmarks.log_works import by_columns, to_the_end, with_gb
from benchmarks.stopwatch import Reading, Stopwatch, body_of, shares
from diskq import (
    Journal,
    JournalReader,
    JournalWriter,
    open_journal,
    open_scanner,
)

KEY = b"user-042"
RECORD = 26 + len(KEY) + 100


def fill(directory: str, count: int) -> None:
    """Make a journal of `count` messages, closed in order."""
    batch = [(KEY, body_of(100))] * 1000
    with Journal(directory) as journal:
        for share in [1000] * (count // 1000) + [count % 1000]:
            journal.append_many(batch[:share])


async def send(
    directory: str, *, count: int, size: int = 100, tasks: int = 1, batch: int = 0, **options: Any
) -> Reading:
    """Until the last `send` of the last task has returned."""
    async with open_journal(directory, **options) as journal:
        watch = Stopwatch()
        async with trio.open_nursery() as nursery:
            for share in shares(count, tasks):
                nursery.start_soon(_send, journal, body_of(size), share, batch)
        return watch.stop(count)


async def _send(journal: JournalWriter, body: bytes, count: int, batch: int) -> None:
    if batch:
        items = [(KEY, body)] * batch
        for share in [batch] * (count // batch) + [count % batch]:
            await journal.send_many(items[:share])
    else:
        for _ in range(count):
            await journal.send(body, KEY)


async def scan(directory: str, *, count: int, batch: int = 0) -> Reading:
    fill(directory, count)
    async with open_scanner(directory, end="close") as scanner:
        return with_gb(await to_the_end(scanner, count, batch), RECORD)


def columns(directory: str, *, count: int) -> Reading:
    fill(directory, count)
    with JournalReader(directory) as reader:
        return with_gb(by_columns(reader, count), RECORD)


async def idle(directory: str, *, seconds: float) -> Reading:
    """Measure the processor time of a waiting scanner, of a journal without a writer."""
    fill(directory, 1)
    async with open_scanner(directory, start="newest") as scanner:
        with trio.move_on_after(0.05):
            await scanner.receive()
        watch = Stopwatch()
        with trio.move_on_after(seconds):
            await scanner.receive()
        found = watch.stop(1)
    return found | {"cpu_ms": found["cpu_us"] / 1000}

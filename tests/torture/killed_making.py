"""Directories as a killed process leaves them: 300 channel sends, then `os._exit` within a time slice.

    python -m tests.torture.killed_making DIRECTORY TEMPLATE...

Each is made in DIRECTORY/TEMPLATE/files by a child of its own. What was acknowledged is beside it, in
`life.json`: what was sent, what was tried, and what was consumed and is not owed any more.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import trio

import diskq
from tests.torture.dying import DyingDisk
from tests.torture.messages import message, number_of

__all__ = ["BEGINNING", "COUNT", "TEMPLATES", "Template", "item", "main"]

COUNT = 300
_MORE = 13
"""Sent back to back at the end, without any wait between them."""
BEGINNING = 10**18


@dataclass(frozen=True)
class Template:
    """One way of life. `options` are the channel's."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    batch: int = 1
    barriers: int = 0
    """After so many messages a `sync`."""
    takes: int = 0
    """After so many messages one is consumed."""
    waits: int = 0
    """After so many messages the loop has a turn, and what was accepted is written."""
    shards: int = 0
    acks: bool = False
    """Taken as work, and acknowledged in another order."""
    dies: tuple[str, int] | None = None
    """Killed before so many calls have changed files with this ending, and not at the end of 300 sends."""

    @property
    def layout(self) -> dict[str, Any]:
        """The options with which it is opened again."""
        return {name: value for name, value in self.options.items() if name != "checkpoint_slice"}


LONG = {"checkpoint_slice": 60.0}
"""All is in one time slice, but for what there is no room for."""
_ROLL = 8192

TEMPLATES: dict[str, Template] = {
    "queue/plain": Template("queue"),
    "queue/slice": Template("queue", LONG),
    "queue/rolls": Template("queue", {"segment_size": _ROLL}, waits=17),
    "queue/rolls-slice": Template("queue", {**LONG, "segment_size": _ROLL}),
    "queue/batches": Template("queue", {"segment_size": _ROLL}, batch=7),
    "queue/barriers": Template("queue", {**LONG, "segment_size": _ROLL}, barriers=70),
    "queue/synced": Template("queue", {"durability": "synced"}),
    "queue/unsummed": Template("queue", {"segment_size": _ROLL}, batch=7, dies=(".sums", 9)),
    "queue/rolling": Template("queue", {"segment_size": _ROLL}, batch=7, dies=("000002.dat", 1)),
    "queue/taken": Template("queue", {**LONG, "segment_size": _ROLL}, takes=3, barriers=120),
    "queue/acks": Template("queue", {"segment_size": _ROLL}, takes=3, acks=True, barriers=120, waits=11),
    "stream/plain": Template("stream", {"partition_count": 1}),
    "stream/slice": Template("stream", {**LONG, "partition_count": 1}),
    "stream/rolls": Template("stream", {"partition_count": 1, "segment_size": _ROLL}, waits=17),
    "stream/three": Template("stream", {**LONG, "partition_count": 3, "segment_size": _ROLL}, waits=70),
    "stream/batches": Template("stream", {"partition_count": 3}, batch=7),
    "stream/no-data": Template("stream", {"partition_count": 1}, batch=7, dies=(".data", 20)),
    "stream/no-rows": Template("stream", {"partition_count": 1}, batch=7, dies=(".index", 20)),
    "stream/no-times": Template("stream", {"partition_count": 3}, batch=7, dies=(".timeindex", 20)),
    "stream/rolling": Template(
        "stream", {"partition_count": 1, "segment_size": _ROLL}, batch=7, dies=("122.index", 1)
    ),
    "stream/barriers": Template("stream", {**LONG, "partition_count": 3, "segment_size": _ROLL}, barriers=70),
    "stream/synced": Template("stream", {"partition_count": 1, "durability": "synced"}),
    "stream/varuint": Template("stream", {**LONG, "partition_count": 1, "encoding": "varuint"}, waits=90),
    "stream/group": Template("stream", {"partition_count": 1, "segment_size": _ROLL}, takes=3, waits=31),
    "journal/plain": Template("journal"),
    "journal/slice": Template("journal", LONG),
    "journal/rolls": Template("journal", {"segment_size": _ROLL}, waits=17),
    "journal/rolls-slice": Template("journal", {**LONG, "segment_size": _ROLL}),
    "journal/batches": Template("journal", {"segment_size": _ROLL}, batch=7),
    "journal/unsummed": Template("journal", {"segment_size": _ROLL}, batch=7, dies=(".sums", 9)),
    "journal/rolling": Template("journal", {"segment_size": _ROLL}, batch=7, dies=(".jnl", 30)),
    "journal/barriers": Template("journal", {**LONG, "segment_size": _ROLL}, barriers=70),
    "journal/synced": Template("journal", {"durability": "synced"}),
    "journal/reader": Template("journal", {"segment_size": _ROLL}, takes=3, waits=31),
    "journal/shards": Template("journal", LONG, shards=1, waits=90),
    "store/plain": Template("store"),
    "store/slice": Template("store", LONG),
    "store/rolls": Template("store", {"soft_limit": _ROLL, "hard_limit": 2 * _ROLL}, waits=17),
    "store/batches": Template("store", batch=7),
    "store/synced": Template("store", {"durability": "synced"}),
    "store/unwritten": Template("store", {"preallocate": False}, batch=7, dies=(".log", 20)),
    "store/taken": Template(
        "store",
        {**LONG, "soft_limit": _ROLL, "hard_limit": 2 * _ROLL, "snapshot_segments": 2, "preallocate": False},
        takes=3,
        barriers=70,
    ),
    "spool/plain": Template("spool", waits=50),
    "spool/slice": Template("spool", LONG),
    "spool/taken": Template("spool", {"segment_size": _ROLL}, takes=1, waits=9, barriers=120),
}


def item(number: int) -> tuple[bytes, bytes, int]:
    """A key, a value and a time, all of which tell the number."""
    return b"key %d" % (number % 7), message(number), BEGINNING + number


class _Life:
    """What was done. It is written down at the very end: a system call before would end no time slice."""

    def __init__(self, place: Path, how: Template) -> None:
        self.place = place
        self.files = place / "files"
        self.sent: list[int] = []
        self.tried: list[int] = []
        self.consumed: list[int] = []
        self.disk = DyingDisk(how.dies[1], how.dies[0], self.end) if how.dies else None

    def end(self) -> NoReturn:
        told = {"sent": self.sent, "tried": self.tried, "consumed": self.consumed}
        (self.place / "life.json").write_text(json.dumps(told))
        os._exit(0)


async def _live(
    life: _Life,
    how: Template,
    send: Callable[[int], Awaitable[object]],
    send_many: Callable[[list[int]], Awaitable[object]],
    sync: Callable[[], Awaitable[object]],
    take: Callable[[], Awaitable[object]] | None = None,
) -> NoReturn:
    number = 0
    while number < COUNT + _MORE:
        numbers = list(range(number, number + how.batch))
        life.tried += numbers
        await (send(number) if how.batch == 1 else send_many(numbers))
        life.sent += numbers
        number += how.batch
        if number < COUNT:
            if how.barriers and number % how.barriers == 0:
                await sync()
            if how.waits and number % how.waits == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
                await trio.lowlevel.checkpoint()
            if take is not None and how.takes and number % how.takes == 0:
                await take()
    life.end()


async def _queue(life: _Life, how: Template) -> None:
    async with diskq.open_queue(life.files, "q", fs=life.disk, **how.options) as queue:

        async def send_many(numbers: list[int]) -> None:
            await queue.send_many([message(number) for number in numbers])

        async def take() -> None:
            life.consumed.append(number_of(await queue.receive()) or 0)

        if not how.acks:
            await _live(life, how, lambda n: queue.send(message(n)), send_many, queue.sync, take)
        async with queue.working() as work:
            held: list[diskq.Lease] = []

            async def take_work() -> None:
                held.append(await work.receive())
                if len(held) == 5:
                    for at in (3, 0, 1):  # the rest stays in flight
                        lease = held[at]
                        work.ack(lease)
                        life.consumed.append(number_of(bytes(lease.body)) or 0)
                    held.clear()

            await _live(life, how, lambda n: queue.send(message(n)), send_many, queue.sync, take_work)


async def _stream(life: _Life, how: Template) -> None:
    async with diskq.open_producer(life.files, fs=life.disk, **how.options) as producer:

        async def send(number: int) -> None:
            key, value, when = item(number)
            await producer.send(value, key, when)

        async def send_many(numbers: list[int]) -> None:
            await producer.send_many([item(number) for number in numbers])

        if not how.takes:
            await _live(life, how, send, send_many, producer.sync)
        async with diskq.open_consumer(life.files, group="g", autocommit=True) as consumer:
            await _live(life, how, send, send_many, producer.sync, consumer.receive)


async def _journal(life: _Life, how: Template) -> None:
    def opened() -> Any:
        if how.shards:
            return diskq.open_shards(life.files, "shard", how.shards, **how.options)
        return diskq.open_journal(life.files, fs=life.disk, **how.options)

    async with opened() as writer:

        async def send(number: int) -> None:
            key, value, when = item(number)
            await writer.send(value, key, when, number % 5)

        async def send_many(numbers: list[int]) -> None:
            await writer.send_many([(*item(number), number % 5) for number in numbers])

        if not how.takes:
            await _live(life, how, send, send_many, writer.sync)
        async with diskq.open_scanner(life.files, reader="r", autocommit=True) as scanner:
            await _live(life, how, send, send_many, writer.sync, scanner.receive)


async def _store(life: _Life, how: Template) -> None:
    async with diskq.open_priority_store(life.files, fs=life.disk, **how.options) as store:
        queue = store.queue()

        async def send_many(numbers: list[int]) -> None:
            await queue.send_many([(number % 5, message(number)) for number in numbers])

        async def take() -> None:
            record = await queue.receive()
            await queue.ack(record)
            life.consumed.append(number_of(bytes(record.body)) or 0)

        await _live(life, how, lambda n: queue.send(message(n), n % 5), send_many, store.sync, take)


async def _spool(life: _Life, how: Template) -> None:
    async def deliver(batch: diskq.Batch) -> None:
        if not how.takes or len(life.consumed) > COUNT // 2:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        life.consumed += [number_of(bytes(body)) or 0 for body in batch]

    options = diskq.SpoolOptions(max_messages=20, queue=diskq.QueueOptions(**how.options))
    async with diskq.open_spool(life.files, deliver, options=options) as spool:

        async def send_many(numbers: list[int]) -> None:
            await spool.send_many([message(number) for number in numbers])

        await _live(life, how, lambda n: spool.send(message(n)), send_many, spool.sync)


_OPENERS = (
    *("open_queue", "open_producer", "open_consumer", "open_journal", "open_shards", "open_scanner"),
    *("open_priority_store", "open_spool"),
)
_LIVES = {"queue": _queue, "stream": _stream, "journal": _journal, "store": _store, "spool": _spool}


def main(argv: list[str]) -> int:
    failed = 0
    for name in _OPENERS:
        getattr(diskq, name)  # imported here, and not in each child
    for name in argv[1:]:
        child = os.fork()
        if not child:
            status = 1
            try:
                how = TEMPLATES[name]
                life = _Life(Path(argv[0]) / name, how)
                life.files.mkdir(parents=True)
                trio.run(_LIVES[how.kind], life, how)
            except BaseException as failure:
                print(f"{name}: {failure!r}", file=sys.stderr)
            finally:
                os._exit(status)
        failed += os.waitpid(child, 0)[1] != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

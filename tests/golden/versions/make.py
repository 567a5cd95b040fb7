"""Directories of every kind as the diskq that is installed writes them, closed and killed.

    python tests/golden/versions/make.py VERSION

makes `tests/golden/versions/VERSION/`, of two files a case: `NAME.tar.gz`, the directory, and `NAME.json`,
what was acknowledged in it. Later versions open them: tests/golden/test_versions.py. What is there is never
made anew: it is what that version wrote. To write an older version's, copy this file beside its checkout.

Each case runs in a process of its own, which says what is acknowledged and then leaves, or kills itself with
messages that are on the write-ahead log and not in their file yet. Without a clock, but for what files keep
of it. Or it writes to a disk in memory, and the directory is what a power cut leaves of it: each file as it
was synced, and messages that were synced in the redo log alone.
"""

from __future__ import annotations

import dataclasses
import gzip
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import trio

import diskq
from diskq.storage.fs import OsFileSystem
from diskq.storage.log.format import read_redo
from diskq.testing import CrashFS

HERE = Path(__file__).parent
STEP = 10**9
START = 1_700_000_000 * STEP
"""Of timestamps: a second apart."""
LONG = 100.0
"""Seconds without a yield: what is sent meanwhile stays on the write-ahead log."""
NEVER: dict[str, Any] = {"sync_every": 1_000_000, "sync_timeout": 1e6}

ROOT = "/it"
"""The directory on a disk in memory."""

Told = dict[str, Any]
Case = Callable[[str], Told | Awaitable[Told]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


class Hasty(OsFileSystem):
    """A clock that runs: notes that are written once a second are written by each barrier."""

    def monotonic(self) -> float:
        return super().monotonic() * 10_000


class KilledAt(OsFileSystem):
    """The process ends after the sync of a directory in which a file got this name."""

    native = False

    def __init__(self, name: str, told: Told) -> None:
        super().__init__()
        self.name = name
        self.told = told
        self.is_there = False

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self.is_there = self.is_there or os.path.basename(target) == self.name

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        if self.is_there:
            killed(**self.told)


def tell(**told: Any) -> Told:
    """What is acknowledged, for whoever looks after this process has ended."""
    told["boot_id"] = OsFileSystem().identity().boot_id
    Path(os.environ["DISKQ_TOLD"]).write_text(json.dumps(told))
    return told


def killed(**told: Any) -> NoReturn:
    tell(ended="killed", **told)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it lives")


def holds_more_than(count: int, path: str, redo: str) -> None:
    """The redo log of the store that has its directory at `path`, or at the root of a disk in memory."""
    log = read_redo(OsFileSystem(), f"{path}/{redo}")
    assert log is not None
    assert len(log.entries) > count


def texts(what: str, count: int, start: int = 0) -> list[str]:
    return [f"{what} {number:03d}" for number in range(start, start + count)]


def raw(bodies: list[str]) -> list[bytes]:
    return [body.encode() for body in bodies]


# --- queues ---------------------------------------------------------------------------------------------
# `sent`: in order; the first `synced` of them were synced, and the first `gone` had left, durably; of `taken`
# nobody knows.


@case
def queue_closed(path: str) -> Told:
    """Several files, some consumed."""
    sent = texts("order", 60)
    options = diskq.QueueOptions(segment_size=200)
    with diskq.Queue(path, "orders", options=options) as queue:
        queue.put_many(raw(sent))
        queue.get_many(25)
    return tell(kind="queue", ended="closed", name="orders", sent=sent, synced=60, gone=25, taken=25)


@case
def queue_empty(path: str) -> Told:
    """All was consumed."""
    sent = texts("order", 10)
    with diskq.Queue(path, "orders") as queue:
        queue.put_many(raw(sent))
        queue.get_many(10)
    return tell(kind="queue", ended="closed", name="orders", sent=sent, synced=10, gone=10, taken=10)


async def _queue_killed(path: str, **options: Any) -> Told:
    sent = texts("order", 90)
    bodies = raw(sent)
    told = {"kind": "queue", "name": "orders", "sent": sent, "synced": 40, "gone": 12, "taken": 17}
    how = {**NEVER, "checkpoint_slice": LONG, **options}
    async with diskq.open_queue(path, "orders", fs=Hasty(), **how) as queue:
        await queue.send_many(bodies[:40])
        for _ in range(12):
            await queue.receive()
        await queue.sync()
        await queue.send_many(bodies[40:70])
        for _ in range(5):
            queue.receive_nowait()
        for body in bodies[70:]:
            queue.send_nowait(body)
        killed(**told)


@case
async def queue_killed(path: str) -> Told:
    """Messages on the write-ahead log; some were received after the last sync."""
    return await _queue_killed(path)


@case
async def queue_killed_rolling(path: str) -> Told:
    """The same, in many files."""
    return await _queue_killed(path, segment_size=200)


@case
def queue_killed_engine(path: str) -> Told:
    """Written without a write-ahead log, and not synced."""
    sent = texts("order", 50)
    queue = diskq.Queue(path, "orders", options=diskq.QueueOptions(**NEVER))
    queue.put_many(raw(sent[:20]), durability="synced")
    queue.get_many(5)
    queue.put_many(raw(sent[20:]))
    killed(kind="queue", name="orders", sent=sent, synced=20, gone=0, taken=5)


@case
async def queue_killed_both_logs(path: str) -> Told:
    """Synced messages in the redo log, written ones on the write-ahead log."""
    sent = texts("order", 60)
    async with diskq.open_queue(path, "orders", **NEVER, checkpoint_slice=LONG) as queue:
        for body in raw(sent[:30]):
            await queue.send(body, durability="synced")
        for body in raw(sent[30:]):
            queue.send_nowait(body)
        holds_more_than(5, path, ".diskq/orders.redo")
        killed(kind="queue", name="orders", sent=sent, synced=30, gone=0, taken=0)


@case
async def queue_killed_memory(path: str) -> Told:
    """A memory tier: what was not synced was in memory, and promised to nobody."""
    sent = texts("order", 50)
    options: dict[str, Any] = {"durability": "memory", "memory_size": 100_000, **NEVER}
    async with diskq.open_queue(path, "orders", **options) as queue:
        await queue.send_many(raw(sent))
        await queue.sync()
        await queue.send_many([b"nobody was told that this stays"])
        killed(kind="queue", name="orders", sent=sent, synced=50, gone=0, taken=0)


# --- leases: `acked` never come again, of `maybe` nobody knows; `handed` come with one attempt more -----


@case
def leases_closed(path: str) -> Told:
    """Acknowledged out of order, and given back."""
    sent = texts("task", 30)
    with diskq.Queue(path, "tasks") as queue:
        queue.put_many(raw(sent))
        with diskq.QueueWork(queue) as work:
            leases = work.get_many(20)
            work.ack(leases[1:12:2])
            work.nack(leases[0])
    return tell(kind="leases", ended="closed", name="tasks", sent=sent, acked=sent[1:12:2], maybe=[])


@case
async def leases_killed(path: str) -> Told:
    """Some acknowledged and synced, some not, some in hand."""
    sent = texts("task", 40)
    options = {**NEVER, "checkpoint_slice": LONG}
    async with diskq.open_queue(path, "tasks", **options) as queue:
        await queue.send_many(raw(sent[:35]))
        async with queue.working() as work:
            leases = await work.receive_many(20)
            work.ack(leases[1:12:2])
            await queue.sync()
            work.ack(leases[12:14])
            for body in raw(sent[35:]):
                queue.send_nowait(body)
            acked, maybe, handed = sent[1:12:2], sent[12:14], sent[14:20]
            killed(kind="leases", name="tasks", sent=sent, acked=acked, maybe=maybe, handed=handed)


# --- streams: `partitions`: number -> [offset, key, value, timestamp_ns]; the first `synced` were synced


def _rows(what: str, count: int, start: int = 0) -> list[tuple[bytes, bytes, int]]:
    """(key, value, timestamp)."""
    return [
        (b"key %d" % (number % 7), body, START + number * STEP)
        for number, body in enumerate(raw(texts(what, count, start)), start)
    ]


class _Tally:
    """Which message has which place."""

    def __init__(self, partition_count: int) -> None:
        self.partitions: dict[str, list[list[Any]]] = {str(each): [] for each in range(partition_count)}

    def add(self, row: tuple[bytes, bytes, int], partition: int, offset: int) -> None:
        key, value, timestamp = row
        self.partitions[str(partition)].append([offset, key.decode(), value.decode(), timestamp])

    def sizes(self) -> dict[str, int]:
        return {partition: len(rows) for partition, rows in self.partitions.items()}


def _append(stream: diskq.Stream, tally: _Tally, rows: list[tuple[bytes, bytes, int]]) -> None:
    for key, value, timestamp in rows:
        position = stream.append(value, key, timestamp)
        tally.add((key, value, timestamp), position.partition, position.offset)


@case
def stream_closed(path: str) -> Told:
    """Three partitions of many segments."""
    tally = _Tally(3)
    with diskq.Stream(path, options=diskq.StreamOptions(partition_count=3, segment_size=400)) as stream:
        _append(stream, tally, _rows("click", 80))
    return tell(kind="stream", ended="closed", partitions=tally.partitions, synced=tally.sizes(), groups={})


@case
def stream_closed_retention(path: str) -> Told:
    """The oldest segments are gone."""
    tally = _Tally(1)
    options = diskq.StreamOptions(partition_count=1, segment_size=400, retention_max_bytes=1000)
    with diskq.Stream(path, options=options) as stream:
        _append(stream, tally, _rows("click", 80))
        stream.vacuum()
    first = min(int(name[:-5]) for name in os.listdir(f"{path}/parts/000000") if name.endswith(".data"))
    assert first
    tally.partitions["0"] = [row for row in tally.partitions["0"] if row[0] >= first]
    return tell(kind="stream", ended="closed", partitions=tally.partitions, synced=tally.sizes(), groups={})


async def _stream_killed(path: str, **options: Any) -> Told:
    rows = _rows("click", 90)
    tally = _Tally(3)
    how = {**NEVER, "partition_count": 3, "checkpoint_slice": LONG, **options}
    async with diskq.open_producer(path, fs=Hasty(), **how) as producer:
        for key, value, timestamp in rows[:40]:
            position = await producer.send(value, key, timestamp)
            tally.add((key, value, timestamp), position.partition, position.offset)
        await producer.sync()
        synced, committed = tally.sizes(), {}
        async with diskq.open_consumer(path, group="bill", end="close", **NEVER) as consumer:
            async for message in consumer:
                if message.offset == 3:
                    await consumer.commit(message)
                    committed[str(message.partition)] = 3
            await consumer.sync()
        for key, value, timestamp in rows[40:]:
            position = producer.send_nowait(value, key, timestamp)
            tally.add((key, value, timestamp), position.partition, position.offset)
        killed(kind="stream", partitions=tally.partitions, synced=synced, groups={"bill": committed})


@case
async def stream_killed(path: str) -> Told:
    """Messages on three write-ahead logs, and a group that has committed."""
    return await _stream_killed(path)


@case
async def stream_killed_rolling(path: str) -> Told:
    """The same, in many segments."""
    return await _stream_killed(path, segment_size=400)


@case
async def stream_killed_varuint(path: str) -> Told:
    """The other encoding of lengths."""
    return await _stream_killed(path, segment_size=400, encoding="varuint")


@case
async def stream_killed_both_logs(path: str) -> Told:
    """Synced messages in the redo log, written ones on three write-ahead logs."""
    rows, tally = _rows("click", 60), _Tally(3)
    async with diskq.open_producer(path, partition_count=3, **NEVER, checkpoint_slice=LONG) as producer:
        for key, value, timestamp in rows[:30]:
            position = await producer.send(value, key, timestamp, durability="synced")
            tally.add((key, value, timestamp), position.partition, position.offset)
        synced = tally.sizes()
        for key, value, timestamp in rows[30:]:
            position = producer.send_nowait(value, key, timestamp)
            tally.add((key, value, timestamp), position.partition, position.offset)
        holds_more_than(5, path, ".diskq/redo")
        killed(kind="stream", partitions=tally.partitions, synced=synced, groups={})


@case
async def stream_killed_group(path: str) -> Told:
    """The consumer is killed, after a commit that is synced and one that is not."""
    tally = _Tally(1)
    with diskq.Stream(path, options=diskq.StreamOptions(partition_count=1)) as stream:
        _append(stream, tally, _rows("click", 30))
    async with diskq.open_consumer(path, group="bill", end="close", **NEVER) as consumer:
        async for message in consumer:
            if message.offset == 9:
                await consumer.commit(message)
                await consumer.sync()
            if message.offset == 14:
                await consumer.commit(message)
                break
        synced = tally.sizes()
        killed(kind="stream", partitions=tally.partitions, synced=synced, groups={"bill": {"0": 9}})


# --- transactions: `staged` can be committed as `epoch` -------------------------------------------------


def _stage(path: str, epoch: int, rows: list[tuple[bytes, bytes, int]]) -> Any:
    from diskq._native.stream.codec import encode
    from diskq.engine.stream.transactions.staging import StagingWriter

    with StagingWriter(path, sink="sink", epoch=epoch, task=0, partition_count=2, encoding="fixed") as writer:
        for partition in range(2):
            some = [(key, timestamp, value) for key, value, timestamp in rows[partition::2]]
            writer.add_encoded(partition, encode(some).data, len(some))
        return writer.finish()


def _commit(stream: diskq.Stream, epoch: int, staged: Any) -> None:
    from diskq.engine.stream.transactions.transaction import Transaction

    assert stream.commit(Transaction("sink", epoch, "query", (staged,)))


def _tally_staged(tally: _Tally, rows: list[tuple[bytes, bytes, int]]) -> None:
    for partition in range(2):
        for row in rows[partition::2]:
            tally.add(row, partition, len(tally.partitions[str(partition)]))


@case
def transactions_closed(path: str) -> Told:
    """Two epochs committed; a third is staged, and nobody has committed it."""
    tally, rows = _Tally(2), _rows("row", 48)
    with diskq.Stream(path, options=diskq.StreamOptions(partition_count=2)) as stream:
        for epoch in range(2):
            part = rows[epoch * 16 : epoch * 16 + 16]
            _commit(stream, epoch, _stage(path, epoch, part))
            _tally_staged(tally, part)
        staged = _stage(path, 2, rows[32:])
    synced, partitions = tally.sizes(), json.loads(json.dumps(tally.partitions))
    _tally_staged(tally, rows[32:])
    return tell(
        kind="transactions",
        ended="closed",
        partitions=partitions,
        synced=synced,
        groups={},
        committed=1,
        staged=dataclasses.asdict(staged),
        then=tally.partitions,
    )


@case
def transactions_killed(path: str) -> Told:
    """Killed after the intent: the transaction is committed, and in no partition yet."""
    tally, rows = _Tally(2), _rows("row", 32)
    told: Told = {"kind": "transactions"}
    with diskq.Stream(path, options=diskq.StreamOptions(partition_count=2)) as stream:
        _commit(stream, 0, _stage(path, 0, rows[:16]))
        _tally_staged(tally, rows[:16])
    _tally_staged(tally, rows[16:])
    told |= {"partitions": tally.partitions, "synced": tally.sizes(), "groups": {}, "committed": 1}
    stream = diskq.Stream(path, options=diskq.StreamOptions(partition_count=2), fs=KilledAt("intent", told))
    _commit(stream, 1, _stage(path, 1, rows[16:]))
    raise AssertionError("it lives")


# --- journals: `messages`: [offset, key, value, timestamp_ns, type]; `readers`: name -> next offset -----


def _journal_rows(rows: list[tuple[bytes, bytes, int]], start: int = 0) -> list[list[Any]]:
    return [
        [offset, key.decode(), value.decode(), timestamp, offset % 3]
        for offset, (key, value, timestamp) in enumerate(rows, start)
    ]


def _items(rows: list[tuple[bytes, bytes, int]], start: int = 0) -> list[Any]:
    return [(key, value, timestamp, offset % 3) for offset, (key, value, timestamp) in enumerate(rows, start)]


@case
def journal_closed(path: str) -> Told:
    """Several files, and two readers."""
    rows = _rows("entry", 60)
    with diskq.Journal(path, options=diskq.JournalOptions(segment_size=400)) as journal:
        journal.append_many(_items(rows))
    for name, offset in (("mail", 20), ("bill", 60)):
        with diskq.JournalReaderOffset(path, name) as place:
            place.commit(offset)
    readers = {"mail": 20, "bill": 60}
    return tell(kind="journal", ended="closed", messages=_journal_rows(rows), synced=60, readers=readers)


async def _journal_killed(path: str, **options: Any) -> Told:
    rows = _rows("entry", 90)
    how = {**NEVER, "checkpoint_slice": LONG, **options}
    async with diskq.open_journal(path, fs=Hasty(), **how) as journal:
        await journal.send_many(_items(rows[:40]))
        await journal.sync()
        async with diskq.open_scanner(path, reader="mail", end="close", **NEVER) as scanner:
            messages = await scanner.receive_many(25)
            await scanner.commit(messages[11])
        for offset, (key, value, timestamp) in enumerate(rows[40:], 40):
            journal.send_nowait(value, key, timestamp, offset % 3)
        killed(kind="journal", messages=_journal_rows(rows), synced=40, readers={"mail": 12})


@case
async def journal_killed(path: str) -> Told:
    """Messages on the write-ahead log, and a reader."""
    return await _journal_killed(path)


@case
async def journal_killed_rolling(path: str) -> Told:
    """The same, in many files."""
    return await _journal_killed(path, segment_size=400)


@case
async def journal_killed_both_logs(path: str) -> Told:
    """Synced messages in the redo log, written ones on the write-ahead log."""
    rows = _rows("entry", 60)
    async with diskq.open_journal(path, **NEVER, checkpoint_slice=LONG) as journal:
        for offset, (key, value, timestamp) in enumerate(rows[:30]):
            await journal.send(value, key, timestamp, offset % 3, durability="synced")
        for offset, (key, value, timestamp) in enumerate(rows[30:], 30):
            journal.send_nowait(value, key, timestamp, offset % 3)
        holds_more_than(5, path, ".diskq/redo")
        killed(kind="journal", messages=_journal_rows(rows), synced=30, readers={})


# --- shards: `shards`: directory -> [value, ...]; the first `synced` of each were synced ----------------


async def _shards(path: str, *, is_killed: bool) -> Told:
    rows = _rows("entry", 60)
    shards: dict[str, list[str]] = {}
    how = {**NEVER, "checkpoint_slice": LONG}
    async with diskq.open_shards(path, "log", 1, **how) as writer:

        async def send(some: list[tuple[bytes, bytes, int]]) -> None:
            for key, value, timestamp in some:
                shards.setdefault(f"log.1.{writer.shard_of(key):03x}", []).append(value.decode())
                await writer.send(value, key, timestamp)

        await send(rows[:30])
        await writer.sync()
        synced = {name: len(values) for name, values in shards.items()}
        await send(rows[30:])
        if is_killed:
            killed(kind="shards", shards=shards, synced=synced)
    synced = {name: len(values) for name, values in shards.items()}
    return tell(kind="shards", ended="closed", shards=shards, synced=synced)


@case
async def shards_closed(path: str) -> Told:
    """Two journals, closed."""
    return await _shards(path, is_killed=False)


@case
async def shards_killed(path: str) -> Told:
    """Two journals, killed."""
    return await _shards(path, is_killed=True)


# --- priority stores: `queues`: name -> [priority, id, payload] in order; `synced`: ids; `maybe`: ids ---


def _jobs(*numbers: int) -> list[tuple[int, str]]:
    """(priority, payload)."""
    return [(number * 7 % 5 - 2, f"job {number:03d}") for number in numbers]


def _in_order(records: dict[int, tuple[int, str]]) -> list[list[Any]]:
    return sorted([priority, number, payload] for number, (priority, payload) in records.items())


def _priority(path: str, **options: Any) -> Told:
    main: dict[int, tuple[int, str]] = {}
    mail: dict[int, tuple[int, str]] = {}
    options = {"soft_limit": 600, "hard_limit": 1200, **options}
    with diskq.PriorityStore(path, options=diskq.PriorityOptions(**options)) as store:
        store.create_queue("mail", implementation="QA", max_messages=20, priority_range=(-2, 2))
        for name, records, numbers in (("__sys", main, range(40)), ("mail", mail, range(100, 112))):
            queue = store.queue() if name == "__sys" else store.queue(name)
            for priority, payload in _jobs(*numbers):
                records[store.put(queue, payload.encode(), priority)] = (priority, payload)
        taken = store.get_many(store.queue(), 7)
        store.ack_many(store.queue(), taken[:5])
        for record in taken[:5]:
            del main[record.id]
        default = next(info.name for info in store.queues() if info.name != "mail")
    queues = {default: _in_order(main), "mail": _in_order(mail)}
    synced = {name: [row[1] for row in rows] for name, rows in queues.items()}
    return tell(kind="priority", ended="closed", queues=queues, synced=synced, acked={}, maybe={})


@case
def priority_closed(path: str) -> Told:
    """Two queues, a snapshot and several segments."""
    return _priority(path, snapshot_segments=2)


@case
def priority_closed_document(path: str) -> Told:
    """As TaskFlux's document has the records."""
    return _priority(path, layout="document", preallocate=False)


@case
async def priority_killed(path: str) -> Told:
    """Synced and not, in hand, acknowledged and not."""
    main: dict[int, tuple[int, str]] = {}
    how = {**NEVER, "checkpoint_slice": LONG, "soft_limit": 600, "hard_limit": 1200}
    async with diskq.open_priority_store(path, fs=Hasty(), **how) as store:
        queue = store.queue()

        async def send(numbers: range) -> None:
            for priority, payload in _jobs(*numbers):
                main[await queue.send(payload.encode(), priority)] = (priority, payload)

        await send(range(30))
        taken = await queue.receive_many(6)
        await queue.ack(taken[:3])
        await store.sync()
        synced = [number for number in main if number not in {record.id for record in taken[:3]}]
        await queue.ack(taken[3:5])
        await send(range(30, 50))
        (default,) = (info.name for info in store.queues())
        acked, maybe = ([record.id for record in some] for some in (taken[:3], taken[3:5]))
        for number in acked:
            del main[number]
        killed(
            kind="priority",
            queues={default: _in_order(main)},
            synced={default: synced},
            acked={default: acked},
            maybe={default: maybe},
        )


# --- spools: `rest` is to be delivered, `letters` are dead; of `maybe` nobody knows; `attempts` of the first


async def _spool(path: str, *, is_killed: bool) -> Told:
    sent = texts("mail", 40)
    delivered: list[str] = []
    tries: list[int] = []
    reached = trio.Event()

    async def deliver(batch: diskq.Batch) -> None:
        await trio.lowlevel.checkpoint()
        first = batch[0].decode()
        if first == sent[9] and len(batch) == 3:
            raise diskq.Permanent("nobody of that name", messages=[1])
        if first == sent[18]:
            tries.append(batch.attempts)
            if len(tries) == 2:
                reached.set()
                await trio.sleep_forever()
            raise ConnectionError("nobody there")
        delivered.extend(body.decode() for body in batch)

    how: dict[str, Any] = {"max_messages": 3, "backoff_initial": 1e-3, "backoff_jitter": 0.0}
    queue = diskq.QueueOptions(**NEVER, checkpoint_slice=LONG)
    async with diskq.open_spool(path, deliver, queue=queue, fs=Hasty(), **how) as spool:
        await spool.send_many(raw(sent[:30]))
        await spool.sync()
        await reached.wait()
        assert delivered == [body for body in sent[:18] if body != sent[10]]
        await spool.send_many(raw(sent[30:34]))
        for body in raw(sent[34:]):
            spool.send_nowait(body)
        told = {"kind": "spool", "sent": sent, "delivered": 18, "letters": [sent[10]], "attempts": 2}
        if is_killed:
            killed(synced=30, **told)
    told["attempts"] = 1  # a try that the end of the block cancelled is none
    return tell(ended="closed", synced=40, **told)


@case
async def spool_closed(path: str) -> Told:
    """Some delivered, one dead letter, the next batch tried twice."""
    return await _spool(path, is_killed=False)


@case
async def spool_killed(path: str) -> Told:
    """The same in the middle of a try, with messages on the write-ahead log."""
    return await _spool(path, is_killed=True)


# --- after a power cut: all that was synced is there, though the files lack it -----------------------------


def memory() -> CrashFS:
    disk = CrashFS()
    disk.make_directory_durably(ROOT)
    return disk


def cut(disk: CrashFS, path: str, redo: str = "", **told: Any) -> Told:
    """The power fails. Each file has what was synced, and the redo log has more."""
    after = disk.crash()
    for name, content in after.files().items():
        target = Path(path, name.removeprefix(f"{ROOT}/"))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    log = read_redo(after, f"{ROOT}/{redo}") if redo else None
    assert not redo or (log is not None and len(log.entries) > 5)
    return tell(ended="cut", **told)


def _queue_before(sent: list[str], name: str) -> CrashFS:
    """Several files, some consumed, and closed; then more, each synced."""
    disk = memory()
    with diskq.Queue(ROOT, name, options=diskq.QueueOptions(segment_size=200), fs=disk) as queue:
        queue.put_many(raw(sent[:30]))
        queue.get_many(12)
    return disk


@case
def queue_cut(path: str) -> Told:
    """Messages in the redo log alone, and later ones that were not synced."""
    sent = texts("order", 70)
    disk = _queue_before(sent, "orders")
    queue = diskq.Queue(ROOT, "orders", options=diskq.QueueOptions(**NEVER), fs=disk)
    queue.get_many(3)
    for body in raw(sent[30:60]):
        queue.put(body, durability="synced")
    queue.get_many(2)
    queue.put_many(raw(sent[60:]))
    told = {"kind": "queue", "name": "orders", "sent": sent, "synced": 60, "gone": 12, "taken": 17}
    return cut(disk, path, ".diskq/orders.redo", **told)


@case
def leases_cut(path: str) -> Told:
    """The same, with acknowledgements that were synced and some that were not."""
    sent = texts("task", 60)
    disk = memory()
    queue = diskq.Queue(ROOT, "tasks", options=diskq.QueueOptions(**NEVER), fs=disk)
    queue.put_many(raw(sent[:30]))
    work = diskq.QueueWork(queue)
    leases = work.get_many(20)
    work.ack(leases[1:12:2])
    queue.sync()
    work.ack(leases[12:14])
    for body in raw(sent[30:]):
        queue.put(body, durability="synced")
    acked, maybe = sent[1:12:2], sent[12:14]
    told = {"kind": "leases", "name": "tasks", "sent": sent, "acked": acked, "maybe": maybe}
    return cut(disk, path, ".diskq/tasks.redo", **told)


@case
def stream_cut(path: str) -> Told:
    """Three partitions; the last segments are shorter than what was synced."""
    disk, tally, rows = memory(), _Tally(3), _rows("click", 110)
    with diskq.Stream(
        ROOT, options=diskq.StreamOptions(partition_count=3, segment_size=400), fs=disk
    ) as stream:
        _append(stream, tally, rows[:50])
    stream = diskq.Stream(ROOT, options=diskq.StreamOptions(segment_size=10**6, **NEVER), fs=disk)
    for row in rows[50:95]:
        position = stream.append(row[1], row[0], row[2], durability="synced")
        tally.add(row, position.partition, position.offset)
    synced = tally.sizes()
    _append(stream, tally, rows[95:])
    told = {"kind": "stream", "partitions": tally.partitions, "synced": synced, "groups": {}}
    return cut(disk, path, ".diskq/redo", **told)


@case
def journal_cut(path: str) -> Told:
    """The last file is shorter than what was synced."""
    disk, rows = memory(), _rows("entry", 90)
    with diskq.Journal(ROOT, options=diskq.JournalOptions(segment_size=400), fs=disk) as journal:
        journal.append_many(_items(rows[:40]))
    journal = diskq.Journal(ROOT, options=diskq.JournalOptions(segment_size=10**6, **NEVER), fs=disk)
    for offset, (key, value, timestamp) in enumerate(rows[40:75], 40):
        journal.append(value, key, timestamp, offset % 3, durability="synced")
    journal.append_many(_items(rows[75:], 75))
    told = {"kind": "journal", "messages": _journal_rows(rows), "synced": 75, "readers": {}}
    return cut(disk, path, ".diskq/redo", **told)


@case
def priority_cut(path: str) -> Told:
    """It has no redo log: its command log is one."""
    disk, main = memory(), {}
    store = diskq.PriorityStore(
        ROOT, options=diskq.PriorityOptions(**NEVER, soft_limit=900, hard_limit=1500), fs=disk
    )
    for number, (priority, payload) in enumerate(_jobs(*range(40))):
        word: Any = "synced" if number < 30 else "written"
        main[store.put(store.queue(), payload.encode(), priority, durability=word)] = (priority, payload)
        if number == 29:
            synced = list(main)
    (default,) = (info.name for info in store.queues())
    queues = {default: _in_order(main)}
    return cut(disk, path, kind="priority", queues=queues, synced={default: synced}, acked={}, maybe={})


@case
async def spool_cut(path: str) -> Told:
    """Some delivered, durably; the rest is in the redo log alone."""
    sent, disk, reached = texts("mail", 40), memory(), trio.Event()

    async def deliver(batch: diskq.Batch) -> None:
        await trio.lowlevel.checkpoint()
        if batch[0].decode() == sent[9]:
            reached.set()
            await trio.sleep_forever()

    queue = diskq.QueueOptions(**NEVER)
    async with diskq.open_spool(
        ROOT, deliver, queue=queue, max_messages=3, commit="synced", fs=disk
    ) as spool:
        await spool.send_many(raw(sent[:12]))
        await reached.wait()
        await spool.sync()
        for body in raw(sent[12:]):
            await spool.send(body, durability="synced")
        told = {"kind": "spool", "sent": sent, "delivered": 9, "letters": [], "attempts": 1, "synced": 40}
        return cut(disk, path, ".diskq/spool.redo", **told)
    raise AssertionError("it is not left by an exception")


# --- making them ----------------------------------------------------------------------------------------


def run(name: str, path: str) -> None:
    """In a process of its own."""
    found: Any = CASES[name]
    if inspect.iscoroutinefunction(found):
        trio.run(found, path)
    else:
        found(path)


def packed(path: Path) -> bytes:
    """The directory, compressed: a log is mostly zeros. The same bytes for the same files."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for each in sorted(path.rglob("*")):
            tar.add(each, arcname=str(each.relative_to(path)), recursive=False, filter=_nobodys)
    return gzip.compress(plain.getvalue(), 9, mtime=0)


def _nobodys(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def make(version: str) -> None:
    out = HERE / version
    out.mkdir()
    for name, function in CASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            path, told = Path(scratch, "it"), Path(scratch, "told")
            path.mkdir()
            done = subprocess.run(
                [sys.executable, __file__, "--case", name, str(path)],
                env={**os.environ, "DISKQ_TOLD": str(told)},
                check=False,
            )
            what = json.loads(told.read_text())
            assert done.returncode == (-signal.SIGKILL if what["ended"] == "killed" else 0), name
            what["about"] = (function.__doc__ or "").strip()
            (out / f"{name}.tar.gz").write_bytes(packed(path))
            (out / f"{name}.json").write_text(json.dumps(what, sort_keys=True) + "\n")
            print(f"{name}: {(out / f'{name}.tar.gz').stat().st_size:,} bytes")


if __name__ == "__main__":
    if sys.argv[1] == "--case":
        run(*sys.argv[2:])
    else:
        make(sys.argv[1])

# The kinds of directories whose process was killed. Law: each is opened and read as its users do it, and
# tells what it delivered and what it said was wrong; and each is read as its peer reads it.

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import trio

import diskq
from diskq.engine.spool.files import SPOOL
from diskq.engine.stream.reader import ReadableStream
from diskq.storage.fs import FileSystem
from diskq.storage.repairs import Repair
from tests.engine.queues import leased
from tests.reference import nsq_oracle, sej_oracle, taskflux_oracle, triplet_oracle
from tests.torture.killed_making import Template, item
from tests.torture.killed_peers import Written, go_diskq, go_diskqueue, sej, taskflux
from tests.torture.messages import message, number_of

__all__ = ["KINDS", "Kind", "Said", "Seen", "beside"]

_MANY = 1 << 20


class Said(NamedTuple):
    """Something that was found wrong, as the user is told."""

    records: int | None
    """Messages that are lost by it; None: nobody knows how many."""
    path: str
    at: int
    dropped: int
    aside: str | None
    text: str


@dataclass
class Seen:
    """What an open and a reading gave."""

    numbers: list[int] = field(default_factory=list)
    altered: list[bytes] = field(default_factory=list)
    """Bodies that nobody sent, or with another key, time or type."""
    said: list[Said] = field(default_factory=list)
    seconds: float = 0.0
    """The open took so long."""
    refused: str = ""
    """What the open said when it refused; then it was opened as that says, if it could be."""

    def add(self, body: bytes | memoryview | None, is_same: Callable[[int], bool] = lambda _: True) -> None:
        number = number_of(bytes(body or b""))
        if number is None or not is_same(number):
            self.altered.append(bytes(body or b""))
        else:
            self.numbers.append(number)

    def tell(self, told: Iterable[Any]) -> None:
        for each in told:
            if isinstance(each, Repair):
                self.said.append(
                    Said(each.records, each.path, each.kept, each.dropped, each.saved_as, str(each))
                )
            else:
                self.said.append(
                    Said(each.count, each.path, each.start, each.end - each.start, None, str(each))
                )

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds += time.process_time() - began


def _known(body: bytes) -> int:
    """Its number; -1 where it is none of our messages."""
    number = number_of(body)
    return -1 if number is None else number


@dataclass(frozen=True)
class Kind:
    """How it is opened and read (`takes`: what is read is gone), what its peer sees and writes."""

    read: Callable[[Path, Template, bool], Seen]
    peer_view: Callable[[Path], list[int]] | None
    peer: Callable[[Path, list[int], Any], Written] | None
    """Another program; None where there is none that would."""
    ours: Callable[[Path, Template, list[int], FileSystem | None], tuple[Repair, ...]]
    """diskq, as another writer; on a disk of its own, if any. Returns what it reported."""
    has_peer_files: Callable[[str], bool]
    """True if the file at this path, below the directory, is one that its peer reads or writes."""


# --- queues -----------------------------------------------------------------------------------------


def _read_queue(files: Path, how: Template, takes: bool) -> Seen:
    seen = Seen()
    with seen.opening():
        queue = diskq.Queue(files, "q", options=diskq.QueueOptions(**how.layout))
    with queue:
        if how.acks:
            with diskq.QueueWork(queue) as work:
                for lease in list(iter(lambda: leased(work), None)):
                    seen.add(bytes(lease.body))
                    if takes:
                        work.ack(lease)
        else:
            one_by_one = iter(lambda: next(iter(queue.get_many(1)), None), None)
            for body in one_by_one if takes else queue.peek_many(_MANY):
                seen.add(body)
        seen.tell(queue.repairs)
    return seen


def _queue_ours(
    files: Path, how: Template, numbers: list[int], fs: FileSystem | None = None
) -> tuple[Repair, ...]:
    with diskq.Queue(files, "q", options=diskq.QueueOptions(**how.layout), fs=fs) as queue:
        for number in numbers:
            queue.put(message(number))
        return queue.repairs


# --- streams ----------------------------------------------------------------------------------------


def _read_stream(files: Path, how: Template, _: bool) -> Seen:
    seen = Seen()
    options = diskq.StreamOptions(**how.layout)
    with seen.opening():
        try:
            stream = diskq.Stream(files, options=options)
        except diskq.LockedError as refusal:
            seen.refused = str(refusal)
            stream = diskq.Stream(files, options=options, take_over=True)
    with stream:
        seen.tell(stream.repairs)
    reader = ReadableStream(str(files))
    for partition in reader.partitions():
        with reader.open(partition) as found:
            found.seek_oldest()
            while messages := found.read_many(_MANY):
                for each in messages:
                    own = (bytes(each.key), bytes(each.value), each.timestamp_ns)
                    seen.add(each.value, lambda number, own=own: own == item(number))  # type: ignore[misc]
            seen.tell(found.losses)
    return seen


def _stream_view(files: Path) -> list[int]:
    found = triplet_oracle.read_stream(files).values()
    return [_known(each.value) for messages in found for each in messages]


def _stream_ours(
    files: Path, how: Template, numbers: list[int], fs: FileSystem | None = None
) -> tuple[Repair, ...]:
    with diskq.Stream(files, options=diskq.StreamOptions(**how.layout), take_over=True, fs=fs) as stream:
        for number in numbers:
            key, value, when = item(number)
            stream.append(value, key, when)
        return stream.repairs


# --- journals ---------------------------------------------------------------------------------------


def _journals(files: Path) -> list[Path]:
    """The journal, or its shards; where damage hides one, all that lies there."""
    shards = sorted(path for path in files.iterdir() if path.name.startswith("shard."))
    return shards or [files]


def _read_journal(files: Path, how: Template, _: bool) -> Seen:
    seen = Seen()
    for path in _journals(files):
        with seen.opening():
            journal = diskq.Journal(path, options=diskq.JournalOptions(**how.layout))
        with journal:
            seen.tell(journal.repairs)
        with diskq.JournalReader(path) as reader:
            reader.seek_oldest()
            while messages := reader.read_many(_MANY):
                for each in messages:
                    own = (bytes(each.key or b""), bytes(each.value), each.timestamp_ns, each.type)
                    seen.add(each.value, lambda number, own=own: own == (*item(number), number % 5))  # type: ignore[misc]
            seen.tell(reader.losses)
    return seen


def _journal_view(files: Path) -> list[int]:
    found = [sej_oracle.read_journal(path) for path in _journals(files)]
    return [_known(each.value) for messages in found for each in messages]


def _journal_peer(files: Path, numbers: list[int], rng: Any) -> Written:
    return sej(rng.choice(_journals(files)), numbers, rng)


def _journal_ours(
    files: Path, how: Template, numbers: list[int], fs: FileSystem | None = None
) -> tuple[Repair, ...]:
    with diskq.Journal(_journals(files)[0], options=diskq.JournalOptions(**how.layout), fs=fs) as journal:
        for number in numbers:
            key, value, when = item(number)
            journal.append(value, key, when, number % 5)
        return journal.repairs


# --- stores -----------------------------------------------------------------------------------------


def _read_store(files: Path, how: Template, takes: bool) -> Seen:
    seen = Seen()
    options = diskq.PriorityOptions(**how.layout)
    with seen.opening():
        try:
            store = diskq.PriorityStore(files, options=options)
        except diskq.DamagedStoreError as refusal:
            seen.refused = str(refusal)
            store = diskq.PriorityStore(files, options=options, repairs_damage=True)
    with store:
        for info in store.queues():
            queue = store.queue(info.name)
            records = store.get_many(queue, _MANY) if takes else store.peek(queue, _MANY)
            for each in records:
                own = each.priority
                seen.add(each.body, lambda number, own=own: own == number % 5)  # type: ignore[misc]
            if takes:
                store.ack_many(queue, records)
        seen.tell(store.repairs)
    return seen


def _store_view(files: Path) -> list[int]:
    found = taskflux_oracle.read_store(files / "data")
    return [_known(payload) for queue in found.values() for _, _, payload in queue.ordered()]


def _store_ours(
    files: Path, how: Template, numbers: list[int], fs: FileSystem | None = None
) -> tuple[Repair, ...]:
    with diskq.PriorityStore(files, options=diskq.PriorityOptions(**how.layout), fs=fs) as store:
        for number in numbers:
            store.put(store.queue(), message(number), number % 5)
        return store.repairs


# --- spools -----------------------------------------------------------------------------------------

_PATIENCE = 20.0
"""Seconds: a spool that has not delivered all by then waits for what does not come."""


def _read_spool(files: Path, how: Template, takes: bool) -> Seen:
    seen = Seen()
    if not takes:  # who looks at a spool without delivering reads its queue
        with seen.opening():
            queue = diskq.Queue(files, SPOOL, options=diskq.QueueOptions(**how.layout))
        with queue:
            for body in queue.peek_many(_MANY):
                seen.add(body)
            seen.tell(queue.repairs)
        return seen

    async def deliver(batch: diskq.Batch) -> None:
        for body in batch:
            seen.add(bytes(body))

    async def run() -> None:
        began = time.process_time()
        options = diskq.SpoolOptions(queue=diskq.QueueOptions(**how.layout))
        async with diskq.open_spool(files, deliver, options=options) as spool:
            seen.seconds += time.process_time() - began
            with trio.move_on_after(_PATIENCE) as scope:
                await spool.drained()
            if scope.cancelled_caught:
                seen.refused = "drained() does not return"
            seen.tell(spool.repairs)

    trio.run(run)
    return seen


def _spool_ours(
    files: Path, how: Template, numbers: list[int], fs: FileSystem | None = None
) -> tuple[Repair, ...]:
    with diskq.Queue(files, SPOOL, options=diskq.QueueOptions(**how.layout), fs=fs) as queue:
        for number in numbers:
            queue.put(message(number))
        return queue.repairs


def _is_nsq(path: str) -> bool:
    return path.endswith(".dat") and not path.startswith(".diskq")


KINDS: dict[str, Kind] = {
    "queue": Kind(
        _read_queue,
        lambda files: [_known(body) for body in nsq_oracle.read_dir(files, "q")],
        lambda files, numbers, rng: go_diskqueue(files, "q", numbers, rng),
        _queue_ours,
        _is_nsq,
    ),
    "stream": Kind(
        _read_stream,
        _stream_view,
        go_diskq,
        _stream_ours,
        lambda path: path.startswith(("parts/", "settings")),
    ),
    "journal": Kind(
        _read_journal,
        _journal_view,
        _journal_peer,
        _journal_ours,
        lambda path: path.endswith(".jnl") and ".diskq" not in path,
    ),
    "store": Kind(
        _read_store,
        _store_view,
        taskflux,
        _store_ours,
        lambda path: ".diskq" not in path and "lock" not in path,
    ),
    "spool": Kind(
        _read_spool,
        lambda files: [_known(body) for body in nsq_oracle.read_dir(files, SPOOL)],
        None,
        _spool_ours,
        _is_nsq,
    ),
}


def beside(files: Path, write: Callable[[Path], object]) -> None:
    """`write` to the directory while our `.diskq` is not there; then put it back."""
    kept = [(path, files.parent / f"private-{number}") for number, path in enumerate(files.rglob(".diskq"))]
    for path, aside in kept:
        path.rename(aside)
    write(files)
    for path, aside in kept:
        shutil.rmtree(path, ignore_errors=True)
        aside.rename(path)

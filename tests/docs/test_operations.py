# docs/operations.md, taken at its word: copies of what is in use, sizes, open files, modes.

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import diskq
from diskq.engine.stream.reader import ReadableStream
from diskq.options import Durability
from diskq.storage.fs import Identity, OsFileSystem
from tests.docs.documents import ROOT, table_rows
from tests.sampling import spread

DOCUMENT = ROOT / "docs/operations.md"
KINDS = ("queue", "stream", "journal", "store")
SEEDS = spread(range(6))

each_kind = pytest.mark.parametrize("kind", KINDS)


class Elsewhere(OsFileSystem):
    """The same disk, after it was carried to another machine."""

    def identity(self) -> Identity:
        return dataclasses.replace(super().identity(), boot_id="another machine's")


# --- what is in use -------------------------------------------------------------------------------


@dataclass
class Live:
    """Something that is written to while it is copied; messages are numbers, and there are some more."""

    channel: Any
    send: Callable[[int], Awaitable[Any]]
    take: Callable[[], Awaitable[Any]] | None
    settle: Callable[[], Awaitable[Any]]
    luck: random.Random
    sent: int = 0
    taken: int = 0

    async def go_on(self) -> None:
        for _ in range(self.luck.randrange(60)):
            await self.send(self.sent)
            self.sent += 1
        if self.take:
            for _ in range(self.luck.randrange(40)):
                if self.taken < self.sent:
                    await self.take()
                    self.taken += 1
        if self.luck.random() < 0.2:
            await self.settle()


def body(number: int) -> bytes:
    return b"%06d" % number + b"." * 200


@asynccontextmanager
async def in_use(kind: str, path: Path, luck: random.Random, small: int = 20_000) -> AsyncIterator[Live]:
    """With larger files most messages are synced each, to a small redo log that is used again and again."""
    os.makedirs(path)
    is_logged = small > 20_000
    how: dict[str, Any] = {"redo_log_size": 64 * 1024, "sync_every": 200} if is_logged else {}

    def word() -> Durability:
        return "synced" if is_logged and luck.random() < 0.7 else "written"

    match kind:
        case "queue":
            async with diskq.open_queue(path, "q", segment_size=small, **how) as queue:
                yield Live(
                    queue, lambda n: queue.send(body(n), durability=word()), queue.receive, queue.sync, luck
                )
        case "stream":
            async with diskq.open_producer(path, partition_count=1, segment_size=small, **how) as producer:
                yield Live(
                    producer, lambda n: producer.send(body(n), durability=word()), None, producer.sync, luck
                )
        case "journal":
            async with diskq.open_journal(path, segment_size=small, **how) as journal:
                yield Live(
                    journal, lambda n: journal.send(body(n), durability=word()), None, journal.sync, luck
                )
        case _:
            async with diskq.open_priority_store(path) as store:
                jobs = store.queue()

                async def take() -> None:
                    await jobs.ack(await jobs.receive())

                yield Live(store, lambda n: jobs.send(body(n)), take, store.snapshot, luck)


async def copy(live: Live, source: Path, target: Path) -> None:
    """As the page says, with much going on between any two reads."""
    for _ in pieces(source, target, live.luck):
        await live.go_on()


def pieces(source: Path, target: Path, luck: random.Random) -> Iterator[None]:
    """Copies, and yields in the midst of each file and behind it."""
    for path in [path for group in ours_and_theirs(source) for path in group]:
        # A thread of the channel removes what was received, at any moment.
        try:
            file = path.open("rb")
        except FileNotFoundError:
            continue  # removed since the directory was listed
        copied_to = target / path.relative_to(source)
        copied_to.parent.mkdir(parents=True, exist_ok=True)
        with file, copied_to.open("wb") as into:
            size = os.fstat(file.fileno()).st_size
            at = luck.randrange(size + 1)
            into.write(file.read(at))
            yield
            into.write(file.read(size - at if luck.random() < 0.5 else -1))  # or up to what came meanwhile
        yield


def ours_and_theirs(source: Path) -> tuple[list[Path], list[Path]]:
    files = sorted(path for path in source.rglob("*") if path.is_file())
    return [path for path in files if ".diskq" in path.parts], [
        path for path in files if ".diskq" not in path.parts
    ]


def content(kind: str, path: Path, fs: OsFileSystem) -> list[int]:
    """What an open finds; it mends what is to be mended."""
    bodies: list[bytes] = []
    match kind:
        case "queue":
            with diskq.Queue(path, "q", fs=fs) as queue:
                bodies = queue.peek_many(10**6)
        case "stream":
            diskq.Stream(path, fs=fs).close()
            with ReadableStream(path).open(0) as reader:
                while messages := reader.read_many(1000):
                    bodies += [message.value for message in messages]
        case "journal":
            diskq.Journal(path, fs=fs).close()
            with diskq.JournalReader(path) as scanner:
                while more := scanner.read_many(1000):
                    bodies += [message.value for message in more]
        case _:
            with diskq.PriorityStore(path, fs=fs) as store:
                while (record := store.get(store.queue())) is not None:
                    bodies.append(record.body)
    return [int(found[:6]) for found in bodies]


# --- copies ---------------------------------------------------------------------------------------


async def copied(
    kind: str,
    directory: Path,
    seed: int,
    fs: OsFileSystem,
    *,
    is_synced: bool = False,
    small: int = 20_000,
) -> tuple[set[int], list[int]]:
    """What a copy must have (sent before it began, not received when it ended), and what it has."""
    luck = random.Random(seed)
    async with in_use(kind, directory / "live", luck, small) as live:
        for _ in range(luck.randrange(12)):
            await live.go_on()
        if is_synced:
            await live.channel.sync()
        sent_before = live.sent
        await copy(live, directory / "live", directory / "copy")
        wanted = set(range(live.taken, sent_before))
    return wanted, content(kind, directory / "copy", fs)


@pytest.mark.sampled
@pytest.mark.slow
@each_kind
async def test_a_copy_taken_live_has_what_was_sent_before_it_began(kind: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        (tmp_path / str(seed)).mkdir()
        wanted, found = await copied(kind, tmp_path / str(seed), seed, OsFileSystem())
        assert wanted <= set(found), seed
        assert found == list(range(found[0], found[-1] + 1) if found else []), seed


@pytest.mark.sampled
@pytest.mark.slow
@each_kind
async def test_a_copy_opened_elsewhere_has_what_was_synced_before_it_began(kind: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        (tmp_path / str(seed)).mkdir()
        wanted, found = await copied(kind, tmp_path / str(seed), seed, Elsewhere(), is_synced=True)
        assert wanted <= set(found), seed
        assert found == list(range(found[0], found[-1] + 1) if found else []), seed


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[:3])
async def test_a_copy_has_what_was_synced_to_the_redo_log_before_it_began(kind: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        (tmp_path / str(seed)).mkdir()
        wanted, found = await copied(
            kind, tmp_path / str(seed), seed, Elsewhere(), is_synced=True, small=200_000
        )
        assert wanted <= set(found), seed
        assert found == list(range(found[0], found[-1] + 1) if found else []), seed


@pytest.mark.parametrize(
    "is_ours_first, found", [(True, [0, 1, 2, 3, 4]), (False, [0, 1])], ids=["right", "wrong"]
)
async def test_a_copy_in_the_other_order_lacks_messages(
    is_ours_first: bool, found: list[int], tmp_path: Path
) -> None:
    """What is on the write-ahead log when the data is copied is in the data when the write-ahead log is."""
    live = tmp_path / "live"
    live.mkdir()
    async with diskq.open_queue(live, "q", checkpoint_slice=60.0) as queue:
        for number in range(3):
            await queue.send(body(number))
        groups = ours_and_theirs(live)
        for group in groups if is_ours_first else reversed(groups):
            shutil.copytree(
                live,
                tmp_path / "copy",
                dirs_exist_ok=True,
                ignore=lambda _, names, group=group: ignored(names, group),
            )
            await queue.sync()
            for number in (3, 4, 5):
                await queue.send(body(number))  # the write-ahead log is used anew
    assert content("queue", tmp_path / "copy", OsFileSystem()) == found  # 2 was on the write-ahead log


def ignored(names: list[str], group: list[Path]) -> set[str]:
    """Of names in a directory: the files that are not of the group."""
    return {name for name in names if name != ".diskq"} - {path.name for path in group}


@pytest.mark.slow
@each_kind
async def test_what_was_closed_may_be_carried_anywhere(kind: str, tmp_path: Path) -> None:
    async with in_use(kind, tmp_path / "live", random.Random(1)) as live:
        for _ in range(10):
            await live.go_on()
        wanted = list(range(live.taken, live.sent))
    (tmp_path / "live").rename(tmp_path / "moved")
    assert content(kind, tmp_path / "moved", Elsewhere()) == wanted


# --- sizes, files, modes --------------------------------------------------------------------------


def fill(kind: str, path: Path, count: int) -> None:
    path.mkdir()
    message = b"x" * 100
    match kind:
        case "queue":
            with diskq.Queue(path, "q") as queue:
                queue.put_many([message] * count)
        case "stream":
            with diskq.Stream(path, options=diskq.StreamOptions(partition_count=1)) as stream:
                stream.append_many([(b"customer-7", message)] * count)
        case "journal":
            with diskq.Journal(path) as journal:
                journal.append_many([(b"customer-7", message)] * count)
        case _:
            with diskq.PriorityStore(path) as store:
                store.put_many(store.queue(), [message] * count, [5] * count)


def files_of(path: Path) -> list[Path]:
    return [found for found in path.rglob("*") if found.is_file()]


@pytest.mark.parametrize("row", range(4))
def test_a_message_takes_the_bytes_that_are_told(row: int, tmp_path: Path) -> None:
    kind, data, beside, ours, together = table_rows(DOCUMENT, "## Sizes")[row]
    path, count = tmp_path / kind, 20_000
    fill(KINDS[row], path, count)
    sizes = {"data": 0, "beside": 0, "ours": 0}
    for file in files_of(path):
        group = "ours" if ".diskq" in file.parts else "data" if file.suffix in DATA else "beside"
        sizes[group] += file.stat().st_size
    told = [f"{size / count:.0f}" for size in sizes.values()]
    assert [data.split()[0], beside.split()[0], ours.split()[0]] == told
    assert together == f"{sum(sizes.values()) / count:.0f}"


DATA = {".dat", ".data", ".jnl", ".log"}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted by Linux")
@pytest.mark.usefixtures("no_collections")
async def test_what_is_open_has_the_files_that_are_told(tmp_path: Path) -> None:
    told = {cells[0].strip("`"): cells[1] for cells in table_rows(DOCUMENT, "## Limits of the system")}
    stream, journal = tmp_path / "s", tmp_path / "j"
    with diskq.Stream(stream) as filled:
        filled.append_many([(b"%d" % number, b"x") for number in range(20)])
    opened = {
        "open_queue": diskq.open_queue(tmp_path, "q"),
        "open_spool": diskq.open_spool(tmp_path / "spool", deliver=deliver_nothing),
        "open_producer": diskq.open_producer(stream),
        "open_consumer": diskq.open_consumer(stream),
        "open_consumer(group=…)": diskq.open_consumer(stream, group="g"),
        "open_journal": diskq.open_journal(journal),
        "open_scanner": diskq.open_scanner(journal),
        "open_scanner(reader=…)": diskq.open_scanner(journal, reader="r"),
        "open_priority_store": diskq.open_priority_store(tmp_path / "jobs"),
    }
    expected = {name: files_told(told[name]) for name in opened}
    counted = {name: await open_files(channel, expected[name]) for name, channel in opened.items()}
    assert counted == expected
    assert set(opened) == set(told)


async def deliver_nothing(batch: diskq.Batch) -> None:
    await trio.lowlevel.checkpoint()


def files_told(cell: str, partitions: int = 3) -> int:
    """`1, and 6 a partition` as a number."""
    own, _, each = cell.partition(", and ")
    return int(own) + (int(each.split()[0]) * partitions if each else 0)


async def open_files(opening: Any, expected: int) -> int:
    """How many there are once there are as many as expected: a claim may take its time."""
    await trio.testing.wait_all_tasks_blocked()  # what called the readers before ends with the last of them
    before = await _files_for_long()
    async with opening as channel, trio.open_nursery() as nursery:
        if hasattr(channel, "send"):
            for number in range(20):
                await channel.send(b"%d" % number)
        if hasattr(channel, "receive"):
            nursery.start_soon(receive_all, channel)
        await trio.sleep(0.2)
        with trio.move_on_after(60):
            while await _files_for_long() - before != expected:
                pass
        found = await _files_for_long() - before
        nursery.cancel_scope.cancel()
    return found


async def receive_all(channel: Any) -> None:
    while True:
        await channel.receive()


async def _files_for_long() -> int:
    """Without those that a barrier has open for a moment, which a thread may be in the middle of."""
    counted = []
    for _ in range(10):
        counted.append(_files())
        await trio.sleep(0.01)
    return min(counted)


def _files() -> int:
    """Without the status notes: who is slow has one by now."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the list itself
            found += not os.readlink(f"/proc/self/fd/{number}").endswith("status")
    return found


@each_kind
def test_files_are_for_their_owner_alone(kind: str, tmp_path: Path) -> None:
    fill(kind, tmp_path / "there", 10)
    inside = list((tmp_path / "there").rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in inside if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in inside if path.is_file()} == {0o600}

# What earlier versions left is opened by this one. Law: all that was acknowledged is there, in its place,
# once; and nothing is called damage that is none.
#
# versions/VERSION/ has directories of every kind, closed and killed (versions/make.py). What a killed process
# had not written is on its write-ahead log. A write-ahead log counts only in the run of the machine that
# wrote it: it begins with the kernel's name for that run, and lock files have that name, too. So each
# directory is opened twice: on a disk that says that it is still that run, as after a kill, and on one of
# today's run, as after a power cut. After a power cut only what was synced is promised. A directory that a
# power cut has left is opened as one.

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

import diskq
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.reader import ReadableStream
from diskq.engine.stream.transactions.staging import Extent, StagedFile
from diskq.engine.stream.transactions.transaction import Transaction, committed
from diskq.messages import JournalMessage, Message
from diskq.storage.fs import Identity, OsFileSystem
from diskq.storage.repairs import Repair
from diskq.tools.stores import stores_found
from diskq.tools.verify.verification import verify

HERE = Path(__file__).parent / "versions"
CASES = sorted(path.with_suffix("") for path in HERE.glob("*/*.json"))


class Booted(OsFileSystem):
    """The real disk, in that run of the machine."""

    def __init__(self, boot_id: str | None) -> None:
        super().__init__()
        self._boot_id = boot_id

    def identity(self) -> Identity:
        me = super().identity()
        return replace(me, boot_id=self._boot_id) if self._boot_id is not None else me


class Left:
    """A directory that another version left, and what was acknowledged in it."""

    def __init__(self, case: Path, path: Path, *, is_restarted: bool) -> None:
        self.told: dict[str, Any] = json.loads(case.with_suffix(".json").read_text())
        with tarfile.open(case.with_suffix(".tar.gz")) as tar:
            tar.extractall(path, filter="data")
        is_restarted = is_restarted or self.told["ended"] == "cut"
        self.path = path
        self.is_restarted = is_restarted
        self.is_sure = not is_restarted or self.told["ended"] == "closed"
        """Must all be there, and not only what was synced?"""
        self.fs = Booted(None if is_restarted else self.told["boot_id"])

    def check(self, found: list[Any], acknowledged: list[Any], synced: int) -> None:
        """All of it, or after a power cut at least what was synced, and nothing else."""
        least = len(acknowledged) if self.is_sure else synced
        assert least <= len(found) <= len(acknowledged)
        assert found == acknowledged[: len(found)]

    def check_repairs(self, repairs: tuple[Repair, ...]) -> None:
        if self.is_sure:
            assert repairs == ()


Unpack = Callable[[Path], Left]


@pytest.fixture(params=["killed", "power cut"])
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Unpack:
    """Unpacks a case."""
    return lambda case: Left(case, tmp_path, is_restarted=request.param == "power cut")


def of(*kinds: str) -> pytest.MarkDecorator:
    cases = [case for case in CASES if json.loads(case.with_suffix(".json").read_text())["kind"] in kinds]
    return pytest.mark.parametrize("case", cases, ids=lambda case: f"{case.parent.name}/{case.name}")


def test_there_is_a_version_with_every_kind() -> None:
    names = {case.name for case in CASES if case.parent.name == "969f1e4"}
    kinds = {name.split("_")[0] for name in names}
    assert kinds == {"queue", "leases", "stream", "transactions", "journal", "shards", "priority", "spool"}
    assert all({f"{kind}_closed", f"{kind}_killed"} <= names for kind in kinds)


def test_there_is_a_version_with_a_redo_log_of_every_kind_that_is_needed() -> None:
    names = {
        case.name for case in CASES if json.loads(case.with_suffix(".json").read_text())["ended"] == "cut"
    }
    assert {name.split("_")[0] for name in names} >= {
        "queue",
        "leases",
        "stream",
        "journal",
        "priority",
        "spool",
    }


def test_there_is_a_version_with_both_logs_in_use_of_every_kind_that_has_two() -> None:
    names = {case.name for case in CASES if case.name.endswith("_both_logs")}
    assert names == {"queue_killed_both_logs", "stream_killed_both_logs", "journal_killed_both_logs"}


# --- whole directories --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_verify_calls_nothing_damage_that_is_none(case: Path, left: Unpack) -> None:
    it = left(case)
    found = [verify(store, fs=it.fs) for store in stores_found(it.path, fs=it.fs)]
    assert found
    assert [each for each in found if each.lost or each.verdict == "damaged"] == []
    if it.told["ended"] == "closed":
        assert [each.findings for each in found if each.verdict != "clean"] == []


# --- their logs ---------------------------------------------------------------------------------------------


OPENERS: dict[str, Callable[[Left], Any]] = {
    "queue": lambda it: diskq.Queue(it.path, it.told["name"], fs=it.fs),
    "stream": lambda it: diskq.Stream(it.path, fs=it.fs),
    "journal": lambda it: diskq.Journal(it.path, fs=it.fs),
}


def logs(path: Path) -> set[bytes]:
    """How the logs that hold something begin."""
    files = [file for file in path.rglob("*") if file.name.endswith(("slate", "wal", "redo"))]
    assert files
    return {file.read_bytes()[:8] for file in files if file.stat().st_size}


@of(*OPENERS)
def test_after_an_open_the_logs_have_the_format_of_this_version(case: Path, left: Unpack) -> None:
    it = left(case)
    with OPENERS[it.told["kind"]](it) as store:
        add = store.put if it.told["kind"] == "queue" else store.append
        add(b"it goes on", durability="synced")
        add(b"and on", durability="synced")
        assert logs(it.path) == {b"diskqlog"}
    assert not list(it.path.rglob("*slate"))


# --- queues -------------------------------------------------------------------------------------------------


def check_queue(it: Left, found: list[str]) -> None:
    told = it.told
    sent = told["sent"]
    start = sent.index(found[0]) if found else len(sent)
    assert told["gone"] <= start <= max(told["taken"], told["gone"])
    it.check(sent[:start] + found, sent, told["synced"])


@of("queue")
def test_a_queue_has_its_messages(case: Path, left: Unpack) -> None:
    it = left(case)
    with diskq.Queue(it.path, it.told["name"], fs=it.fs) as queue:
        it.check_repairs(queue.repairs)
        check_queue(it, [body.decode() for body in queue.peek_many(1000)])
        queue.put(b"it goes on", durability="synced")
    with diskq.Queue(it.path, it.told["name"], fs=it.fs) as queue:
        assert queue.repairs == ()
        assert queue.get_many(1000)[-1] == b"it goes on"


@of("queue")
async def test_a_channel_on_a_queue_has_its_messages(case: Path, left: Unpack) -> None:
    it, found = left(case), []
    async with diskq.open_queue(it.path, it.told["name"], fs=it.fs) as queue:
        it.check_repairs(queue.repairs)
        while queue.depth:
            found.append((await queue.receive()).decode())
    check_queue(it, found)


@of("leases")
def test_work_goes_on_with_what_was_not_acknowledged(case: Path, left: Unpack) -> None:
    it = left(case)
    told = it.told
    with diskq.Queue(it.path, told["name"], fs=it.fs) as queue, diskq.QueueWork(queue) as work:
        it.check_repairs(queue.repairs)
        leases = {lease.body.decode(): lease for lease in work.get_many(1000)}
    wanted = [body for body in told["sent"] if body not in told["acked"]]
    if it.is_sure:
        assert [body for body in wanted if body in leases or body not in told["maybe"]] == list(leases)
    else:
        assert set(leases) <= set(wanted)
        synced = wanted if told["ended"] == "cut" else wanted[:10]
        assert set(synced) - set(told["maybe"]) <= set(leases)
    assert all(leases[body].attempts == 2 for body in told.get("handed", ()))


# --- streams ------------------------------------------------------------------------------------------------


def rows(messages: list[Message]) -> list[list[Any]]:
    return [
        [message.offset, message.key.decode(), message.value.decode(), message.timestamp_ns]
        for message in messages
    ]


def stored(it: Left) -> dict[str, list[list[Any]]]:
    stream = ReadableStream(it.path, fs=it.fs)
    found = {}
    for partition in stream.partitions():
        with stream.open(partition) as reader:
            reader.seek_oldest()
            found[str(partition)] = rows(list(iter(reader.read, None)))
    return found


def check_stream(it: Left, found: dict[str, list[list[Any]]]) -> None:
    assert found.keys() == it.told["partitions"].keys()
    for partition, acknowledged in it.told["partitions"].items():
        it.check(found[partition], acknowledged, it.told["synced"][partition])


@of("stream", "transactions")
def test_a_stream_has_its_messages(case: Path, left: Unpack) -> None:
    it = left(case)
    with diskq.Stream(it.path, fs=it.fs) as stream:
        it.check_repairs(stream.repairs)
        check_stream(it, stored(it))
        place = stream.append(b"it goes on", b"key", durability="synced")
        assert stored(it)[str(place.partition)][-1][2] == "it goes on"
    with diskq.Stream(it.path, fs=it.fs) as stream:
        assert stream.repairs == ()


@of("stream")
async def test_a_consumer_group_goes_on_behind_what_it_committed(case: Path, left: Unpack) -> None:
    it = left(case)
    async with diskq.open_producer(it.path, fs=it.fs):
        pass
    for group, places in it.told["groups"].items():
        first: dict[str, int] = {}
        async with diskq.open_consumer(it.path, group=group, end="close", fs=it.fs) as consumer:
            async for message in consumer:
                first.setdefault(str(message.partition), message.offset)
        wanted = {partition: offset + 1 for partition, offset in places.items()}
        # Behind the last sync: it may be there, and none before it is delivered again.
        assert all(first[partition] >= wanted[partition] for partition in wanted)
        assert first == wanted or case.name == "stream_killed_group"


@of("transactions")
def test_what_is_staged_is_committed_once(case: Path, left: Unpack) -> None:
    it = left(case)
    told = it.told
    with diskq.Stream(it.path, fs=it.fs) as stream:
        last = committed(it.fs, StreamFiles(it.fs, str(it.path)), "sink")
        assert last is not None
        assert last.epoch == told["committed"]
        if "staged" not in told:
            return
        extents = tuple(Extent(**extent) for extent in told["staged"]["extents"])
        staged = StagedFile(told["staged"]["name"], extents)
        assert stream.commit(Transaction("sink", told["committed"] + 1, "query", (staged,)))
        assert not stream.commit(Transaction("sink", told["committed"], "query", ()))
    assert stored(it) == told["then"]


# --- journals -----------------------------------------------------------------------------------------------


def entries(messages: list[JournalMessage]) -> list[list[Any]]:
    return [
        [each.offset, each.key.decode(), each.value.decode(), each.timestamp_ns, each.type]
        for each in messages
    ]


def journaled(path: Path, it: Left) -> list[JournalMessage]:
    with diskq.JournalReader(path, fs=it.fs) as reader:
        reader.seek_oldest()
        return reader.read_many(1000)


@of("journal")
def test_a_journal_has_its_messages(case: Path, left: Unpack) -> None:
    it = left(case)
    with diskq.Journal(it.path, fs=it.fs) as journal:
        it.check_repairs(journal.repairs)
        found = entries(journaled(it.path, it))
        it.check(found, it.told["messages"], it.told["synced"])
        assert journal.append(b"it goes on", durability="synced") == len(found)
    with diskq.Journal(it.path, fs=it.fs) as journal:
        assert journal.repairs == ()


@of("journal")
def test_readers_of_a_journal_are_where_they_were(case: Path, left: Unpack) -> None:
    it = left(case)
    with diskq.Journal(it.path, fs=it.fs):
        pass
    for name, offset in it.told["readers"].items():
        with diskq.JournalReaderOffset(it.path, name, fs=it.fs) as place:
            it.check_repairs(place.repairs)
            # A commit that was not synced may be gone after a power cut.
            assert place.offset == offset or (not it.is_sure and place.offset < offset)


@of("shards")
def test_each_shard_has_its_messages(case: Path, left: Unpack) -> None:
    it = left(case)
    assert sorted(it.told["shards"]) == sorted(path.name for path in it.path.iterdir())
    for name, values in it.told["shards"].items():
        with diskq.Journal(it.path / name, fs=it.fs) as journal:
            it.check_repairs(journal.repairs)
        found = [message.value.decode() for message in journaled(it.path / name, it)]
        it.check(found, values, it.told["synced"][name])


# --- priority stores ----------------------------------------------------------------------------------------


@of("priority")
def test_a_store_has_its_messages_in_their_order(case: Path, left: Unpack) -> None:
    it = left(case)
    told = it.told
    with diskq.PriorityStore(it.path, fs=it.fs) as store:
        it.check_repairs(store.repairs)
        assert {info.name for info in store.queues()} == set(told["queues"])
        for name, acknowledged in told["queues"].items():
            maybe = told["maybe"].get(name, [])
            records = store.get_many(store.queue(name), 1000)
            found = [[record.priority, record.id, record.body.decode()] for record in records]
            ids = {record.id for record in records}
            assert found == [row for row in acknowledged if row[1] in ids]
            must = {row[1] for row in acknowledged} if it.is_sure else set(told["synced"][name])
            assert must - set(maybe) <= ids


# --- spools -------------------------------------------------------------------------------------------------


@of("spool")
async def test_a_spool_delivers_the_rest(case: Path, left: Unpack) -> None:
    it = left(case)
    told = it.told
    got: list[str] = []
    attempts: list[int] = []

    async def deliver(batch: diskq.Batch) -> None:
        await trio.lowlevel.checkpoint()
        attempts.append(batch.attempts)
        got.extend(body.decode() for body in batch)

    async with diskq.open_spool(it.path, deliver, max_messages=3, fs=it.fs) as spool:
        it.check_repairs(spool.repairs)
        letters = [letter.body.decode() for letter in await spool.dead_letters.list()]
        assert letters == told["letters"]
        await spool.drained()
    # What was delivered is known of in the page cache, so a kill repeats nothing.
    start = told["sent"].index(got[0])
    assert start == told["delivered"] if it.is_sure else start <= told["delivered"]
    it.check(told["sent"][:start] + got, told["sent"], told["synced"])
    if it.is_sure:
        assert attempts[0] == told["attempts"] + 1

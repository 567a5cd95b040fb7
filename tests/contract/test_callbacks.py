# Functions that a program passes. Law: an async function in the place of a plain one, or the reverse, is
# refused by a TypeError that names it, before a message is lost. It is not called again and again.
from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest

import diskq
from diskq.engine.stream.transactions.transaction import abandon, forget_sinks, sweep_staging
from diskq.hub.replication import replicate
from diskq.storage.callbacks import text_of
from diskq.testing import CrashFS
from diskq.tools.convert.conversion import convert
from diskq.tools.salvage.salvage import salvage
from diskq.tools.stores import stores_at
from diskq.tools.verify.verification import verify
from tests.loops import each_loop


async def asynchronous(*_: object) -> Any:
    raise AssertionError("nobody may run this")


class Asynchronous:
    """An object that is called, and is async."""

    async def __call__(self, *_: object) -> Any:
        raise AssertionError("nobody may run this")


@pytest.fixture
def disk() -> CrashFS:
    fs = CrashFS()
    for path in ("/", "/q", "/w"):
        fs.make_directory_durably(path)
    with diskq.Queue("/q", "events", fs=fs) as queue:
        queue.put_many([b"1", b"2"])
    with diskq.Stream("/s", options=diskq.StreamOptions(partition_count=1), fs=fs) as stream:
        stream.append(b"1")
    abandon("/s", "sink", 1, for_good=True, fs=fs)
    return fs


def store(disk: CrashFS) -> Any:
    (found,) = stores_at("/q", fs=disk)
    return found


def priority_store(disk: CrashFS, function: Any) -> None:
    diskq.PriorityStore("/p", fs=disk, clock=function)


# --- plain ones -----------------------------------------------------------------------------------

PLAIN: dict[str, Callable[[CrashFS, Any], object]] = {
    "clock of a queue": lambda disk, function: diskq.Queue("/q", "events", fs=disk, clock=function),
    "clock of a stream": lambda disk, function: diskq.Stream("/s", fs=disk, clock=function),
    "clock of a journal": lambda disk, function: diskq.Journal("/j", fs=disk, clock=function),
    "clock of a priority store": priority_store,
    "hash": lambda disk, function: diskq.open_shards("/many", fs=disk, hash=function),
    "is_orphan": lambda disk, function: sweep_staging("/s", function, fs=disk),
    "is_over": lambda disk, function: forget_sinks("/s", function, fs=disk),
    "write": lambda disk, function: salvage(store(disk), function, fs=disk),
    "target": lambda disk, function: convert(store(disk), function, "jsonl", fs=disk),
    "progress of convert": lambda disk, function: convert(
        store(disk), "/x.jsonl", "jsonl", fs=disk, progress=function
    ),
    "warn": lambda disk, function: convert(store(disk), "/x.jsonl", "jsonl", fs=disk, warn=function),
    "progress of verify": lambda disk, function: verify(store(disk), fs=disk, progress=function),
}


@pytest.mark.parametrize("function", [asynchronous, partial(asynchronous, 1), Asynchronous()])
@pytest.mark.parametrize("give", PLAIN.items(), ids=PLAIN)
def test_an_async_function_is_refused_where_a_plain_one_is_called(disk, give, function):
    name, call = give
    before = disk.list_directory("/q")
    with pytest.raises(TypeError, match=rf"^{name.split()[0]} .*[Aa]synchronous"):
        call(disk, function)
    assert disk.list_directory("/q") == before


@pytest.mark.parametrize("name", sorted(PLAIN.keys() - {"target"}))
def test_so_is_what_cannot_be_called(disk, name):
    call = PLAIN[name]
    with pytest.raises(TypeError, match=rf"^{name.split()[0]} "):
        call(disk, 7)


@each_loop
async def test_exhausted_is_a_plain_function(disk):
    async with diskq.open_queue("/q", "events", fs=disk) as queue:
        with pytest.raises(TypeError, match=r"exhausted .*asynchronous"):
            async with queue.working(max_attempts=1, exhausted=asynchronous):
                raise AssertionError("not reached")
        assert queue.receive_nowait() == b"1"


@each_loop
async def test_a_message_whose_exhausted_turns_out_to_be_async_stays(disk):
    async with diskq.open_queue("/q", "events", fs=disk) as queue:
        async with queue.working(max_attempts=1, exhausted=lambda lease: asynchronous(lease)) as work:
            with pytest.raises(TypeError, match=r"exhausted .*lambda"):
                work.nack(await work.receive())
        assert queue.depth == 2


@pytest.mark.parametrize("reader", ["queue", "work", "consumer", "scanner", "priority", "merge"])
@each_loop
async def test_an_async_may_take_is_refused(disk, reader):
    async with (
        diskq.open_queue("/q", "events", fs=disk) as queue,
        diskq.open_consumer("/s", fs=disk) as consumer,
        diskq.open_journal("/j", fs=disk) as journal,
        journal.open_scanner() as scanner,
        diskq.open_priority_store("/p", fs=disk) as priorities,
        diskq.open_queue("/w", "jobs", fs=disk) as jobs,
        jobs.working() as work,
    ):
        jobs_queue = priorities.queue()
        for sink in (journal, jobs_queue, jobs):
            await sink.send(b"1")
        merged = diskq.merge(jobs_queue)
        receiver: Any = {
            "queue": queue,
            "work": work,
            "consumer": consumer,
            "scanner": scanner,
            "priority": jobs_queue,
            "merge": merged,
        }[reader]
        with pytest.raises(TypeError, match=r"may_take .*asynchronous"):
            await receiver.receive_if(asynchronous)
        assert receiver.receive_nowait()


@each_loop
async def test_a_lease_is_given_back_where_may_take_raises(disk):
    async with diskq.open_queue("/q", "events", fs=disk) as queue, queue.working() as work:
        with pytest.raises(ZeroDivisionError):
            await work.receive_if(lambda: bool(1 // 0))
        assert (await work.receive()).body == b"1"
        assert work.statistics().in_flight == 1


async def test_on_progress_is_a_plain_function(disk):
    async with diskq.open_queue("/q", "events", fs=disk) as queue:
        with pytest.raises(TypeError, match=r"on_progress .*asynchronous"):
            await replicate(queue, None, "journal", on_progress=asynchronous)  # type: ignore[arg-type]
        assert queue.depth == 2


# --- async ones -----------------------------------------------------------------------------------


def plain(batch: diskq.Batch) -> None:
    plain.batches.append(list(batch))  # type: ignore[attr-defined]


async def generator(batch: diskq.Batch):
    yield batch


@pytest.mark.parametrize("deliver", [plain, partial(plain), generator])
@each_loop
async def test_a_deliver_that_is_not_async_ends_the_block_at_once(disk, deliver):
    plain.batches = []  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"deliver is an async function.*(plain|generator)"):  # noqa: PT012
        async with diskq.open_spool("/spool", deliver, fs=disk, retry_on=Exception) as spool:
            await spool.send(b"1")
            await anyio.sleep(100)
    assert plain.batches in ([], [[b"1"]])  # type: ignore[attr-defined]
    with diskq.Queue("/spool", "spool", fs=disk) as queue:
        assert queue.get_many(10) == [b"1"]


def test_deliver_is_something_to_be_called(disk):
    with pytest.raises(TypeError, match="deliver is an async function, got 7"):
        diskq.open_spool("/spool", 7, fs=disk)  # type: ignore[arg-type]


@each_loop
async def test_what_deliver_itself_raises_as_a_type_error_is_tried_again(disk):
    tries = 0

    async def deliver(batch: diskq.Batch) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise TypeError("of the program's own")

    async with diskq.open_spool("/spool", deliver, fs=disk, backoff_initial=0.001) as spool:
        await spool.send(b"1")
        await spool.drained()
    assert tries == 3


# --- texts of others ------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


def test_an_object_whose_str_fails_gets_a_text():
    assert text_of(ValueError("x")) == "x"
    assert text_of(Mute()) == "<Mute, whose str() failed: ZeroDivisionError>"
    with suppress(diskq.Permanent):
        raise diskq.Permanent(Mute())

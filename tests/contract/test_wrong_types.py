# Arguments of the wrong type. Law: the public call that is given one raises TypeError, ValueError or an error
# of diskq's, with a text, before anything is changed; never an AttributeError from inside.

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

import diskq
from diskq.engine.stream.reader import ReadableStream
from diskq.errors import DiskqError
from diskq.testing import CrashFS
from tests.contract.channels import disk, left
from tests.contract.kinds import Kind, engines
from tests.loops import each_loop

WRONG = [object(), "text", None, 1.5, [object()], {}, -1]

Call = Callable[[Any], object]
Calls = dict[str, Call]


def unexpected(name: str, call: Call) -> Iterator[str]:
    """What `call` raises for wrong arguments beyond what a caller can expect."""
    for wrong in WRONG:
        try:
            call(wrong)
        except (TypeError, ValueError, OverflowError, DiskqError, OSError) as raised:
            if not str(raised):
                yield f"{name}({wrong!r}): no text"
        except Exception as raised:
            yield f"{name}({wrong!r}): {raised!r}"


def queue_calls(queue: diskq.Queue) -> Calls:
    return {
        "put": queue.put,
        "put, durability": lambda wrong: queue.put(b"x", durability=wrong),
        "put_many": queue.put_many,
        "get_many": queue.get_many,
        "get_many, bytes": lambda wrong: queue.get_many(1, max_bytes=wrong),
        "peek_many": queue.peek_many,
        "advance": queue.advance,
        "QueueWork": diskq.QueueWork,
    }


def work_calls(queue: diskq.Queue, opened: ExitStack) -> Calls:
    work = opened.enter_context(diskq.QueueWork(queue))
    return {
        "ack": work.ack,
        "nack": work.nack,
        "nack, delay": lambda wrong: work.nack([], wrong),
        "release": work.release,
        "get_many": work.get_many,
    }


def spool_calls(spool: diskq.Spool) -> Calls:
    return {
        "put": spool.put,
        "put, timeout": lambda wrong: spool.put(b"x", True, wrong),
        "put, durability": lambda wrong: spool.put(b"x", durability=wrong),
        "put_nowait": spool.put_nowait,
        "put_many": spool.put_many,
        "put_many, durability": lambda wrong: spool.put_many([b"x"], durability=wrong),
    }


def stream_calls(stream: diskq.Stream) -> Calls:
    return {
        "append": stream.append,
        "append, key": lambda wrong: stream.append(b"x", wrong),
        "append, timestamp": lambda wrong: stream.append(b"x", b"k", wrong),
        "append, durability": lambda wrong: stream.append(b"x", durability=wrong),
        "append_many": stream.append_many,
        "append_many, item": lambda wrong: stream.append_many([wrong]),
        "append_many, key": lambda wrong: stream.append_many([(wrong, b"x")]),
        "append_many, timestamp": lambda wrong: stream.append_many([(b"k", b"x", wrong)]),
        "commit": stream.commit,
        "partition_of": stream.partition_of,
    }


def journal_calls(journal: diskq.Journal) -> Calls:
    return {
        "append": journal.append,
        "append, key": lambda wrong: journal.append(b"x", wrong),
        "append, timestamp": lambda wrong: journal.append(b"x", b"k", wrong),
        "append, type": lambda wrong: journal.append(b"x", b"k", None, wrong),
        "append_many": journal.append_many,
        "append_many, item": lambda wrong: journal.append_many([wrong]),
        "append_many, type": lambda wrong: journal.append_many([(b"k", b"x", 1, wrong)]),
        "append_encoded": journal.append_encoded,
    }


def priority_calls(store: diskq.PriorityStore) -> Calls:
    queue = store.queue()
    return {
        "put, queue": lambda wrong: store.put(wrong, b"x"),
        "put": lambda wrong: store.put(queue, wrong),
        "put, priority": lambda wrong: store.put(queue, b"x", wrong),
        "put_many, queue": lambda wrong: store.put_many(wrong, [b"x"]),
        "put_many": lambda wrong: store.put_many(queue, wrong),
        "put_many, priority": lambda wrong: store.put_many(queue, [b"x"], wrong),
        "get": store.get,
        "get_many, queue": lambda wrong: store.get_many(wrong, 1),
        "get_many": lambda wrong: store.get_many(queue, wrong),
        "peek": store.peek,
        "ack, queue": lambda wrong: store.ack(wrong, store.get(queue) or wrong),
        "ack": lambda wrong: store.ack(queue, wrong),
        "ack_many, queue": lambda wrong: store.ack_many(wrong, []),
        "ack_many": lambda wrong: store.ack_many(queue, wrong),
        "nack, queue": lambda wrong: store.nack(wrong, store.get(queue) or wrong),
        "nack": lambda wrong: store.nack(queue, wrong),
        "nack_many, queue": lambda wrong: store.nack_many(wrong, []),
        "nack_many": lambda wrong: store.nack_many(queue, wrong),
        "info": store.info,
        "queue": store.queue,
        "create_queue": store.create_queue,
        "create_queue, implementation": lambda wrong: store.create_queue("a", implementation=wrong),
        "create_queue, max_messages": lambda wrong: store.create_queue("b", max_messages=wrong),
        "create_queue, priority_range": lambda wrong: store.create_queue("c", priority_range=(wrong, wrong)),
        "delete_queue": store.delete_queue,
    }


@pytest.mark.parametrize("kind", engines("spool"), ids=str)
def test_an_engine_names_the_wrong_argument(kind: Kind) -> None:
    fs = CrashFS()
    fs.make_directory_durably("/d")
    with ExitStack() as opened:
        engine = opened.enter_context(kind.open("/d", fs=fs)).engine
        calls: dict[str, Callable[[], Calls]] = {
            "queue": lambda: queue_calls(engine),
            "stream": lambda: stream_calls(engine),
            "journal": lambda: journal_calls(engine),
            "priority": lambda: priority_calls(engine),
            "threaded spool": lambda: spool_calls(engine),
        }
        if kind.name == "leases":
            opened.close()
            queue = opened.enter_context(diskq.Queue("/d", "events", fs=fs))
            made = work_calls(queue, opened)
        else:
            made = calls[kind.name]()
        assert [found for name, call in made.items() for found in unexpected(name, call)] == []


def test_a_reader_names_the_wrong_argument() -> None:
    fs = disk()
    stream = ReadableStream("/s", fs=fs)
    with (
        stream.open(0) as reader,
        diskq.JournalReader("/j", fs=fs) as journal,
        diskq.JournalReaderOffset("/j", "r", fs=fs) as offset,
        diskq.JournalTimes("/j", fs=fs) as times,
    ):
        calls: Calls = {
            "open": stream.open,
            "seek, reader": lambda wrong: stream.seek(wrong, 0, "oldest"),
            "seek, partition": lambda wrong: stream.seek(reader, wrong, "oldest"),
            "seek, start": lambda wrong: stream.seek(reader, 0, wrong),
            "seek_moment, reader": lambda wrong: stream.seek_moment(wrong, 0, 1),
            "seek_moment": lambda wrong: stream.seek_moment(reader, 0, wrong),
            "seek in a partition": reader.seek,
            "read_many": reader.read_many,
            "columns": reader.columns,
            "seek in a journal": journal.seek,
            "read_many of a journal": journal.read_many,
            "read_back": journal.read_back,
            "commit": offset.commit,
            "offset_after": times.offset_after,
            "offset_at_or_after": times.offset_at_or_after,
        }
        assert [found for name, call in calls.items() for found in unexpected(name, call)] == []


@each_loop
async def test_a_channel_names_the_wrong_argument() -> None:
    async def never(batch: diskq.Batch) -> None:
        await anyio.sleep_forever()

    fs = disk(messages=0)
    async with AsyncExitStack() as opened:
        enter = opened.enter_async_context
        queue = await enter(diskq.open_queue("/q", "events", fs=fs))
        spare = await enter(diskq.open_queue("/q", "spare", fs=fs))
        work = await enter(spare.working())
        producer = await enter(diskq.open_producer("/s", fs=fs))
        consumer = await enter(diskq.open_consumer("/s", group="g", fs=fs))
        journal = await enter(diskq.open_journal("/j", fs=fs))
        scanner = await enter(diskq.open_scanner("/j", reader="r", fs=fs))
        store = await enter(diskq.open_priority_store("/jobs", fs=fs))
        jobs = store.queue()
        spool = await enter(diskq.open_spool("/spool", never, fs=fs))
        calls: Calls = {
            **{f"send {its}": its.send for its in (queue, producer, journal, jobs, spool)},
            **{f"send_many {its}": its.send_many for its in (queue, producer, journal, jobs, spool)},
            **{f"send_nowait {its}": its.send_nowait for its in (queue, producer, journal, jobs, spool)},
            **{f"receive_many {its}": its.receive_many for its in (queue, consumer, scanner, jobs, work)},
            "send, durability": lambda wrong: queue.send(b"x", durability=wrong),
            "receive_many, bytes": lambda wrong: queue.receive_many(1, max_bytes=wrong),
            "receive_many, linger": lambda wrong: queue.receive_many(1, linger=wrong),
            "receive_if": queue.receive_if,
            "send, key": lambda wrong: producer.send(b"x", key=wrong),
            "send, timestamp": lambda wrong: producer.send(b"x", timestamp=wrong),
            "send_many, item": lambda wrong: producer.send_many([wrong]),
            "commit": consumer.commit,
            "seek": consumer.seek,
            "seek, partition": lambda wrong: consumer.seek("oldest", partition=wrong),
            "seek, mapping": lambda wrong: consumer.seek({0: wrong}),
            "commit of a scanner": scanner.commit,
            "seek of a scanner": scanner.seek,
            "send, priority": lambda wrong: jobs.send(b"x", priority=wrong),
            "ack": jobs.ack,
            "ack_nowait": jobs.ack_nowait,
            "nack": jobs.nack,
            "queue": store.queue,
            "create_queue": store.create_queue,
            "delete_queue": store.delete_queue,
            "ack a lease": work.ack,
            "nack a lease": work.nack,
            "release a lease": work.release,
        }
        found = []
        for name, call in calls.items():
            for wrong in WRONG:
                with anyio.move_on_after(0.05):
                    try:
                        result = call(wrong)
                        if inspect.isawaitable(result):
                            await result
                    except (TypeError, ValueError, OverflowError, DiskqError, OSError, diskq.WouldBlock):
                        pass
                    except Exception as raised:
                        found.append(f"{name}({wrong!r}): {raised!r}")
        assert found == []


@pytest.mark.parametrize(
    "kind", [diskq.SpoolOptions, diskq.ReplicationOptions], ids=lambda kind: kind.__name__
)
def test_options_of_a_delivery_name_the_wrong_one(kind: type[Any]) -> None:
    for field in dataclasses.fields(kind):
        for wrong in [*WRONG, b"x", math.nan]:
            is_right = (wrong is None and "None" in field.type) or (wrong == 1.5 and "float" in field.type)
            if is_right or field.type == "bool":
                kind(**{field.name: wrong})
            else:
                with pytest.raises((TypeError, ValueError), match=field.name):
                    kind(**{field.name: wrong})


async def deliver(batch: diskq.Batch) -> None: ...


OPENERS: dict[str, Call] = {
    "queue": lambda options: diskq.open_queue("/q", "events", options=options),
    "producer": lambda options: diskq.open_producer("/s", options=options),
    "consumer": lambda options: diskq.open_consumer("/s", options=options),
    "journal": lambda options: diskq.open_journal("/j", options=options),
    "scanner": lambda options: diskq.open_scanner("/j", options=options),
    "shards": lambda options: diskq.open_shards("/many", "p", 1, options=options),
    "scanner of shards": lambda options: diskq.open_shard_scanner("/many", "p", 1, options=options),
    "priority store": lambda options: diskq.open_priority_store("/jobs", options=options),
    "spool": lambda options: diskq.open_spool("/spool", deliver, options=options),
}


@pytest.mark.parametrize("name", OPENERS)
def test_options_of_another_kind_are_refused(name: str) -> None:
    for wrong in [value for value in [*WRONG, "", (), diskq.HubOptions()] if value is not None]:
        with pytest.raises(TypeError, match=r"options are \w+Options, not"):
            OPENERS[name](wrong)


def test_a_spool_is_given_a_function_that_delivers() -> None:
    for wrong in WRONG:
        with pytest.raises(TypeError, match="deliver is an async function, got"):
            diskq.open_spool("/spool", wrong)  # type: ignore[arg-type]


@each_loop
async def test_of_places_to_commit_all_are_looked_at_before_the_first_is_committed() -> None:
    fs = disk()
    async with diskq.open_consumer("/s", group="g", fs=fs) as consumer:
        message = await consumer.receive()
        with pytest.raises(TypeError, match="commit is given messages that were received, got Message, int"):
            await consumer.commit(message, 3)  # type: ignore[arg-type]
    async with diskq.open_consumer("/s", group="g", fs=fs) as consumer:
        assert (await consumer.receive()).offset == message.offset


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda root: diskq.QueueWork(3), "queue is a Queue, got int"),  # type: ignore[arg-type]
        (lambda root: diskq.JournalReader(root).seek(1.5), "offset is a whole number, got float"),  # type: ignore[arg-type]
        (lambda root: diskq.JournalReader(root).seek(True), "offset is a whole number, got bool"),
    ],
)
def test_the_text_says_what_is_wanted(call: Callable[[Path], object], text: str, tmp_path: Path) -> None:
    diskq.Journal(tmp_path).close()
    with pytest.raises(TypeError, match=text):
        call(tmp_path)


def test_nothing_was_changed_by_them(tmp_path: Path) -> None:
    fs = disk()
    before = left(fs)
    with diskq.PriorityStore("/jobs", fs=fs) as store, pytest.raises(TypeError, match="got NoneType"):
        store.put_many(None, [b"x"])  # type: ignore[arg-type]
    with diskq.Stream("/s", fs=fs) as stream, pytest.raises(TypeError, match="transaction is a Transaction"):
        stream.commit(b"x")  # type: ignore[arg-type]
    assert left(fs) == before

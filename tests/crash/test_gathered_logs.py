# Sends to a log that share a write, on a disk that fails at every moment. Law: a send that returned has its
# message in the log, once, where it was told, whatever the power does; one that raised has not; and the log
# goes on.

from __future__ import annotations

from typing import Any

import pytest
import trio

import diskq
from diskq.channels.core import gathering, sender_line
from diskq.channels.core import sending_loop as sendingloop
from diskq.channels.journal import writer as journal
from diskq.channels.stream import loop as streamloop
from diskq.testing import CrashFS, FaultFS
from tests.channels import rig as queues
from tests.crash import failing_writes as failingwrites
from tests.crash.failing_writes import LATE_WRITES, Plan
from tests.crash.mutations import Mutation
from tests.engine import journals, streams

Place = int | diskq.Position | bytes
Told = dict[bytes, Place | Exception]

LAST = (b"at the end", b"behind it")

PLANS: dict[str, Plan] = {
    **failingwrites.PLANS,
    "EIO, twice": lambda disk, data, nth: disk.fail("pwrite", nth, path=data, times=2),
    "EIO, from then on": lambda disk, data, nth: disk.fail("pwrite", nth, path=data, times=30),
}


class JournalLog:
    data = f"{journals.ROOT}/jnl/*"
    fastest: diskq.Durability = "written"

    def opened(self, disk: FaultFS[CrashFS], segment_size: int) -> Any:
        return diskq.open_journal(journals.ROOT, segment_size=segment_size, fs=disk)

    def found(self, disk: CrashFS) -> dict[Place, bytes]:
        journals.opened(disk).close()  # what only the redo log holds is put in place
        return {message.offset: message.value for message in journals.read_all(disk)}


class StreamLog:
    data = "*.data"
    fastest: diskq.Durability = "written"

    def opened(self, disk: FaultFS[CrashFS], segment_size: int) -> Any:
        return diskq.open_producer(streams.ROOT, partition_count=2, segment_size=segment_size, fs=disk)

    def found(self, disk: CrashFS) -> dict[Place, bytes]:
        streams.opened(disk).close()  # rows that were not synced are made again
        return {
            diskq.Position(partition, offset): value
            for partition, triples in streams.held(disk).items()
            for offset, (_, _, value) in enumerate(triples)
        }


class QueueLog:
    """Its messages have no place: one stands for itself.

    A `written` one is written after its send has returned, so that a failure breaks the queue, and no sender
    hears of it: tests/channels/queue/test_failures.py.
    """

    data = "*.dat"
    fastest: diskq.Durability = "synced"

    def opened(self, disk: FaultFS[CrashFS], segment_size: int) -> Any:
        disk.inner.make_directory_durably("/q")
        return diskq.open_queue("/q", "events", segment_size=segment_size, fs=disk)

    def found(self, disk: CrashFS) -> dict[Place, bytes]:
        bodies = queues.left_in(disk)
        assert len(bodies) == len(set(bodies)), "each is in once"
        return {body: body for body in bodies}


Log = JournalLog | StreamLog | QueueLog
LOGS: dict[str, Log] = {"journal": JournalLog(), "stream": StreamLog(), "queue": QueueLog()}


async def send_all(log: Log, plan: Plan, nth: int, segment_size: int) -> tuple[Told, CrashFS]:
    """What many senders were told while the disk failed, and what the power leaves when they have heard."""
    disk = FaultFS(CrashFS())
    told: Told = {}

    async def send(writer: Any, value: bytes, key: bytes | None, word: diskq.Durability = "synced") -> None:
        try:
            if isinstance(log, QueueLog):
                await writer.send(value, durability=word)
                told[value] = value
            else:
                told[value] = await writer.send(value, key, durability=word)
        except (diskq.DiskFullError, OSError) as failure:
            told[value] = failure

    async with log.opened(disk, segment_size) as writer:
        await send(writer, b"first", b"key")
        plan(disk, log.data, nth)
        for turn in range(3):
            async with trio.open_nursery() as nursery:
                for number in range(12):
                    value = b"%d %d" % (turn, number) + b"." * (number * 9 % 40)
                    key = b"key-%d" % (number % 5) if number % 4 else None
                    word = log.fastest if turn == 1 and number == 7 else "synced"
                    nursery.start_soon(send, writer, value, key, word)
        disk.heal()
        async with trio.open_nursery() as nursery:
            for value in LAST:
                nursery.start_soon(send, writer, value, None)
        return told, disk.inner.crash()
    raise AssertionError("unreachable")


def fail_everywhere(log: Log, plan: Plan, segment_size: int) -> tuple[int, int]:
    """Returns how many sends were refused in all, and in how many runs some were, and others were not."""
    refused = mixed = 0
    for nth in range(1, 15):
        told, found = trio.run(send_all, log, plan, nth, segment_size)
        assert not any(isinstance(told[value], Exception) for value in LAST)
        places = {place: value for value, place in told.items() if not isinstance(place, Exception)}
        failures = [failure for failure in told.values() if isinstance(failure, Exception)]
        assert len(places) + len(failures) == len(told) == 39, "nobody shares a place"
        assert log.found(found) == places
        assert len(failures) == len(set(map(id, failures))), "each sender has an exception of its own"
        refused += len(failures)
        mixed += 0 < len(failures) < 36
    return refused, mixed


@pytest.mark.parametrize("segment_size", [10_000, 300])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_a_failed_write_is_reported_to_the_senders_of_its_messages(
    log: Log, plan: Plan, segment_size: int
) -> None:
    fail_everywhere(log, plan, segment_size)


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_a_message_is_in_although_another_of_the_same_write_finds_no_space(log: Log) -> None:
    refused, mixed = fail_everywhere(log, PLANS["no room"], 10_000)
    assert refused > 5
    assert mixed > 2


# --- do they bite? --------------------------------------------------------------------------------

GATHERING, ADMITTING, LOOP = gathering.__name__, sender_line.__name__, sendingloop.__name__

MUTATIONS = [
    # A refused sender gets no error; or one whose message is in gets an error.
    Mutation(ADMITTING, "self._refuse_gathered(task, reason)", "pass"),
    Mutation(
        ADMITTING,
        "self.event_loop.wake(task, outcome.Error(failure))",
        "self.event_loop.wake(task)",
    ),
    Mutation(GATHERING, "refused.append((task, failure))", "pass"),
    # What was in is written again.
    Mutation(GATHERING, "if not batch.is_in(number):", "if True:"),
    Mutation(
        journal.__name__,
        "self.places = [*offsets, *[None] * (len(self.messages) - len(offsets))]",
        "self.places = [None] * len(self.messages)",
    ),
    Mutation(streamloop.__name__, "if offset < ends[partition] else None", "if False else None"),
    Mutation(streamloop.__name__, "following[partition] = offset + 1", "pass"),
    # The messages stay in the write-ahead log, and the barrier finds no space for them.
    Mutation(
        LOOP,
        "is_awake, fast.is_awake = fast.is_awake, False",
        "is_awake, fast.is_awake = fast.is_awake, True",
    ),
    # The write comes after the barrier that should cover it.
    *LATE_WRITES,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_weaker_loop_is_caught(mutation: Mutation) -> None:
    with mutation.installed(), pytest.raises(Exception):  # noqa: B017, PT011, PT012
        for plan in PLANS.values():
            for log in LOGS.values():
                for segment_size in (300, 10_000):
                    fail_everywhere(log, plan, segment_size)

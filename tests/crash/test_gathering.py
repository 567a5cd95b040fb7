# Sends that share a write, on a disk that fails at every moment. Law: a send that returned has its message in
# the store, once, under the id that it was told, whatever the power does; one that raised has not; and the
# store goes on.

from __future__ import annotations

import pytest
import trio

import diskq
from diskq.channels.core import gathering, sender_line
from diskq.channels.priority import loop as priorityloop
from diskq.testing import CrashFS, FaultFS
from tests.crash import failing_writes as failingwrites
from tests.crash.failing_writes import LATE_WRITES, Plan
from tests.crash.mutations import Mutation
from tests.engine import stores

Told = dict[bytes, int | Exception]

LOG = "*.log"
QUEUES = ("", "mail")

PLANS: dict[str, Plan] = {
    **failingwrites.PLANS,
    # Between two of them the end marker is written where the first one began.
    "EIO, twice": lambda disk, log, nth: [disk.fail("pwrite", nth + 2 * k, path=log) for k in range(2)],
    "EIO, from then on": lambda disk, log, nth: [
        disk.fail("pwrite", nth + 2 * k, path=log) for k in range(12)
    ],
    "room for some": lambda disk, _, nth: disk.capacity(nth * 40),
}


async def send_all(disk: FaultFS[CrashFS], plan: Plan, nth: int, segment_size: int) -> tuple[Told, CrashFS]:
    """What many senders were told while the disk failed, and what the power leaves when they have heard."""
    told: Told = {}

    async def send(queue: diskq.PriorityQueueChannel, payload: bytes, key: int) -> None:
        try:
            told[payload] = await queue.send(payload, key, durability="synced")
        except (diskq.DiskFullError, OSError) as failure:
            told[payload] = failure

    options = diskq.PriorityOptions(preallocate=False, soft_limit=segment_size, hard_limit=segment_size)
    async with diskq.open_priority_store(stores.ROOT, options=options, fs=disk) as store:
        queues = {"": store.queue(), "mail": await store.create_queue("mail")}
        plan(disk, LOG, nth)
        for turn in range(3):
            async with trio.open_nursery() as nursery:
                for number in range(12):
                    name = QUEUES[number % 3 == 2]
                    payload = b"%s %d %d" % (name.encode(), turn, number) + b"." * (number * 9 % 40)
                    nursery.start_soon(send, queues[name], payload, number % 4)
        disk.heal()
        await send(queues[""], b" at the end", 0)
        return told, disk.inner.crash()
    raise AssertionError("unreachable")


def check(told: Told, found: CrashFS) -> None:
    assert isinstance(told[b" at the end"], int)
    with stores.opened(found) as store:
        there = {(id, payload) for name in QUEUES for _, payload, id in _drained(store, name)}
    assert there == {(id, payload) for payload, id in told.items() if isinstance(id, int)}
    failures = [failure for failure in told.values() if not isinstance(failure, int)]
    assert len(failures) == len(set(map(id, failures))), "each sender has an exception of its own"


def _drained(store: diskq.PriorityStore, name: str) -> list[tuple[int, bytes, int]]:
    records = store.get_many(store.queue(name), 100)
    assert [(r.priority, r.id) for r in records] == sorted((r.priority, r.id) for r in records)
    return [(record.priority, record.body, record.id) for record in records]


def fail_everywhere(plan: Plan, *, segment_size: int = 10_000) -> tuple[int, int]:
    """Returns how many sends were refused in all, and in how many runs some were, and others were not."""
    refused = mixed = 0
    for nth in range(1, 15):
        disk = stores.failing_disk()
        told, found = trio.run(send_all, disk, plan, nth, segment_size)
        check(told, found)
        failures = sum(not isinstance(id, int) for id in told.values())
        refused += failures
        mixed += 0 < failures < 36
    return refused, mixed


@pytest.mark.parametrize("segment_size", [10_000, 300])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_failed_write_is_reported_to_the_senders_of_its_messages(plan: Plan, segment_size: int) -> None:
    fail_everywhere(plan, segment_size=segment_size)


def test_a_message_is_in_although_another_of_the_same_write_finds_no_space() -> None:
    refused, mixed = fail_everywhere(PLANS["room for some"])
    assert refused > 20
    assert mixed > 5


# --- do they bite? --------------------------------------------------------------------------------

GATHERING, ADMITTING, LOOP = gathering.__name__, sender_line.__name__, priorityloop.__name__

MUTATIONS = [
    # A refused sender is told that its message is in; or it is told together with others, which are in.
    Mutation(ADMITTING, "self._refuse_gathered(task, reason)", "pass"),
    Mutation(GATHERING, "refused.append((task, failure))", "pass"),
    Mutation(GATHERING, "return [(tasks[0], failure)]", "return []"),
    # What was in is written again; or it is not known which of them are in.
    Mutation(GATHERING, "if not batch.is_in(number):", "if True:"),
    Mutation(LOOP, "self.set_id(number, ", "max(0, "),
    # The write comes behind the barrier that was to cover it.
    LATE_WRITES[1],
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_weaker_loop_is_caught(mutation: Mutation) -> None:
    # Trio runs its tasks in another order each time, and not each order shows what is wrong.
    with mutation.installed(), pytest.raises(Exception):  # noqa: B017, PT011, PT012
        for plan in [*PLANS.values()] * 5:
            for segment_size in (300, 10_000):
                fail_everywhere(plan, segment_size=segment_size)

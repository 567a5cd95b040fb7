# The promises of a spool after every crash there is. Law: what was accepted is delivered, waits to be, or is
# a dead letter; in order; and a kill repeats the batch that it interrupted, no more.

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import diskq
from diskq.engine.spool.delivery_cursor import DeliveryCursor
from diskq.engine.spool.files import SpoolStatus
from diskq.options import Durability
from diskq.testing import CrashFS
from tests.crash.harness import PromiseBroken, Report, run_cuts
from tests.crash.mutations import Mutation
from tests.crash.peers import is_left_of
from tests.sampling import stride

PATH = "/spool"
OPTIONS = diskq.QueueOptions(segment_size=3000, sync_every=9, sync_timeout=1000.0)
MAX_ITEMS = 4


def body(number: int) -> bytes:
    return b"%06d" % number + random.Random(number).randbytes(number * 37 % 500)


def number(body: bytes) -> int:
    return int(body[:6])


@dataclass
class Promises:
    """What is known to be true so far. Messages are numbered from 0 in the order in which they were sent."""

    attempted: int = 0
    accepted: int = 0
    synced: int = 0
    delivered: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    """Delivered, or buried, and noted: not to be delivered again after a kill."""
    left_durably: set[int] = field(default_factory=set)
    """The same, and synced."""
    dead: set[int] = field(default_factory=set)
    """Their letters were promised to be durable."""
    again: set[int] = field(default_factory=set)
    """Sent again, or about to be: they may be delivered more than once, and out of order."""
    purged: set[int] = field(default_factory=set)
    """Removed, or about to be."""
    ids: dict[str, bytes] = field(default_factory=dict)
    """Of all that was ever tried."""
    named: dict[int, str] = field(default_factory=dict)
    """The same, by number."""
    head: tuple[int, int] | None = None
    """(the first message of the batch that was tried last and failed, its tries)"""


class Session:
    """A spool in use by somebody who needs no event loop, and the promises it makes."""

    def __init__(self, fs: CrashFS, promises: Promises) -> None:
        self.fs, self.promises = fs, promises
        self.queue = diskq.Queue(PATH, "spool", options=OPTIONS, fs=fs)
        self.letters = diskq.DeadLetters(PATH, fs=fs)
        self.cursor = DeliveryCursor(fs, PATH, self.queue.steps)
        promises.left_durably = set(promises.left)

    def send(self, count: int, durability: Durability) -> None:
        promises = self.promises
        bodies = [body(promises.attempted + i) for i in range(count)]
        promises.attempted += count
        self.queue.put_many(bodies, durability=durability)
        promises.accepted += count
        if not self.queue.unsynced_bytes:
            promises.synced = promises.accepted

    def batch(self) -> diskq.Batch | None:
        bodies = self.queue.steps.head.peek_many(*self.cursor.limits(MAX_ITEMS, 2**40))
        if not bodies:
            return None
        self.cursor.take_batch(bodies)
        batch = self.cursor.begin_try()
        self.promises.head = number(batch[0]), batch.attempts
        for id_, message in zip(batch.ids, batch, strict=True):
            assert self.promises.ids.setdefault(id_, message) == message, "two messages have one id"
            self.promises.named.setdefault(number(message), id_)
        return batch

    def deliver(self) -> None:
        if (batch := self.batch()) is not None:
            self.promises.delivered |= set(map(number, batch))
            self.commit(batch)

    def fail(self) -> None:
        if self.batch() is not None:
            self.remember()

    def reject(self, rng: random.Random) -> None:
        if (batch := self.batch()) is None:
            return
        items = sorted(rng.sample(range(len(batch)), rng.randrange(1, len(batch) + 1)))
        self.letters._add(self.cursor.dead_letters(batch, items, "no"))
        self.promises.dead |= {number(batch[item]) for item in items}
        self.cursor.bury(items)
        self.cursor.do_not_count_failed_try()
        self.remember()
        if len(items) == len(batch):
            self.commit(batch)

    def commit(self, batch: diskq.Batch) -> None:
        gone = self.promises.delivered | self.promises.dead
        self.queue.advance(self.cursor.count)
        self.cursor.commit()
        self.promises.left |= gone
        self.promises.head = None

    def remember(self) -> None:
        self.cursor.barrier(SpoolStatus()).execute(self.fs)

    def sync(self) -> None:
        self.queue.sync()
        self.promises.synced = self.promises.accepted
        self.promises.left_durably = set(self.promises.left)

    def replay(self, rng: random.Random) -> None:
        """As who has the spool open does it."""
        letters = self.letters.list()
        chosen = rng.sample(letters, min(len(letters), 2))
        self.promises.again |= {number(letter.body) for letter in chosen}
        self.promises.left -= self.promises.again
        self.promises.left_durably -= self.promises.again
        self.queue.put_many([letter.body for letter in chosen], durability="synced")
        self.promises.synced = self.promises.accepted
        self.promises.dead -= self.promises.again
        self.letters._remove([letter.id for letter in chosen])

    def purge(self, rng: random.Random) -> None:
        letters = self.letters.list()
        chosen = rng.sample(letters, min(len(letters), 2))
        self.promises.purged |= {number(letter.body) for letter in chosen}
        self.letters.purge([letter.id for letter in chosen])

    def close(self) -> None:
        self.cursor.barrier(SpoolStatus(), is_open=False).execute(self.fs)
        self.cursor.close()
        self.letters.close()
        self.queue.close()
        self.promises.synced = self.promises.accepted
        self.promises.left_durably = set(self.promises.left)


ACTS: list[Callable[[Session, random.Random], object]] = [
    lambda session, rng: session.send(rng.randrange(1, 6), "written"),
    lambda session, rng: session.send(rng.randrange(1, 6), "synced"),
    lambda session, rng: session.deliver(),
    lambda session, rng: session.fail(),
    lambda session, rng: session.reject(rng),
    lambda session, rng: session.sync(),
    lambda session, rng: session.replay(rng),
    lambda session, rng: session.purge(rng),
]
WEIGHTS = [6, 3, 6, 2, 3, 1, 1, 1]


def lifetimes(seed: int, sessions: int = 3, acts: int = 10) -> Callable[[CrashFS, Promises], None]:
    def workload(fs: CrashFS, promises: Promises) -> None:
        rng = random.Random(seed)
        fs.make_directory_durably(PATH)
        for _ in range(sessions):
            session = Session(fs, promises)
            for _ in range(acts):
                rng.choices(ACTS, WEIGHTS)[0](session, rng)
            session.close()

    return workload


def check(outcome: str, fs: CrashFS, promises: Promises, theirs: Sequence[bytes] | None = None) -> None:
    """`theirs`: another program has opened the spool first, and written these messages."""
    is_first = theirs is None
    with (
        diskq.Queue(PATH, "spool", options=OPTIONS, fs=fs) as queue,
        diskq.DeadLetters(PATH, fs=fs) as dead,
        DeliveryCursor(fs, PATH, queue.steps) as cursor,
    ):
        tries, letters = cursor.attempts, dead.list()
        found, ids = still_to_deliver(queue, cursor)
        repairs = queue.repairs
    for id_, message in zip(ids, found, strict=True):
        assert promises.ids.get(id_, message) == message, "an id was given to another message"
    assert set(theirs or ()) <= set(found), "the peer's are lost"
    sent = {body(n): n for n in range(promises.attempted)}
    ours = [(message, id_) for message, id_ in zip(found, ids, strict=True) if message in sent]
    pending = [sent[message] for message, _ in ours]
    strange = set(found) - sent.keys() - set(theirs or ())
    if not is_first:
        strange = {message for message in strange if not any(is_left_of(message, each) for each in sent)}
    assert strange == set(), "altered or invented"

    once = [n for n in pending if n not in promises.again]
    assert not is_first or once == sorted(set(once)), "out of order"
    assert all(letter.body == body(number(letter.body)) for letter in letters), "an altered letter"
    assert len({letter.id for letter in letters}) == len(letters), "a letter is listed twice"

    there = set(pending) | {number(letter.body) for letter in letters}
    promised = promises.accepted if outcome == "kill" else promises.synced
    lost = set(range(promised)) - there - promises.delivered - promises.purged
    assert not lost, f"lost: {lost}"
    assert promises.dead - promises.purged <= there, "a letter was lost"

    known = there | promises.delivered | promises.purged | promises.dead | promises.again
    assert repairs or set(range(min(once, default=0), max(once, default=0))) <= known, "silent"

    gone = promises.left if outcome == "kill" else promises.left_durably
    if outcome == "kill" and promises.head is not None and pending and pending[0] == promises.head[0]:
        assert tries >= promises.head[1], "a try was forgotten"
    if is_first:
        assert not gone & set(once), "delivered again, though it had left"
        for n, (_, id_) in zip(pending, ours, strict=True):
            if n not in promises.again:
                assert promises.named.get(n, id_) == id_, "a message has another id than before"
    check_new_ids(fs.copy(), promises)


def still_to_deliver(queue: diskq.Queue, cursor: DeliveryCursor) -> tuple[list[bytes], list[str]]:
    """All that would be delivered from now on, and the ids. Leaves it there."""
    bodies = queue.peek_many(2**31)
    if not bodies:
        return [], []
    fs_items = cursor.limits(len(bodies), 2**40)[0]
    cursor.take_batch(bodies[:fs_items])
    first = cursor.batch()
    rest = bodies[cursor.count :]
    ends = queue.steps.head.peeked_ends(len(bodies))[cursor.count :]
    return [*first, *rest], [*first.ids, *cursor.ids(rest, ends)]


def check_new_ids(fs: CrashFS, promises: Promises) -> None:
    """What is sent from now on has ids that nothing had."""
    with (
        diskq.Queue(PATH, "spool", options=OPTIONS, fs=fs) as queue,
        DeliveryCursor(fs, PATH, queue.steps) as cursor,
    ):
        there = queue.depth
        queue.put_many([b"%d" % i for i in range(30)])
        bodies = queue.peek_many(2**31)
        ids = cursor.ids(bodies, queue.steps.head.peeked_ends(len(bodies)))
    assert not promises.ids.keys() & set(ids[there:]), "an id was given to another message"


def crash(seed: int, **options: Any) -> Report:
    return run_cuts(lifetimes(seed), check, witness=Promises, **options)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_power_interrupts_the_promises_hold(seed: int) -> None:
    report = crash(seed, every=stride(4), seeds=2)
    assert report.cuts > 30 // stride(1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 2])
def test_going_on_may_be_interrupted_too(seed: int) -> None:
    crash(seed, again=2, every=14, seeds=2)


def two_power_cuts(seed: int) -> None:
    """What the first one lost was delivered and noted; what is sent then has its place, and its looks."""
    fs, rng = CrashFS(), random.Random(seed)
    fs.make_directory_durably(PATH)
    session = Session(fs, Promises())
    session.queue.put_many([b"tick"] * 4)
    session.cursor.take_batch(session.queue.peek_many(4))
    session.cursor.begin_try()
    session.queue.advance(4)
    session.cursor.commit()
    fs = fs.crash(rng)
    session = Session(fs, Promises())
    there = session.queue.depth
    session.queue.put_many([b"tick"] * 4, durability="synced")
    fs = fs.crash(rng)
    with (
        diskq.Queue(PATH, "spool", options=OPTIONS, fs=fs) as queue,
        DeliveryCursor(fs, PATH, queue.steps),
    ):
        assert queue.depth == there + 4, "lost"


def test_a_note_says_nothing_of_what_came_after_it() -> None:
    for seed in range(30):
        two_power_cuts(seed)


# --- do they bite? ------------------------------------------------------------------------------

CURSOR, LETTERS = "diskq.engine.spool.delivery_cursor", "diskq.engine.spool.dead_letters"

MUTATIONS = [
    # What has left is not noted; nor is a try, before it is made.
    Mutation(CURSOR, "self._bodies, self._ends = [], []\n        self._write_note()", "pass"),
    Mutation(CURSOR, "self.attempts += 1\n        self._write_note()", "self.attempts += 1"),
    # A note is believed too little, or too much.
    Mutation(CURSOR, "            self._resume(note)\n", "            pass\n"),
    Mutation(CURSOR, "if note.items and note.head <= queue.head.position < note.end:", "if False:"),
    Mutation(
        CURSOR,
        "queue.head.advance(count)\n        return True",
        "queue.head.advance(len(bodies))\n        return True",
    ),
    # A place that was given out is given out again.
    Mutation(CURSOR, "if state is None or state.is_open or state.tail != tail:", "if state is None:"),
    Mutation(CURSOR, "files=(self._handle,),\n                directories", "directories"),
    # A letter leaves before what becomes of it is durable; or was not durable when its message left.
    Mutation(
        LETTERS,
        '[letter._pack() for letter in dead_letters], durability="synced"',
        "[letter._pack() for letter in dead_letters]",
    ),
    Mutation(LETTERS, '        queue.put_many(stay.values(), durability="synced")\n', ""),
    Mutation(
        LETTERS,
        'queue.put_many(stay.values(), durability="synced")',
        "queue.advance(last + 1)\n        queue.sync()\n        queue.put_many(stay.values())\n"
        "        return",
    ),
    Mutation(LETTERS, "first.setdefault(letter.id, letter)", "first[str(len(first))] = letter"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_weaker_spool_is_caught(mutation: Mutation) -> None:
    def crash_everywhere() -> None:
        for seed in range(30):
            two_power_cuts(seed)
        for seed in (3, *range(3), *range(4, 8)):
            crash(seed, every=3, seeds=2)

    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError)):
        crash_everywhere()

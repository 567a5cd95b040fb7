# Any sequence of calls on priority queues, kills and power cuts, against a model that is a sorted list.
#
# A list of operations, as in test_stateful. Small segments and snapshots often, so that everything happens
# in few operations; all choices are the example's own, so that a failure shrinks and repeats.
#
# What must hold, at every look and after every reopen:
#   - what comes out is the smallest (priority, id) of what is ready;
#   - what was acknowledged as synced, sent or removed, survives everything; what is written, a kill;
#   - what survives of the rest are the effects of a prefix of the commands;
#   - what is in hand comes back in its place.

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio
import trio.testing
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

import diskq
from tests.channels import lives
from tests.channels.lives import MEMORY_FLUSH, REOPENS, SYNC_TIMEOUT, WORDS, Reopen, left_by, settled
from tests.channels.rig import crash_disk
from tests.engine import stores
from tests.sampling import examples

NAMES = ["", "a", "b"]

# --- the operations -----------------------------------------------------------------------------------

KEYS = st.integers(-2, 2)
SIZES = st.sampled_from([0, 1, 30, 200])
QUEUES = st.sampled_from(NAMES)


@dataclass(frozen=True)
class Send:
    queue: str
    messages: list[tuple[int, int]]
    """Keys and sizes."""
    word: str
    how: str  # "many", "one by one", "nowait", "cancelled"


@dataclass(frozen=True)
class SendTogether:
    """Senders that wait for stable storage; each comes while the one before it still waits."""

    queue: str
    keys: list[int]


@dataclass(frozen=True)
class Take:
    queue: str
    most: int
    how: str  # "await", "nowait", "peek", "cancelled"


@dataclass(frozen=True)
class Settle:
    """Of what is in hand, some."""

    which: list[int]
    how: str  # "ack", "nack", "ack_nowait", "cancelled"
    word: str


@dataclass(frozen=True)
class Block:
    queue: str
    ends: str  # "ack", "abort", "cancelled"


@dataclass(frozen=True)
class WaitThenSend:
    """Receivers wait, perhaps some are cancelled, and messages come."""

    queue: str
    receivers: int
    cancelled: int
    keys: list[int]


@dataclass(frozen=True)
class Alter:
    """Create the queue where it is not there, delete it where it is."""

    queue: str
    word: str
    is_cancelled: bool


@dataclass(frozen=True)
class Snapshot:
    is_cancelled: bool


@dataclass(frozen=True)
class Sync:
    is_cancelled: bool


@dataclass(frozen=True)
class Yield:
    seconds: float


HOW_SENT = st.sampled_from(["many", "many", "one by one", "nowait", "cancelled"])
SENDS = st.builds(Send, QUEUES, st.lists(st.tuples(KEYS, SIZES), min_size=1, max_size=6), WORDS, HOW_SENT)
TAKES = st.builds(
    Take, QUEUES, st.integers(1, 5), st.sampled_from(["await", "await", "nowait", "peek", "cancelled"])
)
SETTLES = st.builds(
    Settle,
    st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True),
    st.sampled_from(["ack", "ack", "ack_nowait", "nack", "cancelled"]),
    WORDS,
)
OPERATIONS = st.one_of(
    # As often as they are listed: messages come faster than they go.
    *(SENDS, SENDS, SENDS, SENDS, TAKES, TAKES, SETTLES, SETTLES),
    st.builds(SendTogether, QUEUES, st.lists(KEYS, min_size=2, max_size=5)),
    st.builds(Block, QUEUES, st.sampled_from(["ack", "ack", "abort", "cancelled"])),
    st.builds(
        WaitThenSend, QUEUES, st.integers(1, 3), st.integers(0, 3), st.lists(KEYS, min_size=0, max_size=4)
    ),
    st.builds(Alter, st.sampled_from(NAMES[1:]), WORDS, st.sampled_from([False, False, True])),
    st.builds(Snapshot, st.sampled_from([False, False, True])),
    st.builds(Sync, st.sampled_from([False, False, True])),
    st.builds(Yield, st.sampled_from([0.0, MEMORY_FLUSH, SYNC_TIMEOUT])),
    *(REOPENS, REOPENS),
)
OPTIONS = st.fixed_dictionaries(
    {
        "durability": WORDS,
        "soft_limit": st.sampled_from([0, 300, 100_000]),
        "hard_limit": st.sampled_from([0, 500, 100_000]),
        "snapshot_segments": st.sampled_from([1, 2, 1000]),
        "sync_every": st.sampled_from([1, 5, 2500]),
        "checkpoint_slice": st.sampled_from([0, 100e-6, 60.0]),
        "max_unsynced": st.sampled_from([400, 100_000]),
        "layout": st.sampled_from(["aligned", "document"]),
        "preallocate": st.booleans(),
    }
)

# --- the model ----------------------------------------------------------------------------------------

Held = dict[str, dict[int, tuple[int, bytes]]]
"""By queue, by id: key and payload, in hand or not."""


@dataclass
class Model:
    """Every command since the open, and how many of them are durable at least."""

    begin: Held = field(default_factory=lambda: {"": {}})
    last_ids: dict[str, int] = field(default_factory=lambda: {"": 0})
    commands: list[tuple[Any, ...]] = field(default_factory=list)
    now: Held = field(default_factory=lambda: {"": {}})
    in_hand: dict[tuple[str, int], diskq.PriorityRecord] = field(default_factory=dict)
    written: int = 0
    synced: int = 0
    made: int = 0

    def make(self, size: int) -> bytes:
        self.made += 1
        return (b"%d." % self.made).ljust(size, b"x") if size else b""

    def ready(self, queue: str) -> list[tuple[int, int, bytes]]:
        """(key, id, payload), as they are to come out."""
        records = self.now.get(queue, {}).items()
        return sorted(
            (key, number, payload)
            for number, (key, payload) in records
            if (queue, number) not in self.in_hand
        )

    def did(self, command: tuple[Any, ...], word: str) -> None:
        apply(self.now, command)
        self.commands.append(command)
        if word != "memory":
            self.written = len(self.commands)
        if word == "synced":
            self.synced = self.written

    def sent(self, queue: str, ids: range, keys: list[int], payloads: list[bytes], word: str) -> None:
        assert list(ids) == list(range(self.last_ids[queue] + 1, self.last_ids[queue] + 1 + len(keys)))
        self.last_ids[queue] += len(keys)
        for number, key, payload in zip(ids, keys, payloads, strict=True):
            self.did(("add", queue, number, key, payload), word)

    def took(self, queue: str, records: list[diskq.PriorityRecord]) -> None:
        expected = self.ready(queue)[: len(records)]
        assert [(record.priority, record.id, record.body) for record in records] == expected
        for record in records:
            self.in_hand[queue, record.id] = record

    def acked(self, place: tuple[str, int], word: str) -> None:
        del self.in_hand[place]
        self.did(("remove", *place), word)

    def reopened(self, how: str, found: Held) -> None:
        """After a reopen `found` is in the store; was that allowed?"""
        least = {"close": len(self.commands), "kill": self.written, "power cut": self.synced}[how]
        state = {queue: dict(records) for queue, records in self.begin.items()}
        for command in self.commands[:least]:
            apply(state, command)
        lost = len(self.commands) - least
        for command in self.commands[least:]:
            if state == found:
                break
            apply(state, command)
            lost -= 1
        assert state == found, f"after a {how}, {least} of these are certain: {self.commands}"
        event(f"{how}: {'some' if lost else 'nothing'} lost")
        self.begin, self.now = found, {queue: dict(records) for queue, records in found.items()}
        self.commands, self.in_hand = [], {}
        self.written = self.synced = 0


def apply(state: Held, command: tuple[Any, ...]) -> None:
    what, queue, *rest = command
    if what == "add":
        number, key, payload = rest
        state[queue][number] = (key, payload)
    elif what == "remove":
        del state[queue][rest[0]]
    elif what == "create":
        state[queue] = {}
    else:
        del state[queue]


# --- one example --------------------------------------------------------------------------------------


class Run:
    """One store, through all its opens."""

    def __init__(self, options: dict[str, Any], clock: trio.testing.MockClock) -> None:
        self.clock = clock
        self.disk = crash_disk()
        self.options = {"memory_flush": MEMORY_FLUSH, "sync_timeout": SYNC_TIMEOUT, **options}
        self.model = Model()
        self.store: diskq.PriorityStoreChannel

    async def example(self, operations: list[Any]) -> None:
        rest = list(operations)
        while (ending := await self.session(rest)) is not None:
            self.model.reopened(ending.how, self.look())

    async def session(self, rest: list[Any]) -> Reopen | None:
        """From an open to the next crash or close; the last one ends cleanly."""
        after = self.disk
        ending: Reopen | None = None
        async with diskq.open_priority_store(stores.ROOT, fs=self.disk, **self.options) as self.store:
            self.compare()
            while rest:
                operation = rest.pop(0)
                if isinstance(operation, Reopen):
                    await settled()
                    ending = operation
                    after = left_by(operation.how, self.disk, operation.seed)
                    break
                await getattr(self, type(operation).__name__)(operation)
                self.compare()
        self.disk = after
        if ending is None:
            self.model.reopened("close", self.look())
        return ending

    def compare(self) -> None:
        infos = {info.name: info for info in self.store.queues()}
        assert infos.keys() == self.model.now.keys()
        for name, info in infos.items():
            in_hand = sum(queue == name for queue, _ in self.model.in_hand)
            assert (info.stored, info.in_flight) == (len(self.model.now[name]), in_hand)
            assert info.ready == info.stored - in_hand

    def look(self) -> Held:
        """Return what is in the store, which is not open."""
        options = {name: self.options[name] for name in ("layout", "soft_limit", "hard_limit")}
        with stores.opened(self.disk.copy(), **options) as store:
            found = stores.state(store)
        self.model.last_ids = {name: queue.last_id for name, queue in found.items()}
        return {name: dict(queue.records) for name, queue in found.items()}

    def queue(self, name: str) -> diskq.PriorityQueueChannel | None:
        if name in self.model.now:
            return self.store.queue(name)
        try:
            self.store.queue(name)
        except diskq.NotFoundError:
            return None
        raise AssertionError("it should not be there")

    async def Send(self, operation: Send) -> None:  # noqa: N802
        queue = self.queue(operation.queue)
        if queue is None:
            return
        keys = [key for key, _ in operation.messages]
        payloads = [self.model.make(size) for _, size in operation.messages]
        word: Any = operation.word
        if operation.how == "one by one":
            for key, payload in zip(keys, payloads, strict=True):
                number = await queue.send(payload, key, durability=word)
                self.model.sent(operation.queue, range(number, number + 1), [key], [payload], word)
        elif operation.how == "nowait":
            default = "memory" if self.options["durability"] == "memory" else "written"
            for key, payload in zip(keys, payloads, strict=True):
                try:
                    number = queue.send_nowait(payload, key)
                except trio.WouldBlock:
                    assert self.options["max_unsynced"] < 100_000
                    break
                self.model.sent(operation.queue, range(number, number + 1), [key], [payload], default)
        else:
            with trio.CancelScope() as scope:
                if operation.how == "cancelled":
                    scope.cancel()
                ids = await queue.send_many(zip(keys, payloads, strict=True), durability=word)
                self.model.sent(operation.queue, ids, keys, payloads, word)
            assert scope.cancelled_caught == (operation.how == "cancelled")
        if self.options["durability"] == "synced" and operation.how == "nowait":
            await self.store.sync()  # they are hidden till then
            self.model.written = self.model.synced = len(self.model.commands)

    async def SendTogether(self, operation: SendTogether) -> None:  # noqa: N802
        queue = self.queue(operation.queue)
        if queue is None:
            return
        sent: list[tuple[int, int, bytes]] = []

        async def send(key: int, payload: bytes) -> None:
            sent.append((await queue.send(payload, key, durability="synced"), key, payload))

        async with trio.open_nursery() as nursery:
            for key in operation.keys:
                nursery.start_soon(send, key, self.model.make(20))
                await trio.lowlevel.checkpoint()
        for number, key, payload in sorted(sent):
            self.model.sent(operation.queue, range(number, number + 1), [key], [payload], "synced")

    async def Take(self, operation: Take) -> None:  # noqa: N802
        queue, ready = self.queue(operation.queue), self.model.ready(operation.queue)
        if queue is None:
            return
        if operation.how == "nowait":
            try:
                self.model.took(operation.queue, [queue.receive_nowait()])
            except trio.WouldBlock:
                assert not ready
            return
        with trio.CancelScope() as scope:
            if operation.how == "cancelled" or not ready:
                scope.cancel()
            if operation.how == "peek":
                record = await queue.peek()
                assert (record.priority, record.id, record.body) == ready[0]
            else:
                records = await queue.receive_many(operation.most)
                assert len(records) == min(operation.most, len(ready))
                self.model.took(operation.queue, records)

    async def Settle(self, operation: Settle) -> None:  # noqa: N802
        places = list(self.model.in_hand)
        for number in operation.which:
            if number >= len(places) or places[number] not in self.model.in_hand:
                continue
            place = places[number]
            record, queue = self.model.in_hand[place], self.queue(place[0])
            assert queue is not None
            word: Any = operation.word
            if operation.how == "nack":
                queue.nack(record)
                del self.model.in_hand[place]
            elif operation.how == "ack_nowait":
                try:
                    queue.ack_nowait(record)
                except trio.WouldBlock:
                    assert self.options["max_unsynced"] < 100_000
                    continue
                default = "memory" if self.options["durability"] == "memory" else "written"
                self.model.acked(place, default)
            else:
                with trio.CancelScope() as scope:
                    if operation.how == "cancelled":
                        scope.cancel()
                    await queue.ack(record, durability=word)
                    self.model.acked(place, word)
                assert scope.cancelled_caught == (operation.how == "cancelled")

    async def Block(self, operation: Block) -> None:  # noqa: N802
        queue = self.queue(operation.queue)
        if queue is None or not self.model.ready(operation.queue):
            return
        with trio.CancelScope() as scope:
            try:
                async with queue.receiving() as record:
                    self.model.took(operation.queue, [record])
                    if operation.ends == "abort":
                        raise ZeroDivisionError
                    if operation.ends == "cancelled":
                        scope.cancel()
                        await trio.lowlevel.checkpoint()
            except ZeroDivisionError:
                pass
        if operation.ends == "ack":
            self.model.acked((operation.queue, record.id), self.options["durability"])
        else:
            del self.model.in_hand[operation.queue, record.id]

    async def WaitThenSend(self, operation: WaitThenSend) -> None:  # noqa: N802
        queue = self.queue(operation.queue)
        if queue is None:
            return
        if ready := self.model.ready(operation.queue):
            self.model.took(operation.queue, await queue.receive_many(len(ready), max_bytes=10**9))
        got: list[list[diskq.PriorityRecord]] = [[] for _ in range(operation.receivers)]
        scopes = [trio.CancelScope() for _ in range(operation.receivers)]

        async def receive(number: int) -> None:
            with scopes[number]:
                got[number] = [await queue.receive()]

        async with trio.open_nursery() as nursery:
            for number in range(operation.receivers):
                nursery.start_soon(receive, number)
                await trio.testing.wait_all_tasks_blocked()
            for scope in scopes[: operation.cancelled]:
                scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            for key in operation.keys:
                payload = self.model.make(20)
                number = await queue.send(payload, key, durability="written")
                self.model.sent(operation.queue, range(number, number + 1), [key], [payload], "written")
                await trio.testing.wait_all_tasks_blocked()
                for records in got:
                    if records and (operation.queue, records[0].id) not in self.model.in_hand:
                        self.model.took(operation.queue, records)
            waiting = max(0, operation.receivers - operation.cancelled)
            assert sum(map(len, got)) == min(waiting, len(operation.keys))
            nursery.cancel_scope.cancel()

    async def Alter(self, operation: Alter) -> None:  # noqa: N802
        word: Any = operation.word
        name = operation.queue
        is_there = self.queue(name) is not None
        with trio.CancelScope() as scope:
            if operation.is_cancelled:
                scope.cancel()
            if is_there:
                await self.store.delete_queue(name, durability=word)
                for place in [place for place in self.model.in_hand if place[0] == name]:
                    del self.model.in_hand[place]
            else:
                await self.store.create_queue(name, durability=word)
                self.model.last_ids[name] = 0
            self.model.did(("delete" if is_there else "create", name), word)
        assert scope.cancelled_caught == operation.is_cancelled

    async def Snapshot(self, operation: Snapshot) -> None:  # noqa: N802
        with trio.CancelScope() as scope:
            if operation.is_cancelled:
                scope.cancel()
            await self.store.snapshot()
            self.model.written = self.model.synced = len(self.model.commands)

    async def Sync(self, operation: Sync) -> None:  # noqa: N802
        with trio.CancelScope() as scope:
            if operation.is_cancelled:
                scope.cancel()
            await self.store.sync()
            self.model.written = self.model.synced = len(self.model.commands)
        assert scope.cancelled_caught == operation.is_cancelled

    async def Yield(self, operation: Yield) -> None:  # noqa: N802
        self.clock.jump(operation.seconds)
        await settled()


@settings(
    max_examples=examples(120),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(OPTIONS, st.lists(OPERATIONS, min_size=5, max_size=40))
def test_any_sequence_of_operations_and_crashes(options: dict[str, Any], operations: list[Any]) -> None:
    lives.play(partial(Run, options), operations)

# Any sequence of calls, kills and power cuts, against a model that is a list.
#
# A list of operations, not a RuleBasedStateMachine: its swarm mode leaves rules out, and a known-bad
# queue passed a thousand of its kills. Small files, small bodies and little room, so that everything
# happens often; all choices are the example's own, so that a failure shrinks and repeats.
#
# What must hold, at every look and after every reopen:
#   - order is kept, nothing is invented or altered;
#   - what was acknowledged as synced survives everything, what is written survives a kill;
#   - after a power cut, what survives of the rest is a prefix;
#   - what is delivered again was received after the last barrier that covered the position;
#   - with memory first, what was received from there may be missing from what is delivered again;
#   - the depth is what can be drained.

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio
import trio.testing
from hypothesis import event, given
from hypothesis import strategies as st

import diskq
from tests.channels import lives
from tests.channels.lives import (
    MEMORY_FLUSH,
    REOPENS,
    REPEATED,
    SYNC_TIMEOUT,
    WORDS,
    Reopen,
    left_by,
    settled,
)
from tests.channels.rig import crash_disk, drain, left_in, opened, until

# --- the operations ---------------------------------------------------------------------------

SIZES = st.sampled_from([0, 1, 20, 60, 200])


@dataclass(frozen=True)
class Send:
    size: int
    word: str
    how: str  # "await", "nowait", "cancelled"


@dataclass(frozen=True)
class SendMany:
    sizes: list[int]
    word: str
    is_cancelled: bool


@dataclass(frozen=True)
class Receive:
    how: str  # "await", "nowait", "peek", "cancelled"


@dataclass(frozen=True)
class ReceiveMany:
    max_messages: int
    max_bytes: int
    is_cancelled: bool


@dataclass(frozen=True)
class Block:
    max_messages: int
    ends: str  # "commit", "abort", "cancelled"
    sends: int  # messages sent from inside


@dataclass(frozen=True)
class WaitThenSend:
    """A receiver waits, perhaps one is cancelled, and messages come."""

    receivers: int
    messages: int
    cancelled: int


@dataclass(frozen=True)
class SendTogether:
    """Senders that wait for stable storage; each comes while the one before it still waits."""

    sizes: list[int]


@dataclass(frozen=True)
class Empty:
    is_cancelled: bool


@dataclass(frozen=True)
class Sync:
    is_cancelled: bool


@dataclass(frozen=True)
class Yield:
    """Let the loop run, or time pass: then what is due is done."""

    seconds: float


SENDS = st.builds(Send, SIZES, WORDS, st.sampled_from(["await", "await", "nowait", "cancelled"]))
BATCHES = st.builds(SendMany, st.lists(SIZES, min_size=1, max_size=9), WORDS, st.sampled_from([0, 0, 0, 1]))
TAKES = st.builds(Receive, st.sampled_from(["await", "await", "nowait", "peek", "cancelled"]))
PORTIONS = st.builds(ReceiveMany, st.integers(1, 8), st.sampled_from([1, 70, 100, 100_000]), st.just(False))
BLOCKS = st.builds(
    Block, st.integers(1, 8), st.sampled_from(["commit", "commit", "abort", "cancelled"]), st.integers(0, 2)
)

OPERATIONS = st.one_of(
    # As often as they are listed: messages come faster than they go.
    *(SENDS, SENDS, SENDS, BATCHES, BATCHES, BATCHES),
    *(TAKES, TAKES, PORTIONS, PORTIONS, BLOCKS, BLOCKS),
    st.builds(WaitThenSend, st.integers(1, 3), st.integers(0, 4), st.integers(0, 3)),
    st.builds(SendTogether, st.lists(SIZES, min_size=2, max_size=4)),
    st.builds(Empty, st.sampled_from([0, 1, 1])),
    st.builds(Sync, st.sampled_from([0, 0, 1])),
    st.builds(Yield, st.sampled_from([0.0, MEMORY_FLUSH, SYNC_TIMEOUT, SYNC_TIMEOUT])),
    *(REOPENS, REOPENS),
)

OPTIONS = st.fixed_dictionaries(
    {
        "memory_flush": st.just(MEMORY_FLUSH),
        "sync_timeout": st.just(SYNC_TIMEOUT),
        "segment_size": st.sampled_from([70, 300, 100_000]),
        "sync_every": st.sampled_from([1, 5, 2500]),
        "checkpoint_slice": st.sampled_from([0, 100e-6, 60.0]),
        "durability": WORDS,
    }
)
MEMORY_SIZES = st.sampled_from([100, 500, 2000, 100_000])


# --- the model --------------------------------------------------------------------------------


@dataclass
class Model:
    """What is in the queue, and what would be left of it."""

    bodies: list[bytes] = field(default_factory=list)
    """All messages ever accepted, but for those that a crash or `empty` took."""
    taken: int = 0
    """The number of them that were received."""
    written: int = 0
    """The least number of them in the page cache."""
    synced: int = 0
    """The least number of them on stable storage."""
    taken_synced: int = 0
    """The read position is durable up to here at least."""
    made: int = 0
    has_memory: bool = False

    def make(self, size: int) -> bytes:
        self.made += 1
        if not size:
            return b""
        return (b"%d." % self.made).ljust(size, b"x")

    @property
    def pending(self) -> list[bytes]:
        return self.bodies[self.taken :]

    def accepted(self, bodies: list[bytes], word: str) -> None:
        self.bodies += bodies
        if word != "memory":
            self.written = len(self.bodies)
        if word == "synced":
            self.synced = self.written

    def received(self, bodies: list[bytes]) -> None:
        assert self.pending[: len(bodies)] == bodies
        self.taken += len(bodies)

    def emptied(self) -> None:
        self.bodies.clear()
        self.taken = self.written = self.synced = self.taken_synced = 0

    def all_synced(self) -> None:
        self.synced_but_for_memory(len(self.pending))

    def synced_but_for_memory(self, pending: int) -> None:
        self.written = self.synced = self.taken + pending
        self.taken_synced = self.taken

    def reopened(self, how: str, found: list[bytes]) -> None:
        """After a reopen `found` is in the queue; was that allowed?"""
        if how == "close":
            assert found == self.pending
        least = {"close": len(self.bodies), "kill": self.written, "power cut": self.synced}[how]
        # Where in the sequence does what was found begin? Received ones may come again.
        for start in range(self.taken_synced, self.taken + 1):
            end = start + len(found)
            if end >= max(least, start) and found == self.bodies[start:end]:
                break
        else:
            start = self.taken
            is_allowed = self.has_memory and any(
                self.is_but_for_memory(found, again, least) for again in range(len(found) + 1)
            )
            # All that survived was received: nothing need come again.
            assert is_allowed, (
                f"after a {how} found {found}\nof {self.bodies}\n"
                f"taken {self.taken_synced}..{self.taken}, written {self.written}, synced {self.synced}"
            )
        event(f"{how}: {'again' if start < self.taken else 'not again'}")
        self.bodies = found
        self.taken = self.taken_synced = 0
        self.written = self.synced = len(found)

    def is_but_for_memory(self, found: list[bytes], again: int, least: int) -> bool:
        """True for up to `again` of the received messages, in order, then as many of the rest as promised."""
        end = self.taken + len(found) - again
        rest = iter(self.bodies[self.taken_synced : self.taken])
        return (
            least <= max(end, self.taken)
            and found[again:] == self.bodies[self.taken : end]
            and all(body in rest for body in found[:again])
        )


# --- one example ------------------------------------------------------------------------------


class Run:
    """One queue, through all its opens."""

    def __init__(self, options: dict[str, Any], clock: trio.testing.MockClock) -> None:
        self.clock = clock
        self.disk = crash_disk()
        self.options = options
        self.model = Model(has_memory="memory_size" in options)
        self.queue: diskq.QueueChannel

    async def example(self, operations: list[Any]) -> None:
        rest = list(operations)
        while True:
            ending = await self.session(rest)
            if ending is None:
                return
            self.model.reopened(ending.how, self.look())

    async def session(self, rest: list[Any]) -> Reopen | None:
        """From an open to the next crash or close; the last one ends cleanly."""
        async with opened(self.disk, **self.options) as self.queue:
            assert self.queue.depth == len(self.model.pending)
            after = self.disk
            ending: Reopen | None = None
            while rest:
                operation = rest.pop(0)
                if isinstance(operation, Reopen):
                    await settled()
                    ending = operation
                    after = left_by(operation.how, self.disk, operation.seed)
                    break
                await self.perform(operation)
                assert self.queue.depth == len(self.model.pending), operation
            else:
                assert drain(self.queue) == self.model.pending
                assert self.queue.depth == 0
        self.disk = after
        return ending

    def look(self) -> list[bytes]:
        """Return what is in the queue, which is not open."""
        with diskq.Queue("/q", "events", fs=self.disk) as queue:
            found = queue.peek_many(100_000)
            assert queue.depth == len(found)
            assert queue.statistics().lost == 0
        return found

    async def perform(self, operation: Any) -> None:
        await getattr(self, type(operation).__name__)(operation)

    async def Send(self, operation: Send) -> None:  # noqa: N802
        body = self.model.make(operation.size)
        if operation.how == "nowait":
            self.queue.send_nowait(body)
            self.model.accepted([body], "memory" if self.options["durability"] == "memory" else "written")
            return
        with trio.CancelScope() as scope:
            if operation.how == "cancelled":
                scope.cancel()
            await self.queue.send(body, durability=operation.word)  # type: ignore[arg-type]
            self.model.accepted([body], operation.word)
        assert scope.cancelled_caught == (operation.how == "cancelled")

    async def SendMany(self, operation: SendMany) -> None:  # noqa: N802
        bodies = [self.model.make(size) for size in operation.sizes]
        with trio.CancelScope() as scope:
            if operation.is_cancelled:
                scope.cancel()
            await self.queue.send_many(bodies, durability=operation.word)  # type: ignore[arg-type]
            self.model.accepted(bodies, operation.word)
        assert scope.cancelled_caught == operation.is_cancelled

    async def Receive(self, operation: Receive) -> None:  # noqa: N802
        pending = self.model.pending
        if operation.how == "nowait":
            try:
                self.model.received([self.queue.receive_nowait()])
            except trio.WouldBlock:
                assert not pending
            return
        with trio.CancelScope() as scope:
            if operation.how == "cancelled" or not pending:
                scope.cancel()
            if operation.how == "peek":
                assert await self.queue.peek() == pending[0]
            else:
                self.model.received([await self.queue.receive()])

    async def ReceiveMany(self, operation: ReceiveMany) -> None:  # noqa: N802
        with trio.CancelScope() as scope:
            if operation.is_cancelled or not self.model.pending:
                scope.cancel()
            bodies = await self.queue.receive_many(operation.max_messages, max_bytes=operation.max_bytes)
            self.check_portion(bodies, operation.max_messages, operation.max_bytes)
            self.model.received(bodies)

    def check_portion(self, bodies: list[bytes], max_messages: int, max_bytes: int) -> None:
        assert 1 <= len(bodies) <= max_messages
        assert len(bodies) == 1 or sum(map(len, bodies)) <= max_bytes

    async def Block(self, operation: Block) -> None:  # noqa: N802
        with trio.CancelScope() as scope:
            if not self.model.pending:
                scope.cancel()
            try:
                async with self.queue.receiving(operation.max_messages) as bodies:
                    self.check_portion(bodies, operation.max_messages, 10**9)
                    assert self.model.pending[: len(bodies)] == bodies
                    for _ in range(operation.sends):
                        body = self.model.make(20)
                        await self.queue.send(body)
                        self.model.accepted([body], self.options["durability"])
                    if operation.ends == "abort":
                        raise ZeroDivisionError
                    if operation.ends == "cancelled":
                        scope.cancel()
                        await trio.lowlevel.checkpoint()
                self.model.received(bodies)
            except ZeroDivisionError:
                pass

    async def WaitThenSend(self, operation: WaitThenSend) -> None:  # noqa: N802
        while self.model.pending:
            self.model.received(await self.queue.receive_many(100))
        got: list[list[bytes]] = [[] for _ in range(operation.receivers)]
        scopes = [trio.CancelScope() for _ in range(operation.receivers)]

        async def receive(number: int) -> None:
            with scopes[number]:
                got[number] = [await self.queue.receive()]

        async with trio.open_nursery() as nursery:
            for number in range(operation.receivers):
                nursery.start_soon(receive, number)
                await trio.testing.wait_all_tasks_blocked()
            for scope in scopes[: operation.cancelled]:
                scope.cancel()
            for _ in range(operation.messages):
                body = self.model.make(20)
                await self.queue.send(body)
                self.model.accepted([body], self.options["durability"])
            await trio.testing.wait_all_tasks_blocked()
            for bodies in got:
                self.model.received(bodies)
            waiting = max(0, operation.receivers - min(operation.cancelled, operation.receivers))
            assert sum(map(len, got)) == min(waiting, operation.messages)
            for scope in scopes:
                scope.cancel()

    async def SendTogether(self, operation: SendTogether) -> None:  # noqa: N802
        async def send(body: bytes) -> None:
            await self.queue.send(body, durability="synced")
            assert body in left_in(self.disk.crash())

        async with trio.open_nursery() as nursery:
            for size in operation.sizes:
                body = self.model.make(max(1, size))
                self.model.accepted([body], "memory")
                nursery.start_soon(send, body)
                await trio.testing.wait_all_tasks_blocked()
        self.model.accepted([], "synced")

    async def Empty(self, operation: Empty) -> None:  # noqa: N802
        with trio.CancelScope() as scope:
            if operation.is_cancelled:
                scope.cancel()
            await self.queue.clear()
            self.model.emptied()

    async def Sync(self, operation: Sync) -> None:  # noqa: N802
        with trio.CancelScope() as scope:
            if operation.is_cancelled:
                scope.cancel()
            await self.queue.sync()
            self.model.all_synced()

    async def Yield(self, operation: Yield) -> None:  # noqa: N802
        self.clock.jump(operation.seconds)
        await settled()
        pending = self.model.pending
        if operation.seconds >= MEMORY_FLUSH and not self.model.has_memory:
            await until(lambda: left_in(self.disk.kill())[-len(pending) :] == pending or not pending)
            self.model.written = len(self.model.bodies)
        if operation.seconds >= SYNC_TIMEOUT:
            # The messages are on stable storage, and so is the position.
            await until(lambda: not self.queue.statistics().unsynced_bytes)
            in_files = len(pending) - self.queue._engine.tier.count
            await until(lambda: left_in(self.disk.crash()) == pending[:in_files])
            self.model.synced_but_for_memory(in_files)


@REPEATED
@given(operations=st.lists(OPERATIONS, min_size=10, max_size=50), options=OPTIONS)
def test_any_sequence_of_calls_kills_and_power_cuts_keeps_every_promise(operations, options):
    play(operations, options)


@REPEATED
@given(operations=st.lists(OPERATIONS, min_size=10, max_size=50), options=OPTIONS, memory_size=MEMORY_SIZES)
def test_and_with_memory_first(operations, options, memory_size):
    play(operations, {**options, "durability": "memory", "memory_size": memory_size})


def play(operations: list[Any], options: dict[str, Any]) -> None:
    lives.play(partial(Run, options), operations)

# Any sequence of calls, kills and power cuts on a stream, its producer and a member of a group, against a
# model that is a list for each partition.
#
# What must hold, at every look and after every reopen:
#   - each partition's messages come in order, none twice, none invented, at the offsets that were returned;
#   - what was acknowledged as synced survives everything, what is written survives a kill;
#   - after a power cut, what survives of the rest is a prefix of its partition;
#   - a group continues after a commit that was made, and not before one that was synced;
#   - only retention makes a reader miss messages, and the reader gets an error.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from diskq.channels.stream.consumer import StreamConsumer
from diskq.channels.stream.producer import StreamProducer
from diskq.engine.stream.reader import ReadableStream
from diskq.engine.stream.stream import Stream
from diskq.errors import OffsetOutOfRangeError
from diskq.messages import Message, Position
from diskq.options import StreamOptions
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
from tests.channels.rig import crash_disk
from tests.channels.stream_rig import STREAM, consuming, producing

# --- the operations ---------------------------------------------------------------------------

SIZES = st.sampled_from([0, 1, 20, 60, 200])
KEYS = st.sampled_from(["a", "aaa", "bbb", "ccc", b"111"])


@dataclass(frozen=True)
class Send:
    size: int
    key: str | bytes
    word: str
    how: str  # "await", "nowait", "cancelled"


@dataclass(frozen=True)
class SendMany:
    sizes: list[int]
    keys: list[str | bytes]
    word: str
    is_cancelled: bool


@dataclass(frozen=True)
class Receive:
    count: int
    how: str  # "await", "nowait", "cancelled"


@dataclass(frozen=True)
class ReceiveMany:
    max_messages: int
    max_bytes: int


@dataclass(frozen=True)
class Block:
    max_messages: int
    ends: str  # "commit", "abort", "cancelled"


@dataclass(frozen=True)
class Commit:
    is_synced: bool


@dataclass(frozen=True)
class Seek:
    part: float  # of the way from the first message to the last
    is_one: bool


@dataclass(frozen=True)
class WaitThenSend:
    """Receivers wait, perhaps some are cancelled, and messages come."""

    receivers: int
    keys: list[str | bytes]
    cancelled: int


@dataclass(frozen=True)
class Vacuum:
    pass


@dataclass(frozen=True)
class Yield:
    seconds: float


SENDS = st.builds(Send, SIZES, KEYS, WORDS, st.sampled_from(["await", "await", "nowait", "cancelled"]))
BATCHES = st.builds(
    SendMany,
    st.lists(SIZES, min_size=1, max_size=9),
    st.lists(KEYS, min_size=9, max_size=9),
    WORDS,
    st.sampled_from([False, False, False, True]),
)
TAKES = st.builds(Receive, st.integers(1, 6), st.sampled_from(["await", "nowait", "cancelled"]))
OPERATIONS = st.one_of(
    *(SENDS, SENDS, SENDS, BATCHES, BATCHES),
    *(TAKES, TAKES),
    st.builds(ReceiveMany, st.integers(1, 8), st.sampled_from([1, 70, 100_000])),
    st.builds(Block, st.integers(1, 8), st.sampled_from(["commit", "commit", "abort", "cancelled"])),
    st.builds(Commit, st.booleans()),
    st.builds(Seek, st.floats(0, 1), st.booleans()),
    st.builds(WaitThenSend, st.integers(1, 3), st.lists(KEYS, max_size=4), st.integers(0, 3)),
    st.builds(Vacuum),
    st.builds(Yield, st.sampled_from([0.0, MEMORY_FLUSH, SYNC_TIMEOUT])),
    REOPENS,
)

OPTIONS = st.fixed_dictionaries(
    {
        "partition_count": st.sampled_from([1, 3]),
        "segment_size": st.sampled_from([1, 150, 600, 100_000]),
        "retention_max_bytes": st.just(300),
        "memory_flush": st.just(MEMORY_FLUSH),
        "sync_timeout": st.just(SYNC_TIMEOUT),
        "sync_every": st.sampled_from([1, 5, 2500]),
        "checkpoint_slice": st.sampled_from([0, 100e-6, 60.0]),
        "durability": WORDS,
        "encoding": st.sampled_from(["fixed", "varuint"]),
    }
)

# --- the model --------------------------------------------------------------------------------


@dataclass
class Partition:
    """What was sent to a partition, and what would be left of it."""

    values: list[bytes | None] = field(default_factory=list)
    """None: a power cut took it, and its offset is not given again."""
    written: int = 0
    synced: int = 0
    first: int = 0
    position: int = 0
    marks: list[int | None] = field(default_factory=lambda: [None])
    """What a crash may leave of the group's place: the last that was synced, and those since."""

    @property
    def pending(self) -> int:
        """Return the number of messages not received yet, as another process sees it."""
        return sum(value is not None for value in self.values[self.position : self.written])

    def behind_what_is_lost(self, position: int) -> int:
        while position < len(self.values) and self.values[position] is None:
            position += 1
        return position


class Run:
    """One stream, through all its opens."""

    def __init__(self, options: dict[str, Any], clock: trio.testing.MockClock) -> None:
        self.clock = clock
        self.disk = crash_disk()
        self.options = options
        self.partitions: defaultdict[int, Partition] = defaultdict(Partition)
        self.made = 0
        self.was_killed = False
        self.was_vacuumed = False
        self.producer: StreamProducer
        self.consumer: StreamConsumer

    def make(self, size: int) -> bytes:
        self.made += 1
        return (b"%d." % self.made).ljust(size, b"x") if size else b""

    def sent(self, position: Position, value: bytes, word: str) -> None:
        part = self.partitions[position.partition]
        assert position.offset == len(part.values)
        part.values.append(value)
        if word != "memory":
            part.written = len(part.values)
        if word == "synced":
            self.all_synced()

    def all_synced(self) -> None:
        for part in self.partitions.values():
            part.synced = part.written

    def received(self, message: Message) -> None:
        part = self.partitions[message.partition]
        assert message.offset == part.behind_what_is_lost(part.position)
        assert message.value == part.values[message.offset]
        part.position = message.offset + 1
        part.written = max(part.written, part.position)

    def committed(self, partition: int, offset: int | None, *, seek: bool = False) -> None:
        marks = self.partitions[partition].marks
        if seek or marks[-1] is None or (offset is not None and offset > marks[-1]):
            marks.append(offset)

    def commits_synced(self) -> None:
        for part in self.partitions.values():
            part.marks = part.marks[-1:]

    # --- from an open to the next ---------------------------------------------------------------

    async def example(self, operations: list[Any]) -> None:
        rest = list(operations)
        while (ending := await self.session(rest)) is not None:
            self.reopened(ending.how)

    async def session(self, rest: list[Any]) -> Reopen | None:
        after = self.disk
        ending: Reopen | None = None
        slice_ = self.options["checkpoint_slice"]
        async with (
            producing(self.disk, **self.options) as self.producer,
            consuming(
                self.disk, group="g", checkpoint_slice=slice_, sync_every=3, sync_timeout=SYNC_TIMEOUT
            ) as self.consumer,
        ):
            await self.begin()
            while rest:
                operation = rest.pop(0)
                if isinstance(operation, Reopen):
                    await settled()
                    is_spared = operation.how == "power cut" and self.was_vacuumed
                    ending = Reopen("kill", 0) if is_spared else operation
                    after = left_by(ending.how, self.disk, ending.seed)
                    break
                await getattr(self, type(operation).__name__)(operation)
            else:
                await self.producer.sync()
                for part in self.partitions.values():
                    part.written = len(part.values)
                await self.drain()
        self.disk = after
        return ending

    async def begin(self) -> None:
        """The group continues after one of the commits that may have survived."""
        for index, position in self.consumer.position.items():
            part = self.partitions[index]
            found = [
                number
                for number, mark in enumerate(part.marks)
                if position == (part.first if mark is None else mark + 1)
            ]
            assert found
            # After a kill it may be written and not synced: a power cut may bring an earlier one back.
            part.marks = part.marks[0 if self.was_killed else found[-1] : found[-1] + 1]
            part.position = position
            if position > len(part.values):
                # It had processed what a power cut took away.
                await self.seek(index, len(part.values))

    def reopened(self, how: str) -> None:
        Stream(STREAM, options=StreamOptions(), fs=self.disk).close()
        stream = ReadableStream(STREAM, fs=self.disk.copy())
        for index in stream.partitions():
            part = self.partitions[index]
            with stream.open(index) as reader:
                reader.seek_oldest()
                part.first = reader.position
                found = {message.offset: message.value for message in iter(reader.read, None)}
                end = reader.position
            least = {"close": len(part.values), "kill": part.written, "power cut": part.synced}[how]
            assert least <= end <= len(part.values), (how, index)
            assert all(value == part.values[offset] for offset, value in found.items())
            kept = [value for value in part.values[part.first : least] if value is not None]
            assert list(found.values())[: len(kept)] == kept
            part.values = [found.get(offset) for offset in range(end)]
            part.written = part.synced = end
            if how == "close":
                part.marks = part.marks[-1:]
        self.was_vacuumed = False
        self.was_killed = how == "kill"

    def pending(self) -> int:
        return sum(part.pending for part in self.partitions.values())

    async def drain(self) -> None:
        await settled()
        while await self.receive_now():
            pass
        assert not self.pending()

    async def receive_now(self) -> bool:
        """Receive what is there, or meet the error of an overtaken partition. False: there is nothing."""
        try:
            self.received(self.consumer.receive_nowait())
        except OffsetOutOfRangeError as told:
            await self.seek(told.partition, told.first_offset)
        except trio.WouldBlock:
            return False
        return True

    async def receive(self) -> None:
        """Receive a message that is there, or meet the error of an overtaken partition."""
        told = await self.promptly(self.consumer.receive)
        if isinstance(told, OffsetOutOfRangeError):
            part = self.partitions[told.partition]
            assert part.position <= told.offset < told.first_offset == part.first
            assert part.behind_what_is_lost(part.position) >= told.offset
            await self.seek(told.partition, told.first_offset)
        else:
            self.received(told)

    async def promptly(self, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """What a call that need not wait returns, or the error that retention made."""
        told: list[Any] = []

        async def listen() -> None:
            try:
                told.append(await call(*args))
            except OffsetOutOfRangeError as overtaken:
                told.append(overtaken)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await settled()
            nursery.cancel_scope.cancel()
        assert told, f"nothing came, of {self.pending()} messages"
        return told[0]

    async def seek(self, partition: int, offset: int) -> None:
        await self.consumer.seek(offset, partition=partition)
        part, found = self.partitions[partition], self.consumer.position[partition]
        assert part.behind_what_is_lost(found) == part.behind_what_is_lost(offset)
        part.position = found
        self.committed(partition, found - 1 if found else None, seek=True)

    # --- the operations -------------------------------------------------------------------------

    async def Send(self, operation: Send) -> None:  # noqa: N802
        value = self.make(operation.size)
        if operation.how == "nowait":
            place = self.producer.send_nowait(value, operation.key)
            self.sent(place, value, "memory" if self.options["durability"] == "memory" else "written")
            return
        with trio.CancelScope() as scope:
            if operation.how == "cancelled":
                scope.cancel()
            word: Any = operation.word
            place = await self.producer.send(value, operation.key, durability=word)
            self.sent(place, value, word)
        assert scope.cancelled_caught == (operation.how == "cancelled")

    async def SendMany(self, operation: SendMany) -> None:  # noqa: N802
        batch = [(key, self.make(size)) for key, size in zip(operation.keys, operation.sizes, strict=False)]
        with trio.CancelScope() as scope:
            if operation.is_cancelled:
                scope.cancel()
            word: Any = operation.word
            told = await self.producer.send_many(batch, durability=word)
            assert sum(map(len, told.values())) == len(batch)
            places = {partition: iter(offsets) for partition, offsets in told.items()}
            partition_of = {key: (await self.place(key)) for key, _ in batch}
            for key, value in batch:
                partition = partition_of[key]
                self.sent(Position(partition, next(places[partition])), value, word)
        assert scope.cancelled_caught == operation.is_cancelled

    async def place(self, key: str | bytes) -> int:
        """By another way: go-diskq's."""
        hashed = 2166136261
        for byte in key.encode() if isinstance(key, str) else key:
            hashed = (hashed * 16777619 % 2**32) ^ byte
        return hashed % self.options["partition_count"]  # type: ignore[no-any-return]

    async def Receive(self, operation: Receive) -> None:  # noqa: N802
        await settled()
        for _ in range(operation.count):
            if operation.how == "nowait":
                assert await self.receive_now() or not self.pending()
                continue
            if operation.how == "await" and self.pending():
                await self.receive()
                continue
            with trio.CancelScope() as scope:
                scope.cancel()
                await self.consumer.receive()
            assert scope.cancelled_caught

    async def ReceiveMany(self, operation: ReceiveMany) -> None:  # noqa: N802
        await settled()
        if not self.pending():
            return
        many = partial(self.consumer.receive_many, max_bytes=operation.max_bytes)
        told = await self.promptly(many, operation.max_messages)
        if isinstance(told, OffsetOutOfRangeError):
            await self.seek(told.partition, told.first_offset)
        else:
            self.check_portion(told, operation.max_messages, operation.max_bytes)

    def check_portion(self, messages: list[Message], max_messages: int, max_bytes: int) -> None:
        assert 1 <= len(messages) <= max_messages
        size = sum(len(message.key) + len(message.value) for message in messages)
        assert len(messages) == 1 or size <= max_bytes
        for message in messages:
            self.received(message)

    async def Block(self, operation: Block) -> None:  # noqa: N802
        await settled()
        before = {index: part.position for index, part in self.partitions.items()}
        with trio.CancelScope() as scope:
            if not self.pending():
                scope.cancel()
            try:
                async with self.consumer.receiving(operation.max_messages) as messages:
                    self.check_portion(messages, operation.max_messages, 10**9)
                    if operation.ends == "abort":
                        raise ZeroDivisionError
                    if operation.ends == "cancelled":
                        scope.cancel()
                        await trio.lowlevel.checkpoint()
            except OffsetOutOfRangeError as told:
                await self.seek(told.partition, told.first_offset)
                return
            except ZeroDivisionError:
                scope.cancel()
            else:
                for partition in {message.partition for message in messages}:
                    self.committed(partition, self.consumer.position[partition] - 1)
        if operation.ends != "commit":
            for index, position in before.items():
                self.partitions[index].position = position
        for index, position in self.consumer.position.items():
            part = self.partitions[index]
            assert part.behind_what_is_lost(position) == part.behind_what_is_lost(part.position)

    async def Commit(self, operation: Commit) -> None:  # noqa: N802
        await self.consumer.commit()
        for index, position in self.consumer.position.items():
            if position:
                self.committed(index, position - 1)
        if operation.is_synced:
            await self.consumer.sync()
            self.commits_synced()

    async def Seek(self, operation: Seek) -> None:  # noqa: N802
        await settled()
        for index in sorted(self.partitions)[: 1 if operation.is_one else None]:
            part = self.partitions[index]
            await self.seek(index, part.first + int(operation.part * (part.written - part.first)))

    async def WaitThenSend(self, operation: WaitThenSend) -> None:  # noqa: N802
        await self.Yield(Yield(MEMORY_FLUSH))
        await self.drain()
        got: list[list[Message]] = [[] for _ in range(operation.receivers)]
        scopes = [trio.CancelScope() for _ in range(operation.receivers)]

        async def receive(number: int) -> None:
            with scopes[number]:
                got[number] = [await self.consumer.receive()]

        async with trio.open_nursery() as nursery:
            for number in range(operation.receivers):
                nursery.start_soon(receive, number)
                await trio.testing.wait_all_tasks_blocked()
            for scope in scopes[: operation.cancelled]:
                scope.cancel()
            for key in operation.keys:
                value = self.make(20)
                self.sent(await self.producer.send(value, key, durability="written"), value, "written")
            await trio.testing.wait_all_tasks_blocked()
            for message in sorted((one for of in got for one in of), key=lambda one: one.position):
                self.received(message)
            waiting = max(0, operation.receivers - operation.cancelled)
            assert sum(map(len, got)) == min(waiting, len(operation.keys))
            for scope in scopes:
                scope.cancel()

    async def Vacuum(self, operation: Vacuum) -> None:  # noqa: N802
        report = await self.producer.vacuum()
        for told in report.partitions:
            part = self.partitions[told.partition]
            part.first = told.first_offset
            part.written = max(part.written, told.first_offset)
            self.was_vacuumed = True

    async def Yield(self, operation: Yield) -> None:  # noqa: N802
        self.clock.jump(operation.seconds)
        await settled()
        if operation.seconds >= MEMORY_FLUSH:
            for part in self.partitions.values():
                part.written = len(part.values)


@REPEATED
@given(operations=st.lists(OPERATIONS, min_size=10, max_size=50), options=OPTIONS)
def test_any_sequence_of_calls_kills_and_power_cuts_keeps_every_promise(operations, options):
    lives.play(partial(Run, options), operations)

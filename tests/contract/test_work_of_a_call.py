# What a call costs, counted in the calls that it makes. Law: it does not depend on how the caller says what
# it wants, nor on what is open and idle beside it.

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import diskq
from diskq import StreamConsumer, StreamProducer, open_consumer, open_producer
from diskq.options import Durability
from diskq.storage.fs import OsFileSystem
from tests.contract.counting import counted
from tests.contract.kinds import ChannelKind, channels
from tests.contract.lives import PATH, crash_disk
from tests.loops import each_loop

MANY = 50
LONG: dict[str, Any] = {"checkpoint_slice": 1000.0, "sync_every": 1 << 30, "sync_timeout": 1000.0}
"""No slice and no period ends in the middle of what is counted."""

each_word = pytest.mark.parametrize("word", ["memory", "written"])


async def _calls_of(act: Callable[[], Awaitable[object]]) -> int:
    """How many calls `MANY` acts are, after some that are not counted."""
    for _ in range(5):  # the first calls make what later ones use
        await act()
    with counted() as calls:
        for _ in range(MANY):
            await act()
    return calls.count


def _acts(kind: ChannelKind, handle: Any, how: dict[str, Any]) -> dict[str, Callable[[], Awaitable[object]]]:
    """Each call of a handle that takes a durability, with the words of `how`."""

    async def acknowledge() -> None:
        await handle.send(b"x")
        await handle.ack(await handle.receive(), **how)

    acts: dict[str, Callable[[], Awaitable[object]]] = {
        "send": lambda: handle.send(b"x", **how),
        "send_many": lambda: handle.send_many([b"x", b"y"], **how),
    }
    return acts | ({"ack": acknowledge} if kind.name == "priority" else {})


@pytest.mark.parametrize("kind", channels(), ids=str)
@each_word
@each_loop
async def test_to_spell_out_the_default_durability_costs_nothing(kind: ChannelKind, word: Durability) -> None:
    async with kind.open(PATH, fs=crash_disk(), durability=word, **LONG) as channel:
        plain = _acts(kind, channel.handle, {})
        spelled = _acts(kind, channel.handle, {"durability": word})
        for name, act in plain.items():
            assert await _calls_of(spelled[name]) <= 1.1 * await _calls_of(act), name


# --- beside very many partitions that are idle --------------------------------------------------------------

FEW, IDLE = 1, 256  # a thousand take long to open, and these would show it, too
KEY = b"k"


class NoSyncs(OsFileSystem):
    """A disk without syncs, so that a thousand partitions are opened at once: no power goes here."""

    native = False

    def sync_files(self, handles: Sequence[int]) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


async def _costs(path: str, partitions: int) -> dict[str, int]:
    """How many calls `MANY` acts of each name are, on a stream of which one partition is used."""
    fs, found = NoSyncs(), {}
    async with (
        open_producer(path, partition_count=partitions, fs=fs, **LONG) as producer,
        open_consumer(path, range(partitions), group="g", fs=fs, **LONG) as consumer,
    ):

        async def turn() -> None:
            await producer.send(b"x", KEY)
            await anyio.lowlevel.checkpoint()

        async def sync() -> None:
            await producer.send(b"x", KEY)
            await producer.sync()

        async def receive() -> None:
            await producer.send(b"x", KEY)
            await consumer.receive()

        async def commit() -> None:
            await receive()
            await consumer.commit()

        async def sync_commits() -> None:
            await commit()
            await consumer.sync()

        for level in ("written", "memory", "synced"):
            found[f"send, {level}"] = await _calls_of(partial(producer.send, b"x", KEY, durability=level))
        found["send_many"] = await _calls_of(lambda: producer.send_many([b"x", b"y"], KEY))
        found["a turn"] = await _calls_of(turn)
        found["a sync"] = await _calls_of(sync)
        await _receive_all(consumer)
        found["receive"] = await _calls_of(receive)
        found["commit"] = await _calls_of(commit)
        found["a sync of commits"] = await _calls_of(sync_commits)
        found["a wake-up"] = await _calls_of_wake_ups(producer, consumer)
    return found


async def _receive_all(consumer: StreamConsumer) -> None:
    with contextlib.suppress(diskq.WouldBlock):
        while True:
            consumer.receive_nowait()
    await consumer.commit()


async def _calls_of_wake_ups(producer: StreamProducer, consumer: StreamConsumer) -> int:
    received = anyio.Event()

    async def receive() -> None:
        async for _ in consumer:
            received.set()

    async def wake() -> None:
        nonlocal received
        received = anyio.Event()
        await producer.send(b"x", KEY)
        await received.wait()

    async with anyio.create_task_group() as nursery:
        nursery.start_soon(receive)
        calls = await _calls_of(wake)
        nursery.cancel_scope.cancel()
    return calls


@each_loop
async def test_partitions_that_are_idle_cost_nothing(tmp_path: Path) -> None:
    few = await _costs(str(tmp_path / "few"), FEW)
    many = await _costs(str(tmp_path / "many"), IDLE)
    assert {name: calls for name, calls in many.items() if calls > 1.5 * few[name]} == {}, few

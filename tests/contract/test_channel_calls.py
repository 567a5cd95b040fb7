# One call of the file system fails below a channel. Law: a caller that gets an error can go on; after
# the block no file is open and no thread of diskq runs; the next open works in the same process, and finds
# everything that was acknowledged, and nothing that was refused. Readers skip no message.
#
# A sample of the calls fails here; with DISKQ_EVERY_FAULT=1 each of them does (tests/contract/faults.py).

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import diskq
from diskq import DiskqError, FullError, StorageFailedError
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS, FaultFS
from tests.contract.channels import HANDLES, Handle, disk, left
from tests.contract.faults import errors, faults
from tests.contract.kinds import body
from tests.loops import blocked, run_on

pytestmark = [pytest.mark.slow, pytest.mark.sampled, pytest.mark.usefixtures("quiet_log")]

MOST = 2
"""Calls of each verb in a sample."""
LAST = b"last"
ERRORS = (OSError, DiskqError, diskq.BrokenResourceError)
"""What a call may raise when the disk fails; a group of exceptions is a fault in diskq."""

_SMALL_FILES: dict[str, dict[str, Any]] = {
    "queue": {"segment_size": 1000},
    "stream": {"segment_size": 1000},
    "journal": {"segment_size": 1000},
    "shards": {"segment_size": 1000},
    "priority": {"soft_limit": 1000, "hard_limit": 2000},
    "spool": {"queue": diskq.QueueOptions(segment_size=1000)},
}


@asynccontextmanager
async def _leases(fs: FileSystem, **options: Any) -> AsyncIterator[Any]:
    async with diskq.open_queue("/q", "events", fs=fs, **options) as queue, queue.working() as work:
        yield SimpleNamespace(
            send=queue.send,
            send_many=queue.send_many,
            send_nowait=queue.send_nowait,
            sync=queue.sync,
            receive=work.receive,
            ack=work.ack,
            repairs=queue.repairs,
        )


def _delivering(fs: FileSystem, deliver: Any, **options: Any) -> Any:
    options |= {"max_messages": 2, "backoff_initial": 0.001, "backoff_jitter": 0.0}
    return diskq.open_spool("/spool", deliver, fs=fs, **options)


QUEUE, SPOOL = HANDLES["queue"], HANDLES["spool"]
DELIVERS = Handle("spool that delivers", _delivering, SPOOL.plain, SPOOL.awaited)
WRITERS = [
    *(QUEUE, HANDLES["queue, memory first"], Handle("leases", _leases, QUEUE.plain, QUEUE.awaited)),
    *(HANDLES["producer"], HANDLES["journal"], HANDLES["shards"], HANDLES["priority queue"]),
    *(SPOOL, DELIVERS),
]
READERS = [
    HANDLES[name]
    for name in (
        *("consumer", "consumer of a group", "replay"),
        *("scanner", "scanner with a name", "scanner of shards"),
    )
]


class Program:
    """Has something open for the time of one run of an event loop."""

    def __init__(self, loop: str, handle: Handle, fs: FaultFS[CrashFS]) -> None:
        self.loop = loop
        self.handle = handle
        self.fs = fs
        self.errors: list[Exception] = []
        self.is_left_well = False
        """True if the block was left without an error."""

    def run(self) -> None:
        run_on(self.loop, self._run)

    async def _run(self) -> None:
        with anyio.fail_after(20):
            try:
                async with self.open() as its:
                    await self.act(its)
                self.is_left_well = True
            except ERRORS as failure:
                self.errors.append(failure)

    def open(self) -> Any:
        return self.handle.open(self.fs)

    async def act(self, its: Any) -> None:
        raise NotImplementedError

    async def call(self, name: str, its: Any) -> Any:
        """What it returned, or the error."""
        try:
            return await self.handle.awaited[name](its)
        except ERRORS as failure:
            self.errors.append(failure)
            return failure

    # --- what comes of it ---------------------------------------------------------------------------

    def check(self, *, power_cut: bool = False) -> None:
        self._check_nothing_open()
        self.fs.heal()
        if power_cut:
            for rng in (None, random.Random(len(self.errors))):
                self.check_power_cut(self.left(self.fs.inner.crash(rng)))
        run_on(self.loop, self._go_on)
        self._check_nothing_open()
        self.check_left(self.left(self.fs.inner))

    def _check_nothing_open(self) -> None:
        running = [thread.name for thread in threading.enumerate() if thread.name.startswith("diskq")]
        assert running == [], f"left running: {running}"
        assert self.fs.inner.open_files() == [], f"left open: {self.fs.inner.open_files()}"

    async def _go_on(self) -> None:
        with anyio.fail_after(20):
            await self.go_on()

    def left(self, fs: CrashFS) -> list[bytes]:
        """What an engine reads."""
        return left(fs, self.handle.kind)[self.handle.kind]

    async def go_on(self) -> None:
        """The next open, in the same process."""
        raise NotImplementedError

    def check_power_cut(self, found: list[bytes]) -> None: ...

    def check_left(self, found: list[bytes]) -> None: ...


# --- who sends --------------------------------------------------------------------------------------------


class Writer(Program):
    """Sends, and receives where messages are taken out. Keeps account as tests.contract.lives.Life does."""

    def __init__(
        self, loop: str, handle: Handle, fs: FaultFS[CrashFS], known: list[bytes], number: int = 0
    ) -> None:
        super().__init__(loop, handle, fs)
        self.known, self.sure, self.synced = [*known], {*known}, {*known}
        self.in_memory: set[bytes] = set()
        self.taken: set[bytes] = set()
        self.batches: list[list[bytes]] = []
        """Of which the first ones may be in: the error does not tell."""
        self.number = number

    def open(self) -> Any:
        options = dict(_SMALL_FILES[self.handle.kind])
        if self.handle is DELIVERS:
            options["deliver"] = self._deliver
        return self.handle.open(self.fs, **options)

    async def _deliver(self, batch: diskq.Batch) -> None:
        if len(self.taken) >= 6:
            await anyio.sleep_forever()
        for each in batch:
            self._took(each)

    async def act(self, its: Any, acts: str = "wnb t sBw ty mwnst") -> None:
        for each in acts.replace(" ", ""):
            if each == "t":
                await self._take(its)
            elif each == "y":
                if "sync" in self.handle.awaited and await self.call("sync", its) is None:
                    self.synced |= self.sure
            else:
                await self._send(its, each)
        await blocked()

    async def _send(self, its: Any, act: str) -> None:
        count = {"b": 3, "B": 12}.get(act, 1)
        batch = [body(number, 90) for number in range(self.number, self.number + count)]
        self.number += count
        self.known += batch
        try:
            await self._sending(its, act, batch)
        except ERRORS as failure:
            self.errors.append(failure)
            self._failed(batch, failure)
        else:
            self.sure.update(set(batch) - self.taken)
            if act == "s":
                self.synced.update(batch)
            elif act == "m" or (act == "n" and self.handle.name.endswith("memory first")):
                self.in_memory.update(batch)

    def _failed(self, batch: list[bytes], failure: Exception) -> None:
        if len(batch) > 1 and self.handle.kind == "shards":
            return  # each has its part of it
        if isinstance(failure, FullError):
            self.sure.update(batch[: failure.accepted])
            self._refused(batch[failure.accepted :])
        elif len(batch) > 1:
            self.batches.append(batch)
        elif not isinstance(failure, diskq.BrokenResourceError):
            self._refused(batch)

    async def _sending(self, its: Any, act: str, batch: list[bytes]) -> None:
        keyed = self.handle.kind == "shards"
        if act in "bB":
            items = [(each, each) for each in batch] if keyed else batch
            await its.send_many(items, durability="written")
        elif act == "n" and "send_nowait" in self.handle.plain:
            its.send_nowait(batch[0])
        else:
            word = {"m": "memory", "s": "synced"}.get(act, "written")
            await its.send(batch[0], *batch * keyed, durability=word)

    async def _take(self, its: Any) -> None:
        if "receive" not in self.handle.awaited:
            return
        try:
            received = await its.receive()
            if self.handle.name == "leases":
                its.ack(received)
            elif self.handle.kind == "priority":
                await its.ack(received)
        except ERRORS as failure:
            self.errors.append(failure)
            if self._is_broken and (may_be := [each for each in self.known if each in self.sure]):
                self.sure.discard(may_be[0])
        else:
            self._took(bytes(getattr(received, "body", getattr(received, "payload", received))))

    def _took(self, body: bytes) -> None:
        assert body in self.known, "that was never sent"
        self.taken.add(body)
        self.sure.discard(body)

    def _refused(self, bodies: list[bytes]) -> None:
        self.known = [each for each in self.known if each not in bodies]

    @property
    def _is_broken(self) -> bool:
        return any(isinstance(each, diskq.BrokenResourceError | StorageFailedError) for each in self.errors)

    # --- what comes of it ---------------------------------------------------------------------------

    @property
    def _is_well(self) -> bool:
        return self.is_left_well and not self._is_broken

    async def go_on(self) -> None:
        self.handle = SPOOL if self.handle is DELIVERS else self.handle
        async with self.open() as its:
            assert [repair for repair in getattr(its, "repairs", ()) if repair.records != 0] == []
            await self._sending(its, "s", [LAST])

    def check_power_cut(self, found: list[bytes]) -> None:
        synced = self.sure if self._is_well else self.sure & self.synced
        assert synced <= set(found), "lost by a power cut"
        assert set(found) <= set(self.known), "refused, and in all the same"

    def check_left(self, found: list[bytes]) -> None:
        if not self._is_well:
            self.sure -= self.in_memory
        assert found.count(LAST) == 1
        found.remove(LAST)
        assert len(set(found)) == len(found), "doubled"
        assert set(found) <= set(self.known), "refused, and in all the same"
        assert self.sure <= set(found), "lost"
        for batch in self.batches:
            there = [each for each in batch if each in {*found, *self.taken}]
            assert there == batch[: len(there)], "not the first ones of a batch"
        if self._is_well:
            assert not self.taken & set(found), "taken, and there again"
        if self.handle.kind != "shards":  # each has its own order
            assert found == [each for each in self.known if each in set(found)], "out of order"


def new(loop: str, handle: Handle) -> Writer:
    known = [] if handle.kind in ("shards", "spool") else [b"0", b"1", b"2"]
    return Writer(loop, handle, FaultFS(disk(len(known))), known)


@cache
def _killed(loop: str, name: str) -> Writer:
    """A process that was killed in the middle of its time slice; its disk."""
    writer = new(loop, next(handle for handle in WRITERS if handle.name == name))

    async def run() -> None:
        async with writer.open() as its:
            await writer.act(its, "B s t b y w")
            await writer.act(its, "w b t wn")
            writer.fs = FaultFS(writer.fs.inner.kill())

    run_on(loop, run)
    assert writer.errors == []
    return writer


def after_a_kill(loop: str, handle: Handle) -> Writer:
    before = _killed(loop, handle.name)
    after = Writer(loop, handle, FaultFS(before.fs.inner.copy()), before.known, before.number)
    after.sure, after.synced = before.sure - before.in_memory, {*before.synced}
    return after


writers = pytest.mark.parametrize("handle", WRITERS, ids=str)
loops = pytest.mark.parametrize("loop", ["trio", "asyncio"])


@writers
@loops
@errors
def test_one_failed_call_in_the_life_of_a_new_channel(
    handle: Handle, loop: str, errors: tuple[int, ...]
) -> None:
    assert faults(lambda: new(loop, handle), Writer.run, errors, MOST, is_in_threads=True) == []


@pytest.mark.exhaustive
@writers
@loops
@errors
def test_one_failed_call_in_the_life_of_a_channel_that_a_killed_process_left(
    handle: Handle, loop: str, errors: tuple[int, ...]
) -> None:
    assert faults(lambda: after_a_kill(loop, handle), Writer.run, errors, MOST, is_in_threads=True) == []


# --- who reads --------------------------------------------------------------------------------------------


class Reader(Program):
    """Receives what is there, in order; commits, where it has a name."""

    def __init__(self, loop: str, handle: Handle, fs: FaultFS[CrashFS]) -> None:
        super().__init__(loop, handle, fs)
        self.every = [b"0", b"0"] if handle.kind == "shards" else [b"0", b"1", b"2"]
        self.received: list[bytes] = []
        self.committed = 0

    async def act(self, its: Any) -> None:
        await self._receive("receive", its)
        await self._commit(its)
        await self._receive("receive_many", its)
        await self._commit(its)
        if self.handle.name != "replay" and await self.call("seek", its) is None:
            self.received.clear()
            await self._receive("receive", its)
            await self._commit(its)

    async def _receive(self, name: str, its: Any) -> None:
        if len(self.received) < len(self.every):
            result = await self.call(name, its)
            if not isinstance(result, Exception):
                self.received += [each.value for each in (result if isinstance(result, list) else [result])]
                assert self.received == self.every[: len(self.received)], "left out, or doubled"

    async def _commit(self, its: Any) -> None:
        if "commit" in self.handle.awaited:
            for name in ("commit", "sync"):
                if await self.call(name, its) is None:
                    self.committed = len(self.received)

    async def go_on(self) -> None:
        found = []
        async with self.open() as its:
            with suppress(diskq.WouldBlock, diskq.EndOfChannel):
                while True:
                    found.append(its.receive_nowait().value)
        assert found == self.every[len(self.every) - len(found) :], "left out"
        assert self.errors or len(found) == len(self.every) - self.committed, "committed, and there again"

    def check_left(self, found: list[bytes]) -> None:
        assert found == self.every


@pytest.mark.parametrize("handle", READERS, ids=str)
@loops
@errors
def test_one_failed_call_in_the_life_of_a_reader(handle: Handle, loop: str, errors: tuple[int, ...]) -> None:
    begin = lambda: Reader(loop, handle, FaultFS(disk()))  # noqa: E731
    assert faults(begin, Reader.run, errors, MOST, is_in_threads=True) == []

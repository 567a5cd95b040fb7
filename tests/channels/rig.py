"""The words in which the channels' tests speak.

Barriers are paid in a thread, which no mock clock knows of: a test that needs one to be over says so
with `until`, and time stands still meanwhile.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import trio
import trio.testing
from anyio.abc import TaskGroup

import diskq
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS, FaultFS
from tests.held_disks import HeldSyncs
from tests.loops import blocked as blocked

DIRECTORY = "/q"
NAME = "events"
META = f"{DIRECTORY}/{NAME}.diskqueue.meta.dat"


def data_path(number: int = 0) -> str:
    return f"{DIRECTORY}/{NAME}.diskqueue.{number:06d}.dat"


def crash_disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably(DIRECTORY)
    return fs


def fault_disk() -> FaultFS[CrashFS]:
    return FaultFS(crash_disk())


def opened(fs: FileSystem, **options: Any) -> diskq.open_queue:
    return diskq.open_queue(DIRECTORY, NAME, fs=fs, **options)


def left_in(fs: CrashFS) -> list[bytes]:
    """Return what another process finds in the queue, which is not open."""
    with diskq.Queue(DIRECTORY, NAME, fs=fs.copy()) as queue:
        return queue.get_many(2**31)


def metadata(fs: CrashFS) -> tuple[int, ...]:
    """(depth, read file, read byte, written file, written byte), as the file says, which peers read."""
    lines = fs.read(META).splitlines()
    return (int(lines[0]), *(int(word) for line in lines[1:3] for word in line.split(b",")))


def drain(queue: diskq.QueueChannel) -> list[bytes]:
    """Everything that can be received at once."""
    bodies = []
    while True:
        try:
            bodies.append(queue.receive_nowait())
        except trio.WouldBlock:
            return bodies


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what a thread does. No clock moves and no task is hurried."""
    for _ in range(10_000):
        if is_so():
            return
        await blocked(0.001)
    raise AssertionError("it never came to be so")


class Tasks:
    """Calls that run in tasks of their own, and what became of each, in the order of their ends."""

    def __init__(self, nursery: trio.Nursery | TaskGroup) -> None:
        self._nursery = nursery
        self.ended: list[tuple[Any, Any]] = []
        self.scopes: dict[Any, anyio.CancelScope] = {}

    async def start(self, key: Any, call: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> None:
        """Begin a call, and return when it waits or has ended."""
        self.start_soon(key, call, *args, **options)
        await blocked()

    def start_soon(self, key: Any, call: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> None:
        self._nursery.start_soon(self._run, key, call, args, options)

    async def _run(self, key: Any, call: Callable[..., Awaitable[Any]], args: Any, options: Any) -> None:
        with anyio.CancelScope() as self.scopes[key]:
            try:
                result = await call(*args, **options)
            except Exception as failure:
                result = failure
            except anyio.get_cancelled_exc_class():
                self.ended.append((key, "cancelled"))
                raise
            self.ended.append((key, result))

    def __getitem__(self, key: Any) -> Any:
        """What a call returned, or the exception that it raised."""
        return dict(self.ended)[key]

    def __contains__(self, key: Any) -> bool:
        return key in dict(self.ended)


class CancelAt(trio.abc.Instrument):
    """Cancels its scope before Trio's step of this number."""

    def __init__(self, step: int) -> None:
        self.scope = trio.CancelScope()
        self.has_fired = False
        self._steps_left = step

    @contextmanager
    def at_work(self) -> Iterator[None]:
        trio.lowlevel.add_instrument(self)
        yield
        trio.lowlevel.remove_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._steps_left -= 1
        if self._steps_left < 0 and not self.has_fired:
            self.has_fired = True
            self.scope.cancel()


class PatientDisk(HeldSyncs[CrashFS]):
    """An empty disk that keeps syncs waiting once `hold` was called."""

    def __init__(self) -> None:
        super().__init__(crash_disk())


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def chunks(bodies: list[bytes], size: int) -> Iterator[list[bytes]]:
    for start in range(0, len(bodies), size):
        yield bodies[start : start + size]

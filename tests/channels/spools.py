"""The vocabulary of the spool's tests: a destination that follows a script, and the spool before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import trio

import diskq
from diskq.engine.spool.delivery_cursor import DeliveryCursor
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS

PATH = "/spool"


def spool_disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably("/")
    return fs


class Destination:
    """Delivers into a list. It first raises the given errors, one in each try."""

    def __init__(self, *answers: BaseException | None) -> None:
        self.answers = list(answers)
        self.got: list[bytes] = []
        self.batches: list[list[bytes]] = []
        """Of all tries."""
        self.attempts: list[int] = []
        self.ids: list[tuple[str, ...]] = []
        self.times: list[float] = []

    async def __call__(self, batch: diskq.Batch) -> None:
        self.batches.append(list(batch))
        self.attempts.append(batch.attempts)
        self.ids.append(batch.ids)
        self.times.append(trio.current_time())
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        self.got += batch

    @property
    def waits(self) -> list[float]:
        """Seconds between the tries."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


class Hanging(Destination):
    """Never answers."""

    async def __call__(self, batch: diskq.Batch) -> None:
        await super().__call__(batch)
        del self.got[len(self.got) - len(batch) :]
        await trio.sleep_forever()


def down(times: int) -> Iterable[OSError]:
    return (ConnectionError("nobody there") for _ in range(times))


def opened(fs: FileSystem, deliver: Callable[..., Any], **changes: Any) -> diskq.open_spool:
    return diskq.open_spool(PATH, deliver, fs=fs, **changes)


def waiting_in(fs: CrashFS, name: str = "spool") -> list[bytes]:
    """Return what the next process will deliver, of a spool that is not open."""
    fs = fs.copy()
    with diskq.Queue(PATH, name, fs=fs) as queue, DeliveryCursor(fs, PATH, queue.steps):
        return queue.get_many(2**31)


def dead_letters_in(fs: CrashFS) -> list[diskq.DeadLetter]:
    with diskq.DeadLetters(PATH, fs=fs.copy()) as letters:
        return letters.list()

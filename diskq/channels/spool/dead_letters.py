# The dead letters of a spool that is open. Law: the event loop never waits for them, one act is done at a
# time, and none of them keeps deliveries waiting for anything but the disk.

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, TypeVar, TypeVarTuple, Unpack

import trio

from diskq.engine.spool.dead_letters import DeadLetter, DeadLetterList, DeadLetters
from diskq.errors import StorageFailedError
from diskq.storage.repairs import Repair

__all__ = ["SpoolDeadLetters"]

T = TypeVar("T")
Args = TypeVarTuple("Args")


class SpoolDeadLetters:
    """The messages that could not be delivered, for who has the spool open. Made by `open_spool`."""

    def __init__(
        self, engine: DeadLetters, put_back: Callable[[list[bytes]], Coroutine[Any, Any, None]]
    ) -> None:
        self._engine = engine
        self._put_back = put_back
        self._turn = trio.Lock()

    def __len__(self) -> int:
        """How many there are; a crash may have left some twice."""
        return len(self._engine)

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What was found wrong with the letters' files: at the open, and by whoever read them since."""
        return self._engine.repairs

    async def list(self) -> DeadLetterList:
        """All of them, in the order in which they were given up. Reads them all, in a thread."""
        async with self._turn:
            return await self._run(self._engine.list)

    async def replay(self, ids: Collection[str] | None = None) -> int:
        """Put the messages of these letters, or of all, at the spool's tail. Returns how many.

        They are messages like any other then, with new ids. Durable before the letters go: `Cancelled`,
        or a crash, in between leaves both. Raises KeyError for an id that is not there, and as `send_many`.
        """
        async with self._turn:
            letters = await self._run(self._engine.select, ids)
        # Not in turn: a full spool makes room by delivering, for which it may need its letters.
        await self._put_back([letter.body for letter in letters])
        return await self._remove(letters)

    async def purge(self, ids: Collection[str] | None = None) -> int:
        """Remove these letters, or all, for good. Returns how many. Raises KeyError, DiskFullError."""
        async with self._turn:
            letters = await self._run(self._engine.select, ids)
        return await self._remove(letters)

    async def _remove(self, letters: Iterable[DeadLetter]) -> int:
        gone = [letter.id for letter in letters]
        async with self._turn:
            await self._run(self._engine.remove, gone)
        return len(gone)

    async def add(self, letters: Collection[DeadLetter]) -> None:
        """Durable when it returns. Raises DiskFullError: some of them may be in all the same."""
        async with self._turn:
            await self._run(self._engine.add, letters)

    async def _run(self, call: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        try:
            return await trio.to_thread.run_sync(call, *args)
        except StorageFailedError as failure:
            raise trio.BrokenResourceError(f"dead letters: {failure}") from failure

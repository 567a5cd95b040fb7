# The dead letters of a spool that is open. Law: the event loop never waits for their files, one operation
# runs at a time, and deliveries wait for an operation only as long as the disk takes.

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, TypeVar, TypeVarTuple, Unpack

import trio

from diskq.channels.core.event_loops.seam import running_event_loop
from diskq.engine.spool.dead_letters import DeadLetter, DeadLetterList, DeadLetters
from diskq.errors import StorageFailedError
from diskq.storage.repairs import Repair

__all__ = ["SpoolDeadLetters"]

T = TypeVar("T")
Args = TypeVarTuple("Args")


class SpoolDeadLetters:
    """The messages that an open spool could not deliver. Made by `open_spool`."""

    def __init__(
        self, engine: DeadLetters, put_back: Callable[[list[bytes]], Coroutine[Any, Any, None]]
    ) -> None:
        self._engine = engine
        self._put_back = put_back
        self._event_loop = running_event_loop()
        self._lock = self._event_loop.lock()

    def __len__(self) -> int:
        """Return the number of dead letters; a crash may have left some twice."""
        return len(self._engine)

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """The damage found in the dead letters' files, at the open and by later reads."""
        return self._engine.repairs

    async def list(self) -> DeadLetterList:
        """Return all dead letters, in the order in which they were given up. Reads them in a thread.

        `Cancelled` changes nothing.
        """
        async with self._lock:
            return await self._run(self._engine.list)

    async def replay(self, ids: Collection[str] | None = None) -> int:
        """Put the messages of these dead letters, or of all, at the spool's tail. Returns how many.

        They become ordinary messages with new ids. They are durable before the dead letters are removed:
        `Cancelled` or a crash in between leaves both. Raises KeyError for an unknown id, and as `send_many`.
        """
        async with self._lock:
            dead_letters = await self._run(self._engine._select, ids)
        # Without the lock: a full spool frees space by delivering, which may add dead letters.
        await self._put_back([each.body for each in dead_letters])
        return await self._remove(dead_letters)

    async def purge(self, ids: Collection[str] | None = None) -> int:
        """Remove these dead letters, or all, for good. Returns how many. Raises KeyError, DiskFullError.

        `Cancelled` means: none was removed.
        """
        async with self._lock:
            dead_letters = await self._run(self._engine._select, ids)
        return await self._remove(dead_letters)

    async def _remove(self, dead_letters: Iterable[DeadLetter]) -> int:
        ids = [each.id for each in dead_letters]
        async with self._lock:
            await self._run(self._engine._remove, ids)
        return len(ids)

    async def add(self, dead_letters: Collection[DeadLetter]) -> None:
        """Add dead letters. Durable when this returns. Raises DiskFullError: some of them may be in then.

        `Cancelled` means: none was added.
        """
        async with self._lock:
            await self._run(self._engine._add, dead_letters)

    async def _run(self, call: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        try:
            return await self._event_loop.run_in_thread(call, *args)
        except StorageFailedError as failure:
            raise trio.BrokenResourceError(f"dead letters: {failure}") from failure

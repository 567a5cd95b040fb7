# A handle on a log that is open for writing: what a stream's and a journal's have in common.
#
# A subclass's `send` tries the compiled fast path first: a cancellation point, then one call. If the fast
# path refuses (the slice is over, a sync is due, the message needs checks, or no task is awake to write the
# rest, such as index entries) the loop decides.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from trio.lowlevel import enable_ki_protection

from diskq.channels.core.gathering import FIRST, NOT_GATHERED, Gathered
from diskq.channels.core.handle import SendingHandle
from diskq.channels.core.sending_loop import SendingLoop
from diskq.options import Durability
from diskq.storage.repairs import Repair
from diskq.storage.sync_times import Durations

__all__ = ["Sender", "SenderStatistics"]

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderStatistics:
    """Figures of a log's writer at one moment."""

    accepted: int
    """Messages since the open; `written_bytes`, `barriers` and `barrier_seconds` count since then as well."""
    written_bytes: int
    """The bytes of their records, with keys and framing."""
    unsynced_bytes: int
    """Bytes that were accepted and are not yet on stable storage."""
    barriers: int
    barrier_seconds: Durations
    """How long barriers took on the disk: each is one or several syncs of files and directories."""
    tasks_waiting_send: int
    """Tasks that wait for space or for a sync."""
    open_handles: int


S = TypeVar("S", bound=SenderStatistics)


class Sender(SendingHandle, Generic[P]):
    """Sends messages to a log. `P` is the position that each message gets.

    Any number of tasks may send at once, through one handle or through clones. Every async method is a
    cancellation point, and a schedule point once per slice; where one raises `Cancelled`, nothing was sent.
    """

    _loop: SendingLoop[Any, P]

    def __init__(
        self, loop: SendingLoop[Any, P], put: Callable[..., P | None], put_now: Callable[..., P | None]
    ) -> None:
        """`put` and `put_now` are the compiled calls; `put_now` is for callers that cannot yield."""
        super().__init__(loop)
        self._readers = loop.waiting
        self._is_written = self._durability == "written"
        self._put: Callable[..., P | None] = put if self._is_written else _refuse
        self._put_now: Callable[..., P | None] = put_now if self._is_written else _refuse
        self._gathering = loop.gathering
        self._gather: Callable[..., int] = loop.gathering.add

    # --- sending ----------------------------------------------------------------------------------

    @abstractmethod
    def _checked(self, message: tuple[Any, ...], level: Durability) -> tuple[int, Callable[[], P]]:
        """Return the message's size in bytes, and the call that appends it. Raises if it is invalid."""

    async def _send(self, message: tuple[Any, ...], durability: Durability | None) -> P:
        """Send what the fast path refused, or was not tried for, after a cancellation point.

        The way of a synced message is told in commit_loop.py.
        """
        self._loop.own_thread.check()
        is_synced = (durability or self._durability) == "synced" and not self._is_closed
        number = self._loop.gather(*message) if is_synced else NOT_GATHERED
        if number == NOT_GATHERED:
            await self._loop.schedule_point()
            if is_synced and not self._is_closed:
                number = self._loop.gather(*message)  # another task may have begun a batch
        if number != NOT_GATHERED:
            batch: Gathered[P] = self._gathering.batch
            await (self._loop.barrier(with_metadata=False) if number == FIRST else self._sleep)
            return batch.places[number]  # type: ignore[return-value]
        if self._is_written and (durability is None or durability == self._durability):
            try:
                if (position := self._loop.send_simply(*message)) is not None:
                    return position
            except OSError as failure:
                self._write_failed(failure)
        level = self._chosen_durability(durability)
        if level == "synced":
            position = None
            try:
                position = self._loop.send_through(*message)
            except OSError as failure:
                self._write_failed(failure)
            if position is not None:
                await self._loop.barrier(with_metadata=False)
                return position
        size, put_in = self._checked(message, level)
        return await self._deliver(size, put_in, level)

    def _send_now(self, message: tuple[Any, ...]) -> P:
        """Send without waiting. Raises WouldBlock."""
        try:
            if (position := self._put_now(*message)) is not None:
                if self._readers:
                    self._loop.notify_readers(self._loop.appends.partition_of(position))
                return position
            if (
                self._is_written
                and not self._is_closed
                and (position := self._loop.send_simply(*message)) is not None
            ):
                return position
        except OSError as failure:
            self._write_failed(failure)
        level = self._chosen_durability(None)
        size, put_in = self._checked(message, level)
        sent: P = self._doing(self._loop.deliver_now, self._loop.sending(size, put_in, level))
        return sent

    async def _deliver(self, size: int, put_in: Callable[[], R], level: Durability) -> R:
        result: R = await self._waiting(self._loop.deliver(self._loop.sending(size, put_in, level)))
        return result

    # --- the log as a whole -----------------------------------------------------------------------

    @enable_ki_protection
    async def sync(self) -> None:
        """Return when all messages sent are on stable storage, with their index entries and metadata.

        `Cancelled` is raised only before the sync begins; the messages stay in.
        """
        await self._begin()
        await self._loop.barrier(with_metadata=True)

    def _statistics_as(self, kind: Callable[..., S], **own: Any) -> S:
        """Return statistics of that kind; `own` are the fields that only this kind has."""
        loop, engine = self._loop, self._loop.engine
        return kind(
            accepted=loop.fast_append.records,
            written_bytes=engine.accepted_bytes,
            unsynced_bytes=engine.log.unsynced_bytes,
            barriers=loop.syncs_prepared,
            barrier_seconds=loop.barrier_seconds,
            tasks_waiting_send=loop.tasks_waiting_send,
            open_handles=loop.open_handles,
            **own,
        )

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """The damage found in the files at the open, and what was done about it."""
        return self._loop.engine.repairs  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close this handle, and wake the tasks that wait on it with ClosedResourceError. Idempotent.

        The stream or journal stays open until its block is left.
        """
        super().close()

    def _shut(self) -> None:
        super()._shut()
        self._put = self._put_now = _refuse
        self._gather = _add_nothing
        self._is_written = False


def _refuse(*_: object) -> None:
    return None


def _add_nothing(*_: object) -> int:
    return NOT_GATHERED

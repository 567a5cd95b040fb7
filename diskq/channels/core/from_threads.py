# A bridge from threads into a channel. Law: a thread leaves its message and continues; the loop is woken once
# for many messages.
#
#   any thread:   put -> [ bridge, bounded ] -> call_soon, if the loop's side sleeps
#   the loop's:                 `run`: send_many, up to _BATCH; accepted messages leave the bridge
#
# A message stays in the bridge until the channel has accepted it: after any interruption it is tried again.
# Until then it is only in memory.

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Iterable
from itertools import islice
from queue import Full
from typing import Any, Generic, Protocol, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.event_loops.seam import running_event_loop
from diskq.channels.core.opening import Opening
from diskq.errors import FullError
from diskq.storage.log_events import Log

__all__ = ["ThreadSender", "open_thread_sender"]

log = Log("threads")

# The most messages that are sent together.
_BATCH = 100
# Seconds until the next attempt after the disk was full.
_RETRY = 0.1

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class SendsMany(Protocol[T_contra]):
    """A disk queue, a stream's producer, or anything with the same `send_many`."""

    def send_many(self, messages: Iterable[T_contra], /) -> Awaitable[object]: ...


class ThreadSender(Generic[T_contra]):
    """Takes messages from any thread for a channel, with the methods of the standard library's `queue.Queue`.

    Made by `open_thread_sender`. Code that puts into such a queue can use it, for example logging's
    `QueueHandler`.
    """

    def __init__(self, max_messages: int) -> None:
        if max_messages < 1:
            raise ValueError(f"max_messages is at least 1, got {max_messages}")
        self._max_messages = max_messages
        self._messages: deque[Any] = deque()
        # Its lock is reentrant: a signal handler or finalizer that runs during a put may put as well.
        self._has_room = threading.Condition()
        self._event_loop = running_event_loop()
        self._loop_thread = threading.get_ident()
        self._news = self._event_loop.event()
        self._is_notified = False  # the loop's side is awake, and looks again before it sleeps
        self._refusal: Exception | None = None

    def put(self, message: T_contra, block: bool = True, timeout: float | None = None) -> None:
        """Put a message, from any thread; waits up to `timeout` seconds for space (None: without limit).

        The message is in memory: it is lost if the process is killed before the channel has accepted it.
        Raises queue.Full if there is no space, trio.ClosedResourceError after the `open_thread_sender` block
        was left, trio.BrokenResourceError after the channel failed, RuntimeError if the loop's own thread
        would wait.
        """
        with self._has_room:
            if self._refusal is None and len(self._messages) >= self._max_messages:
                self._wait_for_room(block, timeout)
            if self._refusal is not None:
                raise type(self._refusal)(*self._refusal.args) from self._refusal.__cause__
            if not self._is_notified:
                self._event_loop.call_soon(self._notify)
                self._is_notified = True
            self._messages.append(message)

    def put_nowait(self, message: T_contra) -> None:
        """Do as `put` without waiting: raises queue.Full at once."""
        self.put(message, block=False)

    def qsize(self) -> int:
        """Return the number of messages that the channel has not accepted yet."""
        return len(self._messages)

    def _wait_for_room(self, block: bool, timeout: float | None) -> None:
        if not block:
            raise Full
        if threading.get_ident() == self._loop_thread:
            raise RuntimeError(
                "the bridge is full, and the loop's own thread must not wait for it: use put_nowait"
            )
        if not self._has_room.wait_for(self._is_worth_trying, timeout):
            raise Full

    def _is_worth_trying(self) -> bool:
        return self._refusal is not None or len(self._messages) < self._max_messages

    def close(self) -> None:
        """Refuse further messages. Those already put still go into the channel."""
        self._refuse(trio.ClosedResourceError("the bridge from threads was closed"))

    def _refuse(self, why: Exception) -> None:
        with self._has_room:
            self._refusal = self._refusal or why
            self._has_room.notify_all()

    # --- on the loop's side ---------------------------------------------------------------------------

    def _notify(self) -> None:
        self._news.set()

    def _first(self, count: int) -> list[Any]:
        """Return the first messages, which stay. If there are none, the next `put` sets `_news`."""
        with self._has_room:
            messages = list(islice(self._messages, count))
            if not messages:
                self._is_notified = False
                self._news = self._event_loop.event()
            return messages

    def _replace_first(self, count: int, rest: Iterable[Any] = ()) -> None:
        """Remove the first `count` messages, and put `rest` back: the channel has all but those."""
        with self._has_room:
            for _ in range(count):
                self._messages.popleft()
            self._messages.extendleft(reversed([*rest]))
            self._has_room.notify_all()


class _Bridge(Generic[T]):
    """Sends the messages of a `ThreadSender` into a channel until the block is left."""

    def __init__(self, sender: ThreadSender[T], channel: SendsMany[T], flush_timeout: float) -> None:
        self._sender = sender
        self._channel = channel
        self._flush_timeout = flush_timeout
        self._event_loop = running_event_loop()
        self._shield = self._event_loop.scope(shield=True)
        self._is_closing = False
        self._is_full = False
        self._failure: Exception | None = None

    @property
    def title(self) -> str:
        return "from threads"

    @property
    def is_broken(self) -> bool:
        return self._failure is not None

    def begin(self) -> bool:
        """Return False: it needs a task of its own."""
        return False

    @enable_ki_protection
    async def run(self) -> None:
        try:
            with self._shield:
                try:
                    await self._forward()
                except self._event_loop.cancelled:  # the task that leaves the block is cancelled
                    with self._event_loop.move_on_after(self._flush_timeout, shield=True):
                        await self._forward()
        except Exception as failure:
            self._failure = failure
            broken = trio.BrokenResourceError(f"the channel of this bridge from threads failed: {failure}")
            broken.__cause__ = failure
            self._sender._refuse(broken)
        if lost := self._sender.qsize():
            log.report(
                "messages_lost",
                "%d messages that threads have sent are lost: %s",
                lost,
                self._why(),
                count=lost,
                reason=self._why(),
            )

    def _why(self) -> str:
        if self._failure is not None:
            return str(self._failure)
        return f"the channel did not take them in {self._flush_timeout:g} s"

    async def _forward(self) -> None:
        at_once = _BATCH
        while True:
            messages = self._sender._first(at_once)
            if messages:
                at_once = await self._send(messages)
            elif self._is_closing:
                return
            else:
                await self._sender._news.wait()

    async def _send(self, messages: list[T]) -> int:
        """Send the messages into the channel. Returns how many to try next."""
        try:
            await self._channel.send_many(messages)
        except FullError as full:
            self._sender._replace_first(len(messages), full.rest or messages[full.accepted :])
            if len(messages) > 1:
                return 1  # together they may be larger than the space can ever be
            if self._is_closing:
                raise
            if not self._is_full:
                log.report("disk_full", "messages from threads wait in memory: %s", full, path=full.path)
            self._is_full = True
            await self._event_loop.sleep_for(_RETRY)
            return 1
        self._is_full = False
        self._sender._replace_first(len(messages))
        return _BATCH

    def begin_to_close(self) -> None:
        self._is_closing = True
        self._shield.shield = False
        self._sender._notify()

    def check_end(self) -> None:
        if self._failure is not None:
            raise self._failure


class open_thread_sender(Opening[ThreadSender[T]]):  # noqa: N801 (it is used as a function)
    """Let threads send into a channel: an async context manager that gives a `ThreadSender`.

    `channel` is a disk queue, a stream's producer, or anything with the same `send_many`. At most
    `max_messages` messages wait in memory; the loop is woken once for all messages that come while it is
    busy. Messages also wait while the disk is full.

    Leaving the block waits until the channel has accepted all messages. If it is cancelled, it waits up to
    `flush_timeout` seconds more, and the number of messages lost after that is logged. Leaving raises the
    error of `send_many`, after which messages are refused, and DiskFullError if there was no space until
    the end.
    """

    _runs_callers_code = True

    def __init__(
        self, channel: SendsMany[T], *, max_messages: int = 10_000, flush_timeout: float = 5.0
    ) -> None:
        self._channel = channel
        self._max_messages = max_messages
        self._flush_timeout = flush_timeout

    async def _open(self) -> tuple[_Bridge[T], ThreadSender[T]]:
        sender: ThreadSender[T] = ThreadSender(self._max_messages)
        return _Bridge(sender, self._channel, self._flush_timeout), sender

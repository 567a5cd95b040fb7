# The tasks in which loops take their turns. Law: the loops of all open stores of a run share one task; a
# loop that is being closed has one of its own, which ends when the store is closed.
#
# A task and a nursery for each store took a quarter of its memory, and a deadline for each a scope to cancel.

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from diskq.channels.core.cadence import Cadence
from diskq.channels.core.event_loops.seam import LEFT, EventLoop, Left, Task, running_event_loop

__all__ = ["NO_TASK", "Loop", "LoopTask", "OwnTask", "SharedTask"]

# The turns after which other tasks may run.
_MANY_TURNS = 64

_SHARED = "loops"


class LoopTask(Protocol):
    """The task in which a loop takes its turns."""

    def ring(self, loop: Loop, /) -> None:
        """Give the loop a turn soon."""

    def wake_at(self, loop: Loop, at: float, /) -> None:
        """Give it a turn at that time (the event loop's clock) as well, instead of any time set before."""

    def leave(self, loop: Loop, /) -> None:
        """Give the loop no more turns."""


class Loop(Protocol):
    """What takes turns."""

    task: LoopTask
    cadence: Cadence
    """JOINED: its next turn is to come after tasks that were just woken have run."""
    due_at: float
    """When it is to have a turn; infinity: when it is rung."""
    listed_at: float
    """When the shared task will look at `due_at`, at the latest; infinity: not at all."""

    def take_turn(self) -> None:
        """Do what is due. Never raises."""

    def stay_awake(self) -> None:
        """Wait a short time for what the turn has begun, if nothing else has to run. Never raises."""


class SharedTask:
    """The task of all loops of a run that are not being closed. It ends with the last of them."""

    def __init__(self, event_loop: EventLoop) -> None:
        self._event_loop = event_loop
        self._loops = 0
        self._rung: dict[Loop, None] = {}
        # Of each loop that is due at some time one entry, and entries that are not valid any more.
        self._listed: list[tuple[float, int, Loop]] = []
        self._numbers = count()
        self._sleeper: Task | None = None
        self._scope = event_loop.scope()
        self._has_ended = False

    @classmethod
    def join(cls, loop: Loop) -> SharedTask:
        """Give the loop its turns in the task of this run; the first one soon."""
        event_loop = running_event_loop()
        task: SharedTask | None = event_loop.local.get(_SHARED)
        if task is None or task._has_ended:
            task = event_loop.local[_SHARED] = cls(event_loop)
            event_loop.spawn(task._run, name="io_loop of this run's stores")
        task._loops += 1
        task.ring(loop)
        return task

    def ring(self, loop: Loop) -> None:
        self._rung[loop] = None
        if self._sleeper is not None:
            self._wake()

    def wake_at(self, loop: Loop, at: float) -> None:
        loop.due_at = at
        if at < loop.listed_at:
            self._list(loop)
        elif at == math.inf:
            self._unlist_passed()  # a task that has nothing to do is not to be woken
        self._set_deadline()

    def leave(self, loop: Loop) -> None:
        self._rung.pop(loop, None)
        self.wake_at(loop, math.inf)
        self._loops -= 1
        if not self._loops:
            self._has_ended = True
            del self._event_loop.local[_SHARED]
            if self._sleeper is not None:
                self._wake()

    # --- deadlines --------------------------------------------------------------------------------

    def _list(self, loop: Loop) -> None:
        loop.listed_at = loop.due_at
        heappush(self._listed, (loop.due_at, next(self._numbers), loop))

    def _unlist_passed(self, now: float = -math.inf) -> None:
        """Drop the first entries while they are not valid; ring the loops that are due `now`."""
        while self._listed:
            at, _, loop = self._listed[0]
            if at == loop.listed_at:
                if at == loop.due_at > now:
                    return
                loop.listed_at = math.inf
                if loop.due_at <= now:
                    self._rung[loop] = None
                elif loop.due_at < math.inf:
                    self._list(loop)  # it is not the first one then
            heappop(self._listed)

    def _set_deadline(self) -> None:
        deadline = self._listed[0][0] if self._listed else math.inf
        if self._scope.deadline != deadline:
            self._scope.deadline = deadline

    # --- the task ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not self._has_ended:
                with self._event_loop.scope() as self._scope:  # one for many turns: it costs more than a turn
                    self._set_deadline()
                    while not self._has_ended:
                        if not self._rung:
                            self._sleeper = self._event_loop.current_task()
                            await self._event_loop.wait(self._stop_sleeping)
                        await self._give_turns()
                self._unlist_passed(self._event_loop.clock())
        finally:
            self._has_ended = True

    async def _give_turns(self) -> None:
        rung, self._rung = self._rung, {}
        joined: list[Loop] = []
        for number, loop in enumerate(rung, 1):
            if loop.cadence is Cadence.JOINED:
                joined.append(loop)
            elif loop.task is self:
                loop.take_turn()
            if number % _MANY_TURNS == 0:
                await self._event_loop.cancel_shielded_checkpoint()
        if joined:
            await self._event_loop.cancel_shielded_checkpoint()
            for loop in joined:
                if loop.task is self:
                    loop.cadence = Cadence.SHARED
                    loop.take_turn()
        if len(rung) == 1 and not self._rung:  # no other loop waits meanwhile
            (loop,) = rung
            if loop.task is self:
                loop.stay_awake()

    def _stop_sleeping(self, _: object) -> Left:
        self._sleeper = None
        return LEFT

    def _wake(self) -> None:
        sleeper, self._sleeper = self._sleeper, None
        assert sleeper is not None
        self._event_loop.wake(sleeper)


class OwnTask:
    """The task of one loop, which sleeps in `scope`. A ring while it does not wait ends the next `wait`."""

    __slots__ = ("_event_loop", "_listener", "_was_rung", "scope")

    def __init__(self, event_loop: EventLoop) -> None:
        self._event_loop = event_loop
        self.scope = event_loop.scope()
        self._was_rung = False
        self._listener: Task | None = None

    def ring(self, loop: Loop) -> None:
        if self._listener is not None:
            task, self._listener = self._listener, None
            self._event_loop.wake(task)
        else:
            self._was_rung = True

    def wake_at(self, loop: Loop, at: float) -> None:
        if self.scope.deadline != at:
            self.scope.deadline = at

    def leave(self, loop: Loop) -> None:
        """Do nothing: the task itself ends the turns."""

    async def wait(self) -> None:
        """Wait to be rung."""
        if self._was_rung:
            self._was_rung = False
            return
        self._listener = self._event_loop.current_task()

        def stop_listening(_: object) -> Left:
            self._listener = None
            return LEFT

        await self._event_loop.wait(stop_listening)


class _NoTask:
    """Of a loop that is not open yet."""

    def ring(self, loop: Loop) -> None:
        """Do nothing: the task that it gets gives it a turn at once."""

    def wake_at(self, loop: Loop, at: float) -> None:
        """Do nothing: the first turn sets the time."""

    def leave(self, loop: Loop) -> None:
        """Do nothing."""


NO_TASK = _NoTask()
"""Of a loop that is not open yet."""

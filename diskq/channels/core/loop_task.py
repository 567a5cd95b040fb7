# The tasks in which loops take their turns. Law: the loops of all open stores of a Trio run share one task; a
# loop that is being closed has one of its own, which ends when the store is closed.
#
# A task and a nursery for each store took a quarter of its memory, and a deadline for each a scope to cancel.

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

import trio

__all__ = ["NO_TASK", "Loop", "LoopTask", "OwnTask", "SharedTask"]

# The turns after which other tasks may run.
_MANY_TURNS = 64


class LoopTask(Protocol):
    """The task in which a loop takes its turns."""

    def ring(self, loop: Loop, /) -> None:
        """Give the loop a turn soon."""

    def wake_at(self, loop: Loop, at: float, /) -> None:
        """Give the loop a turn at that time (Trio's clock) as well, which replaces any time set before."""

    def leave(self, loop: Loop, /) -> None:
        """Give the loop no more turns."""


class Loop(Protocol):
    """What takes turns."""

    task: LoopTask
    lets_join: bool
    """True if its next turn is to come after tasks that were just woken have run."""
    due_at: float
    """When it is to have a turn; infinity: when it is rung."""
    listed_at: float
    """When the shared task will look at `due_at`, at the latest; infinity: not at all."""

    def take_turn(self) -> None:
        """Do what is due. Never raises."""

    def stay_awake(self) -> None:
        """Wait a short time for what the turn has begun, if nothing else has to run. Never raises."""


class SharedTask:
    """The task of all loops of a Trio run that are not being closed. It ends with the last of them."""

    def __init__(self) -> None:
        self._loops = 0
        self._rung: dict[Loop, None] = {}
        # Of each loop that is due at some time one entry, and entries that are not valid any more.
        self._listed: list[tuple[float, int, Loop]] = []
        self._numbers = count()
        self._sleeper: trio.lowlevel.Task | None = None
        self._scope = trio.CancelScope()
        self._has_ended = False

    @classmethod
    def join(cls, loop: Loop) -> SharedTask:
        """Give the loop its turns in the task of this Trio run; the first one soon."""
        task = _of_run.get()
        if task is None or task._has_ended:
            task = cls()
            _of_run.set(task)
            trio.lowlevel.spawn_system_task(task._run, name="io_loop of this run's stores")
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
            _of_run.set(None)
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
                with trio.CancelScope() as self._scope:  # one for many turns: it costs more than a turn
                    self._set_deadline()
                    while not self._has_ended:
                        if not self._rung:
                            self._sleeper = trio.lowlevel.current_task()
                            await trio.lowlevel.wait_task_rescheduled(self._stop_sleeping)
                        await self._give_turns()
                self._unlist_passed(trio.current_time())
        finally:
            self._has_ended = True

    async def _give_turns(self) -> None:
        rung, self._rung = self._rung, {}
        joined: list[Loop] = []
        for number, loop in enumerate(rung, 1):
            if loop.lets_join:
                joined.append(loop)
            elif loop.task is self:
                loop.take_turn()
            if number % _MANY_TURNS == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
        if joined:
            await trio.lowlevel.cancel_shielded_checkpoint()
            for loop in joined:
                if loop.task is self:
                    loop.lets_join = False
                    loop.take_turn()
        if len(rung) == 1 and not self._rung:  # no other loop waits meanwhile
            (loop,) = rung
            if loop.task is self:
                loop.stay_awake()

    def _stop_sleeping(self, _: object) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        sleeper, self._sleeper = self._sleeper, None
        assert sleeper is not None
        trio.lowlevel.reschedule(sleeper)


_of_run: trio.lowlevel.RunVar[SharedTask | None] = trio.lowlevel.RunVar("diskq loops", None)


class OwnTask:
    """The task of one loop, which sleeps in `scope`. A ring while it does not wait ends the next `wait`."""

    __slots__ = ("_listener", "_was_rung", "scope")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self._was_rung = False
        self._listener: trio.lowlevel.Task | None = None

    def ring(self, loop: Loop) -> None:
        if self._listener is not None:
            task, self._listener = self._listener, None
            trio.lowlevel.reschedule(task)
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
        self._listener = trio.lowlevel.current_task()

        def stop_listening(_: object) -> trio.lowlevel.Abort:
            self._listener = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(stop_listening)


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

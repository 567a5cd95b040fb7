# Time slices. Law: a run of an event loop has one slice clock, whatever number of stores is open in it. It
# measures the slice of the running task, and a task that sends to a thousand queues in turn has one, not a
# thousand.

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from diskq.channels.core.event_loops.seam import EventLoop

__all__ = ["RunningSlice", "TimedGate", "share_clock"]


class RunningSlice(Protocol):
    """When the running task's slice began."""

    @property
    def slices(self) -> int:
        """How many slices have begun."""

    def restart(self) -> None:
        """Begin a new slice: other tasks have just had their turn."""


class TimedGate(Protocol):
    """A gate that is shut for callers that can yield once their slice is over."""

    @property
    def clock(self) -> Any:
        """Its clock, a `RunningSlice`."""

    def follow(self, clock: Any, /) -> None:
        """Go by that clock from now on."""

    def restart(self) -> None:
        """Begin a new slice on its clock."""


def share_clock(event_loop: EventLoop, gates: Iterable[TimedGate]) -> RunningSlice:
    """Give these gates the clock of this run, and return the clock: the run's first gate brought it."""
    for gate in gates:
        gate.follow(event_loop.local.get(_CLOCK, gate.clock))
        event_loop.local[_CLOCK] = gate.clock
    clock: RunningSlice = event_loop.local.get(_CLOCK, _NO_CLOCK)
    return clock


class _NoClock:
    """Of a run in which no store with gates is open."""

    slices = 0

    def restart(self) -> None:
        pass


_NO_CLOCK = _NoClock()
_CLOCK = "slice clock"

from enum import IntEnum

from diskq._native.core.thread_guard import ThreadGuard

class Admission(IntEnum):
    TIMED = 0
    COUNTED = 1
    FORCED = 2

class SliceClock:
    slices: int
    def restart(self) -> None: ...

class Gate:
    left: int
    guard: ThreadGuard
    clock: SliceClock
    def __init__(
        self, time_slice: float = 0.0, guard: ThreadGuard | None = None, clock: SliceClock | None = None
    ) -> None: ...
    def follow(self, clock: SliceClock) -> None: ...
    def restart(self) -> None: ...
    @property
    def is_slice_over(self) -> bool: ...

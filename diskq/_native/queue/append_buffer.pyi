from collections.abc import Callable

from diskq._native.core.append_buffer import AppendBuffer, Mode
from diskq._native.core.framing import Framing
from diskq._native.core.gate import Admission, Gate

class NsqBuffer(AppendBuffer):
    def __init__(
        self,
        fs: object,
        framing: Framing,
        gate: Gate,
        on_block: Callable[[int, int, int, int], object],
    ) -> None: ...
    def appender(self, mode: Mode, admission: Admission) -> NsqAppender: ...
    def append_many(self, bodies: list[bytes], start: int, mode: Mode) -> int: ...

class NsqAppender:
    def __init__(self, buffer: NsqBuffer, mode: Mode, admission: Admission) -> None: ...
    def append(self, body: object) -> bool: ...
    def append_all(self, bodies: list[bytes]) -> bool: ...

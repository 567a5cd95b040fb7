from collections.abc import Callable
from typing import Any

from typing_extensions import Buffer

from diskq._native.core.append_buffer import Mode
from diskq._native.core.gate import Admission, Gate
from diskq._native.core.offset_buffer import OffsetBuffer
from diskq._native.journal.codec import SejFraming

class SejBuffer(OffsetBuffer):
    is_awake: bool
    room: int
    def __init__(
        self,
        fs: object,
        framing: SejFraming,
        gate: Gate,
        on_block: Callable[[int, int, int, int], object],
    ) -> None: ...
    def count_from(
        self, next_offset: int, clock: Callable[[], int] | None, on_full: Callable[[], object]
    ) -> None: ...
    def begin(self, base: int) -> None: ...
    @property
    def is_flushed(self) -> bool: ...
    def appender(self, mode: Mode, admission: Admission) -> SejAppender: ...
    def first_odd(self, items: list[Any], start: int = 0) -> int: ...
    def size_of(self, items: list[Any]) -> int: ...
    def append_many(self, items: list[Any], start: int, mode: Mode) -> int: ...
    def append_encoded(self, data: Buffer, start: int = 0) -> int: ...

class SejAppender:
    def __init__(self, buffer: SejBuffer, mode: Mode, admission: Admission) -> None: ...
    def append(
        self, value: object, key: object = None, timestamp: object = None, type: object = 0
    ) -> int | None: ...

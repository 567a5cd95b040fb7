from collections.abc import Callable
from enum import IntEnum

from diskq._native.core.framing import Framing
from diskq._native.core.gate import Gate
from diskq._native.core.read_ahead import ReadAhead

BLOCK_SIZE: int
WAL_MAGIC: bytes
WAL_HEADER: int
WAL_ROWS: int
WAL_ROW_COUNT: int

class Mode(IntEnum):
    STAGED = 0
    WRITTEN = 1
    HELD = 2

class AppendBuffer:
    limit: int
    file_number: int
    def __init__(
        self,
        fs: object,
        framing: Framing,
        gate: Gate,
        on_block: Callable[[int, int, int, int], object],
    ) -> None: ...
    def retarget(self, handle: int, end: int, limit: int) -> None: ...
    @property
    def end(self) -> int: ...
    @property
    def flushed(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def records_written(self) -> int: ...
    @property
    def accepted_bytes(self) -> int: ...
    def lend(self, ahead: ReadAhead) -> bool: ...
    def attach_wal(self, memory: object) -> None: ...
    def detach_wal(self) -> None: ...
    @property
    def has_wal(self) -> bool: ...
    def wipe_wal(self) -> None: ...
    def flush(self) -> None: ...
    def close_block(self) -> None: ...

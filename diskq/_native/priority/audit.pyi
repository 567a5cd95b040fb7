from typing import NamedTuple

from diskq._native.priority.record_table import RecordTable

class TallyResult(NamedTuple):
    records: int
    end: int
    stop: str
    term: int
    is_narrow: bool
    is_document: bool

class CommandTally:
    def __init__(self, tables: dict[bytes, RecordTable]) -> None: ...
    @property
    def stored(self) -> int: ...
    def add(self, buffer: bytes | bytearray | memoryview, rest: int = -1, skip: int = 0) -> TallyResult: ...

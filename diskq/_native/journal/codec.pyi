from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from diskq._native.core.framing import Count, KeyedFraming, _Stop
from diskq._native.core.message import JournalMessage, Scan

_Bytes: TypeAlias = bytes | bytearray | memoryview

MAX_KEY: int
MAX_RECORD: int
MAX_VALUE: int
RECORD_OVERHEAD: int

class JournalBackScan(NamedTuple):
    messages: list[JournalMessage]
    start: int
    stop: _Stop
    claimed: int

class JournalColumns(NamedTuple):
    records: int
    first_offset: int
    timestamps: bytes
    time_validity: bytes | None
    types: bytes
    keys: bytes
    key_offsets: bytes
    values: bytes
    value_offsets: bytes
    offset_width: int
    valid_end: int
    stop: _Stop

class SejFraming(KeyedFraming):
    def __init__(self, min_size: int = 0, max_size: int = ..., max_key_size: int = ...) -> None: ...

def encode(messages: Iterable[tuple[_Bytes, int | None, int, _Bytes]], first_offset: int = 0) -> bytes: ...
def scan(
    buffer: _Bytes, first_offset: int = -1, partition: int = 0, max_records: int = ...
) -> Scan[JournalMessage]: ...
def scan_back(
    buffer: _Bytes, next_offset: int = -1, partition: int = 0, max_records: int = ...
) -> JournalBackScan: ...
def boundary(buffer: _Bytes, next_offset: int) -> tuple[int, int]: ...
def count(buffer: _Bytes, first_offset: int = -1, max_records: int = ...) -> Count: ...
def columns(
    buffer: _Bytes, first_offset: int = -1, max_records: int = ..., wide: bool = False
) -> JournalColumns: ...
def blocks(buffer: _Bytes, first_offset: int, size: int) -> list[tuple[int, int]]: ...
def resume(
    buffer: _Bytes, expected: int, next_offset: int = -1, may_be_torn: bool = False
) -> tuple[int, int] | None: ...

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from diskq._native.core.framing import Count, KeyedFraming, _Stop
from diskq._native.core.message import Message, Scan

_Bytes: TypeAlias = bytes | bytearray | memoryview

INDEX_ROW_SIZE: int
MAX_KEY: int
MAX_VALUE: int
TIMEINDEX_ROW_SIZE: int

class Encoded(NamedTuple):
    data: bytes
    index_rows: bytes
    timeindex_rows: bytes

class Slices(NamedTuple):
    records: int
    timestamps: bytes
    key_starts: bytes
    key_ends: bytes
    value_starts: bytes
    value_ends: bytes
    valid_end: int
    stop: _Stop

class StreamColumns(NamedTuple):
    records: int
    timestamps: bytes
    keys: bytes
    key_offsets: bytes
    values: bytes
    value_offsets: bytes
    offset_width: int
    valid_end: int
    stop: _Stop

class TripletFraming(KeyedFraming):
    def __init__(
        self, min_size: int = 0, max_size: int = ..., max_key_size: int = ..., varuint: bool = False
    ) -> None: ...
    @property
    def varuint(self) -> bool: ...

def encode(
    messages: Iterable[tuple[_Bytes, int, _Bytes]],
    first_offset: int = 0,
    position: int = 0,
    varuint: bool = False,
) -> Encoded: ...
def scan(
    buffer: _Bytes, partition: int = 0, first_offset: int = 0, varuint: bool = False, max_records: int = ...
) -> Scan[Message]: ...
def slices(buffer: _Bytes, varuint: bool = False, max_records: int = ...) -> Slices: ...
def count(buffer: _Bytes, varuint: bool = False, max_records: int = ...) -> Count: ...
def columns(
    buffer: _Bytes, varuint: bool = False, max_records: int = ..., wide: bool = False
) -> StreamColumns: ...
def index_rows(buffer: _Bytes) -> list[tuple[int, int, int]]: ...
def timeindex_rows(buffer: _Bytes) -> list[tuple[int, int]]: ...
def key_hash(key: bytes) -> int: ...

from typing import NamedTuple

from diskq._native.core.framing import _Stop
from diskq._native.stream.codec import TripletFraming

class RowsOf(NamedTuple):
    records: int
    index_rows: bytes
    timeindex_rows: bytes
    valid_end: int
    stop: _Stop
    claimed: int

def rows_of(
    framing: TripletFraming, buffer: bytes | bytearray | memoryview, offset: int, position: int
) -> RowsOf: ...
def checksum_rows(
    buffer: bytes | bytearray | memoryview, index: bytes | bytearray | memoryview, position: int
) -> bytes: ...

class Compared(NamedTuple):
    index_rows: int
    timeindex_rows: int
    first_timestamp: int
    last_timestamp: int

def compare_rows(
    framing: TripletFraming,
    buffer: bytes | bytearray | memoryview,
    offset: int,
    position: int,
    index: bytes,
    timeindex: bytes,
) -> Compared: ...

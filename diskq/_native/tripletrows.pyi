from typing import NamedTuple

from diskq._native.framing import _Stop
from diskq._native.triplet import TripletFraming

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

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from diskq._native.stream.codec import TripletFraming

_Bytes: TypeAlias = bytes | bytearray | memoryview

MARK_SIZE: int
ROWS_IN_A_MARK: int
SEALED_SIZE: int

class Survey(NamedTuple):
    least: int
    greatest: int
    maxima: list[int]

class Times(NamedTuple):
    rows: bytes
    next_offset: int
    position: int
    wanted: tuple[int, int] | None

def first_from(rows: _Bytes, bound: int) -> int: ...
def counts_up(rows: _Bytes, first: int) -> bool: ...
def extremes(rows: _Bytes) -> tuple[int, int]: ...
def survey(rows: _Bytes, first: int, floor: int) -> Survey | None: ...
def first_mark(marks: _Bytes, bound: int) -> int: ...
def sealed_chain(rows: _Bytes, crc: Callable[[bytes], int]) -> tuple[list[int], list[int]] | None: ...
def times_of(
    framing: TripletFraming,
    data: _Bytes,
    start: int,
    file_end: int,
    index: _Bytes,
    offset: int,
    position: int,
    end_offset: int,
) -> Times: ...

from collections.abc import Iterable
from typing import NamedTuple

from diskq._native.core.framing import Count, Framing, _Stop

MAX_BODY: int

class QueueScan(NamedTuple):
    bodies: list[bytes]
    valid_end: int
    stop: _Stop

class QueueColumns(NamedTuple):
    records: int
    values: bytes
    value_offsets: bytes
    offset_width: int
    valid_end: int
    stop: _Stop

class NsqFraming(Framing):
    def __init__(self, min_size: int, max_size: int) -> None: ...

def encode(bodies: Iterable[bytes | bytearray | memoryview]) -> bytes: ...
def scan(buffer: bytes | bytearray | memoryview, min_size: int = 0, max_size: int = ...) -> QueueScan: ...
def count(buffer: bytes | bytearray | memoryview, min_size: int = 0, max_size: int = ...) -> Count: ...
def columns(
    buffer: bytes | bytearray | memoryview, min_size: int = 0, max_size: int = ..., wide: bool = False
) -> QueueColumns: ...

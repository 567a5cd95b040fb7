from collections.abc import Iterable
from typing import Literal, NamedTuple

from diskq._native.framing import Framing

Stop = Literal["END", "TORN", "CORRUPT"]

MAX_BODY: int
STOPS: tuple[str, str, str]

class Scan(NamedTuple):
    bodies: list[bytes]
    valid_end: int
    stop: Stop

class Count(NamedTuple):
    records: int
    valid_end: int
    stop: Stop

class NsqFraming(Framing):
    def __init__(self, min_size: int, max_size: int) -> None: ...

def encode(bodies: Iterable[bytes | bytearray | memoryview]) -> bytes: ...
def scan(buffer: bytes | bytearray | memoryview, min_size: int = 0, max_size: int = ...) -> Scan: ...
def count(buffer: bytes | bytearray | memoryview, min_size: int = 0, max_size: int = ...) -> Count: ...

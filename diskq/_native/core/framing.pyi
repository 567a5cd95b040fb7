from typing import Literal, NamedTuple, TypeAlias

_Stop: TypeAlias = Literal["END", "TORN", "CORRUPT"]

STOPS: tuple[_Stop, _Stop, _Stop]

class Count(NamedTuple):
    records: int
    valid_end: int
    stop: _Stop

class Framing:
    @property
    def min_size(self) -> int: ...
    @property
    def max_size(self) -> int: ...
    @property
    def overhead(self) -> int: ...

class KeyedFraming(Framing):
    @property
    def max_key_size(self) -> int: ...

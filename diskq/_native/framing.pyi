from typing import Literal, TypeAlias

_Stop: TypeAlias = Literal["END", "TORN", "CORRUPT"]

STOPS: tuple[_Stop, _Stop, _Stop]

class Framing:
    @property
    def min_size(self) -> int: ...
    @property
    def max_size(self) -> int: ...
    @property
    def overhead(self) -> int: ...

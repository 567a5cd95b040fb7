from diskq._native.framing import Framing

INDEX_ROW_SIZE: int
MAX_KEY: int
MAX_VALUE: int
TIMEINDEX_ROW_SIZE: int

class TripletFraming(Framing):
    def __init__(
        self, min_size: int = 0, max_size: int = ..., max_key_size: int = ..., varuint: bool = False
    ) -> None: ...
    @property
    def varuint(self) -> bool: ...
    @property
    def max_key_size(self) -> int: ...

def key_hash(key: bytes) -> int: ...

from diskq._native.core.framing import Framing
from diskq._native.core.gate import Gate
from diskq._native.core.message import Message
from diskq._native.core.read_ahead import OffsetAhead
from diskq._native.stream.codec import StreamColumns, TripletFraming

class TripletAhead(OffsetAhead):
    def __init__(
        self, fs: object, framing: TripletFraming, gate: Gate, of_verified: Framing | None = None
    ) -> None: ...
    def admit_rows(self, rows: bytes, has_more: bool = False, drift: int = 0) -> int: ...
    def find(self, position: int, size: int) -> int | None: ...
    def peek(self) -> Message | None: ...
    def take(self) -> Message | None: ...  # type: ignore[override]
    def take_untimed(self) -> Message | None: ...  # type: ignore[override]
    def take_some(self, max_items: int, max_bytes: int) -> list[Message] | None: ...  # type: ignore[override]
    def take_now(self) -> Message | None: ...  # type: ignore[override]
    def take_many(self, max_items: int, max_bytes: int) -> list[Message]: ...  # type: ignore[override]
    def take_columns(self, max_records: int, max_bytes: int) -> StreamColumns | None: ...

def find_row(
    rows: bytes, at: int, step: int, start: int, base: int, offset: int, position: int, end: int
) -> int: ...
def descents(rows: bytes, before: int) -> list[int]: ...

from diskq._native.core.framing import Framing
from diskq._native.core.gate import Gate
from diskq._native.core.message import JournalMessage
from diskq._native.core.read_ahead import OffsetAhead
from diskq._native.journal.codec import JournalColumns, SejFraming

class SejAhead(OffsetAhead):
    def __init__(
        self, fs: object, framing: SejFraming, gate: Gate, of_verified: Framing | None = None
    ) -> None: ...
    def skip_earlier(self, bound: int) -> int: ...
    def peek(self) -> JournalMessage | None: ...
    def take(self) -> JournalMessage | None: ...  # type: ignore[override]
    def take_untimed(self) -> JournalMessage | None: ...  # type: ignore[override]
    def take_some(self, max_items: int, max_bytes: int) -> list[JournalMessage] | None: ...  # type: ignore[override]
    def take_now(self) -> JournalMessage | None: ...  # type: ignore[override]
    def take_many(self, max_items: int, max_bytes: int) -> list[JournalMessage]: ...  # type: ignore[override]
    def take_columns(self, max_records: int, max_bytes: int) -> JournalColumns | None: ...

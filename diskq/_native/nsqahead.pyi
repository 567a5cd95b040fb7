from diskq._native.framing import Framing
from diskq._native.gate import Gate
from diskq._native.nsq import Columns, NsqFraming
from diskq._native.readahead import ReadAhead

class NsqAhead(ReadAhead):
    def __init__(
        self, fs: object, framing: NsqFraming, gate: Gate, of_verified: Framing | None = None
    ) -> None: ...
    def take_columns(self, max_records: int, max_bytes: int) -> Columns | None: ...

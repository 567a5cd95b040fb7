from collections.abc import Callable
from typing import Literal, NamedTuple

from typing_extensions import Buffer

from diskq._native.stream.codec import TripletFraming

class BinaryColumn(NamedTuple):
    validity: Buffer | None
    offset: int
    offsets: Buffer | None
    offset_width: int
    data: Buffer | None

class NumberColumn(NamedTuple):
    validity: Buffer | None
    offset: int
    data: Buffer | None

class ColumnBatch(NamedTuple):
    rows: int
    values: BinaryColumn
    keys: BinaryColumn | None = None
    timestamps: NumberColumn | None = None
    partitions: NumberColumn | None = None
    unit: int = 1

class RowError(ValueError):
    row: int
    reason: Literal["null value", "value size", "key size", "timestamp", "partition"]
    number: int | None

class ColumnEncoder:
    def __init__(
        self,
        framing: TripletFraming,
        partition_count: int,
        random_bytes: Callable[[int], bytes],
        clock: Callable[[], int],
    ) -> None: ...
    @property
    def partition_count(self) -> int: ...
    def add(
        self,
        rows: int,
        values: BinaryColumn,
        keys: BinaryColumn | None = None,
        timestamps: NumberColumn | None = None,
        partitions: NumberColumn | None = None,
        unit: int = 1,
    ) -> None: ...
    @property
    def total(self) -> int: ...
    def waiting(self, partition: int) -> int: ...
    def records(self, partition: int) -> int: ...
    def take(self, partition: int) -> tuple[bytes, int]: ...

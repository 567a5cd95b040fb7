from typing import NamedTuple

METADATA_SIZE: int
SNAPSHOT_HEAD: int
LONGEST_QUEUE_HEAD: int

class StoreMetadata(NamedTuple):
    term: int
    vote: int
    is_document: bool

class SnapshotHead(NamedTuple):
    lsn: int
    term: int
    start: int
    length: int
    is_document: bool

class QueueHead(NamedTuple):
    name: bytes
    implementation: int
    last_id: int
    max_messages: int | None
    max_message_size: int | None
    keys: tuple[int, int] | None
    records: int
    end: int

def encode_metadata(term: int, vote: int = -1, document: bool = False) -> bytes: ...
def decode_metadata(data: bytes) -> StoreMetadata | None: ...
def encode_snapshot_head(lsn: int, term: int, length: int, document: bool = False) -> bytes: ...
def decode_snapshot_heads(data: bytes, size: int) -> list[SnapshotHead]: ...
def encode_queue_head(
    name: bytes,
    implementation: int,
    last_id: int,
    max_messages: int | None,
    max_message_size: int | None,
    keys: tuple[int, int] | None,
    count: int,
) -> bytes: ...
def decode_queue_head(buffer: bytes | bytearray | memoryview, at: int = 0) -> QueueHead | None: ...

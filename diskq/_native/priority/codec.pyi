from typing import Any, NamedTuple

FILE_HEAD: bytes
END_MARKER: bytes
MARKER: bytes
STOPS: tuple[str, ...]
CREATE: int
DELETE: int
ADD: int
REMOVE: int

class CommandScan(NamedTuple):
    commands: list[tuple[Any, ...]]
    records: int
    end: int
    stop: str
    term: int
    is_narrow: bool
    is_document: bool
    trailing: int

def scan(
    buffer: bytes | bytearray | memoryview,
    rest: int = -1,
    skip: int = 0,
    only_records: bool = False,
    most: int = -1,
) -> CommandScan: ...
def has_record(buffer: bytes | bytearray | memoryview, start: int = 0) -> bool: ...
def encode(command: bytes, term: int = 1, document: bool = False) -> bytes: ...
def create_command(
    name: bytes,
    implementation: int,
    max_messages: int | None = None,
    max_message_size: int | None = None,
    keys: tuple[int, int] | None = None,
) -> bytes: ...
def delete_command(name: bytes) -> bytes: ...
def encode_adds(
    name: bytes,
    payloads: list[bytes],
    keys: int | list[int],
    start: int = 0,
    room: int = -1,
    term: int = 1,
    document: bool = False,
) -> tuple[bytes, int]: ...
def encode_removes(
    name: bytes, ids: list[int], start: int = 0, room: int = -1, term: int = 1, document: bool = False
) -> tuple[bytes, int]: ...

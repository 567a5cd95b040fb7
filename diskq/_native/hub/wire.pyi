from typing import NamedTuple, TypeAlias

from diskq._native.core.message import JournalMessage
from diskq._native.journal.codec import JournalColumns

_Bytes: TypeAlias = bytes | bytearray | memoryview

OF_GET: int
OF_PUT: int

class Request(NamedTuple):
    client: bytes
    journal: bytes
    messages: int
    largest: int
    offset: int

class Records(NamedTuple):
    data: bytes
    taken: int
    skipped: int
    gap: int | None

def read_put(buffer: _Bytes) -> Request: ...
def read_get(buffer: _Bytes) -> Request: ...
def records(buffer: _Bytes, of_messages: int, expected: int) -> Records: ...
def messages(buffer: _Bytes, of_messages: int) -> list[JournalMessage]: ...
def put_request(client: bytes, journal: bytes, columns: JournalColumns | None) -> bytes: ...
def get_request(client: bytes, journal: bytes, offset: int) -> bytes: ...
def get_response(columns: JournalColumns | None) -> bytes: ...

# Messages of every kind as lines of JSON. Law: what is written is read back exactly, and a line that is not a
# message is refused, by its number.
#
# Tools write one shape for all formats:
#
#   {"queue":"mail","partition":0,"offset":5,"id":7,"timestamp":"2013-07-04T10:00:00.5Z","type":1,
#    "priority":3,"key":"aw==","value":"aGVsbG8="}
#
# Only `value` is required; what a message does not have is left out. `key` and `value` are base64; if text
# was asked for, `key_text` and `text` replace them where they are UTF-8. The grammar is in docs/convert.md.
#
# Commands write a shape for each kind, a stream's with go-diskq's names:
#
#   {"PartitionKey":"k","TimestampUTC":"2013-07-04T10:00:00Z","Data":"aGVsbG8=","PartitionIndex":0,"Offset":5}
#   {"offset":5,"timestamp":"2013-07-04T10:00:00Z","type":1,"key":"aw==","value":"aGVsbG8="}
#   {"queue":"mail","id":7,"priority":5,"body":"aGVsbG8="}
#
# JSON has no bytes: a stream's key is text. If it is not UTF-8, `PartitionKeyBase64`, which go-diskq does not
# have, holds it exactly, and `PartitionKey` what can be shown of it. Tools read these shapes as well; a
# command reads its own.

from __future__ import annotations

import json
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from diskq._native.priority.record_table import PriorityRecord
from diskq.engine.log.timestamps import as_text, as_timestamp, from_text
from diskq.errors import LineError
from diskq.messages import JournalMessage, Message
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.tools.entries import Entry, EntryBatch

__all__ = [
    "JOB",
    "JOURNAL",
    "STREAM",
    "Shape",
    "entry_of",
    "from_lines",
    "journal_line",
    "priority_line",
    "read_lines",
    "stream_line",
    "to_lines",
]

_WINDOW = 1024 * 1024

# --- shapes ---------------------------------------------------------------------------------------


class Names(NamedTuple):
    """The names that lines of a shape use for a message's fields; None: no such field, or it is not read."""

    value: str
    text: str | None = None
    """The value as text; `key_text` is the key as text."""
    key: str | None = None
    key_text: str | None = None
    timestamp: str | None = None
    type: str | None = None
    priority: str | None = None
    queue: str | None = None
    partition: str | None = None
    offset: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The layout of a command's lines."""

    about: str
    """Their content, for help texts."""
    example: str
    names: Names
    unread: frozenset[str] = frozenset()
    """Names that are only for other programs: a message gets new values when it is written."""
    known: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", self.unread.union(filter(None, self.names)))


STREAM = Shape(
    "key, time, partition and offset; Data is base64",
    '{"PartitionKey": "k", "TimestampUTC": "2013-07-04T10:00:00Z", "Data": "aGVsbG8="}',
    Names("Data", key="PartitionKeyBase64", key_text="PartitionKey", timestamp="TimestampUTC"),
    frozenset({"PartitionIndex", "Offset"}),
)
JOURNAL = Shape(
    "offset, time, type, and key and value in base64",
    '{"timestamp": "2013-07-04T10:00:00Z", "type": 1, "key": "aw==", "value": "aGVsbG8="}',
    Names("value", key="key", timestamp="timestamp", type="type"),
    frozenset({"offset"}),
)
JOB = Shape(
    "queue, id, priority, and body in base64",
    '{"queue": "mail", "priority": 5, "body": "aGVsbG8="}',
    Names("body", priority="priority", queue="queue"),
    frozenset({"id", "data"}),
)

# --- out ------------------------------------------------------------------------------------------


def stream_line(message: Message) -> bytes:
    """Return the line without its newline."""
    return b'{%b,"TimestampUTC":"%b","Data":"%b","PartitionIndex":%d,"Offset":%d}' % (
        _partition_key(message.key),
        as_text(message.timestamp_ns).encode(),
        b2a_base64(message.value, newline=False),
        message.partition,
        message.offset,
    )


@lru_cache(4096)
def _partition_key(key: bytes) -> bytes:
    fields = {"PartitionKey": key.decode(errors="replace")}
    if fields["PartitionKey"].encode() != key:
        fields["PartitionKeyBase64"] = b2a_base64(key, newline=False).decode()
    return json.dumps(fields, separators=(",", ":"))[1:-1].encode()


def journal_line(message: JournalMessage) -> bytes:
    """Return the line without its newline. If the message has no time, `timestamp` is null."""
    time = message.timestamp_ns
    return b'{"offset":%d,"timestamp":%b,"type":%d,"key":"%b","value":"%b"}' % (
        message.offset,
        b"null" if time is None else b'"%b"' % as_text(time).encode(),
        message.type,
        b2a_base64(message.key, newline=False),
        b2a_base64(message.value, newline=False),
    )


def priority_line(record: PriorityRecord) -> bytes:
    """Return the line without its newline."""
    return b'{"queue":%b,"id":%d,"priority":%d,"body":"%b"}' % (
        json.dumps(record.queue).encode(),
        record.id,
        record.priority,
        b2a_base64(record.body, newline=False),
    )


def to_lines(batch: EntryBatch, *, text: bool = False) -> bytes:
    """Return a line for each message, with its newline. With `text`, UTF-8 is written as text."""
    pieces: list[Iterable[str]] = []
    for name, render in _NUMBERS:
        if (column := batch.column(name)) is not None:
            pieces.append(["" if cell is None else render(cell) for cell in column])
    if batch.keys is not None:
        of_key = _text("key_text", "key") if text else _base64("key")
        pieces.append(["" if key is None else f"{of_key(key)}," for key in batch.keys])
    pieces.append(map(_text("text", "value") if text else _base64("value"), batch.values))
    starts, ends = repeat("{"), repeat("}\n")
    return "".join(map("".join, zip(starts, *pieces, ends, strict=False))).encode()


def _base64(name: str) -> Callable[[bytes], str]:
    def render(data: bytes) -> str:
        return f'"{name}":"{b2a_base64(data, newline=False).decode("ascii")}"'

    return render


def _text(name: str, otherwise: str) -> Callable[[bytes], str]:
    as_base64 = _base64(otherwise)

    def render(data: bytes) -> str:
        try:
            return f'"{name}":{encode_basestring(data.decode())}'
        except UnicodeDecodeError:
            return as_base64(data)

    return render


def _number(name: str) -> Callable[[Any], str]:
    return lambda cell: f'"{name}":{cell},'


_NUMBERS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("queue", lambda queue: f'"queue":{json.dumps(queue)},'),
    ("partition", _number("partition")),
    ("offset", _number("offset")),
    ("id", _number("id")),
    ("timestamp_ns", lambda moment: f'"timestamp":"{as_text(moment)}",'),
    ("type", _number("type")),
    ("priority", _number("priority")),
)

# --- in -------------------------------------------------------------------------------------------


_decode = json.JSONDecoder().decode
_BOM = b"\xef\xbb\xbf"


def entry_of(line: bytes, shape: Shape | None = None, when: Callable[[str], int] = from_text) -> Entry:
    """Return the message of a line of this shape, or of any. Raises ValueError for anything else.

    `when` converts a time to nanoseconds since 1970; its exceptions are passed on.
    """
    fields = _decode((line[3:] if line.startswith(_BOM) else line).decode())
    if type(fields) is not dict:
        raise ValueError("it is not an object")
    names = _TOOLS if shape is None else shape.names
    if shape is not None:
        _check_names(fields, shape.known)
    elif not fields.keys() <= _KNOWN:
        fields = _as_tools(fields)
    if shape is JOB and "data" in fields:  # as it was called in lines of before
        if "body" in fields:
            raise ValueError("it has both body and data")
        fields = {**fields, "body": fields["data"]}
    value, text = fields.get(names.value), fields.get(names.text)
    if shape is STREAM and value is None and "Data" in fields:
        value = ""  # null is Go's for a slice without bytes
    if (value is None) == (text is None):
        raise ValueError("it has both text and value" if value is not None else f"it has no {names.value}")
    key, key_text = fields.get(names.key), fields.get(names.key_text)
    if key is not None and key_text is not None:
        if shape is not STREAM:
            raise ValueError("it has both key_text and key")
        key_text = None  # what can be shown of PartitionKeyBase64
    queue = fields.get(names.queue)
    if queue is not None and type(queue) is not str:
        raise ValueError("its queue is not text")
    return Entry(
        _bytes(names.value, value) if text is None else _encoded(names.text, text),
        None
        if key is None and key_text is None
        else (_bytes(names.key, key) if key_text is None else _encoded(names.key_text, key_text)),
        _moment(names.timestamp, fields.get(names.timestamp), when),
        _whole("type", fields.get(names.type), 0, 255),
        _whole("priority", fields.get(names.priority), -(2**63), 2**63 - 1),
        queue,
        _whole("partition", fields.get(names.partition), 0, 999_999),
        _whole("offset", fields.get(names.offset), 0, 2**63 - 1),
        _whole("id", fields.get(names.id), 0, 2**64 - 1),
    )


_TOOLS = Names(*Names._fields)
_KNOWN = frozenset(Names._fields)
# The names in the lines of commands, which tools read as well.
_OTHER_NAMES = {
    **{name: part for shape in (STREAM, JOB) for part, name in shape.names._asdict().items() if name},
    "PartitionIndex": "partition",
    "Offset": "offset",
    "data": "value",  # a priority queue's body, in lines of before
}
_KNOWN_IN_ALL = _KNOWN.union(_OTHER_NAMES)


def _check_names(fields: dict[str, Any], known: frozenset[str]) -> None:
    if not fields.keys() <= known:
        raise ValueError(f"it has {min(fields.keys() - known)!r}, which no message has")


def _as_tools(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the same object with the names of a tool's lines."""
    _check_names(fields, _KNOWN_IN_ALL)
    if fields.get("PartitionKeyBase64") is not None:  # PartitionKey is what can be shown of it
        fields = {name: cell for name, cell in fields.items() if name != "PartitionKey"}
    if "Data" in fields and fields["Data"] is None:
        fields = {**fields, "Data": ""}
    ours = {_OTHER_NAMES.get(name, name): cell for name, cell in fields.items()}
    if len(ours) < len(fields):
        raise ValueError("it has a field twice")
    return ours


def _bytes(name: str | None, cell: Any) -> bytes:
    if type(cell) is not str:
        raise ValueError(f"its {name} is not text")
    try:
        return a2b_base64(cell, strict_mode=True)
    except (Base64Error, ValueError) as failure:
        raise ValueError(f"its {name} is not base64 ({failure})") from None


def _encoded(name: str | None, cell: Any) -> bytes:
    if type(cell) is not str:
        raise ValueError(f"its {name} is not text")
    try:
        return cell.encode()
    except UnicodeEncodeError:
        raise ValueError(f"its {name} is not UTF-8") from None


def _moment(name: str | None, cell: Any, when: Callable[[str], int]) -> int | None:
    if cell is None:
        return None
    if type(cell) is int:
        return as_timestamp(cell)
    if type(cell) is not str:
        raise ValueError(f"its {name} is not a time")
    return when(cell)


def _whole(name: str, cell: Any, least: int, most: int) -> int | None:
    if cell is None:
        return None
    if type(cell) is not int or not least <= cell <= most:
        raise ValueError(f"its {name} is not a whole number of {least} to {most}")
    return cell


def from_lines(lines: Sequence[bytes], first: int = 1, path: str = "stdin") -> EntryBatch:
    """Return the messages of lines; the first has number `first`. Raises LineError, naming the line."""
    entries = []
    for number, line in enumerate(lines, first):
        try:
            entries.append(entry_of(line))
        except (ValueError, RecursionError) as failure:
            raise LineError(path, number, str(failure)) from None
    return EntryBatch.of(entries)


def read_lines(path: AnyPath, *, fs: FileSystem | None = None, label: str = "") -> Iterator[EntryBatch]:
    """Yield the messages of a file of such lines, which errors call `label`. The last newline may be missing.


    Raises LineError, OSError.
    """
    disk = fs or OsFileSystem()
    text = as_path(path)
    handle = disk.open(text)
    try:
        at, number = 0, 1
        parts: list[bytes] = []  # of a line that is longer than a window
        while window := disk.pread(handle, _WINDOW, at):
            at += len(window)
            *lines, rest = window.split(b"\n")
            if lines:
                lines[0] = b"".join([*parts, lines[0]])
                parts = []
                yield from_lines(lines, number, label or text)
                number += len(lines)
            parts += [rest] if rest else []
        if parts:
            yield from_lines([b"".join(parts)], number, label or text)
    finally:
        disk.close(handle)

# Messages as lines of JSON: one shape for all formats. Law: what is written is read back exactly, and a
# line that says anything else than a message is refused, by its number.
#
#   {"queue":"mail","partition":0,"offset":5,"id":7,"timestamp":"2013-07-04T10:00:00.5Z","type":1,
#    "priority":3,"key":"aw==","value":"aGVsbG8="}
#
# Only `value` has to be there; what a message does not have is left out. `key` and `value` are base64;
# `key_text` and `text` stand for them where they are UTF-8, and text was asked for. The grammar is in
# docs/convert.md. What `stream read --json` and `jobs receive --json` print is understood as well.

from __future__ import annotations

import json
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from json.encoder import encode_basestring
from typing import Any

from diskq.engine.timestamps import as_text, as_timestamp, from_text
from diskq.errors import LineError
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.tools.entries import Entry, EntryBatch

__all__ = ["entry_of", "from_lines", "read_lines", "to_lines"]

_WINDOW = 1024 * 1024

# --- out ------------------------------------------------------------------------------------------


def to_lines(batch: EntryBatch, *, text: bool = False) -> bytes:
    """A line for each, with its newline. With `text` what is UTF-8 is written as it reads."""
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


def entry_of(line: bytes) -> Entry:
    """The message that a line tells. Raises ValueError for anything else."""
    told = _decode(line.decode())
    if type(told) is not dict:
        raise ValueError("it is no object")
    if not told.keys() <= _KNOWN:
        told = _as_ours(told)
    value = told.get("value")
    text = told.get("text")
    if (value is None) == (text is None):
        raise ValueError("it has both text and value" if value is not None else "it has no value")
    key, key_text = told.get("key"), told.get("key_text")
    if key is not None and key_text is not None:
        raise ValueError("it has both key_text and key")
    queue = told.get("queue")
    if queue is not None and type(queue) is not str:
        raise ValueError("its queue is no text")
    return Entry(
        _bytes("value", value) if text is None else _encoded("text", text),
        None
        if key is None and key_text is None
        else (_bytes("key", key) if key_text is None else _encoded("key_text", key_text)),
        _moment(told.get("timestamp")),
        _whole("type", told.get("type"), 0, 255),
        _whole("priority", told.get("priority"), -(2**63), 2**63 - 1),
        queue,
        _whole("partition", told.get("partition"), 0, 999_999),
        _whole("offset", told.get("offset"), 0, 2**63 - 1),
        _whole("id", told.get("id"), 0, 2**64 - 1),
    )


_KNOWN = frozenset(
    "queue partition offset id timestamp type priority key key_text value text".split()  # noqa: SIM905
)
# What the lines of a stream, with go-diskq's names, and of a store of priority queues call it.
_OTHER_NAMES = {
    "Data": "value",
    "PartitionKey": "key_text",
    "PartitionKeyBase64": "key",
    "TimestampUTC": "timestamp",
    "PartitionIndex": "partition",
    "Offset": "offset",
    "data": "value",
}


def _as_ours(told: dict[str, Any]) -> dict[str, Any]:
    if unknown := told.keys() - _KNOWN - _OTHER_NAMES.keys():
        raise ValueError(f"it has {min(unknown)!r}, which no message has")
    if "PartitionKeyBase64" in told:  # the other one shows what can be shown of it
        told = {name: cell for name, cell in told.items() if name != "PartitionKey"}
    ours = {_OTHER_NAMES.get(name, name): cell for name, cell in told.items()}
    if len(ours) < len(told):
        raise ValueError("it says the same twice")
    return ours


def _bytes(name: str, cell: Any) -> bytes:
    if type(cell) is not str:
        raise ValueError(f"its {name} is no text")
    try:
        return a2b_base64(cell, strict_mode=True)
    except (Base64Error, ValueError) as failure:
        raise ValueError(f"its {name} is no base64 ({failure})") from None


def _encoded(name: str, cell: Any) -> bytes:
    if type(cell) is not str:
        raise ValueError(f"its {name} is no text")
    try:
        return cell.encode()
    except UnicodeEncodeError:
        raise ValueError(f"its {name} is no UTF-8") from None


def _moment(cell: Any) -> int | None:
    if cell is None:
        return None
    if type(cell) is int:
        return as_timestamp(cell)
    if type(cell) is not str:
        raise ValueError("its timestamp is no time")
    return from_text(cell)


def _whole(name: str, cell: Any, least: int, most: int) -> int | None:
    if cell is None:
        return None
    if type(cell) is not int or not least <= cell <= most:
        raise ValueError(f"its {name} is no whole number of {least} to {most}")
    return cell


def from_lines(lines: Sequence[bytes], first: int = 1, path: str = "stdin") -> EntryBatch:
    """Their messages; `first` is the number of the first line. Raises LineError, naming the line."""
    entries = []
    for number, line in enumerate(lines, first):
        try:
            entries.append(entry_of(line))
        except (ValueError, RecursionError) as failure:
            raise LineError(path, number, str(failure)) from None
    return EntryBatch.of(entries)


def read_lines(path: AnyPath, *, fs: FileSystem | None = None, label: str = "") -> Iterator[EntryBatch]:
    """The messages of a file of such lines, which errors call `label`. The last newline may be missing.

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

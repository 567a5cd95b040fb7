"""TaskFlux's files by `struct` alone: the judge between diskq and TaskFlux.

Written from docs/format/taskflux.md and from nothing of ours. It knows clean stores in the layouts that
diskq writes, follows their byte rules to the letter, and says so (`AssertionError`) where one is broken.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

HEAD = bytes.fromhex("1276ad5500000001")
MARKER = bytes.fromhex("aaf534c4")


def _table() -> list[int]:
    table = []
    for i in range(256):
        value = i << 24
        for _ in range(8):
            value = (value << 1) ^ (0x104C11DB7 if value & 0x80000000 else 0)
        table.append(value)
    return table


_TABLE = _table()


def crc(data: bytes, value: int = 0xFFFFFFFF) -> int:
    for byte in data:
        value = ((value << 8) & 0xFFFFFFFF) ^ _TABLE[(value >> 24) ^ byte]
    return value


class Record(NamedTuple):
    offset: int
    term: int
    command: bytes
    """Without the zeros that fill it up."""


Keys = tuple[int, int] | None


@dataclass
class Queue:
    code: int = 1
    last_id: int = 0
    max_messages: int | None = None
    max_message_size: int | None = None
    keys: Keys = None
    records: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Key and payload by id."""

    def ordered(self) -> list[tuple[int, int, bytes]]:
        """(key, id, payload), in the order in which they come out."""
        return sorted((key, number, payload) for number, (key, payload) in self.records.items())


State = dict[str, Queue]

# --- commands -------------------------------------------------------------------------------------


def name(text: str) -> bytes:
    return bytes([len(text)]) + text.encode("ascii")


def optional(value: int | None) -> bytes:
    return struct.pack(">i", -1 if value is None else value)


def limit(value: int) -> int | None:
    return None if value == -1 else value


def create(
    queue: str, code: int = 1, size: int | None = None, message: int | None = None, keys: Keys = None
) -> bytes:
    head = b"C" + name(queue) + struct.pack(">i", code) + optional(size) + optional(message)
    return head + (b"\0" if keys is None else b"\1" + struct.pack(">qq", *keys))


def delete(queue: str) -> bytes:
    return b"D" + name(queue)


def add(queue: str, key: int, payload: bytes) -> bytes:
    return b"A" + name(queue) + struct.pack(">qi", key, len(payload)) + payload


def remove(queue: str, number: int) -> bytes:
    return b"R" + name(queue) + struct.pack(">Q", number)


def apply(state: State, command: bytes) -> int:
    """Do what it says; returns how many bytes it takes. Knows no command for a queue that is not there."""
    kind, size = command[:1], command[1]
    queue, at = command[2 : 2 + size].decode("ascii"), 2 + size
    if kind == b"C":
        code, most, message, has_keys = struct.unpack_from(">iii?", command, at)
        at += 13
        keys = None
        if has_keys:
            keys = struct.unpack_from(">qq", command, at)
            at += 16
        assert queue not in state, f"{queue!r} is there already"
        state[queue] = Queue(code, 0, limit(most), limit(message), keys)
    elif kind == b"D":
        state.pop(queue, None)
    elif kind == b"A":
        key, length = struct.unpack_from(">qi", command, at)
        at += 12 + length
        state[queue].last_id += 1
        state[queue].records[state[queue].last_id] = (key, command[at - length : at])
    else:
        assert kind == b"R", f"command {kind!r}"
        del state[queue].records[struct.unpack_from(">Q", command, at)[0]]
        at += 8
    return at


# --- files ----------------------------------------------------------------------------------------


def record(command: bytes, layout: str = "aligned", term: int = 1) -> bytes:
    """In any of the five layouts."""
    fill = bytes(-len(command) % 4)
    inside = command + fill if layout in ("aligned", "docin") else command
    outside = fill if layout in ("padout", "doc") else b""
    head = struct.pack(">i" if layout.startswith("doc") else ">q", term)
    return MARKER + head + struct.pack(">Ii", crc(inside), len(inside)) + inside + outside


def segment(commands: list[bytes], layout: str = "aligned", term: int = 1) -> bytes:
    return HEAD + b"".join(record(command, layout, term) for command in commands) + bytes(4)


def records(data: bytes, layout: str = "aligned") -> list[Record]:
    """Those of a file, of which every byte is as the layout wants it; zeros may follow the end marker."""
    assert data[:8] == HEAD, "the head of a segment"
    at, found = 8, []
    narrow = layout == "document"
    while at < len(data) and data[at : at + 4] != bytes(4):
        assert at % 4 == 0, f"a record at {at}"
        assert data[at : at + 4] == MARKER, f"no marker at {at}"
        term, check, size = struct.unpack_from(">iIi" if narrow else ">qIi", data, at + 4)
        start = at + (16 if narrow else 20)
        payload = data[start : start + size]
        assert (len(payload), crc(payload), term >= 1) == (size, check, True), f"the record at {at}"
        end = start + size + (-size % 4 if narrow else 0)
        assert not any(data[start + size : end]), f"the fill behind {start + size}"
        assert narrow or size % 4 == 0, f"the record at {at} is not filled"
        used = apply({}, payload) if payload[:1] == b"C" else _size_of(payload)
        assert len(payload) - used < (1 if narrow else 4), f"bytes behind the command at {at}"
        assert not any(payload[used:])
        found.append(Record(at, term, payload[:used]))
        at = end
    assert not any(data[at:]), f"bytes behind the end marker at {at}"
    assert len(data) >= at + 4, "the end marker"
    return found


def _size_of(payload: bytes) -> int:
    at = 2 + payload[1]
    if payload[:1] == b"A":
        return int(at + 12 + struct.unpack_from(">i", payload, at + 8)[0])
    return at + (8 if payload[:1] == b"R" else 0)


def snapshot(lsn: int, term: int, state: State, layout: str = "aligned") -> bytes:
    content = struct.pack(">i", len(state))
    for queue, told in state.items():
        content += name(queue) + struct.pack(">iQ", told.code, told.last_id)
        content += optional(told.max_messages) + optional(told.max_message_size)
        content += b"\0" if told.keys is None else b"\1" + struct.pack(">qq", *told.keys)
        content += struct.pack(">i", len(told.records))
        for number, (key, payload) in told.records.items():
            content += struct.pack(">Qqi", number, key, len(payload)) + payload
    head = struct.pack(">iii" if layout == "document" else ">qqi", lsn, term, len(content))
    return bytes.fromhex("b6380fc9") + head + content + struct.pack(">I", crc(content))


def read_snapshot(data: bytes, layout: str = "aligned") -> tuple[int, State]:
    if not data:
        return -1, {"": Queue()}
    assert data[:4] == bytes.fromhex("b6380fc9")
    lsn, term, size = struct.unpack_from(">iii" if layout == "document" else ">qqi", data, 4)
    at = 16 if layout == "document" else 24
    content = data[at : at + size]
    assert term >= 1
    assert data[at + size :] == struct.pack(">I", crc(content)), "the snapshot's checksum"
    (count,) = struct.unpack_from(">i", content, 0)
    at, state = 4, {}
    for _ in range(count):
        queue = content[at + 1 : at + 1 + content[at]].decode("ascii")
        at += 1 + content[at]
        code, last_id, most, message, has_keys = struct.unpack_from(">iQii?", content, at)
        at += 21
        keys = None
        if has_keys:
            keys = struct.unpack_from(">qq", content, at)
            at += 16
        assert queue not in state
        state[queue] = Queue(code, last_id, limit(most), limit(message), keys)
        (in_it,) = struct.unpack_from(">i", content, at)
        at += 4
        for _ in range(in_it):
            number, key, length = struct.unpack_from(">Qqi", content, at)
            at += 20 + length
            assert 0 <= number <= last_id
            assert number not in state[queue].records
            state[queue].records[number] = (key, content[at - length : at])
    assert at == len(content)
    assert "" in state, "the default queue"
    return lsn, state


def metadata(term: int = 1, vote: int = -1, layout: str = "aligned") -> bytes:
    covered = struct.pack(">ii i" if layout == "document" else ">iq i", 1, term, vote)
    return bytes.fromhex("5a6ea012") + covered + struct.pack(">I", crc(covered))


def read_store(root: Path, layout: str = "aligned") -> State:
    """What a clean store holds; `root` is the directory with `tflux.metadata`."""
    return read_files(
        {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}, layout
    )


def read_files(files: dict[str, bytes], layout: str = "aligned") -> State:
    """The same, of its files by their paths below the root."""
    found = files["tflux.metadata"]
    term, vote = struct.unpack_from(">ii" if layout == "document" else ">qi", found, 8)
    assert found == metadata(term, vote, layout)
    lsn, state = read_snapshot(files.get("tflux.snapshot", b""), layout)
    names = sorted(path for path in files if path.startswith("log/"))
    assert all(re.fullmatch(r"log/[0-9]{19}\.log", path) for path in names), names
    assert names, "no segment"
    expected = int(names[0][4:23])
    assert expected <= lsn + 1, "records are missing"
    for path in names:
        assert int(path[4:23]) == expected, f"{path}: the one before ends at {expected}"
        for each in records(files[path], layout):
            if expected > lsn:
                assert apply(state, each.command) == len(each.command)
            expected += 1
    assert expected > lsn, "the log ends before the snapshot"
    return state

# Finds messages in bytes that were set aside. Law: a message is taken if its framing is whole; after other
# bytes the next one is looked for as far as the format allows certainty, and no further.
#
#   sej        a record has its size twice: it can be recognised at any byte
#   TaskFlux   a record has a marker and a checksum: the same
#   triplet,   only lengths say where the next one begins. What was set aside usually ends where a record
#   NSQ        ends: so a chain of records that leads exactly to the last byte is believed
#
# Which bytes of a record rotted is not known: in a queue's, and a stream's, the value may be altered.

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from diskq._native.journal import codec as journal_codec
from diskq._native.priority import codec as priority_codec
from diskq._native.queue import codec as queue_codec
from diskq._native.stream import codec as stream_codec
from diskq.tools.entries import Entry

__all__ = ["Fragments", "journal_fragments", "priority_fragments", "queue_fragments", "stream_fragments"]

# A chain is looked for in this many of the last bytes.
_MOST_LOOKED_AT = 1024 * 1024

_NSQ = struct.Struct(">I")
_KEY_SIZE = struct.Struct("<I")
_REST = struct.Struct("<qQ")
_SEJ_HEAD = struct.Struct(">QqBb")
_SEJ_SIZE = struct.Struct(">i")


@dataclass(slots=True)
class Fragments:
    """The messages found in some bytes."""

    entries: list[Entry] = field(default_factory=list)
    unread: int = 0
    """Bytes in which no message can be recognised."""


def queue_fragments(content: bytes, name: str) -> Fragments:
    """Find the messages of a queue's data file."""
    found = Fragments()

    def take(part: bytes) -> int:
        scanned = queue_codec.scan(part)
        found.entries += [Entry(body, queue=name) for body in scanned.bodies]
        return scanned.valid_end

    def size_at(at: int) -> int | None:
        if at + _NSQ.size > len(content):
            return None
        size = int(_NSQ.unpack_from(content, at)[0])
        return size + _NSQ.size if size else None  # zeros would be a chain that leads anywhere

    return _with_chain(content, found, take, size_at)


def stream_fragments(content: bytes, partition: int, is_varuint: bool) -> Fragments:
    """Find the messages of a partition's data file. Its records do not hold their offsets."""
    found = Fragments()

    def take(part: bytes) -> int:
        scanned = stream_codec.scan(part, varuint=is_varuint)
        found.entries += [
            Entry(message.value, message.key, message.timestamp_ns, partition=partition)
            for message in scanned.messages
        ]
        return scanned.valid_end

    def size_at(at: int) -> int | None:
        if is_varuint or at + _KEY_SIZE.size > len(content):
            return None
        rest = at + _KEY_SIZE.size + int(_KEY_SIZE.unpack_from(content, at)[0])
        if rest == at + _KEY_SIZE.size or rest + _REST.size > len(content):
            return None  # every message has a key
        _, value_size = _REST.unpack_from(content, rest)
        return rest - at + _REST.size + int(value_size)

    return _with_chain(content, found, take, size_at)


def _with_chain(
    content: bytes, found: Fragments, take: Callable[[bytes], int], size_at: Callable[[int], int | None]
) -> Fragments:
    """Take the records from the beginning, and then the longest chain that leads to the end."""
    end = take(content)
    if end < len(content):
        begin = _chain(content, end + 1, size_at)
        found.unread = begin - end
        taken = take(content[begin:])
        assert taken == len(content) - begin, "a chain of whole records"
    return found


def _chain(content: bytes, first: int, size_at: Callable[[int], int | None]) -> int:
    """Return the first byte from which records lead to the end; the end, if there is none."""
    end = len(content)
    leads = {end}
    for at in range(end - 1, max(first, end - _MOST_LOOKED_AT) - 1, -1):
        size = size_at(at)
        if size is not None and at + size in leads:
            leads.add(at)
    return min(leads)


def journal_fragments(content: bytes) -> Fragments:
    """Find the messages of a journal's segment."""
    found = Fragments()
    at = 0
    while at < len(content):
        scanned = journal_codec.scan(memoryview(content)[at:])
        for message in scanned.messages:
            stamp, kind = message.timestamp_ns, message.type
            found.entries.append(Entry(message.value, message.key, stamp, kind, offset=message.offset))
        at += scanned.valid_end
        behind = _sej_record_behind(content, at)
        found.unread += behind - at
        at = behind
    return found


def _sej_record_behind(content: bytes, at: int) -> int:
    """Return where the next whole record begins, from byte `at` on; the end, if there is none."""
    for start in range(at, len(content) - journal_codec.RECORD_OVERHEAD + 1):
        key_size = _SEJ_HEAD.unpack_from(content, start)[3]
        value_at = start + _SEJ_HEAD.size + key_size + _SEJ_SIZE.size
        if key_size < 0 or value_at > len(content):
            continue
        (value_size,) = _SEJ_SIZE.unpack_from(content, value_at - _SEJ_SIZE.size)
        size_at = value_at + value_size
        if value_size < 0 or size_at + _SEJ_SIZE.size > len(content):
            continue
        if _SEJ_SIZE.unpack_from(content, size_at)[0] == size_at + _SEJ_SIZE.size - start:
            return start
    return len(content)


def priority_fragments(content: bytes) -> Fragments:
    """Find the messages of a store's log, also acknowledged ones: a log has only their numbers."""
    found = Fragments()
    at = len(priority_codec.FILE_HEAD) if content.startswith(priority_codec.FILE_HEAD) else 0
    while 0 <= at < len(content):
        scanned = priority_codec.scan(memoryview(content)[at:])
        for command in scanned.commands:
            if command[0] == priority_codec.ADD:
                _, name, priority, body = command[:4]
                found.entries.append(Entry(body, priority=priority, queue=name.decode("latin-1")))
        at += scanned.end
        if content.startswith(priority_codec.END_MARKER, at) or not content[at:].strip(b"\0"):
            found.unread += len(content[at:].strip(b"\0"))  # the bytes after the end were written once
            break
        behind = content.find(priority_codec.MARKER, at + 1)
        while behind >= 0 and not priority_codec.scan(memoryview(content)[behind:], most=1).records:
            behind = content.find(priority_codec.MARKER, behind + 1)
        found.unread += (len(content) if behind < 0 else behind) - at
        at = behind
    return found

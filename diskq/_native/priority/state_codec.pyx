# The codec of TaskFlux's two other files: the snapshot of all queues, and the metadata.
# Format: docs/format/taskflux.md.
#
# Both have one layout in the format's document and another in its programs. No file says which it has: a reader
# tries the programs' layout first, and the checksum decides.

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from diskq._native.priority.crc32_mpeg2 cimport CRC_START, crc32_of
from diskq._native.core.views cimport start_of
from diskq._native.core.byte_order cimport get_i32_be, get_u64_be, is_number

from typing import NamedTuple

cdef enum:
    METADATA_MARKER = 0x5A6EA012
    SNAPSHOT_MARKER = 0xB6380FC9

METADATA_SIZE = 24
"""Bytes of the metadata file; later bytes mean nothing."""
SNAPSHOT_HEAD = 24
"""Bytes before the state in a snapshot; 16 in the document's layout."""
# Name, implementation, last id, two limits, a range of keys, and the count of records.
LONGEST_QUEUE_HEAD = 256 + 4 + 8 + 4 + 4 + 17 + 4


class StoreMetadata(NamedTuple):
    """The content of the metadata file. `vote` is the node that was voted for, -1 for none."""

    term: int
    vote: int
    is_document: bool


class SnapshotHead(NamedTuple):
    """One reading of a snapshot's head: the last record that it covers, and where its state is."""

    lsn: int
    term: int
    start: int
    length: int
    is_document: bool


class QueueHead(NamedTuple):
    """A queue in a snapshot, with the start and the number of its records. None: not set."""

    name: bytes
    implementation: int
    last_id: int
    max_messages: object
    max_message_size: object
    keys: object
    records: int
    end: int


def _wide(number, bint document):
    return number.to_bytes(4 if document else 8, "big", signed=True)


def encode_metadata(term, vote=-1, bint document=False):
    """Return the whole metadata file."""
    covered = (1).to_bytes(4, "big") + _wide(term, document) + vote.to_bytes(4, "big", signed=True)
    crc = crc32_of(CRC_START, covered, len(covered))
    return (<uint32_t> METADATA_MARKER).to_bytes(4, "big") + covered + crc.to_bytes(4, "big")


def decode_metadata(bytes data not None):
    """Return the content, or None if no writer wrote it. Raises ValueError with the version if that is not 1."""
    cdef const char* at = data
    cdef int size
    if len(data) < 20 or <uint32_t> get_i32_be(at) != <uint32_t> METADATA_MARKER:
        return None
    for size in (24, 20):
        if len(data) < size or crc32_of(CRC_START, at + 4, size - 8) != <uint32_t> get_i32_be(at + size - 4):
            continue
        if get_i32_be(at + 4) != 1:
            raise ValueError(get_i32_be(at + 4))
        term = <int64_t> get_u64_be(at + 8) if size == 24 else get_i32_be(at + 8)
        vote = get_i32_be(at + size - 8)
        if term >= 1 and vote >= -1:
            return StoreMetadata(term, vote, size == 20)
    return None


def encode_snapshot_head(lsn, term, length, bint document=False):
    """Return the snapshot's bytes before a state of `length` bytes."""
    marker = (<uint32_t> SNAPSHOT_MARKER).to_bytes(4, "big")
    return marker + _wide(lsn, document) + _wide(term, document) + length.to_bytes(4, "big")


def decode_snapshot_heads(bytes data not None, size):
    """Return the possible readings of the first bytes of a snapshot of `size` bytes, most likely first."""
    cdef const char* at = data
    cdef int32_t length
    found = []
    if len(data) < 16 or <uint32_t> get_i32_be(at) != <uint32_t> SNAPSHOT_MARKER:
        return found
    if len(data) >= 24:
        length = get_i32_be(at + 20)
        if 0 <= length <= size - 28:
            found.append(SnapshotHead(<int64_t> get_u64_be(at + 4), <int64_t> get_u64_be(at + 12), 24, length, False))
    length = get_i32_be(at + 12)
    if 0 <= length <= size - 20:
        found.append(SnapshotHead(get_i32_be(at + 4), get_i32_be(at + 8), 16, length, True))
    return [head for head in found if 0 <= head.lsn and is_number(head.lsn + 1) and head.term >= 1]


def encode_queue_head(bytes name not None, implementation, last_id, max_messages, max_message_size, keys, count):
    """Return the bytes before a queue's records in the state."""
    out = bytearray((len(name),))
    out += name + implementation.to_bytes(4, "big") + last_id.to_bytes(8, "big")
    for limit in (max_messages, max_message_size):
        out += (-1 if limit is None else limit).to_bytes(4, "big", signed=True)
    out.append(keys is not None)
    for key in keys or ():
        out += key.to_bytes(8, "big", signed=True)
    out += count.to_bytes(4, "big")
    return bytes(out)


def decode_queue_head(const unsigned char[::1] buffer, Py_ssize_t at=0):
    """Return the queue at byte `at`, or None if `buffer` ends within its head.

    Raises ValueError, with the reason, for bytes that no writer wrote.
    """
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t left = buffer.shape[0] - at
    cdef Py_ssize_t size, i
    cdef int32_t first, second, count
    cdef const char* field
    if at < 0:
        raise ValueError(f"a byte is 0 or more, got {at}")
    if left < 1:
        return None
    size = <unsigned char> data[at]
    if left < 1 + size + 25:
        return None
    field = data + at + 1
    for i in range(size):
        if not 33 <= <unsigned char> field[i] <= 126:
            raise ValueError("a queue's name with impossible bytes")
    name = field[:size]
    field += size
    first, second = get_i32_be(field + 12), get_i32_be(field + 16)
    keys = None
    size += 1 + 21
    if field[20]:
        size += 16
        if left < size + 4:
            return None
        keys = (<int64_t> get_u64_be(field + 21), <int64_t> get_u64_be(field + 29))
    count = get_i32_be(data + at + size)
    if first < -1 or second < -1 or count < 0 or (keys is not None and keys[0] > keys[1]):
        raise ValueError("an impossible limit, range or count")
    if not is_number(get_u64_be(field + 4)):
        raise ValueError("an impossible last id")
    return QueueHead(
        name,
        get_i32_be(field),
        get_u64_be(field + 4),
        None if first == -1 else first,
        None if second == -1 else second,
        keys,
        count,
        at + size + 4,
    )

# The entries of the logs: `written` messages are stored in one that is mapped into memory (append_buffer.pyx),
# `synced` messages are written as one to a log that is synced (storage/redo_log.py). Law: one layout and one
# encoder for both, and one decoder; lengths are judged before memory is touched.
#
# Format: docs/format/log.md.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy, memset

from diskq._native.core.byte_order cimport get_u32_le, get_u64_le

ENTRY_SIZE = ENTRY
PART_SIZE = PART


def entry_size(parts):
    """Return the bytes of an entry with these parts: a multiple of eight."""
    cdef Py_ssize_t size = ENTRY
    cdef bytes content
    for part in parts:
        content = part[4]
        size += PART + PyBytes_GET_SIZE(content)
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def encode_entry(uint64_t number, uint64_t sequence, uint64_t floor, parts):
    """Return an entry; `parts` are tuples of group, kind, file, position and content (bytes).

    Raises OverflowError for 4 GiB and more.
    """
    cdef Py_ssize_t size = entry_size(parts)
    cdef bytes content, entry
    cdef PartHead head
    cdef Py_ssize_t length
    cdef uint32_t crc
    cdef char* out
    cdef char* at
    if size >= <uint32_t> TO_THE_END:
        raise OverflowError("an entry of a log has less than 4 GiB")
    entry = PyBytes_FromStringAndSize(NULL, size)
    out = PyBytes_AS_STRING(entry)
    at = out + ENTRY
    crc = begin_entry(<Entry*> out, number, sequence, floor)
    for group, kind, file, position, content in parts:
        length = PyBytes_GET_SIZE(content)
        crc = begin_part(&head, crc, group, kind, file, position, length)
        memcpy(at, &head, PART)
        memcpy(at + PART, PyBytes_AS_STRING(content), length)
        crc = crc32c_of(crc, at + PART, length)
        at += PART + length
    length = out + size - at
    memset(at, 0, length)
    show_entry(<Entry*> out, size, crc32c_of(crc, at, length))
    return entry


def header_check(uint64_t number, uint64_t sequence, uint64_t floor):
    """Return the `check` of an entry with these numbers."""
    cdef Entry entry
    return begin_entry(&entry, number, sequence, floor)


def decode_header(const unsigned char[::1] data, Py_ssize_t at):
    """Return size, crc32c, number, sequence, floor and check of an entry at this byte, and what `check` should be.

    None of them is judged. None: there are too few bytes.
    """
    if not 0 <= at <= data.shape[0] - ENTRY:
        return None
    cdef const char* entry = <const char*> &data[at]
    return (
        get_u32_le(entry),
        get_u32_le(entry + 4),
        get_u64_le(entry + 8),
        get_u64_le(entry + 16),
        get_u64_le(entry + 24),
        get_u64_le(entry + 32),
        crc32c_of(0, entry + 8, 24),
    )


def decode_parts(bytes content):
    """Return the parts of an entry with this content, as tuples; a content that is cut off is returned as it is."""
    cdef const char* data = PyBytes_AS_STRING(content)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(content), at = 0, end
    cdef uint32_t length
    cdef list parts = []
    while at <= size - PART:
        length = get_u32_le(data + at + 24)
        end = at + PART + <Py_ssize_t> length if length <= <size_t> (size - at - PART) else size
        parts.append(
            (
                get_u32_le(data + at),
                get_u32_le(data + at + 4),
                <int64_t> get_u64_le(data + at + 8),
                <int64_t> get_u64_le(data + at + 16),
                content[at + PART : end],
            )
        )
        at = end
    return parts

# The index rows of records, made from a data file: for recovery, and for a staged file that becomes a segment.
# No I/O, no state.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t
from libc.string cimport memcmp

from diskq._native.core.blocks cimport put_row
from diskq._native.core.crc32c cimport crc32c_of
from diskq._native.core.framing cimport END, Parts, Stop
from diskq._native.stream.codec cimport INDEX_ROW, TIMEINDEX_ROW, TripletFraming, put_index_row, put_timeindex_row
from diskq._native.core.byte_order cimport get_u64_le
from diskq._native.core.views cimport start_of

from typing import NamedTuple

from diskq._native.core.append_buffer import BLOCK_SIZE as _BLOCK_SIZE
from diskq._native.core.blocks import ROW_SIZE as _ROW_SIZE
from diskq._native.core.framing import STOPS as _STOPS

cdef Py_ssize_t BLOCK = _BLOCK_SIZE
cdef Py_ssize_t CHECKSUM_ROW = _ROW_SIZE


class RowsOf(NamedTuple):
    """The rows of the whole records of a buffer, the byte after the last of them, and why it stopped.

    `claimed` is the least size of a torn record in bytes, if it says so; otherwise 0.
    """

    records: int
    index_rows: bytes
    timeindex_rows: bytes
    valid_end: int
    stop: str
    claimed: int


def rows_of(
    TripletFraming framing not None, const unsigned char[::1] buffer, int64_t offset, int64_t position
):
    """Return the rows of the records at the start of `buffer`; the first has `offset` and is at byte `position`.

    Never raises for the content of the bytes; never reads past `buffer`.
    """
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t i
    cdef Parts parts
    cdef Stop stop = END
    parts.size = 0
    with nogil:
        while left > at:
            stop = framing.parts(data + at, left - at, &parts)
            if stop != END:
                break
            at += parts.size
            count += 1
    cdef bytes index = PyBytes_FromStringAndSize(NULL, count * INDEX_ROW)
    cdef bytes timeindex = PyBytes_FromStringAndSize(NULL, count * TIMEINDEX_ROW)
    cdef char* index_out = PyBytes_AS_STRING(index)
    cdef char* timeindex_out = PyBytes_AS_STRING(timeindex)
    cdef Py_ssize_t end = at
    at = 0
    with nogil:
        for i in range(count):
            framing.parts(data + at, left - at, &parts)
            put_index_row(index_out + i * INDEX_ROW, offset + i, position + at, parts.size)
            put_timeindex_row(timeindex_out + i * TIMEINDEX_ROW, offset + i, parts.timestamp)
            at += parts.size
        if stop != END:
            framing.parts(data + end, left - end, &parts)
    return RowsOf(count, index, timeindex, end, _STOPS[<int> stop], parts.size if stop != END else 0)


def checksum_rows(const unsigned char[::1] buffer, const unsigned char[::1] index, int64_t position):
    """Return the rows of checksums of the records in `buffer`, whose `index` rows these are.

    The records are at byte `position` of their file. Each block has whole records, at least BLOCK_SIZE bytes, and
    the last one what is left. Raises ValueError if the rows are not of records that follow each other in `buffer`.
    """
    cdef const char* data = start_of(buffer)
    cdef const char* entries = start_of(index)
    cdef Py_ssize_t count = index.shape[0] // INDEX_ROW
    cdef Py_ssize_t size = buffer.shape[0]
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t i, blocks
    cdef int64_t length
    cdef bytes rows = PyBytes_FromStringAndSize(NULL, (size // BLOCK + 1) * CHECKSUM_ROW)
    cdef char* out = PyBytes_AS_STRING(rows)
    blocks = 0
    with nogil:
        for i in range(count):
            length = <int64_t> get_u64_le(entries + i * INDEX_ROW + 16)
            if length <= 0 or length > size - at:
                break
            at += length
            if at - start >= BLOCK or i == count - 1:
                put_row(
                    out + blocks * CHECKSUM_ROW, position + at, at - start, i + 1 - first,
                    crc32c_of(0, data + start, at - start),
                )
                blocks += 1
                start = at
                first = i + 1
    if at != size or start != at:
        raise ValueError(f"{count} records of an index are not the {size} bytes that they describe")
    return rows[:blocks * CHECKSUM_ROW]


class Compared(NamedTuple):
    """The number of rows of each file that are those of the records, from the first on; and the times."""

    index_rows: int
    timeindex_rows: int
    first_timestamp: int
    last_timestamp: int


def compare_rows(
    TripletFraming framing not None, const unsigned char[::1] buffer, int64_t offset, int64_t position,
    const unsigned char[::1] index, const unsigned char[::1] timeindex,
):
    """Compare these rows with those that `rows_of` makes of the records. `buffer` begins with a whole record.

    Never raises for the content of the bytes; never reads past any buffer.
    """
    cdef const char* data = start_of(buffer)
    cdef const char* of_index = <const char*> &index[0] if index.shape[0] else NULL
    cdef const char* of_time = <const char*> &timeindex[0] if timeindex.shape[0] else NULL
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t index_left = index.shape[0] // INDEX_ROW
    cdef Py_ssize_t time_left = timeindex.shape[0] // TIMEINDEX_ROW
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t index_rows = -1
    cdef Py_ssize_t time_rows = -1
    cdef char[INDEX_ROW] index_row
    cdef char[TIMEINDEX_ROW] time_row
    cdef int64_t first = 0
    cdef Parts parts
    parts.timestamp = 0
    with nogil:
        while left > at and framing.parts(data + at, left - at, &parts) == END:
            if index_rows < 0:
                put_index_row(index_row, offset + count, position + at, parts.size)
                if count == index_left or memcmp(index_row, of_index + count * INDEX_ROW, INDEX_ROW):
                    index_rows = count
            if time_rows < 0:
                put_timeindex_row(time_row, offset + count, parts.timestamp)
                if count == time_left or memcmp(time_row, of_time + count * TIMEINDEX_ROW, TIMEINDEX_ROW):
                    time_rows = count
            if count == 0:
                first = parts.timestamp
            at += parts.size
            count += 1
    return Compared(
        count if index_rows < 0 else index_rows, count if time_rows < 0 else time_rows, first, parts.timestamp
    )

# The rows that belong to records: made again from a data file, for recovery. No I/O, no state.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t

from diskq._native.framing cimport END, Stop
from diskq._native.triplet cimport (
    INDEX_ROW,
    TIMEINDEX_ROW,
    Parts,
    TripletFraming,
    put_index_row,
    put_timeindex_row,
)

from typing import NamedTuple

from diskq._native.framing import STOPS as _STOPS


class RowsOf(NamedTuple):
    """The rows of the whole records of a buffer, the byte after the last of them, and why there is no more.

    `claimed` is what a torn record needs at least, in bytes, where it tells; otherwise 0.
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
    """Of the records at the start of `buffer`, the first of which has `offset` and lies at byte `position`.

    Never raises for what the bytes say; never reads past `buffer`.
    """
    cdef const char* data = <const char*> &buffer[0] if buffer.shape[0] else NULL
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

# Timestamps in buffers: rows of a timeindex, rows of its marks, rows of sealed segments, and the records
# themselves. Law: timestamps may come in any order, no byte is read past a buffer, and no object is made for a
# row. No I/O, no state.
#
# A bound is a timestamp in nanoseconds: for messages strictly after t, a caller passes t + 1.
# Format: docs/format/triplet.md.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t

from diskq._native.core.framing cimport CORRUPT, END, Parts, Stop
from diskq._native.stream.codec cimport INDEX_ROW, TIMEINDEX_ROW, TripletFraming, put_timeindex_row
from diskq._native.core.byte_order cimport get_u32_le, get_u64_le

from typing import NamedTuple

cdef enum:
    IN_A_MARK = 256      # timeindex rows for which there is one mark
    MARK = 16            # max i64, crc32c of the rows u32, check u32
    SEALED = 64          # base, count, size u64; first, last, min, max i64; crc32c of the rest u32, check u32
    SEALED_MAX = 48      # the position of `max` in it
    CHECKED = 60         # the bytes of it that its check covers
    LEAST = 64           # bytes of a record's lengths and timestamp, unless its key is long

ROWS_IN_A_MARK = IN_A_MARK
MARK_SIZE = MARK
SEALED_SIZE = SEALED


cdef int64_t LATEST = 2**63 - 1


cdef inline int64_t _time(const char* row) noexcept nogil:
    return <int64_t> get_u64_le(row + 8)


# --- rows of a timeindex --------------------------------------------------------------------------


def first_from(const unsigned char[::1] rows, int64_t bound):
    """Return the number of the first row whose timestamp is at or after `bound`; -1: there is none."""
    cdef const char* data = <const char*> &rows[0] if rows.shape[0] else NULL
    cdef Py_ssize_t count = rows.shape[0] // TIMEINDEX_ROW
    cdef Py_ssize_t i
    for i in range(count):
        if _time(data + i * TIMEINDEX_ROW) >= bound:
            return i
    return -1


def counts_up(const unsigned char[::1] rows, int64_t first):
    """True if these are whole rows of consecutive offsets from `first` on, one for each."""
    cdef const char* data = <const char*> &rows[0] if rows.shape[0] else NULL
    cdef Py_ssize_t count = rows.shape[0] // TIMEINDEX_ROW
    cdef Py_ssize_t i
    for i in range(count):
        if get_u64_le(data + i * TIMEINDEX_ROW) != <uint64_t> (first + i):
            return False
    return rows.shape[0] == count * TIMEINDEX_ROW


def extremes(const unsigned char[::1] rows):
    """Return the least and the greatest timestamp. Raises ValueError if there are no rows."""
    cdef Py_ssize_t count = rows.shape[0] // TIMEINDEX_ROW
    if not count:
        raise ValueError("there are no rows")
    cdef const char* data = <const char*> &rows[0]
    cdef int64_t least = _time(data)
    cdef int64_t greatest = least
    cdef int64_t timestamp
    cdef Py_ssize_t i
    for i in range(1, count):
        timestamp = _time(data + i * TIMEINDEX_ROW)
        least = min(least, timestamp)
        greatest = max(greatest, timestamp)
    return least, greatest


class Survey(NamedTuple):
    """Return the least and the greatest timestamp of rows, and the running maximum after every 256 of them."""

    least: int
    greatest: int
    maxima: list[int]


def survey(const unsigned char[::1] rows, int64_t first, int64_t floor):
    """Return the marks of rows; None if these are not the rows of consecutive offsets from `first` on.

    `floor` is the greatest timestamp of all rows before them.
    """
    cdef const char* data = <const char*> &rows[0] if rows.shape[0] else NULL
    cdef Py_ssize_t count = rows.shape[0] // TIMEINDEX_ROW
    cdef int64_t least = LATEST
    cdef int64_t timestamp
    cdef list maxima = []
    cdef Py_ssize_t i
    for i in range(count):
        if get_u64_le(data + i * TIMEINDEX_ROW) != <uint64_t> (first + i):
            return None
        timestamp = _time(data + i * TIMEINDEX_ROW)
        least = min(least, timestamp)
        floor = max(floor, timestamp)
        if i % IN_A_MARK == IN_A_MARK - 1:
            maxima.append(floor)
    return Survey(least, floor, maxima) if rows.shape[0] == count * TIMEINDEX_ROW else None


# --- marks, and rows of sealed segments -----------------------------------------------------------


def first_mark(const unsigned char[::1] marks, int64_t bound):
    """Return the number of the first mark whose running maximum is at or after `bound`, or the number of marks.

    A binary search: correct for marks that were not changed since they were made.
    """
    cdef const char* data = <const char*> &marks[0] if marks.shape[0] else NULL
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = marks.shape[0] // MARK
    cdef Py_ssize_t middle
    while low < high:
        middle = (low + high) // 2
        if <int64_t> get_u64_le(data + middle * MARK) < bound:
            low = middle + 1
        else:
            high = middle
    return low


def sealed_chain(const unsigned char[::1] rows, crc):
    """Return the segments of these rows, if the rows cover all segments from offset 0 on, without a gap.

    Returns their bases and, last, the base of the segment after them; and the greatest timestamp up to the end
    of each. None if a row has a wrong check, does not follow, or is incomplete.
    `crc` is the checksum's function.
    """
    cdef Py_ssize_t size = rows.shape[0]
    if size == 0 or size % SEALED:
        return None
    cdef const char* data = <const char*> &rows[0]
    cdef const char* end = data + size
    cdef uint64_t base = 0
    cdef uint64_t count
    cdef int64_t ceiling = <int64_t> get_u64_le(data + SEALED_MAX)
    cdef list bases = []
    cdef list ceilings = []
    while data < end:
        count = get_u64_le(data + 8)
        if get_u64_le(data) != base or not 0 < count <= <uint64_t> (2**62) or base > <uint64_t> (2**62):
            return None
        if get_u32_le(data + CHECKED) != crc(PyBytes_FromStringAndSize(data, CHECKED)):
            return None
        ceiling = max(ceiling, <int64_t> get_u64_le(data + SEALED_MAX))
        bases.append(base)
        ceilings.append(ceiling)
        base += count
        data += SEALED
    bases.append(base)
    return bases, ceilings


# --- records --------------------------------------------------------------------------------------


class Times(NamedTuple):
    """Timeindex rows made from records, and how to continue.

    `wanted` is the first byte of the data file that is needed next, and the least number of bytes; None:
    there are no more records, or there were enough.
    """

    rows: bytes
    next_offset: int
    position: int
    wanted: tuple[int, int] | None


cdef enum Look:
    FOUND
    NOTHING
    OUTSIDE


cdef struct Window:
    const char* data
    int64_t start        # the data file's byte at which these begin
    int64_t size
    int64_t file_end
    int64_t needed       # the least number of bytes that a read outside the buffer needs


def times_of(
    TripletFraming framing not None, const unsigned char[::1] data, int64_t start, int64_t file_end,
    const unsigned char[::1] index, int64_t offset, int64_t position, int64_t end_offset,
):
    """Return the timeindex rows of the records from `offset` on, before `end_offset`.

    `data` are the data file's bytes from `start` on, of `file_end`; `index` the index rows from that of
    `offset` on, if there are any. The record before ends at byte `position`. The next one begins there, unless
    its index row has a later byte with a record of the row's size: go-diskq leaves torn bytes between records.
    An offset for which neither exists has no row.
    """
    cdef Window window
    cdef const char* told = <const char*> &index[0] if index.shape[0] else NULL
    cdef Py_ssize_t rows_left = index.shape[0] // INDEX_ROW
    cdef int64_t most = min(end_offset - offset, max(rows_left, data.shape[0] // 10 + 1))
    cdef bytes made = PyBytes_FromStringAndSize(NULL, max(0, most) * TIMEINDEX_ROW)
    cdef char* out = PyBytes_AS_STRING(made)
    cdef Py_ssize_t count = 0
    cdef int64_t size = 0
    cdef int64_t timestamp = 0
    cdef int64_t at = position
    cdef Look look = NOTHING
    window.data = <const char*> &data[0] if data.shape[0] else NULL
    window.start = start
    window.size = data.shape[0]
    window.file_end = file_end
    window.needed = 0
    with nogil:
        while offset < end_offset and count < most:
            look = NOTHING
            if rows_left > 0 and _may_be(told, offset, position, file_end):
                at = get_u64_le(told + 8)
                look = _look(framing, &window, at, &size, &timestamp)
                if look == FOUND and size != <int64_t> get_u64_le(told + 16):
                    look = NOTHING
            if look == NOTHING:
                at = position
                look = _look(framing, &window, at, &size, &timestamp)
            if look == OUTSIDE:
                break
            if look == FOUND:
                put_timeindex_row(out + count * TIMEINDEX_ROW, offset, timestamp)
                count += 1
                position = at + size
            elif rows_left <= 0:
                break
            offset += 1
            rows_left -= 1
            told += INDEX_ROW
    wanted = (at, window.needed) if look == OUTSIDE else None
    if wanted is None and count == most and offset < end_offset:
        wanted = (position, LEAST)
    return Times(made[: count * TIMEINDEX_ROW], offset, position, wanted)


cdef bint _may_be(const char* row, int64_t offset, int64_t position, int64_t file_end) noexcept nogil:
    """True if this can be the row of `offset`, whose record begins at `position` or later."""
    cdef uint64_t told = get_u64_le(row + 8)
    return (
        get_u64_le(row) == <uint64_t> offset
        and <uint64_t> position <= told < <uint64_t> file_end
        and get_u64_le(row + 16) <= <uint64_t> file_end - told
    )


cdef Look _look(
    TripletFraming framing, Window* window, int64_t at, int64_t* size, int64_t* timestamp
) noexcept nogil:
    """Read the size and the timestamp of the record at byte `at`; NOTHING: there is no whole one."""
    cdef Parts parts
    cdef Stop stop
    cdef int64_t inside = at - window.start
    cdef int64_t left = window.file_end - at
    if left <= 0:
        return NOTHING
    window.needed = min(left, <int64_t> LEAST)
    if inside < 0 or inside >= window.size:
        return OUTSIDE
    # The lengths and timestamp of a torn record count as soon as they are complete.
    parts.value_size = -1
    stop = framing.parts(window.data + inside, window.size - inside, &parts)
    if stop == CORRUPT or parts.size > left:
        return NOTHING
    if stop != END and parts.value_size < 0:
        window.needed = max(parts.size, window.needed)
        # The file ends, and there is still no record.
        return NOTHING if window.size - inside >= left else OUTSIDE
    size[0] = parts.size
    timestamp[0] = parts.timestamp
    return FOUND

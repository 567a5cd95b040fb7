# The NSQ codec: a length word, big endian and signed, then the body. Format: docs/format/nsq.md.
#
# Law: lengths are judged before memory is touched, nothing is read past the buffer, and the
# three ends of a scan are kept apart: END (a record boundary), TORN (the bytes ended inside a
# record), CORRUPT (a length that no writer wrote). No I/O, no state.

from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from diskq._native.framing cimport CORRUPT, END, TORN, Framing, Record, Stop, borrow
from diskq._native.wire cimport get_i32_be, put_u32_be

from typing import NamedTuple

from diskq._native.framing import STOPS as _STOPS

cdef enum:
    HEADER = 4

# The length word is signed: a larger body cannot be said.
MAX_BODY = 2**31 - 1


class Scan(NamedTuple):
    """What `scan` found: the bodies, the byte after the last whole record, and why it stopped."""

    bodies: list
    valid_end: int
    stop: str


class Count(NamedTuple):
    """What `count` found: as `Scan`, without making the bodies."""

    records: int
    valid_end: int
    stop: str


class Columns(NamedTuple):
    """What `columns` found: the bodies in a row, and as `Scan`.

    Body i is `values[o[i] : o[i + 1]]`, where o are the records + 1 numbers of `offset_width` bytes (4 or 8,
    signed, in the machine's byte order) in `value_offsets`. So the buffers are what Arrow calls a binary
    column, or a large binary one where the width is 8.
    """

    records: int
    values: bytes
    value_offsets: bytes
    offset_width: int
    valid_end: int
    stop: str


cdef class NsqFraming(Framing):
    """The NSQ record, for the compiled path.

    Bodies of `min_size` to `max_size` bytes may be written. Reading asks only for `min_size`
    and for what the length word can say: limits are not part of the format, and a queue reopened
    with smaller ones still delivers what it holds.
    """

    def __cinit__(self, min_size, max_size):
        if not 0 <= min_size <= max_size <= MAX_BODY:
            raise ValueError(f"need 0 <= min_size <= max_size <= {MAX_BODY}, got {min_size} and {max_size}")
        self.min_size = min_size
        self.max_size = max_size
        self.overhead = HEADER

    cdef void encode(self, char* out, const char* body, Py_ssize_t size) noexcept nogil:
        put_u32_be(out, <unsigned int> size)
        memcpy(out + HEADER, body, size)

    cdef Stop decode(self, const char* data, Py_ssize_t left, Record* record) noexcept nogil:
        return _decode(data, left, self.min_size, MAX_INT32, record)


cdef Py_ssize_t MAX_INT32 = MAX_BODY


cdef inline Stop _decode(
    const char* data, Py_ssize_t left, Py_ssize_t min_size, Py_ssize_t max_size, Record* record
) noexcept nogil:
    cdef int32_t length
    if left == 0:
        return END
    record.size = 0
    if left < HEADER:
        return TORN
    length = get_i32_be(data)
    if length < min_size or length > max_size:
        return CORRUPT
    record.size = HEADER + <Py_ssize_t> length
    if left < record.size:
        return TORN
    record.body = HEADER
    record.body_size = length
    return END


def encode(bodies):
    """The records of `bodies`, one after the other.

    Raises TypeError for a body that is not bytes, ValueError for one over 2**31 - 1 bytes.
    """
    cdef const char* data = NULL
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t total = 0
    cdef list alive = []
    for body in bodies:
        alive.append(borrow(body, &data, &size))
        if size > MAX_INT32:
            raise ValueError(f"message of {size} bytes: the format ends at {MAX_BODY}")
        total += HEADER + size
    cdef bytes out = PyBytes_FromStringAndSize(NULL, total)
    cdef char* at = PyBytes_AS_STRING(out)
    for body in alive:
        borrow(body, &data, &size)
        put_u32_be(at, <unsigned int> size)
        memcpy(at + HEADER, data, size)
        at += HEADER + size
    return out


def scan(const unsigned char[::1] buffer, Py_ssize_t min_size=0, Py_ssize_t max_size=MAX_BODY):
    """Whole records at the start of `buffer`.

    Returns their bodies, the byte just after the last whole record (0 <= valid_end <= len(buffer))
    and why it stopped: END at a record boundary, TORN inside a record, CORRUPT where a length is
    outside min_size..max_size bytes. Never raises; never reads past `buffer`.
    Format: docs/format/nsq.md.
    """
    cdef const char* data = <const char*> &buffer[0] if buffer.shape[0] else NULL
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at = 0
    cdef Record record
    cdef Stop stop = END
    cdef list bodies = []
    while left > at:
        stop = _decode(data + at, left - at, min_size, max_size, &record)
        if stop != END:
            break
        bodies.append(PyBytes_FromStringAndSize(data + at + record.body, record.body_size))
        at += record.size
    return Scan(bodies, at, _STOPS[<int> stop])


def count(const unsigned char[::1] buffer, Py_ssize_t min_size=0, Py_ssize_t max_size=MAX_BODY):
    """As `scan`, counting the records instead of making their bodies."""
    cdef const char* data = <const char*> &buffer[0] if buffer.shape[0] else NULL
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Extent extent
    with nogil:
        measure(data, left, min_size, max_size, left, &extent)
    return Count(extent.records, extent.end, _STOPS[<int> extent.stop])


def columns(
    const unsigned char[::1] buffer, Py_ssize_t min_size=0, Py_ssize_t max_size=MAX_BODY, bint wide=False
):
    """As `scan`, in a row: see `Columns`. No object is made for a message.

    Offsets have 4 bytes where those can tell them, 8 otherwise and always if `wide`: columns that are
    to go together need one width. Raises MemoryError.
    """
    cdef const char* data = <const char*> &buffer[0] if buffer.shape[0] else NULL
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Extent extent
    with nogil:
        measure(data, left, min_size, max_size, left, &extent)
    return columns_of(data, min_size, max_size, &extent, wide)


# --- many records at once, in compiled code --------------------------------------------------------


cdef void measure(
    const char* data, Py_ssize_t left, Py_ssize_t min_size, Py_ssize_t max_size, Py_ssize_t max_records,
    Extent* extent,
) noexcept nogil:
    """How far whole records go at the start of `data`, at most `max_records`, and what they hold."""
    cdef Record record
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t records = 0
    cdef Py_ssize_t body_bytes = 0
    cdef Stop stop = END
    while at < left and records < max_records:
        stop = _decode(data + at, left - at, min_size, max_size, &record)
        if stop != END:
            break
        at += record.size
        body_bytes += record.body_size
        records += 1
    extent.records = records
    extent.end = at
    extent.body_bytes = body_bytes
    extent.stop = stop


cdef object columns_of(
    const char* data, Py_ssize_t min_size, Py_ssize_t max_size, const Extent* extent, bint wide=False
):
    """The `Columns` of the records of `extent`, which `measure` has just found at the start of `data`.

    Their offsets have 8 bytes if `wide`, or where 4 cannot tell them. Other threads run meanwhile: raises
    BufferError where one of them changed the bytes. Raises MemoryError.
    """
    cdef Py_ssize_t width = 8 if wide or extent.body_bytes > INT32_MAX else 4
    cdef bytes values = PyBytes_FromStringAndSize(NULL, extent.body_bytes)
    cdef bytes offsets = PyBytes_FromStringAndSize(NULL, (extent.records + 1) * width)
    cdef char* to_values = PyBytes_AS_STRING(values)
    cdef char* to_offsets = PyBytes_AS_STRING(offsets)
    cdef bint is_done
    with nogil:
        if width == 4:
            is_done = _lay_out[int32_t](data, min_size, max_size, extent, to_values, <int32_t*> to_offsets)
        else:
            is_done = _lay_out[int64_t](data, min_size, max_size, extent, to_values, <int64_t*> to_offsets)
    if not is_done:
        raise BufferError("the bytes were changed while they were read")
    return Columns(extent.records, values, offsets, width, extent.end, _STOPS[<int> extent.stop])


ctypedef fused Offset:
    int32_t
    int64_t


cdef bint _lay_out(
    const char* data, Py_ssize_t min_size, Py_ssize_t max_size, const Extent* extent,
    char* values, Offset* offsets,
) noexcept nogil:
    """Copy the bodies of the records of `extent` into a column made for it. False: they are others."""
    cdef Record record
    cdef Py_ssize_t i
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t value_at = 0
    for i in range(extent.records):
        if (
            at == extent.end
            or _decode(data + at, extent.end - at, min_size, max_size, &record) != END
            or record.body_size > extent.body_bytes - value_at
        ):
            return False
        offsets[i] = <Offset> value_at
        memcpy(values + value_at, data + at + record.body, record.body_size)
        value_at += record.body_size
        at += record.size
    offsets[extent.records] = <Offset> value_at
    return value_at == extent.body_bytes

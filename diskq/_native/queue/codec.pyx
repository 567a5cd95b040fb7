# The NSQ codec: a length word, big endian and signed, then the body. Format: docs/format/nsq.md.
#
# Law: lengths are checked before memory is touched, no byte is read past the buffer, and the
# three ends of a scan are distinct: END (a record boundary), TORN (the bytes ended inside a
# record), CORRUPT (a length that no writer wrote). No I/O, no state.

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from diskq._native.core.columns cimport Places, lay_out_by, measure_by
from diskq._native.core.framing cimport (
    ANY_OFFSET,
    CORRUPT,
    END,
    TORN,
    Extent,
    Framing,
    Parts,
    Record,
    Stop,
    borrow,
    columns_of,
    count_of,
    stop_name,
)
from diskq._native.core.views cimport start_of
from diskq._native.core.byte_order cimport get_i32_be, put_u32_be

from typing import NamedTuple

cdef enum:
    HEADER = 4

# The length word is signed, so no body is larger.
MAX_BODY = 2**31 - 1
cdef Py_ssize_t LARGEST = MAX_BODY


class QueueScan(NamedTuple):
    """The result of `scan`: the bodies, the byte after the last whole record, and why it stopped."""

    bodies: list
    valid_end: int
    stop: str


class QueueColumns(NamedTuple):
    """The result of `columns`: the bodies in one buffer; the rest as in `QueueScan`.

    Body i is `values[o[i] : o[i + 1]]`, where o are the records + 1 numbers of `offset_width` bytes (4 or 8,
    signed, in the machine's byte order) in `value_offsets`. So the buffers are an Arrow binary
    column, or a large binary one if the width is 8.
    """

    records: int
    values: bytes
    value_offsets: bytes
    offset_width: int
    valid_end: int
    stop: str


cdef class NsqFraming(Framing):
    """The NSQ record, for the compiled path.

    Bodies of `min_size` to `max_size` bytes may be written. Reading accepts any body of at least
    `min_size`: limits are not part of the format, and a queue reopened with smaller ones still delivers the
    messages that it holds.
    """

    def __cinit__(self, min_size, max_size):
        self._limit(min_size, max_size, MAX_BODY)
        self.read.min_size = min_size
        self.read.max_size = MAX_BODY
        self.overhead = HEADER

    cdef void encode(self, char* out, const char* body, Py_ssize_t size) noexcept nogil:
        put_u32_be(out, <unsigned int> size)
        memcpy(out + HEADER, body, size)

    cdef Stop decode(self, const char* data, Py_ssize_t left, Record* record) noexcept nogil:
        return _decode(data, left, &self.read, record)

    cdef void measure(
        self, const char* data, Py_ssize_t left, int64_t first_offset, Py_ssize_t max_records, Extent* extent
    ) noexcept nogil:
        measure_by(_parts, &self.read, data, left, max_records, extent)

    cdef object columns(self, const char* data, const Extent* extent, bint wide):
        cdef Places to
        to.timestamps, to.validity, to.types = NULL, NULL, NULL
        return QueueColumns(extent.records, *lay_out_by(_parts, &self.read, data, extent, wide, False, &to))


cdef inline Stop _parts(void* sizes, const char* data, Py_ssize_t left, Parts* parts) noexcept nogil:
    cdef Record record
    cdef Stop stop = _decode(data, left, <const Sizes*> sizes, &record)
    if stop == END:
        parts.size = record.size
        parts.timestamp = 0
        parts.key = parts.key_size = 0
        parts.value = record.body
        parts.value_size = record.body_size
    return stop


cdef inline Stop _decode(
    const char* data, Py_ssize_t left, const Sizes* sizes, Record* record
) noexcept nogil:
    cdef int32_t length
    if left == 0:
        return END
    record.size = 0
    if left < HEADER:
        return TORN
    length = get_i32_be(data)
    if length < sizes.min_size or length > sizes.max_size:
        return CORRUPT
    record.size = HEADER + <Py_ssize_t> length
    if left < record.size:
        return TORN
    record.body = HEADER
    record.body_size = length
    return END


def encode(bodies):
    """Return the records of `bodies`, one after the other.

    Raises TypeError for a body that is not bytes, ValueError for one over 2**31 - 1 bytes.
    """
    cdef const char* data = NULL
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t total = 0
    cdef list alive = []
    for body in bodies:
        alive.append(borrow(body, &data, &size))
        if size > LARGEST:
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
    """Return the whole records at the start of `buffer`.

    Returns their bodies, the byte just after the last whole record (0 <= valid_end <= len(buffer))
    and why it stopped: END at a record boundary, TORN inside a record, CORRUPT at a length
    outside min_size..max_size bytes. Never raises; never reads past `buffer`.
    Format: docs/format/nsq.md.
    """
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at = 0
    cdef Sizes sizes
    cdef Record record
    cdef Stop stop = END
    cdef list bodies = []
    sizes.min_size, sizes.max_size = min_size, max_size
    while left > at:
        stop = _decode(data + at, left - at, &sizes, &record)
        if stop != END:
            break
        bodies.append(PyBytes_FromStringAndSize(data + at + record.body, record.body_size))
        at += record.size
    return QueueScan(bodies, at, stop_name(stop))


def count(const unsigned char[::1] buffer, Py_ssize_t min_size=0, Py_ssize_t max_size=MAX_BODY):
    """Do as `scan`, but count the records instead of making their bodies."""
    return count_of(_reading(min_size, max_size), start_of(buffer), buffer.shape[0], ANY_OFFSET, buffer.shape[0])


def columns(
    const unsigned char[::1] buffer, Py_ssize_t min_size=0, Py_ssize_t max_size=MAX_BODY, bint wide=False
):
    """Do as `scan`, but put the bodies into one buffer, see `QueueColumns`. No object is made for a message.

    Offsets have 4 bytes if they fit, 8 otherwise and always if `wide`: columns that are to be combined need
    one width. Raises MemoryError.
    """
    cdef NsqFraming framing = _reading(min_size, max_size)
    return columns_of(framing, start_of(buffer), buffer.shape[0], ANY_OFFSET, buffer.shape[0], wide)


cdef NsqFraming _reading(Py_ssize_t min_size, Py_ssize_t max_size):
    """Return the framing that reads bodies of these sizes."""
    cdef NsqFraming framing = NsqFraming(0, MAX_BODY)
    framing.read.min_size, framing.read.max_size = min_size, max_size
    return framing

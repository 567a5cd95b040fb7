# Framing: what AppendBuffer and ReadAhead need from a format.
#
# A codec subclasses `Framing` and implements in C how a body is encoded, where the record that starts here
# ends, and what many records hold, by column. Law: nothing here reads past `left` bytes.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc

from typing import NamedTuple

# Why a scan stopped, as Python strings.
STOPS = ("END", "TORN", "CORRUPT")


class Count(NamedTuple):
    """The result of a codec's `count`: like that of its `scan`, with the number of messages instead of them."""

    records: int
    valid_end: int
    stop: str


cdef class Framing:
    """A record format with one body per record. Abstract: formats subclass it in compiled code."""

    cdef int _limit(self, min_size, max_size, largest) except -1:
        if not 0 <= min_size <= max_size <= largest:
            raise ValueError(f"need 0 <= min_size <= max_size <= {largest}, got {min_size} and {max_size}")
        self.min_size = min_size
        self.max_size = max_size
        return 0

    cdef void encode(self, char* out, const char* body, Py_ssize_t size) noexcept nogil:
        """Encode the record of `size + overhead` bytes at `out`."""

    cdef Stop decode(self, const char* data, Py_ssize_t left, Record* record) noexcept nogil:
        """Read the record at `data`: END and `record` filled; TORN and its size, if it says so; or CORRUPT."""
        return CORRUPT

    cdef void measure(
        self, const char* data, Py_ssize_t left, int64_t first_offset, Py_ssize_t max_records, Extent* extent
    ) noexcept nogil:
        """Find the end of the whole records at the start of `data`, at most `max_records`, and what they hold.

        The first is to be message `first_offset`, or ANY_OFFSET.
        """
        extent.records = extent.end = 0
        extent.stop = CORRUPT

    cdef object columns(self, const char* data, const Extent* extent, bint wide):
        """Return the parts of the records of `extent`, which `measure` has just found at `data`, by column.

        Offsets have 8 bytes if `wide`, or where 4 cannot say them. Other threads run meanwhile: raises BufferError
        where one of them changed the bytes. Raises MemoryError.
        """


cdef class KeyedFraming(Framing):
    """A record format with a key, a time and a value per record. Abstract, as `Framing`."""

    cdef int _limit_keys(self, max_key_size, largest) except -1:
        if not 0 <= max_key_size <= largest:
            raise ValueError(f"need 0 <= max_key_size <= {largest}, got {max_key_size}")
        self.max_key_size = max_key_size
        return 0

    cdef Stop parts(self, const char* data, Py_ssize_t left, Parts* parts) noexcept nogil:
        """Read the record at `data`: END and all of `parts` filled; TORN and `size`, if it says so; or CORRUPT."""
        return CORRUPT

    cdef Stop decode(self, const char* data, Py_ssize_t left, Record* record) noexcept nogil:
        cdef Parts parts
        cdef Stop stop = self.parts(data, left, &parts)
        record.size = parts.size
        if stop == END:
            record.body = parts.value
            record.body_size = parts.value_size
        return stop


cdef object borrow(object body, const char** data, Py_ssize_t* size):
    """Point into the bytes of `body`. Returns the object that must stay alive meanwhile; TypeError for a str."""
    if type(body) is not bytes:
        # Another thread may change a bytearray or memoryview: one copy, and only for them.
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise TypeError(f"a message is bytes, not {type(body).__name__}")
        body = bytes(body)
    data[0] = PyBytes_AS_STRING(body)
    size[0] = PyBytes_GET_SIZE(body)
    return body


cdef str stop_name(Stop stop):
    return STOPS[<int> stop]


cdef object count_of(
    Framing framing, const char* data, Py_ssize_t left, int64_t first_offset, Py_ssize_t max_records
):
    """Return the `Count` of at most `max_records` whole records at the start of `data`."""
    cdef Extent extent
    with nogil:
        framing.measure(data, left, first_offset, max_records, &extent)
    return Count(extent.records, extent.end, stop_name(extent.stop))


cdef object columns_of(
    Framing framing, const char* data, Py_ssize_t left, int64_t first_offset, Py_ssize_t max_records, bint wide
):
    """Return at most `max_records` whole records at the start of `data` by column, see `Framing.columns`."""
    cdef Extent extent
    with nogil:
        framing.measure(data, left, first_offset, max_records, &extent)
    return measured_columns(framing, data, &extent, wide)


# glibc gives what is free at the end of its heap back to the kernel, beyond 128 KiB: with each batch of columns, to
# take it again page by page for the next one, which is half of the time that they take. Once a larger block was freed,
# it keeps twice as much as that.
cdef enum:
    KEPT = 1024 * 1024

cdef bint is_heap_kept = False


cdef object measured_columns(Framing framing, const char* data, const Extent* extent, bint wide):
    """Return the columns of the records of `extent`."""
    global is_heap_kept
    if not is_heap_kept:
        is_heap_kept = True
        PyMem_RawFree(PyMem_RawMalloc(KEPT))
    return framing.columns(data, extent, wide)

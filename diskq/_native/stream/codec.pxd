# The triplet codec, for compiled code: the layout of a record, and of its index rows.

from libc.stdint cimport int64_t, uint32_t

from diskq._native.core.framing cimport KeyedFraming

cdef enum:
    INDEX_ROW = 24       # offset u64, byte in the data file u64, record size u64
    TIMEINDEX_ROW = 16   # offset u64, timestamp i64


cdef class TripletFraming(KeyedFraming):
    cdef readonly bint varuint             # lengths as go-diskq's README describes them, not as its code writes them
    cdef Py_ssize_t size_of(self, Py_ssize_t key_size, Py_ssize_t value_size) noexcept nogil
    cdef void lay_down(
        self, char* out, const char* key, Py_ssize_t key_size, int64_t timestamp,
        const char* value, Py_ssize_t value_size,
    ) noexcept nogil


cdef uint32_t fnv1(const char* key, Py_ssize_t size) noexcept nogil
cdef void put_index_row(char* out, int64_t offset, int64_t position, int64_t size) noexcept nogil
cdef void put_timeindex_row(char* out, int64_t offset, int64_t timestamp) noexcept nogil

# The triplet codec, for compiled code: where the parts of a record are, and what its rows say.

from libc.stdint cimport int64_t, uint32_t

from diskq._native.framing cimport Framing, Stop

cdef enum:
    INDEX_ROW = 24       # offset u64, byte in the data file u64, record size u64
    TIMEINDEX_ROW = 16   # offset u64, timestamp i64


cdef struct Parts:
    Py_ssize_t size              # of the whole record; of a torn one what it needs at least, 0: it does not tell
    Py_ssize_t key               # where its key begins, counted from the record's first byte
    Py_ssize_t key_size
    Py_ssize_t value             # where its value begins
    Py_ssize_t value_size
    int64_t timestamp            # nanoseconds since the Unix epoch


cdef struct Extent:              # of the whole records at the start of some bytes
    Py_ssize_t records
    Py_ssize_t end               # the byte behind the last of them
    Py_ssize_t key_bytes         # of all of them together
    Py_ssize_t value_bytes
    Stop stop                    # why no more came: END also where enough were found


cdef class TripletFraming(Framing):
    cdef readonly bint varuint             # lengths as the README has them, not as the code has
    cdef readonly Py_ssize_t max_key_size  # of a key that may be written
    cdef Stop parts(self, const char* data, Py_ssize_t left, Parts* parts) noexcept nogil
    cdef Py_ssize_t size_of(self, Py_ssize_t key_size, Py_ssize_t value_size) noexcept nogil
    cdef void lay_down(
        self, char* out, const char* key, Py_ssize_t key_size, int64_t timestamp,
        const char* value, Py_ssize_t value_size,
    ) noexcept nogil


cdef void measure(
    bint varuint, const char* data, Py_ssize_t left, Py_ssize_t max_records, Extent* extent
) noexcept nogil
cdef object columns_of(
    bint varuint, const char* data, Py_ssize_t left, Py_ssize_t max_records, bint wide=*
)
cdef uint32_t fnv1(const char* key, Py_ssize_t size) noexcept nogil
cdef void put_index_row(char* out, int64_t offset, int64_t position, int64_t size) noexcept nogil
cdef void put_timeindex_row(char* out, int64_t offset, int64_t timestamp) noexcept nogil

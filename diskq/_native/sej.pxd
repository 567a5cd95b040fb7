# The sej codec, for compiled code: where the parts of a record are.

from libc.stdint cimport int64_t

from diskq._native.framing cimport Framing, Stop

cdef enum:
    HEAD = 18            # offset u64, timestamp i64, type u8, key length i8: all big endian
    LENGTH = 4           # of the value, i32
    TRAILER = 4          # the whole record's size once more, so that it is found from behind
    OVERHEAD = 26        # what a record has beside its key and its value


cdef struct SejParts:
    Py_ssize_t size              # of the whole record; of a torn one what it needs at least; 0: it does not tell
    int64_t offset
    int64_t timestamp            # nanoseconds since the Unix epoch, or INT64_MIN
    int type
    Py_ssize_t key_size          # its key begins at HEAD
    Py_ssize_t value             # where its value begins, counted from the record's first byte
    Py_ssize_t value_size


cdef struct SejExtent:           # of the whole records, one offset after the other, at the start of some bytes
    int64_t first_offset
    Py_ssize_t records
    Py_ssize_t end               # the byte behind the last of them
    Py_ssize_t key_bytes         # of all of them together
    Py_ssize_t value_bytes
    Py_ssize_t without_time
    Stop stop                    # why no more came: END also where enough were found


cdef class SejFraming(Framing):
    cdef readonly Py_ssize_t max_key_size  # of a key that may be written


cdef Stop sej_parts(const char* data, Py_ssize_t left, SejParts* parts) noexcept nogil
cdef void sej_lay_down(
    char* out, int64_t offset, int64_t timestamp, int type,
    const char* key, Py_ssize_t key_size, const char* value, Py_ssize_t value_size,
) noexcept nogil
cdef void sej_measure(
    const char* data, Py_ssize_t left, int64_t first_offset, Py_ssize_t max_records, SejExtent* extent
) noexcept nogil
cdef object sej_columns_of(
    const char* data, Py_ssize_t left, int64_t first_offset, Py_ssize_t max_records, bint wide=*
)

# The sej codec, for compiled code.

from libc.stdint cimport int64_t

from diskq._native.core.framing cimport KeyedFraming

cdef enum:
    HEAD = 18            # offset u64, timestamp i64, type u8, key length i8: all big endian
    LENGTH = 4           # of the value, i32
    TRAILER = 4          # the whole record's size again, for reading backwards
    OVERHEAD = 26        # the bytes of a record besides its key and value


cdef class SejFraming(KeyedFraming):
    pass


cdef void sej_lay_down(
    char* out, int64_t offset, int64_t timestamp, int type,
    const char* key, Py_ssize_t key_size, const char* value, Py_ssize_t value_size,
) noexcept nogil

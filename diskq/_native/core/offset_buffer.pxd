from libc.stdint cimport int64_t

from diskq._native.core.append_buffer cimport AppendBuffer
from diskq._native.core.framing cimport KeyedFraming


cdef struct Plain:                         # a message that needs no checking, in memory that others keep alive
    const char* key
    Py_ssize_t key_size                    # 0: it has none
    const char* value
    Py_ssize_t value_size
    bint has_time
    int64_t timestamp                      # ns since the Unix epoch, if it has one


cdef class OffsetBuffer(AppendBuffer):
    cdef KeyedFraming keyed
    cdef readonly int64_t base             # offset of the file's first record
    cdef int64_t first                     # the next record's offset is this plus the records so far
    cdef bint _is_full(self) noexcept
    cdef Py_ssize_t _take_encoded(self, const char* data, Py_ssize_t size, Py_ssize_t start) except -1
    cdef int _take_in(self, Py_ssize_t size, int64_t timestamp) except -1


cdef bint is_plain(object value, object key, object timestamp, KeyedFraming framing, Plain* plain) except -1
cdef const char* key_bytes(object key, Py_ssize_t* size) except NULL
cdef Py_ssize_t size_of_values(list items) except -1
cdef int64_t now_by(object clock) except? -1

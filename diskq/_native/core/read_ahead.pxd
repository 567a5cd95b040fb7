from libc.stdint cimport int64_t

from diskq._native.core.file_calls cimport FileCalls
from diskq._native.core.framing cimport Framing, KeyedFraming, Parts, Record, Stop
from diskq._native.core.gate cimport Gate


cdef class ReadAhead:
    cdef FileCalls file_calls
    cdef Framing framing
    cdef Framing of_verified
    cdef Framing current                   # the one of the two that is for the admitted bytes
    cdef Gate gate
    cdef char* buffer
    cdef Py_ssize_t capacity
    cdef int64_t origin                    # the file's byte at which the buffer begins
    cdef Py_ssize_t loaded                 # bytes in the buffer
    cdef Py_ssize_t at                     # the next record
    cdef Py_ssize_t admitted               # records may be delivered up to here
    cdef readonly int64_t records          # records delivered, over all files
    cdef Stop stop
    cdef readonly Py_ssize_t claimed       # the size that a torn record at `position` claims, or 0
    cdef int _make_room(self, Py_ssize_t size) except -1
    cdef int hold(self, const char* data, Py_ssize_t size) except -1
    cpdef list take_many(self, Py_ssize_t max_items, Py_ssize_t max_bytes)
    cdef object _take(self)
    cdef object _take_columns(self, Py_ssize_t max_records, Py_ssize_t max_bytes, int64_t first_offset)
    cdef object _made(self, const char* data, const Record* record)
    cdef Stop _decode(self, Record* record) noexcept


cdef class OffsetAhead(ReadAhead):
    cdef KeyedFraming keyed
    cdef Parts parts                       # of the last decoded record
    cdef public int partition
    cdef public int64_t next_offset

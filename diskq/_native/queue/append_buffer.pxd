from libc.stdint cimport int64_t

from diskq._native.core.append_buffer cimport AppendBuffer, Mode
from diskq._native.core.framing cimport Framing
from diskq._native.core.gate cimport Admission
from diskq._native.core.send_batch cimport Gathering


cdef class NsqBuffer(AppendBuffer):
    cdef Framing framing
    cpdef Py_ssize_t append_many(self, list bodies, Py_ssize_t start, Mode mode) except -1
    cdef bint _fits(self, list bodies) except -1
    cdef bint _lay(self, object body) except -1


cdef class NsqAppender:
    cdef NsqBuffer buffer
    cdef Mode mode
    cdef Admission admission


cdef class NsqGathering(Gathering):
    cdef Framing framing

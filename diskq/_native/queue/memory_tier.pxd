from cpython.ref cimport PyObject
from libc.stdint cimport int64_t

from diskq._native.core.framing cimport Framing
from diskq._native.core.gate cimport Admission, Gate
from diskq._native.core.read_ahead cimport ReadAhead


cdef class MemoryTier:
    cdef Framing framing
    cdef Gate gate_in
    cdef Gate gate_out
    cdef ReadAhead ahead
    cdef PyObject** ring                   # the messages; a power of two of places
    cdef Py_ssize_t capacity
    cdef Py_ssize_t first                  # where in the ring the oldest message is
    cdef readonly Py_ssize_t count         # messages here
    cdef readonly Py_ssize_t peeked        # of them, the first so many were looked at, and stayed
    cdef readonly int64_t size             # bytes of memory that they take
    cdef readonly int64_t accepted         # messages that came, but for those that went to the files
    cdef readonly int64_t taken            # of them, handed out
    cdef public int64_t limit              # `size` does not pass this
    cdef public bint is_next               # the files are used up: the first message here is the queue's
    cpdef Py_ssize_t append_many(self, list bodies, Py_ssize_t start) except -1
    cpdef list take_many(self, Py_ssize_t max_items, Py_ssize_t max_bytes, bint has_some)
    cdef list _look_at(self, Py_ssize_t max_items, Py_ssize_t max_bytes, bint has_some)
    cdef object _at(self, Py_ssize_t i)
    cdef int _check(self, Py_ssize_t count) except -1
    cdef bint _fits(self, list bodies) except -1
    cdef bint _is_message(self, object body) noexcept
    cdef bint _append(self, object body) except -1
    cdef object _take(self)
    cdef object _pop(self)
    cdef int _grow(self) except -1


cdef class TierAppender:
    cdef MemoryTier tier
    cdef Admission admission

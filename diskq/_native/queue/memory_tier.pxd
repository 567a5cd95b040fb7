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
    cdef PyObject** ring                   # the messages, as a ring; its size is a power of two
    cdef Py_ssize_t capacity
    cdef Py_ssize_t first                  # the index of the oldest message in the ring
    cdef readonly Py_ssize_t count         # number of messages in the ring
    cdef readonly Py_ssize_t peeked        # how many of the first of them were peeked at
    cdef readonly int64_t size             # bytes of memory that they take
    cdef readonly int64_t accepted         # messages accepted, without those that went to the files
    cdef readonly int64_t taken            # of those, delivered
    cdef public int64_t limit              # `size` does not exceed this
    cdef public bint is_next               # the files are used up: the first message here is the queue's next one
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

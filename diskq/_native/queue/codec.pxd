# The NSQ codec, for compiled code.

from diskq._native.core.framing cimport Framing


cdef struct Sizes:
    Py_ssize_t min_size
    Py_ssize_t max_size


cdef class NsqFraming(Framing):
    cdef Sizes read              # of a body that may be read

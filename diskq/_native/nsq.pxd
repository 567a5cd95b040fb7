# The NSQ codec, for compiled code: how far whole records go, and their bodies in a row.

from diskq._native.framing cimport Framing, Stop


cdef struct Extent:              # of the whole records at the start of some bytes
    Py_ssize_t records
    Py_ssize_t end               # the byte behind the last of them
    Py_ssize_t body_bytes        # of all of them together
    Stop stop                    # why no more came: END also where enough were found


cdef class NsqFraming(Framing):
    pass


cdef void measure(
    const char* data, Py_ssize_t left, Py_ssize_t min_size, Py_ssize_t max_size, Py_ssize_t max_records,
    Extent* extent,
) noexcept nogil
cdef object columns_of(
    const char* data, Py_ssize_t min_size, Py_ssize_t max_size, const Extent* extent, bint wide=*
)

from libc.stdint cimport int64_t

from diskq._native.turn cimport Turn

cdef int64_t wall_clock_ns() noexcept


cdef class Gate:
    cdef public int64_t left               # records that may still pass
    cdef readonly Turn turn                # whose it is to pass
    cdef int64_t slice_ns
    cdef int64_t slice_end                 # on the monotonic clock, ns
    cdef bint admits(self) noexcept

from libc.stdint cimport int64_t

from diskq._native.core.thread_guard cimport ThreadGuard

cdef int64_t wall_clock_ns() noexcept


cpdef enum Admission:
    # What is asked of the gate before something passes.
    TIMED = 0                              # how many may, and whether the time slice is over
    COUNTED = 1                            # how many may, for a caller that cannot yield
    FORCED = 2                             # nothing: the gate's owner decided


cdef class Gate:
    cdef public int64_t left               # records that may still pass
    cdef readonly ThreadGuard guard                # whose it is to pass
    cdef int64_t slice_ns
    cdef int64_t slice_end                 # on the monotonic clock, ns
    cdef bint admits(self) noexcept
    cdef bint lets_pass(self, Admission admission) noexcept

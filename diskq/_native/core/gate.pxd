from libc.stdint cimport int64_t

from diskq._native.core.thread_guard cimport ThreadGuard

cdef int64_t wall_clock_ns() noexcept


cpdef enum Admission:
    # What the gate checks before a record passes.
    TIMED = 0                              # the number of records, and the end of the time slice
    COUNTED = 1                            # the number of records, for a caller that cannot yield
    FORCED = 2                             # nothing: the gate's owner has decided


cdef class SliceClock:
    cdef int64_t began                     # when the running slice did, on the monotonic clock, ns
    cdef readonly int64_t slices           # how many have begun


cdef class Gate:
    cdef public int64_t left               # records that may still pass
    cdef readonly ThreadGuard guard                # the thread that may pass
    cdef readonly SliceClock clock
    cdef int64_t slice_ns
    cdef bint admits(self) noexcept
    cdef bint lets_pass(self, Admission admission) noexcept

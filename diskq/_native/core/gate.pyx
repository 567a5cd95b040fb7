# The gate: what may pass without asking.
#
# A message that passes the compiled path costs a fraction of a microsecond, so Python cannot be
# asked about each. It is asked when the gate shuts: after `left` records (a sync is due, somebody
# waits for a message, there is no room) or at the end of the caller's time slice (another task
# should run). Whoever is refused asks Python, which decides and opens the gate again.

cdef extern from "platform.h" nogil:
    int64_t _now "diskq_monotonic_ns" ()
    int64_t _wall_now "diskq_wall_clock_ns" ()


cdef int64_t wall_clock_ns() noexcept:
    """Nanoseconds since the Unix epoch."""
    return _wall_now()


cdef class Gate:
    """One for the writing and one for the reading side of a queue.

    `left` is the number of records that may pass; `time_slice` (seconds) is how long the gate
    stays open after `restart()`, and 0 means that time does not shut it. Who passes has to have the `guard`,
    or finds nobody inside.
    """

    def __cinit__(self, double time_slice=0.0, ThreadGuard guard=None):
        self.left = 0
        self.guard = ThreadGuard() if guard is None else guard
        self.slice_ns = <int64_t> (time_slice * 1e9)
        self.slice_end = 0

    cdef bint admits(self) noexcept:
        """May one more record pass?"""
        return self.left > 0 and (self.slice_ns == 0 or _now() < self.slice_end)

    cdef bint lets_pass(self, Admission admission) noexcept:
        """The same, where not all of it is asked."""
        if admission == TIMED:
            return self.left > 0 and (self.slice_ns == 0 or _now() < self.slice_end)
        return admission == FORCED or self.left > 0

    def restart(self):
        """A new time slice begins now."""
        self.slice_end = _now() + self.slice_ns

    @property
    def is_slice_over(self):
        """Has the time slice ended? Never, where it is 0."""
        return self.slice_ns != 0 and _now() >= self.slice_end

# The gate: how many records may pass without a call of Python code.
#
# A message on the compiled path costs a fraction of a microsecond, so Python code cannot run for each. It
# runs when the gate closes: after `left` records (a sync is due, a receiver waits for a message, there is no
# space) or at the end of the caller's time slice (another task should run). A refused caller takes the slow
# path in Python, which decides and opens the gate again.

cdef extern from "platform.h" nogil:
    int64_t _now "diskq_monotonic_ns" ()
    int64_t _wall_now "diskq_wall_clock_ns" ()


cdef int64_t wall_clock_ns() noexcept:
    """Return nanoseconds since the Unix epoch."""
    return _wall_now()


cdef class SliceClock:
    """When the running task's time slice began. Several gates may have one clock: those of one Trio run do."""

    def __cinit__(self):
        self.began = -(<int64_t> 1 << 62)  # long over, however long a slice is

    def restart(self):
        """Begin a new time slice."""
        self.began = _now()
        self.slices += 1


cdef class Gate:
    """A gate. A queue has one for the writing and one for the reading side.

    `left` is the number of records that may pass; `time_slice` (seconds) is how long the gate
    stays open after a slice begins on its `clock`, and 0 means that time does not close it. A caller that
    passes must hold the `guard`, or no thread may hold it.
    """

    def __cinit__(self, double time_slice=0.0, ThreadGuard guard=None, SliceClock clock=None):
        self.left = 0
        self.guard = ThreadGuard() if guard is None else guard
        self.clock = SliceClock() if clock is None else clock
        self.slice_ns = <int64_t> (time_slice * 1e9)

    cdef bint admits(self) noexcept:
        """True if one more record may pass."""
        return self.left > 0 and (self.slice_ns == 0 or _now() - self.clock.began < self.slice_ns)

    cdef bint lets_pass(self, Admission admission) noexcept:
        """Do the same, checking only what `ask` says."""
        if admission == TIMED:
            return self.left > 0 and (self.slice_ns == 0 or _now() - self.clock.began < self.slice_ns)
        return admission == FORCED or self.left > 0

    def follow(self, SliceClock clock not None):
        """Go by that clock from now on."""
        self.clock = clock

    def restart(self):
        """Begin a new time slice, on its clock."""
        self.clock.restart()

    @property
    def is_slice_over(self):
        """True if the time slice has ended; never if it is 0."""
        return self.slice_ns != 0 and _now() - self.clock.began >= self.slice_ns

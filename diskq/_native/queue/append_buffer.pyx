# The append buffer of a queue: each record is one body, and nothing else.
#
# Law: a body past the file's limit is never accepted; the owner rolls the file, and calls again.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t

from diskq._native.core.append_buffer cimport FLUSH_AT, HELD, WRITTEN, AppendBuffer, Mode
from diskq._native.core.framing cimport Framing
from diskq._native.core.gate cimport FORCED, Admission, Gate
from diskq._native.core.send_batch cimport Gathering
from diskq._native.core.thread_guard cimport check_guard, lets_in


cdef class NsqBuffer(AppendBuffer):
    """A queue's active file: takes bodies in, and writes whole records into the page cache."""

    def __cinit__(self, fs, Framing framing not None, Gate gate not None, on_block):
        self.framing = framing

    def appender(self, Mode mode, Admission admission):
        """Return an appender, which adds records in that mode, and checks that of the gate."""
        return NsqAppender(self, mode, admission)

    def gathering(self, current_task, Py_ssize_t largest):
        """Return what gathers messages to be written together later."""
        return NsqGathering(self, current_task, largest)

    cpdef Py_ssize_t append_many(self, list bodies, Py_ssize_t start, Mode mode) except -1:
        """Accept bodies[start:] up to the limit; returns the index of the first one left out.

        The gate is not checked. HELD ones are left to `flush`, unless many bytes wait; others are written.
        Raises OSError if the write fails; `records` then has the number of those accepted all the same.
        """
        cdef Py_ssize_t i = start
        cdef Py_ssize_t n = len(bodies)
        cdef Py_ssize_t used = self.used
        cdef int64_t records = self.records
        check_guard(self.gate.guard)  # once: no other thread enters before the flush, which holds the guard
        try:
            while i < n and self._lay(bodies[i]):
                i += 1
                if self.used - self.written >= FLUSH_AT:
                    self._flush()
                    used = self.used
                    records = self.records
            if mode != HELD:
                self._flush()
        except OSError:
            self._rewind(used, records)
            raise
        return i

    # --- inside -----------------------------------------------------------------------------------

    cdef bint _fits(self, list bodies) except -1:
        """True if all of them may be written, by one system call."""
        cdef Py_ssize_t total = 0
        cdef Py_ssize_t size
        for body in bodies:
            if type(body) is not bytes:
                return False
            size = PyBytes_GET_SIZE(body)
            if size < self.framing.min_size or size > self.framing.max_size:
                return False
            total += size + self.framing.overhead
        return self.origin + self.used + total <= self.limit and self.used - self.written + total < FLUSH_AT

    cdef bint _lay(self, object body) except -1:
        """Encode one record in the buffer. False: not bytes, the wrong size, or past the limit."""
        cdef Py_ssize_t size, total
        if type(body) is not bytes:
            return False
        size = PyBytes_GET_SIZE(body)
        if size < self.framing.min_size or size > self.framing.max_size:
            return False
        total = size + self.framing.overhead
        if self.origin + self.used + total > self.limit:
            return False
        self.framing.encode(self._space_for(total), PyBytes_AS_STRING(body), size)
        self._laid_down(total)
        return True


cdef class NsqAppender:
    """Adds records to a buffer, in one mode. It makes no decisions: the buffer's owner gets what it refuses.

    If it checks the gate, the first record of a time slice that is to be staged is written at once. The next
    record that would be the only one to wait is refused, so that the owner can schedule its write; those after it
    wait with it.
    """

    def __cinit__(self, NsqBuffer buffer not None, Mode mode, Admission admission):
        self.buffer = buffer
        self.mode = mode
        self.admission = admission

    def append(self, body):
        """Add one record. False: not done; take the slow path.

        Raises OSError if the write fails; the record is then not accepted.
        """
        cdef NsqBuffer buffer = self.buffer
        cdef Py_ssize_t used = buffer.used
        cdef int64_t records = buffer.records
        cdef Mode mode = self.mode
        if not buffer.gate.lets_pass(self.admission):
            return False
        if self.admission != FORCED and mode != WRITTEN and used == buffer.written:
            if mode == HELD:
                return False
            if buffer.wal != NULL and buffer.wal_room > 0:
                if buffer.written_in == buffer.gate.clock.slices:
                    return False
                mode = WRITTEN
        if not lets_in(buffer.gate.guard) or not buffer._lay(body):
            return False
        buffer._settle(used, records, mode)
        if mode != self.mode:
            buffer.written_in = buffer.gate.clock.slices
        return True

    def append_all(self, list bodies):
        """Do as `append` for all of them or none, and write them by one system call, in any mode."""
        cdef NsqBuffer buffer = self.buffer
        if not buffer.gate.lets_pass(self.admission):
            return False
        if self.admission != FORCED and buffer.gate.left < len(bodies):
            return False
        return buffer._fits(bodies) and buffer.append_many(bodies, 0, WRITTEN) == len(bodies)


cdef class NsqGathering(Gathering):
    """Gathers bodies that are to be written to a buffer together."""

    def __cinit__(self, NsqBuffer buffer not None, current_task, Py_ssize_t largest):
        self.framing = buffer.framing
        self.gate = buffer.gate

    def add(self, body):
        """Add a message of the running task, and return its number in the batch. -1: it needs the slow path."""
        cdef Py_ssize_t size
        if self.batch is None or type(body) is not bytes:
            return -1
        size = PyBytes_GET_SIZE(body)
        if size < self.framing.min_size or size > self.framing.max_size:
            return -1
        return self._add(body, size + self.framing.overhead)

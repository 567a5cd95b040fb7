# The memory tier: messages that wait in memory, after those in the files.
#
# Law: first in, first out, over files and memory together. A message here is younger than all messages in the
# files; it is delivered when the files are used up, or written to their end, oldest first.
#
# Messages are not copied: the sender's own objects stay in a ring until a receiver gets them, or until the
# owner has written the oldest of them and drops them. The owner checks, writes and sets bounds; it gets
# control (a refusal) when the gate is closed, the memory is used up, a body needs checking, or the files have
# more.

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.ref cimport Py_DECREF, Py_INCREF

from diskq._native.core.gate cimport FORCED, Admission
from diskq._native.core.thread_guard cimport check_guard, lets_in

cdef enum:
    PLACE = 64             # bytes of memory beyond a message's own: its object, its place in the ring
    START_CAPACITY = 64
    KEPT_CAPACITY = 1024   # a larger ring is freed when it is empty

PLACE_SIZE = PLACE


cdef class MemoryTier:
    """Takes bodies in, and returns them in order. `ahead` is the read-ahead of the files, which come first."""

    def __cinit__(
        self, Framing framing not None, Gate gate_in not None, Gate gate_out not None, ReadAhead ahead not None
    ):
        self.framing = framing
        self.gate_in = gate_in
        self.gate_out = gate_out
        self.ahead = ahead

    def __dealloc__(self):
        while self.count:
            self._pop()
        PyMem_RawFree(self.ring)

    # --- the fast path: it checks the gate and nothing else -----------------------------------------

    def appender(self, Admission admission):
        """Return a keeper, which adds messages, and checks that of the gate."""
        return TierAppender(self, admission)

    def take(self):
        """Return the queue's next message, from the files or from here. None: take the slow path."""
        if not self.gate_out.admits():
            return None
        return self._take()

    def take_untimed(self):
        """Do as `take`, for a caller that cannot yield."""
        if self.gate_out.left <= 0:
            return None
        return self._take()

    def take_some(self, Py_ssize_t max_items, Py_ssize_t max_bytes):
        """Return the next messages, as `take_many`. None: take the slow path."""
        if not self.is_next:
            return self.ahead.take_some(max_items, max_bytes)
        if self.count == 0 or not self.gate_out.admits() or self.gate_out.left < max_items:
            return None
        return self.take_many(max_items, max_bytes, False) or None

    # --- for the owner, which needs no permission of the gate -------------------------------------

    cpdef Py_ssize_t append_many(self, list bodies, Py_ssize_t start) except -1:
        """Keep bodies[start:] while memory lasts; returns the index of the first one left out."""
        cdef Py_ssize_t i = start
        cdef Py_ssize_t n = len(bodies)
        while i < n and self._append(bodies[i]):
            i += 1
        return i

    cpdef list take_many(self, Py_ssize_t max_items, Py_ssize_t max_bytes, bint has_some):
        """Return up to `max_items` messages of at most `max_bytes` in total, or one larger, unless `has_some`."""
        cdef list bodies = self._look_at(max_items, max_bytes, has_some)
        cdef Py_ssize_t i
        for i in range(len(bodies)):
            self._pop()
        self.taken += len(bodies)
        self.gate_out.left -= len(bodies)
        return bodies

    def peek_many(self, Py_ssize_t max_items, Py_ssize_t max_bytes, bint has_some):
        """Do as `take_many`, but the messages stay; `advance` takes them."""
        cdef list bodies = self._look_at(max_items, max_bytes, has_some)
        self.peeked = max(self.peeked, len(bodies))
        return bodies

    def advance(self, Py_ssize_t count):
        """Take the first `count` messages, which were peeked at."""
        cdef Py_ssize_t i
        self._check(count)
        for i in range(count):
            self._pop()
        self.taken += count

    def oldest(self, Py_ssize_t max_items, int64_t enough, int64_t most):
        """Return the first messages, up to `enough` bytes of memory; at most `most` bytes, or one larger message."""
        cdef list bodies = []
        cdef int64_t total = 0
        cdef int64_t size
        cdef Py_ssize_t i
        for i in range(min(max_items, self.count)):
            body = self._at(i)
            size = PyBytes_GET_SIZE(body) + PLACE
            if total >= enough or (bodies and total + size > most):
                break
            bodies.append(body)
            total += size
        return bodies

    def let_go(self, Py_ssize_t count):
        """Drop the first `count` messages, which are in the files now."""
        cdef Py_ssize_t i
        self._check(count)
        for i in range(count):
            self._pop()
        self.accepted -= count

    def pass_on(self, list bodies):
        """Count messages that go directly to a waiting receiver. False: one of them needs checking."""
        for body in bodies:
            if not self._is_message(body):
                return False
        self.accepted += len(bodies)
        self.taken += len(bodies)
        return True

    def clear(self):
        """Drop all messages."""
        while self.count:
            self._pop()

    # --- inside -----------------------------------------------------------------------------------

    cdef list _look_at(self, Py_ssize_t max_items, Py_ssize_t max_bytes, bint has_some):
        cdef list bodies = []
        cdef Py_ssize_t left = max_bytes
        cdef Py_ssize_t i, size
        check_guard(self.gate_out.guard)
        for i in range(min(max_items, self.count)):
            body = self._at(i)
            size = PyBytes_GET_SIZE(body)
            if size > left and (has_some or bodies):
                break
            bodies.append(body)
            left -= size
        return bodies

    cdef object _at(self, Py_ssize_t i):
        return <object> self.ring[(self.first + i) & (self.capacity - 1)]

    cdef int _check(self, Py_ssize_t count) except -1:
        if not 0 <= count <= self.count:
            raise IndexError(f"{count} messages of {self.count}")
        return 0

    cdef bint _fits(self, list bodies) except -1:
        """True if there is memory for all of them, and they may be kept."""
        cdef int64_t total = self.size
        for body in bodies:
            if not self._is_message(body):
                return False
            total += PyBytes_GET_SIZE(body) + PLACE
        return total <= self.limit

    cdef bint _is_message(self, object body) noexcept:
        return (
            type(body) is bytes
            and self.framing.min_size <= PyBytes_GET_SIZE(body) <= self.framing.max_size
        )

    cdef bint _append(self, object body) except -1:
        cdef int64_t size
        if not self._is_message(body):
            return False
        size = PyBytes_GET_SIZE(body) + PLACE
        if self.size + size > self.limit:
            return False
        if not lets_in(self.gate_in.guard):
            return False
        if self.count == self.capacity:
            self._grow()
        Py_INCREF(body)
        self.ring[(self.first + self.count) & (self.capacity - 1)] = <PyObject*> body
        self.count += 1
        self.size += size
        self.accepted += 1
        self.gate_in.left -= 1
        return True

    cdef object _take(self):
        if not lets_in(self.gate_out.guard):
            return None
        if not self.is_next:
            return self.ahead._take()
        if self.count == 0:
            return None
        self.taken += 1
        self.gate_out.left -= 1
        return self._pop()

    cdef object _pop(self):
        body = <object> self.ring[self.first]
        Py_DECREF(body)  # the ring's reference; the caller gets another one
        self.first = (self.first + 1) & (self.capacity - 1)
        self.count -= 1
        self.size -= PyBytes_GET_SIZE(body) + PLACE
        if self.peeked:
            self.peeked -= 1
        if self.count == 0 and self.capacity > KEPT_CAPACITY:
            PyMem_RawFree(self.ring)
            self.ring = NULL
            self.capacity = self.first = 0
        return body

    cdef int _grow(self) except -1:
        # The messages before index `first` are the later ones: they move to the new half.
        cdef Py_ssize_t i
        cdef Py_ssize_t before = self.capacity
        cdef Py_ssize_t capacity = max(<Py_ssize_t> START_CAPACITY, 2 * before)
        cdef PyObject** ring = <PyObject**> PyMem_RawRealloc(self.ring, capacity * sizeof(PyObject*))
        if ring == NULL:
            raise MemoryError()
        for i in range(self.first):
            ring[before + i] = ring[i]
        self.ring = ring
        self.capacity = capacity
        return 0


cdef class TierAppender:
    """Keeps messages in a memory tier. It makes no decisions: the tier's owner gets what it refuses."""

    def __cinit__(self, MemoryTier tier not None, Admission admission):
        self.tier = tier
        self.admission = admission

    def append(self, body):
        """Keep one message. False: not done; take the slow path."""
        return self.tier.gate_in.lets_pass(self.admission) and self.tier._append(body)

    def append_all(self, list bodies):
        """Do as `append`, for all of them or none."""
        cdef MemoryTier tier = self.tier
        if not tier.gate_in.lets_pass(self.admission):
            return False
        if self.admission != FORCED and tier.gate_in.left < len(bodies):
            return False
        return tier._fits(bodies) and tier.append_many(bodies, 0) == len(bodies)

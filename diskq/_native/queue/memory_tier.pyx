# The memory tier: messages that wait in memory, behind those in the files and in front of the disk.
#
# Law: first in, first out, over files and memory together. What is here is younger than whatever is
# in the files; it is handed out when the files are used up, and goes to their end oldest first.
#
# Messages are not copied: the sender's own objects lie in a ring until a receiver gets them, or
# until the owner has written the oldest of them and lets them go. Judging, writing and bounds are
# his business; he is asked (a refusal) when the gate is shut, the memory is used up, a body needs
# judgement, or the files have more.

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.ref cimport Py_DECREF, Py_INCREF

from diskq._native.core.gate cimport FORCED, Admission
from diskq._native.core.thread_guard cimport check_guard

cdef enum:
    PLACE = 64             # bytes of memory beyond a message's own: its object, its place in the ring
    START_CAPACITY = 64
    KEPT_CAPACITY = 1024   # a larger ring is given back when it is empty

PLACE_SIZE = PLACE


cdef class MemoryTier:
    """Bodies in, the same bodies out. `ahead` is the read-ahead of the files, which comes first."""

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

    # --- the fast paths: they ask the gate, and judge nothing ---------------------------------------

    def appender(self, Admission admission):
        """What keeps messages, and asks that of the gate."""
        return TierAppender(self, admission)

    def take(self):
        """The queue's next message, from the files or from here. None: not done; ask the owner."""
        if not self.gate_out.admits():
            return None
        return self._take()

    def take_untimed(self):
        """As `take`, for a caller who cannot yield."""
        if self.gate_out.left <= 0:
            return None
        return self._take()

    def take_some(self, Py_ssize_t max_items, Py_ssize_t max_bytes):
        """The next messages, as `take_many`. None: not done; ask the owner."""
        if not self.is_next:
            return self.ahead.take_some(max_items, max_bytes)
        if self.count == 0 or not self.gate_out.admits() or self.gate_out.left < max_items:
            return None
        return self.take_many(max_items, max_bytes, False) or None

    # --- the owner's doors: the gate is his -------------------------------------------------------

    cpdef Py_ssize_t append_many(self, list bodies, Py_ssize_t start) except -1:
        """Keep bodies[start:] as far as there is memory; returns the index of the first one left out."""
        cdef Py_ssize_t i = start
        cdef Py_ssize_t n = len(bodies)
        while i < n and self._append(bodies[i]):
            i += 1
        return i

    cpdef list take_many(self, Py_ssize_t max_items, Py_ssize_t max_bytes, bint has_some):
        """At most `max_items` messages of together at most `max_bytes`; one however large, unless `has_some`."""
        cdef list bodies = self._look_at(max_items, max_bytes, has_some)
        cdef Py_ssize_t i
        for i in range(len(bodies)):
            self._pop()
        self.taken += len(bodies)
        self.gate_out.left -= len(bodies)
        return bodies

    def peek_many(self, Py_ssize_t max_items, Py_ssize_t max_bytes, bint has_some):
        """As `take_many`; they stay, and `advance` may take them."""
        cdef list bodies = self._look_at(max_items, max_bytes, has_some)
        self.peeked = max(self.peeked, len(bodies))
        return bodies

    def advance(self, Py_ssize_t count):
        """The first `count` messages, which were peeked at, are taken."""
        cdef Py_ssize_t i
        self._check(count)
        for i in range(count):
            self._pop()
        self.taken += count

    def oldest(self, Py_ssize_t max_items, int64_t enough, int64_t most):
        """The first messages, until they take `enough` bytes of memory; at most `most`, but one however large."""
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
        """The first `count` messages are in the files now."""
        cdef Py_ssize_t i
        self._check(count)
        for i in range(count):
            self._pop()
        self.accepted -= count

    def pass_on(self, list bodies):
        """Count messages that somebody who waits for them is handed. False: one of them needs judgement."""
        for body in bodies:
            if not self._is_message(body):
                return False
        self.accepted += len(bodies)
        self.taken += len(bodies)
        return True

    def clear(self):
        """Forget them all."""
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
        """Is there memory for all of them, and are they what may be kept?"""
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
        check_guard(self.gate_in.guard)
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
        check_guard(self.gate_out.guard)
        if not self.is_next:
            return self.ahead._take()
        if self.count == 0:
            return None
        self.taken += 1
        self.gate_out.left -= 1
        return self._pop()

    cdef object _pop(self):
        body = <object> self.ring[self.first]
        Py_DECREF(body)  # the ring's; ours is one more
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
        # What lies before `first` comes after what lies behind it: it moves to the new half.
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
    """Keeps messages in a memory tier. It judges nothing: what it refuses is for the tier's owner."""

    def __cinit__(self, MemoryTier tier not None, Admission admission):
        self.tier = tier
        self.admission = admission

    def append(self, body):
        """Keep one message. False: not done; ask the owner."""
        return self.tier.gate_in.lets_pass(self.admission) and self.tier._append(body)

    def append_all(self, list bodies):
        """As `append`, for all of them or none."""
        cdef MemoryTier tier = self.tier
        if not tier.gate_in.lets_pass(self.admission):
            return False
        if self.admission != FORCED and tier.gate_in.left < len(bodies):
            return False
        return tier._fits(bodies) and tier.append_many(bodies, 0) == len(bodies)

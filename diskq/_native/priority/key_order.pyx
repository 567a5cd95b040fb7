# Finding the smallest key. Law: equal keys share a lane, so that a million messages of ten priorities cost as
# much as ten.
#
# Two implementations: a heap of the distinct keys, with a table that finds a key's lane; and, for a small range
# of keys, a lane for each, with bits for those in use.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

cdef extern from "platform.h" nogil:
    int lowest_bit "diskq_lowest_bit" (uint64_t word)

MOST_BUCKETS = 4096
"""The largest number of keys in a range, both ends included, for `BucketOrder`."""

cdef enum:
    FEWEST_BITS = 4
    WAYS = 4                     # children of a place in the heap: fewer levels, and siblings are adjacent


cdef class KeyOrder:
    """Lanes by key. Abstract."""

    cdef Lane* lane(self, int64_t key) except? NULL:
        """Return the lane of the key; a new one has the head NOBODY, which must be set at once.

        NULL: there is none for this key. Raises MemoryError.
        """
        return NULL

    cdef int make_room(self) except -1:
        """Make sure that the next call of `lane` cannot fail. Raises MemoryError."""
        return 0

    cdef Lane* first(self) noexcept:
        """Return the lane of the smallest key; NULL: there is none."""
        return NULL

    cdef void drop_first(self) noexcept:
        """Remove the lane of the smallest key."""

    cdef Py_ssize_t allocated(self) noexcept:
        """Bytes of memory."""
        return 0


cdef class HeapOrder(KeyOrder):
    """For any keys."""

    def __cinit__(self):
        self.bits = FEWEST_BITS
        self.table = _new_table(self.bits)
        if self.table == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.heap)
        free(self.table)

    cdef Py_ssize_t place_of(self, int64_t key) noexcept:
        """Return the place of the key's lane in the table, or the free place for it."""
        cdef Py_ssize_t mask = (<Py_ssize_t> 1 << self.bits) - 1
        cdef Py_ssize_t at = _home(key, self.bits)
        while self.table[at].head != NOBODY and self.table[at].key != key:
            at = (at + 1) & mask
        return at

    cdef Lane* lane(self, int64_t key) except? NULL:
        cdef Py_ssize_t at = self.place_of(key)
        cdef Py_ssize_t place, parent
        if self.table[at].head != NOBODY:
            return &self.table[at]
        if self.make_room():
            at = self.place_of(key)
        place = self.count
        while place:
            parent = (place - 1) // WAYS
            if self.heap[parent] <= key:
                break
            self.heap[place] = self.heap[parent]
            place = parent
        self.heap[place] = key
        self.count += 1
        self.table[at].key = key
        return &self.table[at]

    cdef int make_room(self) except -1:
        """Do as the base class. Returns 1 if the table was replaced."""
        cdef Py_ssize_t room
        cdef int64_t* larger
        cdef bint grows = (self.count + 1) * 4 > (<Py_ssize_t> 3 << self.bits)
        if grows:
            self.grow_table()
        if self.count == self.heap_room:
            room = max(<Py_ssize_t> 16, self.heap_room * 2)
            larger = <int64_t*> realloc(self.heap, room * sizeof(int64_t))
            if larger == NULL:
                raise MemoryError
            self.heap = larger
            self.heap_room = room
        return grows

    cdef int grow_table(self) except -1:
        cdef Lane* old = self.table
        cdef Py_ssize_t size = <Py_ssize_t> 1 << self.bits
        cdef Lane* larger = _new_table(self.bits + 1)
        cdef Py_ssize_t i
        if larger == NULL:
            raise MemoryError
        self.table = larger
        self.bits += 1
        for i in range(size):
            if old[i].head != NOBODY:
                self.table[self.place_of(old[i].key)] = old[i]
        free(old)
        return 0

    cdef Lane* first(self) noexcept:
        return &self.table[self.place_of(self.heap[0])] if self.count else NULL

    cdef void drop_first(self) noexcept:
        self._forget(self.place_of(self.heap[0]))
        self.count -= 1
        self._sink(self.heap[self.count])
        if not self.count and self.bits > 2 * FEWEST_BITS:
            self._shrink()

    cdef void _forget(self, Py_ssize_t at) noexcept:
        """Free a place of the table, and move up the entries that it had displaced."""
        cdef Py_ssize_t mask = (<Py_ssize_t> 1 << self.bits) - 1
        cdef Py_ssize_t other = at
        cdef Py_ssize_t home
        self.table[at].head = NOBODY
        while True:
            other = (other + 1) & mask
            if self.table[other].head == NOBODY:
                return
            home = _home(self.table[other].key, self.bits)
            if ((other - home) & mask) >= ((other - at) & mask):
                self.table[at] = self.table[other]
                self.table[other].head = NOBODY
                at = other

    cdef void _sink(self, int64_t key) noexcept:
        """Replace the smallest key by `key`, and move it to its place."""
        cdef Py_ssize_t place = 0
        cdef Py_ssize_t child, smallest, end
        while True:
            child = place * WAYS + 1
            if child >= self.count:
                break
            smallest = child
            end = min(child + WAYS, self.count)
            for child in range(child + 1, end):
                if self.heap[child] < self.heap[smallest]:
                    smallest = child
            if self.heap[smallest] >= key:
                break
            self.heap[place] = self.heap[smallest]
            place = smallest
        if self.count:
            self.heap[place] = key

    cdef void _shrink(self) noexcept:
        """Free memory, since the order is empty."""
        cdef Lane* smaller = _new_table(FEWEST_BITS)
        if smaller != NULL:
            free(self.table)
            self.table = smaller
            self.bits = FEWEST_BITS
            free(self.heap)
            self.heap = NULL
            self.heap_room = 0

    cdef Py_ssize_t allocated(self) noexcept:
        return (<Py_ssize_t> 1 << self.bits) * sizeof(Lane) + self.heap_room * sizeof(int64_t)


cdef inline Py_ssize_t _home(int64_t key, int bits) noexcept:
    return <Py_ssize_t> ((<uint64_t> key * <uint64_t> 0x9E3779B97F4A7C15) >> (64 - bits))


cdef Lane* _new_table(int bits) noexcept:
    cdef size_t size = (<size_t> 1 << bits) * sizeof(Lane)
    cdef Lane* table = <Lane*> malloc(size)
    if table != NULL:
        memset(table, 0xFF, size)  # every head is NOBODY
    return table


cdef class BucketOrder(KeyOrder):
    """For keys from `lowest` to `highest`, at most `MOST_BUCKETS` of them. Others have no lane."""

    def __cinit__(self, lowest, highest):
        width = highest - lowest + 1
        if not 1 <= width <= MOST_BUCKETS:
            raise ValueError(f"{width} buckets: 1 to {MOST_BUCKETS} are possible")
        self.lowest = lowest
        self.width = width
        self.lanes = <Lane*> calloc(self.width, sizeof(Lane))
        if self.lanes == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.lanes)

    cdef Lane* lane(self, int64_t key) except? NULL:
        # Unsigned: the difference of two distant ends may not fit into a signed number.
        cdef Py_ssize_t bucket = <Py_ssize_t> (<uint64_t> key - <uint64_t> self.lowest)
        cdef Lane* lane
        if not 0 <= bucket < self.width:
            return NULL
        lane = &self.lanes[bucket]
        if not (self.words[bucket >> 6] >> (bucket & 63)) & 1:
            self.words[bucket >> 6] |= <uint64_t> 1 << (bucket & 63)
            self.summary |= <uint64_t> 1 << (bucket >> 6)
            self.count += 1
            lane.key = key
            lane.head = NOBODY
        return lane

    cdef Lane* first(self) noexcept:
        cdef int word
        if not self.summary:
            return NULL
        word = lowest_bit(self.summary)
        return &self.lanes[word * 64 + lowest_bit(self.words[word])]

    cdef void drop_first(self) noexcept:
        cdef int word = lowest_bit(self.summary)
        self.words[word] &= self.words[word] - 1
        if not self.words[word]:
            self.summary &= self.summary - 1
        self.count -= 1

    cdef Py_ssize_t allocated(self) noexcept:
        return self.width * sizeof(Lane)

# The records of one priority queue, in memory. Law: a record keeps its slot from the moment it is logged until
# it is acknowledged, also while a receiver has it; smaller keys come out first, and of equal ones the record
# with the smaller id.
#
#   hidden    logged, and not yet as durable as its sender asked for: not delivered yet
#   ready     in the lane of its key; or, if it came back out of order, in the heap of returned records
#   taken     with a receiver, which will acknowledge it or give it back
#
# A frozen table can be written into a snapshot while it is in use: later records are recognised by their ids,
# and those acknowledged meanwhile linger in their slots until they are written.
#
# A million records cost more than a thousand because of memory latency. So the next lane is prefetched ahead of
# its head, while other work is done; and loaded records are stored in the order of delivery.

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcpy

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from diskq._native.priority.key_order cimport NOBODY, HeapOrder, KeyOrder, Lane
from diskq._native.core.views cimport start_of
from diskq._native.core.byte_order cimport get_i32_be, get_u64_be, is_number, put_u32_be, put_u64_be

cdef extern from * nogil:
    """
    #define prefetch(address) __builtin_prefetch((const void *) (address))
    """
    void prefetch(size_t address)         # a hint: any number will do

cdef enum:
    LEAD = 96                    # records of a lane that are prefetched
    POOL = 1 << 14               # CPython notes the free memory at the start of each piece of this size
    BLOCK_BITS = 12              # number of slots allocated at once; they never move
    BLOCK = 1 << BLOCK_BITS
    MANY = 1 << 14               # records after which other threads get their turn: about a millisecond
    HEAD = 20                    # a record's head in a snapshot: id, key, length

cdef enum State:
    FREE
    READY
    HIDDEN
    TAKEN
    LINGERING                    # acknowledged, and still to be written to the snapshot

@cython.final
@cython.freelist(256)
@cython.no_gc
cdef class PriorityRecord:
    """One message of a priority queue: its id there, its priority (the smallest comes first), its body.

    A receiver gets it to acknowledge it or give it back, through its queue.
    """

    def __init__(self):
        raise TypeError("a PriorityRecord is received, not made")

    @property
    def queue(self):
        """The name of its queue."""
        return self.table.name

    @property
    def is_settled(self):
        """True if it was acknowledged or given back."""
        return self.hold == SETTLED

    def __repr__(self):
        return f"PriorityRecord(queue={self.queue!r}, id={self.id}, priority={self.priority}, {len(self.body)} bytes)"


cdef int _check_range(list items, Py_ssize_t start, Py_ssize_t stop) except -1:
    """Raise ValueError if `start:stop` is not a range of the items."""
    if not 0 <= start <= stop <= len(items):
        raise ValueError(f"{start}:{stop} is not a range of {len(items)} items")
    return 0


@cython.final
cdef class RecordTable:
    """The records of the queue `name`; `order` decides which key comes first."""

    def __cinit__(self, str name not None, KeyOrder order=None):
        self.name = name
        self.order = HeapOrder() if order is None else order
        self.spare = self.first_hidden = self.last_hidden = self.ahead = NOBODY
        self.is_sorted = True

    def __dealloc__(self):
        cdef uint32_t i
        cdef Slot* slot
        for i in range(self.used):
            slot = self._slot(i)
            if slot.state != FREE:
                Py_DECREF(<object> slot.payload)
        for i in range(self.block_count):
            free(self.blocks[i])
        free(self.blocks)
        free(self.returned)
        free(self.loaded)

    @property
    def stored(self):
        """Return the number of records, including taken ones."""
        return self.ready + self.taken + self.hidden

    @property
    def allocated(self):
        """Return the bytes of memory, without the payloads'."""
        return (
            self.block_count * (BLOCK * sizeof(Slot) + sizeof(Slot*))
            + self.returned_room * sizeof(uint32_t)
            + self.loaded_room * sizeof(Loaded)
            + self.order.allocated()
        )

    # --- slots ------------------------------------------------------------------------------------

    cdef Slot* _slot(self, uint32_t index) noexcept:
        return &self.blocks[index >> BLOCK_BITS][index & (BLOCK - 1)]

    cdef int _make_slot(self) except -1:
        """Make sure that there is a free slot. Raises MemoryError."""
        cdef Slot** blocks
        if self.spare != NOBODY or self.used != <uint32_t> (self.block_count << BLOCK_BITS):
            return 0
        if self.used >= <uint32_t> NOBODY - BLOCK:
            raise MemoryError("a queue holds at most 2**32 records")
        blocks = <Slot**> realloc(self.blocks, (self.block_count + 1) * sizeof(Slot*))
        if blocks == NULL:
            raise MemoryError
        self.blocks = blocks
        blocks[self.block_count] = <Slot*> malloc(BLOCK * sizeof(Slot))
        if blocks[self.block_count] == NULL:
            raise MemoryError
        self.block_count += 1
        return 0

    cdef int64_t _new_slot(self, uint64_t id, int64_t key, bytes payload) except -1:
        cdef uint32_t index
        cdef Slot* slot
        self._make_slot()
        index = self.spare
        if index != NOBODY:
            self.spare = self._slot(index).next
        else:
            index = self.used
            self.used += 1
        slot = self._slot(index)
        slot.key = key
        slot.id = id
        Py_INCREF(payload)
        slot.payload = <PyObject*> payload
        slot.next = NOBODY
        slot.state = READY
        self.payload_bytes += PyBytes_GET_SIZE(payload)
        return index

    cdef void _leave(self, uint32_t index) noexcept:
        """Remove the record, or let it linger if a snapshot still needs it."""
        cdef Slot* slot = self._slot(index)
        self.payload_bytes -= PyBytes_GET_SIZE(<object> slot.payload)
        if self.is_frozen and slot.id <= self.frozen_id and self.written <= index < self.frozen_end:
            slot.state = LINGERING
        else:
            self._free(index)

    cdef void _free(self, uint32_t index) noexcept:
        cdef Slot* slot = self._slot(index)
        Py_DECREF(<object> slot.payload)
        slot.payload = NULL
        slot.state = FREE
        slot.next = self.spare
        self.spare = index

    cdef void _forget_slots(self) noexcept:
        """Free memory, since no record is stored."""
        self.used = 0
        self.spare = self.ahead = NOBODY
        self._keep_blocks(1)
        free(self.returned)
        self.returned = NULL
        self.returned_room = 0

    cdef void _keep_blocks(self, Py_ssize_t count) noexcept:
        while self.block_count > count:
            self.block_count -= 1
            free(self.blocks[self.block_count])

    # --- order ------------------------------------------------------------------------------------

    cdef int _push(self, uint32_t index) except -1:
        """Put a record into the lane of its key; out of order, among the returned ones."""
        cdef Slot* slot = self._slot(index)
        cdef Lane* lane
        # The allocation that may fail comes first: else a new lane would stay empty.
        self._make_room(1)
        lane = self.order.lane(slot.key)
        if lane == NULL or (lane.head != NOBODY and self._slot(lane.tail).id > slot.id):
            self._push_returned(index)
        else:
            slot.next = NOBODY
            if lane.head == NOBODY:
                lane.head = index
            else:
                self._slot(lane.tail).next = index
            lane.tail = index
        slot.state = READY
        self.ready += 1
        return 0

    cdef int _make_room(self, Py_ssize_t more) except -1:
        """Make space for `more` returned records, so that returning them cannot fail."""
        cdef Py_ssize_t room = max(<Py_ssize_t> 16, self.returned_count + more, self.returned_room * 2)
        cdef uint32_t* larger
        if self.returned_count + more <= self.returned_room:
            return 0
        larger = <uint32_t*> realloc(self.returned, room * sizeof(uint32_t))
        if larger == NULL:
            raise MemoryError
        self.returned = larger
        self.returned_room = room
        return 0

    cdef bint _precedes(self, uint32_t one, uint32_t other) noexcept:
        cdef Slot* a = self._slot(one)
        cdef Slot* b = self._slot(other)
        return a.key < b.key or (a.key == b.key and a.id < b.id)

    cdef void _push_returned(self, uint32_t index) noexcept:
        cdef Py_ssize_t place = self.returned_count
        cdef Py_ssize_t parent
        self.returned_count += 1
        while place:
            parent = (place - 1) // 2
            if not self._precedes(index, self.returned[parent]):
                break
            self.returned[place] = self.returned[parent]
            place = parent
        self.returned[place] = index

    cdef void _pop_returned(self) noexcept:
        cdef Py_ssize_t place = 0
        cdef Py_ssize_t child
        cdef uint32_t last
        self.returned_count -= 1
        last = self.returned[self.returned_count]
        while True:
            child = place * 2 + 1
            if child >= self.returned_count:
                break
            if child + 1 < self.returned_count and self._precedes(self.returned[child + 1], self.returned[child]):
                child += 1
            if not self._precedes(self.returned[child], last):
                break
            self.returned[place] = self.returned[child]
            place = child
        self.returned[place] = last

    cdef uint32_t _first(self) noexcept:
        """Return the next slot; NOBODY: no record is ready."""
        cdef Lane* lane = self.order.first()
        if self.returned_count and (lane == NULL or self._precedes(self.returned[0], lane.head)):
            return self.returned[0]
        return NOBODY if lane == NULL else lane.head

    cdef void _drop(self, uint32_t index) noexcept:
        """Remove the next record from the order."""
        cdef Lane* lane
        self.ready -= 1
        if self.returned_count and self.returned[0] == index:
            self._pop_returned()
            return
        lane = self.order.first()
        if index == lane.tail:
            self.order.drop_first()
        else:
            lane.head = self._slot(index).next
            self._follow(lane)

    cdef void _follow(self, Lane* lane) noexcept:
        """Prefetch ahead of the next lane's head, which has moved on."""
        if self.lead > 0 and self.ahead_key == lane.key:
            self.lead -= 1
        else:
            self.ahead = lane.head
            self.ahead_key = lane.key
            self.lead = 0
        self._look_ahead()
        self._look_ahead()

    cdef void _look_ahead(self) noexcept:
        """Prefetch one more record, and the slot of the one after it."""
        cdef Slot* slot
        if self.ahead != NOBODY and self.lead < LEAD:
            slot = self._slot(self.ahead)
            prefetch(<size_t> slot.payload)
            prefetch(<size_t> slot.payload & ~<size_t> (POOL - 1))
            self.lead += 1
            self.ahead = slot.next
            if self.ahead != NOBODY:
                prefetch(<size_t> self._slot(self.ahead))

    # --- in and out -------------------------------------------------------------------------------

    def add(self, list payloads not None, keys, Py_ssize_t start, Py_ssize_t stop, bint is_hidden=False):
        """Store `payloads[start:stop]`, with the next ids; `keys` is one for all, or a list.

        Hidden ones are not delivered before `reveal`. Raises MemoryError.
        """
        cdef bint is_list = isinstance(keys, list)
        cdef int64_t key = 0
        cdef Py_ssize_t i
        _check_range(payloads, start, stop)
        if not is_list:
            key = keys
        for i in range(start, stop):
            if is_list:
                key = (<list> keys)[i]
            self.add_one(key, <bytes?> payloads[i], is_hidden)

    cdef int reserve(self) except -1:
        """Make sure that the next `add_one` cannot fail. Raises MemoryError."""
        self._make_slot()
        self._make_room(1)
        self.order.make_room()
        return 0

    cdef int add_one(self, int64_t key, bytes payload, bint is_hidden) except -1:
        """Store one record, with the next id. Raises MemoryError."""
        cdef uint32_t index = <uint32_t> self._new_slot(self.last_id + 1, key, payload)
        self.last_id += 1
        self._look_ahead()
        if not is_hidden:
            return self._push(index)
        self._slot(index).state = HIDDEN
        if self.first_hidden == NOBODY:
            self.first_hidden = index
        else:
            self._slot(self.last_hidden).next = index
        self.last_hidden = index
        self.hidden += 1
        return 0

    def reveal(self, uint64_t last_id):
        """Make hidden records up to this id ready."""
        cdef uint32_t index
        while self.first_hidden != NOBODY and self._slot(self.first_hidden).id <= last_id:
            index = self.first_hidden
            self.first_hidden = self._slot(index).next
            self.hidden -= 1
            self._push(index)

    def take(self, Py_ssize_t most, Py_ssize_t max_bytes=-1):
        """Return the next records, up to a number and a total of bytes (negative: no bound).

        The first one may be larger than the total.
        """
        cdef list found = []
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t i
        cdef uint32_t index
        for i in range(min(most, self.ready)):
            index = self._first()
            size += PyBytes_GET_SIZE(<object> self._slot(index).payload)
            if found and 0 <= max_bytes < size:
                break
            found.append(self.take_one())
        return found

    cdef PriorityRecord take_one(self):
        """Return the next record; there is one that is ready."""
        cdef uint32_t index = self._first()
        cdef PriorityRecord record = self._record(index, HELD)
        self._drop(index)
        self._slot(index).state = TAKEN
        self.taken += 1
        return record

    def peek(self, Py_ssize_t most):
        """Do as `take`, but the records stay where they are, and cannot be settled."""
        cdef list found = []
        cdef list indices = []
        cdef Py_ssize_t i
        cdef uint32_t index
        most = min(most, self.ready)
        if most == 1:
            return [self._record(self._first(), LOOKED_AT)]
        self._make_room(most)
        try:
            for i in range(most):
                index = self._first()
                found.append(self._record(index, LOOKED_AT))
                indices.append(index)
                self._drop(index)
        finally:
            for index in indices:
                self._push_returned(index)
                self.ready += 1
        return found

    cdef PriorityRecord _record(self, uint32_t index, Hold hold):
        cdef Slot* slot = self._slot(index)
        cdef PriorityRecord record = PriorityRecord.__new__(PriorityRecord)
        record.id = slot.id
        record.priority = slot.key
        record.body = <bytes> slot.payload
        record.table = self
        record.slot = index
        record.hold = hold
        return record

    # --- settling ---------------------------------------------------------------------------------

    def begin_to_settle(self, list records not None):
        """Claim records. Return the index of the first one that is not taken from this table; -1: all are claimed.

        Raises TypeError for an object that is not a record.
        """
        cdef Py_ssize_t i
        cdef PriorityRecord record
        for i in range(len(records)):
            if type(records[i]) is not PriorityRecord:
                self.unclaim(records, 0, i)
                raise TypeError(f"a record that was received, not {type(records[i]).__name__}")
            record = records[i]
            if record.table is not self or record.hold != HELD:
                self.unclaim(records, 0, i)
                return i
            record.hold = SETTLING
        return -1

    def unclaim(self, list records not None, Py_ssize_t start, Py_ssize_t stop):
        """Make `records[start:stop]` taken again, since they could not be settled."""
        cdef Py_ssize_t i
        cdef PriorityRecord record
        _check_range(records, start, stop)
        for i in range(start, stop):
            record = records[i]
            record.hold = HELD

    def forget(self, list records not None, Py_ssize_t start, Py_ssize_t stop):
        """Remove `records[start:stop]`, which were claimed."""
        cdef Py_ssize_t i
        cdef PriorityRecord record
        _check_range(records, start, stop)
        for i in range(start, stop):
            record = records[i]
            assert record.table is self and record.hold == SETTLING
            self.forget_one(record)

    cdef bint holds(self, PriorityRecord record) noexcept:
        """True if the record is taken from this table, and not settled."""
        return record.table is self and record.hold == HELD

    cdef void forget_one(self, PriorityRecord record) noexcept:
        """Remove a record that is taken."""
        record.hold = SETTLED
        self.taken -= 1
        self._look_ahead()
        self._leave(record.slot)
        if not (self.taken or self.ready or self.hidden or self.is_frozen):
            self._forget_slots()

    def give_back(self, list records not None):
        """Make claimed records ready again, each in its place by (key, id)."""
        cdef PriorityRecord record
        self._make_room(len(records))
        for each in records:
            record = each
            assert record.table is self and record.hold == SETTLING
            self._slot(record.slot).state = READY
            self._push_returned(record.slot)
            self.taken -= 1
            self.ready += 1
            record.hold = SETTLED

    # --- snapshots while the table is in use ------------------------------------------------------

    def freeze(self):
        """Freeze the present records for `write_frozen`. Returns their number."""
        assert not self.is_frozen
        self.is_frozen = True
        self.frozen_id = self.last_id
        self.frozen_end = self.used
        self.written = 0
        return self.stored

    def write_frozen(self, Py_ssize_t at_least=65536):
        """Return the next records in a snapshot's format, up to a size; empty after the last one."""
        cdef uint32_t start = self.written
        cdef uint32_t end = self.frozen_end
        cdef uint32_t i
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t length
        cdef Slot* slot
        cdef char* at
        cdef bytes out
        assert self.is_frozen
        for i in range(start, self.frozen_end):
            slot = self._slot(i)
            if slot.state != FREE and slot.id <= self.frozen_id:
                size += HEAD + PyBytes_GET_SIZE(<object> slot.payload)
                if size >= at_least:
                    end = i + 1
                    break
        out = PyBytes_FromStringAndSize(NULL, size)
        at = PyBytes_AS_STRING(out)
        for i in range(start, end):
            slot = self._slot(i)
            if slot.state == FREE or slot.id > self.frozen_id:
                continue
            length = PyBytes_GET_SIZE(<object> slot.payload)
            put_u64_be(at, slot.id)
            put_u64_be(at + 8, <uint64_t> slot.key)
            put_u32_be(at + 16, <uint32_t> length)
            memcpy(at + HEAD, PyBytes_AS_STRING(<object> slot.payload), length)
            at += HEAD + length
            if slot.state == LINGERING:
                self._free(i)
        self.written = end
        return out

    def thaw(self):
        """End the freeze: the snapshot is written, or given up."""
        cdef uint32_t i
        if self.is_frozen:
            for i in range(self.written, self.frozen_end):
                if self._slot(i).state == LINGERING:
                    self._free(i)
            self.is_frozen = False

    # --- loading at the open ----------------------------------------------------------------------

    cdef int _load(self, uint64_t id, int64_t key, bytes payload) except -1:
        cdef Loaded* larger
        cdef Py_ssize_t room
        if self.loaded_count == self.loaded_room:
            room = max(<Py_ssize_t> 64, self.loaded_room * 2)
            larger = <Loaded*> realloc(self.loaded, room * sizeof(Loaded))
            if larger == NULL:
                raise MemoryError
            self.loaded = larger
            self.loaded_room = room
        self.loaded[self.loaded_count].slot = <uint32_t> self._new_slot(id, key, payload)
        self.loaded[self.loaded_count].id = id
        if self.loaded_count and self.loaded[self.loaded_count - 1].id >= id:
            self.is_sorted = False
        self.loaded_count += 1
        self.ready += 1
        self.last_id = max(self.last_id, id)
        return 0

    def load(self, const unsigned char[::1] buffer, Py_ssize_t at, Py_ssize_t most):
        """Load up to `most` records of a snapshot from byte `at` on. Returns the number of whole ones, and their end.

        Raises ValueError for a length or an id that no writer wrote.
        """
        cdef const char* data = start_of(buffer)
        cdef Py_ssize_t count = 0
        cdef int32_t length
        if at < 0:
            raise ValueError(f"a byte is 0 or more, got {at}")
        while count < most and buffer.shape[0] - at >= HEAD:
            length = get_i32_be(data + at + 16)
            if length < 0:
                raise ValueError("a record of less than no bytes")
            if not is_number(get_u64_be(data + at)):
                raise ValueError("a record with an impossible id")
            if buffer.shape[0] - at - HEAD < length:
                break
            self._load(
                get_u64_be(data + at),
                <int64_t> get_u64_be(data + at + 8),
                PyBytes_FromStringAndSize(data + at + HEAD, length),
            )
            at += HEAD + length
            count += 1
        return count, at

    def sort_loaded(self):
        """End the loading of the snapshot's records. False: two of them have the same id."""
        cdef Loaded* loaded = self.loaded
        cdef Py_ssize_t count = self.loaded_count
        cdef bint is_sorted = self.is_sorted
        cdef bint is_unique = True
        cdef Py_ssize_t i
        with nogil:
            if not is_sorted:
                qsort(loaded, count, sizeof(Loaded), _by_id)
            for i in range(1, count):
                if loaded[i - 1].id == loaded[i].id:
                    is_unique = False
                    break
        self.is_sorted = True
        return is_unique

    def load_add(self, int64_t key, bytes payload not None):
        """Add one record from the log, with the next id."""
        self._load(self.last_id + 1, key, payload)

    def load_remove(self, uint64_t id):
        """Remove the record with this id, in any state. False: there is none."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.loaded_count
        cdef Py_ssize_t middle
        while low < high:
            middle = (low + high) // 2
            if self.loaded[middle].id < id:
                low = middle + 1
            else:
                high = middle
        if low == self.loaded_count or self.loaded[low].id != id or self.loaded[low].slot == NOBODY:
            return False
        self.ready -= 1
        self._leave(self.loaded[low].slot)
        self.loaded[low].slot = NOBODY
        return True

    def finish_loading(self):
        """Order the loaded records. Called once, before all methods but those for loading."""
        cdef uint32_t i
        free(self.loaded)
        self.loaded = NULL
        self.loaded_count = self.loaded_room = 0
        self._lay_in_order()
        self.ready = 0
        for i in range(self.used):
            if i % MANY == 0:
                with nogil:
                    pass  # other threads get their turn
            self._push(i)

    cdef int _lay_in_order(self) except -1:
        """Move the records to the first slots, in the order in which they come out."""
        cdef Slot* slots = <Slot*> malloc(max(<Py_ssize_t> 1, self.ready) * sizeof(Slot))
        cdef Slot** blocks = self.blocks
        cdef uint32_t used = self.used
        cdef uint32_t count = 0
        cdef uint32_t i
        if slots == NULL:
            raise MemoryError
        with nogil:
            for i in range(used):
                if blocks[i >> BLOCK_BITS][i & (BLOCK - 1)].state != FREE:
                    slots[count] = blocks[i >> BLOCK_BITS][i & (BLOCK - 1)]
                    count += 1
            qsort(slots, count, sizeof(Slot), _by_turn)
            for i in range(count):
                blocks[i >> BLOCK_BITS][i & (BLOCK - 1)] = slots[i]
            free(slots)
        self.used = count
        self.spare = NOBODY
        self._keep_blocks((<Py_ssize_t> count + BLOCK - 1) >> BLOCK_BITS)
        return 0


cdef int _by_turn(const void* one, const void* other) noexcept nogil:
    cdef const Slot* a = <const Slot*> one
    cdef const Slot* b = <const Slot*> other
    if a.key != b.key:
        return 1 if a.key > b.key else -1
    return (a.id > b.id) - (a.id < b.id)


cdef int _by_id(const void* one, const void* other) noexcept nogil:
    cdef uint64_t a = (<const Loaded*> one).id
    cdef uint64_t b = (<const Loaded*> other).id
    return (a > b) - (a < b)

# The records of one priority queue, for compiled code: what they are is in record_table.pyx.

from libc.stdint cimport int64_t, uint32_t, uint64_t

cimport cython
from cpython.object cimport PyObject

from diskq._native.priority.key_order cimport KeyOrder, Lane


# What may be done with a delivered record.
cdef enum Hold:
    HELD
    SETTLING
    SETTLED
    LOOKED_AT                    # it was only peeked at


cdef struct Slot:
    int64_t key
    uint64_t id
    PyObject* payload            # owned
    uint32_t next                # in its lane, the hidden list or the free list
    uint32_t state


cdef struct Loaded:
    uint64_t id
    uint32_t slot


@cython.final
cdef class PriorityRecord:
    cdef readonly uint64_t id
    cdef readonly int64_t priority
    cdef readonly bytes body
    cdef RecordTable table
    cdef uint32_t slot
    cdef Hold hold


@cython.final
cdef class RecordTable:
    cdef readonly str name
    cdef KeyOrder order
    cdef Slot** blocks
    cdef Py_ssize_t block_count
    cdef uint32_t used                   # slots that were used at least once
    cdef uint32_t spare                  # the free ones among them
    cdef uint32_t first_hidden, last_hidden
    cdef uint32_t ahead                  # the next lane was prefetched up to here; a hint, perhaps stale
    cdef int lead                        # number of prefetched records after its head
    cdef int64_t ahead_key               # the lane's
    cdef uint32_t* returned              # a heap, by (key, id)
    cdef Py_ssize_t returned_count, returned_room
    cdef Loaded* loaded
    cdef Py_ssize_t loaded_count, loaded_room
    cdef bint is_sorted
    cdef public uint64_t last_id         # the last id assigned
    cdef readonly Py_ssize_t ready
    cdef readonly Py_ssize_t taken
    cdef readonly Py_ssize_t hidden
    cdef readonly int64_t payload_bytes
    cdef bint is_frozen
    cdef uint64_t frozen_id
    cdef uint32_t frozen_end, written
    cdef Slot* _slot(self, uint32_t index) noexcept
    cdef int reserve(self) except -1
    cdef int add_one(self, int64_t key, bytes payload, bint is_hidden) except -1
    cdef int _make_slot(self) except -1
    cdef int64_t _new_slot(self, uint64_t id, int64_t key, bytes payload) except -1
    cdef void _leave(self, uint32_t index) noexcept
    cdef void _free(self, uint32_t index) noexcept
    cdef void _forget_slots(self) noexcept
    cdef void _keep_blocks(self, Py_ssize_t count) noexcept
    cdef int _push(self, uint32_t index) except -1
    cdef int _make_room(self, Py_ssize_t more) except -1
    cdef bint _precedes(self, uint32_t one, uint32_t other) noexcept
    cdef void _push_returned(self, uint32_t index) noexcept
    cdef void _pop_returned(self) noexcept
    cdef uint32_t _first(self) noexcept
    cdef void _drop(self, uint32_t index) noexcept
    cdef void _follow(self, Lane* lane) noexcept
    cdef void _look_ahead(self) noexcept
    cdef PriorityRecord take_one(self)
    cdef bint holds(self, PriorityRecord record) noexcept
    cdef void forget_one(self, PriorityRecord record) noexcept
    cdef PriorityRecord _record(self, uint32_t index, Hold hold)
    cdef int _load(self, uint64_t id, int64_t key, bytes payload) except -1
    cdef int _lay_in_order(self) except -1

# Lanes by key, for compiled code: the caller manages what waits in them.

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    NOBODY = 0xFFFFFFFF          # no slot


cdef struct Lane:
    int64_t key
    uint32_t head                # NOBODY: the lane does not exist; a new one gets its first slot at once
    uint32_t tail


cdef class KeyOrder:
    cdef readonly Py_ssize_t count       # lanes
    cdef Lane* lane(self, int64_t key) except? NULL
    cdef int make_room(self) except -1
    cdef Lane* first(self) noexcept
    cdef void drop_first(self) noexcept
    cdef Py_ssize_t allocated(self) noexcept


cdef class HeapOrder(KeyOrder):
    cdef int64_t* heap
    cdef Py_ssize_t heap_room
    cdef Lane* table
    cdef int bits                        # log2 of the table's places
    cdef Py_ssize_t place_of(self, int64_t key) noexcept
    cdef int grow_table(self) except -1
    cdef void _forget(self, Py_ssize_t at) noexcept
    cdef void _sink(self, int64_t key) noexcept
    cdef void _shrink(self) noexcept


cdef class BucketOrder(KeyOrder):
    cdef int64_t lowest
    cdef Py_ssize_t width
    cdef Lane* lanes
    cdef uint64_t[64] words              # bit k of word w: bucket 64 w + k has a lane
    cdef uint64_t summary                # bit w: word w is not 0

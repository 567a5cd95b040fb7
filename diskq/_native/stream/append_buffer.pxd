from libc.stdint cimport int64_t

from diskq._native.core.append_buffer cimport Mode
from diskq._native.core.gate cimport Admission, Gate
from diskq._native.core.offset_buffer cimport OffsetBuffer
from diskq._native.core.send_batch cimport Gathering
from diskq._native.stream.codec cimport TripletFraming


cdef class TripletBuffer(OffsetBuffer):
    cdef TripletFraming triplets
    cdef readonly int partition
    cdef int64_t rows_from                 # offset of the first record whose rows are not written
    cdef int index_handle
    cdef int timeindex_handle
    cdef char* index_rows                  # rows of the records from rows_from on
    cdef char* timeindex_rows
    cdef Py_ssize_t rows_room              # capacity in rows
    cdef readonly bint is_active           # records or rows may wait to be written: see StreamRouter
    cdef bint is_in_batch
    cdef Py_ssize_t batch_used             # the state to go back to if a batch cannot be written
    cdef int64_t batch_records
    cdef bint _append_triplet(
        self, const char* key, Py_ssize_t key_size, int64_t timestamp, const char* value, Py_ssize_t value_size
    ) except -1
    cdef int _make_room_for_a_row(self) except -1
    cdef int _write(self, int handle, const char* data, Py_ssize_t size, int64_t offset) except -1


cdef class StreamRouter:
    cdef tuple buffers
    cdef Py_ssize_t count
    cdef TripletFraming framing
    cdef Gate gate
    cdef object new_key
    cdef object clock
    cdef object on_full
    cdef public bint is_awake
    cdef public int64_t room               # bytes that may pass the fast path
    cdef public int64_t index_bytes        # of those, bytes that each message takes besides its record
    cdef list active                       # the buffers with records or rows that may wait to be written
    cdef int64_t idle_records              # what the others have accepted
    cdef int64_t idle_bytes
    cdef list observers
    cdef readonly dict batch_starts        # for each partition of the batch, the next offset before it
    cdef list touched
    cdef int* routes                       # for each item of the batch, the partition it went to
    cdef Py_ssize_t routes_room
    cdef Py_ssize_t routed                 # the number of those items
    cdef bint _may_pass(self, object value) noexcept
    cdef object _append(self, object value, object key, object timestamp, Mode mode)
    cdef TripletBuffer _route(self, object key)
    cdef bint _lay(self, TripletBuffer buffer, object value, object key, object timestamp) except -1
    cdef int _make_room_for_routes(self, Py_ssize_t n) except -1
    cdef int _activate(self, TripletBuffer buffer) except -1
    cdef int _note_idle(self) except -1
    cdef int _write_all(self, bint rows) except -1
    cdef int _touch(self, TripletBuffer buffer) except -1


cdef class Changes:
    cdef StreamRouter router
    cdef set partitions


cdef class StreamAppender:
    cdef StreamRouter router
    cdef Mode mode
    cdef Admission admission


cdef class StreamGathering(Gathering):
    cdef StreamRouter router

from libc.stdint cimport int64_t

from diskq._native.appendbuffer cimport AppendBuffer
from diskq._native.gate cimport Gate
from diskq._native.triplet cimport TripletFraming


cdef enum Way:
    HELD = 0       # in memory
    WRITTEN = 1    # in the page cache
    JOTTED = 2     # on the slate, or in the page cache


cdef class TripletBuffer(AppendBuffer):
    cdef TripletFraming triplets
    cdef readonly int partition
    cdef readonly int64_t base             # offset of the segment's first record
    cdef int64_t first                     # the offset of the next record is this, and the records so far
    cdef int64_t rows_from                 # offset of the first record whose rows are not written
    cdef int index_handle
    cdef int timeindex_handle
    cdef char* index_rows                  # rows of the records from rows_from on
    cdef char* timeindex_rows
    cdef Py_ssize_t rows_room              # so many fit
    cdef readonly int64_t accepted_bytes   # of records, over all segments
    cdef bint is_in_batch
    cdef Py_ssize_t batch_used             # what to go back to where a batch cannot be written
    cdef int64_t batch_records
    cdef bint _append_triplet(
        self, const char* key, Py_ssize_t key_size, int64_t timestamp, const char* value, Py_ssize_t value_size
    ) except -1
    cdef int _append_encoded(self, const char* record, Py_ssize_t size, int64_t timestamp) except -1
    cdef int _lay_rows_down(self, Py_ssize_t size, int64_t timestamp) except -1
    cdef int _make_room_for_a_row(self) except -1
    cdef int _write(self, int handle, const char* data, Py_ssize_t size, int64_t offset) except -1
    cdef bint _is_full(self) noexcept


cdef class StreamDoor:
    cdef tuple buffers
    cdef Py_ssize_t count
    cdef TripletFraming framing
    cdef Gate gate
    cdef object new_key
    cdef object clock
    cdef object on_full
    cdef public bint is_awake
    cdef public int64_t room               # so many bytes may pass the fast doors
    cdef public int64_t beside             # so many of which each message takes beside its record
    cdef list touched
    cdef int* routes                       # of each item of the batch, the partition it went to
    cdef Py_ssize_t routes_room
    cdef Py_ssize_t routed                 # so many of them did
    cdef bint _may_pass(self, object value) noexcept
    cdef bint _is_plain(self, object value, object key, object timestamp) except -1
    cdef object _put(self, object value, object key, object timestamp, Way way)
    cdef TripletBuffer _route(self, object key)
    cdef bint _append(self, TripletBuffer buffer, object value, object key, object timestamp) except -1
    cdef int _make_room_for_routes(self, Py_ssize_t n) except -1
    cdef int _touch(self, TripletBuffer buffer) except -1

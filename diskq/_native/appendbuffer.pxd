from libc.stdint cimport int64_t

from diskq._native.door cimport Door
from diskq._native.framing cimport Framing
from diskq._native.gate cimport Gate

cdef enum:
    MOST_CUTS = 80


cdef struct Cut:
    Py_ssize_t at                          # the byte of the buffer where a block ends
    int64_t records                        # records accepted up to there, over all files


cdef struct Slate:
    # A page of shared memory: what is accepted and not yet written, for whoever comes after a kill.
    char magic[8]
    int64_t file                           # the number of the file they belong to
    int64_t origin                         # where in it the first of them lies
    int64_t used                           # how many bytes; stored last
    char records[1]


cdef class AppendBuffer:
    cdef Door door
    cdef Framing framing
    cdef Gate gate
    cdef object on_block
    cdef int handle
    cdef public int64_t file_number        # of the file that the handle is of, for the slate
    cdef char* buffer
    cdef Py_ssize_t capacity
    cdef int64_t origin                    # where in the file the buffer's first byte lies
    cdef Py_ssize_t used                   # bytes in the buffer
    cdef Py_ssize_t written                # of them, in the page cache
    cdef Cut block                         # where the open block begins
    cdef Cut[MOST_CUTS] cuts               # block ends not yet handed to on_block
    cdef int cut_count
    cdef readonly int64_t records          # records accepted, over all files
    cdef readonly int64_t records_written  # of them, in the page cache
    cdef Slate* slate                      # NULL: there is none
    cdef Py_ssize_t slate_room             # bytes of records that it holds
    cdef Py_buffer* slate_memory           # not one: the collector would take it apart before it is released
    cdef public int64_t limit              # the file may not grow past this without asking
    cpdef bint put_all_now(self, list bodies) except -1
    cpdef Py_ssize_t put_many(self, list bodies, Py_ssize_t start, bint through) except -1
    cdef bint _hold(self, object body) except -1
    cdef bint _jot(self, object body) except -1
    cdef bint _jot_from(self, Py_ssize_t before) noexcept
    cdef bint _append(self, object body) except -1
    cdef bint _lay(self, object body) except -1
    cdef char* _room_for(self, Py_ssize_t size) except NULL
    cdef char* _space_for(self, Py_ssize_t size) except NULL
    cdef void _laid_down(self, Py_ssize_t size) noexcept
    cdef bint _put(self, object body) except -1
    cdef int _flush(self) except -1
    cdef int _write_out(self) except -1
    cdef int _hand_over_blocks(self) except -1
    cdef void _keep_open_block(self) noexcept
    cdef int _hand_over(self, Cut cut) except -1
    cdef void _rewind(self, Py_ssize_t used, int64_t records) noexcept
    cdef int _grow(self, Py_ssize_t size) except -1

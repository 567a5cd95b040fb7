# The end of a priority store's log, for compiled code: what they are is in command_buffer.pyx.

from libc.stdint cimport int64_t, uint64_t

cimport cython

from diskq._native.core.cancellation cimport CancellationTest
from diskq._native.core.file_calls cimport FileCalls
from diskq._native.core.gate cimport Admission, Gate
from diskq._native.priority.record_table cimport PriorityRecord, RecordTable


cdef struct Numbers:
    int64_t key
    uint64_t id                  # 0: it is not in the log


@cython.final
cdef class CommandBuffer:
    cdef FileCalls file_calls
    cdef object write_zeros
    cdef readonly Gate gate              # for records that are written
    cdef Gate gate_out                   # for records that are taken
    cdef char* memory
    cdef Py_ssize_t capacity
    cdef readonly int handle             # -1: there is no segment to write to
    cdef readonly int64_t base           # the number of its first record
    cdef readonly int64_t end            # the byte after its last record
    cdef readonly int64_t next_offset    # the number of the next record
    cdef public int64_t allocated        # the file's size, as far as it was written here
    cdef public bint preallocates
    cdef public int64_t hard_limit       # after the record that reaches it a batch goes to the next segment
    cdef public int64_t full_at          # no record begins after it
    cdef public int64_t most_bytes       # that may be accepted before the owner is asked again
    cdef public bint is_noted            # the segment's existence is noted
    cdef public int64_t term
    cdef public int64_t passed           # commands accepted
    cdef public int64_t accepted_bytes   # their bytes
    cdef readonly bint is_ahead          # the log has commands that are not carried out
    cdef public AddBatch batch           # to be written before anything else; None: nothing is gathered
    cdef char* _space(self, Py_ssize_t size) except NULL
    cdef int _write(self, const char* data, Py_ssize_t size, Py_ssize_t records) except -1
    cdef int _write_counted(self, Py_ssize_t size, Py_ssize_t records) except -1
    cdef Py_ssize_t _room(self) noexcept
    cdef bint _takes(self, Py_ssize_t size, Admission admission) except -1


cdef class AddBatch:
    cdef readonly list tasks             # the senders, in order
    cdef list calls, payloads
    cdef Numbers* numbers
    cdef Py_ssize_t count, capacity
    cdef public Py_ssize_t room          # bytes that may still be added
    cdef int _check(self, Py_ssize_t number) except -1
    cdef int _append(self, QueueCalls calls, object payload, object task, int64_t key) except -1


@cython.final
cdef class QueueCalls:
    cdef CommandBuffer buffer
    cdef readonly object queue
    cdef public bint is_open             # nothing is added, taken or settled otherwise
    cdef public bint is_bounded          # nothing is added
    cdef public object senders, receivers    # dicts of the tasks that wait
    cdef public CancellationTest running
    cdef RecordTable table
    cdef bytes name
    cdef int64_t lowest, highest
    cdef Py_ssize_t largest, largest_gathered
    cdef Py_ssize_t fields               # bytes of a command besides the payload
    cdef AddBatch _gather(self, object payload, object key, object task)
    cdef object _put(self, object payload, object key, Admission admission)
    cdef bint _key(self, object key, int64_t* number) except -1

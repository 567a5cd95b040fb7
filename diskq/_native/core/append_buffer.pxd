from libc.stdint cimport int64_t, uint32_t, uint64_t

from diskq._native.core.file_calls cimport FileCalls
from diskq._native.core.gate cimport Gate
from diskq._native.core.log_entry cimport Entry, PartHead

cdef enum:
    FLUSH_AT = 256 * 1024                  # waiting bytes that are written without a flush call
    MOST_CUTS = 80
    SHOWN_ROWS = 24                        # more than ever wait to be written to the checksum file


cpdef enum Mode:
    # Where a record is at least when the call that adds it returns.
    STAGED = 0                             # in the write-ahead log, or written if there is none or it has no space
    WRITTEN = 1                            # in the page cache
    HELD = 2                               # in memory


cdef struct Cut:
    Py_ssize_t at                          # the byte of the buffer where a block ends
    int64_t records                        # records accepted up to there, over all files


cdef struct ShownRow:
    # The checksum of a block, for the open after a kill: its row in the checksum file may not be written yet.
    # Little endian, as all of the log.
    int64_t file                           # the number of the block's file
    uint64_t end                           # the byte after it there
    uint32_t size                          # its bytes
    uint32_t records
    uint32_t crc                           # crc32c of its bytes
    uint32_t check                         # crc32c of all before it


cdef struct WriteAheadLog:
    # A log in shared memory, for the open after a kill: accepted records that are not written yet, as one entry
    # of one part, which goes on to the end of the entry; and the checksums of written blocks that have no row
    # in their file yet. diskq/storage/write_ahead_log.py makes the headers.
    char header[128]
    ShownRow[2] open_rows                  # of the unfinished block, alternating
    ShownRow[SHOWN_ROWS] rows              # of finished ones, as a ring
    char copy_of_header[128]
    Entry entry
    PartHead part
    char records[1]


cdef class AppendBuffer:
    cdef FileCalls file_calls
    cdef Gate gate
    cdef object on_block
    cdef int handle
    cdef int64_t written_in                # the last time slice in which a record was written at once
    cdef public int64_t file_number        # of the handle's file, for the write-ahead log
    cdef char* buffer
    cdef Py_ssize_t capacity
    cdef int64_t origin                    # the file's byte at which the buffer begins
    cdef Py_ssize_t used                   # bytes in the buffer
    cdef Py_ssize_t written                # of them, in the page cache
    cdef Cut block                         # where the open block begins
    cdef Cut* cuts                         # block ends not yet handed to on_block
    cdef int cut_count
    cdef int cut_room                      # how many of them there is memory for
    cdef readonly int64_t records          # records accepted, over all files
    cdef readonly int64_t records_written  # of them, in the page cache
    cdef readonly int64_t accepted_bytes   # of records, over all files
    cdef uint32_t block_crc                # crc32c of the open block, up to
    cdef Py_ssize_t summed                 # this byte of the buffer
    cdef int64_t blocks                    # finished blocks
    cdef int64_t flushes                   # how often the open block's checksum was shown
    cdef WriteAheadLog* wal                # NULL: there is none
    cdef uint64_t wal_number               # of it
    cdef uint64_t wal_sequence             # of its entry
    cdef int64_t staged_file               # the file of the records in it,
    cdef int64_t staged_at                 # the byte where the first of them belongs,
    cdef uint32_t staged                   # and how many bytes they are
    cdef uint32_t staged_crc               # of the entry
    cdef Py_ssize_t wal_room               # bytes of records that it holds
    cdef Py_buffer* wal_memory             # a pointer: the collector would clear a member before its release
    cdef public int64_t limit              # the file may not grow past this without the slow path
    cdef int _settle(self, Py_ssize_t used, int64_t records, Mode mode) except -1
    cdef bint _stage(self, Py_ssize_t before) noexcept
    cdef void _begin_entry(self) noexcept
    cdef bint _goes_on(self, Py_ssize_t before) noexcept
    cdef void _put_on_wal(self, Py_ssize_t before) noexcept
    cdef void _sum_to(self, Py_ssize_t at) noexcept
    cdef void _show(self, ShownRow* where, Py_ssize_t at, int64_t records) noexcept
    cdef char* _room_for(self, Py_ssize_t size) except NULL
    cdef char* _space_for(self, Py_ssize_t size) except NULL
    cdef void _laid_down(self, Py_ssize_t size) noexcept
    cdef bint _make_room_for_cuts(self) noexcept
    cdef int _flush(self) except -1
    cdef int _write_out(self) except -1
    cdef int _hand_over_blocks(self) except -1
    cdef void _keep_open_block(self) noexcept
    cdef int _hand_over(self, Cut cut) except -1
    cdef void _rewind(self, Py_ssize_t used, int64_t records) noexcept
    cdef int _grow(self, Py_ssize_t size) except -1

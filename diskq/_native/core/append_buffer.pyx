# The append buffer: every message's way into the page cache, whatever its format.
#
# Law: a record is in whole or not at all; the page cache gets whole records, in order; what a
# failed write left behind is not counted, and the next write goes over it.
#
# A message that was accepted survives the process, because it is written before its sender goes on; or
# because it stands on the write-ahead log, a page of memory shared with a file, which is the page cache
# already: there it waits, for no longer than others are kept from running, to be written together with the
# next ones by one system call. After a kill the write-ahead log tells what was not; and of what was written,
# the checksums that are not in their file yet.
#
# The buffer holds what is not yet written, and the open checksum block: the records since the
# last block ended. A block ends at the first record boundary at or past BLOCK_SIZE, and its
# checksum is handed to `on_block` once it is written. Files, rolling and limits are the
# owner's business: he retargets the buffer, and is asked (a refusal) whenever the gate is shut,
# the limit is reached or a body needs judgement.
#
# This class knows no format. Each format's buffer derives from it: it encodes a record where `_room_for`
# says, counts it (`_laid_down`), and has it survive what its `Mode` promises (`_settle`). What adds records
# is the same in each: the `append` of an appender for one, `append_many` for several, `append_encoded` for
# records that are encoded already.

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.string cimport memcpy, memmove

from diskq._native.core.crc32c cimport crc32c_of
from diskq._native.core.read_ahead cimport ReadAhead
from diskq._native.core.thread_guard cimport check_guard, give_turn, take_turn

cdef extern from "platform.h":
    void diskq_store(int64_t* where, int64_t value) nogil

cdef enum:
    BLOCK = 4 * 1024
    START_CAPACITY = 64 * 1024

BLOCK_SIZE = BLOCK

# The write-ahead log, in the machine's own byte order: what `WriteAheadLog` and `ShownRow` are in
# append_buffer.pxd.
WAL_MAGIC = b"diskqsl2"
cdef enum:
    ENTRY = 24                     # bytes of an entry that its checksum covers before its records
    SHOWN = 28                     # bytes of a shown row that its check covers

WAL_HEADER = <Py_ssize_t> &(<WriteAheadLog*> NULL).records
WAL_ROWS = <Py_ssize_t> &(<WriteAheadLog*> NULL).open_rows
WAL_ROW_COUNT = 2 + SHOWN_ROWS


cdef class AppendBuffer:
    """Records in, whole ones in the page cache. Abstract: formats subclass it in compiled code.

    `on_block(end, size, records, crc)` gets each finished block, once it is written: where it ends in the
    file, how many bytes and records it is, and its crc32c.
    """

    def __cinit__(self, fs, framing, Gate gate not None, on_block):
        self.door = FileCalls(fs)  # the framing is for the subclass
        self.gate = gate
        self.on_block = on_block
        self.handle = -1

    def __dealloc__(self):
        self.detach_wal()
        PyMem_RawFree(self.wal_memory)
        PyMem_RawFree(self.buffer)

    # --- for a reader who has caught up -----------------------------------------------------------

    def lend(self, ReadAhead ahead not None):
        """Let it have what is still here of the bytes from its position on. False: none of them is."""
        cdef int64_t position = ahead.origin + ahead.at
        cdef Py_ssize_t start = position - self.origin
        if position < self.origin or start >= self.used:
            return False
        ahead.hold(self.buffer + start, self.used - start)
        return True

    # --- the write-ahead log --------------------------------------------------------------------------------

    def attach_wal(self, memory):
        """Let messages wait on `memory`, which is shared with a file, zeros but for its header, and stays."""
        assert self.wal == NULL
        if self.wal_memory == NULL:
            self.wal_memory = <Py_buffer*> PyMem_RawMalloc(sizeof(Py_buffer))
            if self.wal_memory == NULL:
                raise MemoryError
        PyObject_GetBuffer(memory, self.wal_memory, PyBUF_WRITABLE)
        self.wal = <WriteAheadLog*> self.wal_memory.buf
        self.wal_room = self.wal_memory.len - WAL_HEADER
        self.staged = 0

    def detach_wal(self):
        """Let go of it. What stands on it stays there. Idempotent."""
        if self.wal != NULL:
            self.wal = NULL
            PyBuffer_Release(self.wal_memory)

    @property
    def has_wal(self):
        """Does a kill leave the checksums of all that is written, whether their rows are or not?"""
        return self.wal != NULL

    def wipe_wal(self):
        """Everything is written: nothing need be told."""
        if self.wal != NULL and self.used == self.written:
            self.staged = 0
            diskq_store(<int64_t*> &self.wal.state, 0)

    # --- where it writes --------------------------------------------------------------------------

    def retarget(self, int handle, int64_t end, int64_t limit):
        """Go on at byte `end` of another file. Everything must be flushed and its block closed."""
        if self.used != self.block.at:
            raise AssertionError("retargeted with an open block")
        self.handle = handle
        self.origin = end
        self.used = self.written = self.block.at = self.summed = 0
        self.block_crc = 0
        self.block.records = self.records
        self.limit = limit

    @property
    def end(self):
        """The byte after the last record accepted."""
        return self.origin + self.used

    @property
    def flushed(self):
        """The byte after the last record in the page cache."""
        return self.origin + self.written

    # --- writing ----------------------------------------------------------------------------------

    def flush(self):
        """Write what waits. Raises OSError where the disk refuses; it then goes on waiting."""
        self._flush()

    def close_block(self):
        """End the open block at the last record that is written: checksums then reach to it."""
        cdef Cut here
        cdef int i
        if self.written > self.block.at:
            here.at = self.written
            here.records = self.records_written
            self._hand_over(here)
            for i in range(self.cut_count):
                self.cuts[i].at -= self.block.at
            self._keep_open_block()

    # --- inside -----------------------------------------------------------------------------------

    cdef int _settle(self, Py_ssize_t used, int64_t records, Mode mode) except -1:
        """What was laid down since `used` and `records` survives what `mode` says, or more.

        Much that waits is written. Raises OSError where the disk refuses; it is then not in.
        """
        if self.used - self.written < FLUSH_AT:
            if mode == HELD or (mode == STAGED and self._stage(used)):
                return 0
        try:
            self._flush()
        except OSError:
            self._rewind(used, records)
            raise
        return 0

    cdef bint _stage(self, Py_ssize_t before) noexcept:
        """Let what is in the buffer from `before` on stand on the write-ahead log, to be written later. False: not done."""
        cdef Py_ssize_t size = self.used - before
        if self.wal == NULL or size > self.wal_room:
            return False
        if size == 0:
            return True
        if before == self.written:
            self._begin_entry()
        elif not self._goes_on(before) or self.staged + size > self.wal_room:
            return False
        self._put_on_wal(before)
        return True

    cdef void _begin_entry(self) noexcept:
        """Everything is written. What is staged next belongs here."""
        diskq_store(<int64_t*> &self.wal.state, 0)
        self.wal.sequence += 1
        self.wal.file = self.file_number
        self.wal.position = self.origin + self.written
        self.staged = 0
        self.staged_crc = crc32c_of(0, &self.wal.sequence, ENTRY)

    cdef bint _goes_on(self, Py_ssize_t before) noexcept:
        """Does all that waits stand on the write-ahead log? What is held in memory does not."""
        return self.wal.position + self.staged == self.origin + before and self.wal.file == self.file_number

    cdef void _put_on_wal(self, Py_ssize_t before) noexcept:
        """What is in the buffer from `before` on follows in the entry."""
        cdef Py_ssize_t size = self.used - before
        memcpy(self.wal.records + self.staged, self.buffer + before, size)
        self.staged_crc = crc32c_of(self.staged_crc, self.buffer + before, size)
        self.staged += size
        diskq_store(<int64_t*> &self.wal.state, <int64_t> (<uint64_t> self.staged_crc << 32 | self.staged))

    cdef char* _room_for(self, Py_ssize_t size) except NULL:
        """Where the next record, of `size` bytes, is to be laid down; then comes `_laid_down`."""
        check_guard(self.gate.guard)
        return self._space_for(size)

    cdef char* _space_for(self, Py_ssize_t size) except NULL:
        """The same, for who has seen that it is his turn."""
        if self.used + size > self.capacity:
            self._grow(size)
        return self.buffer + self.used

    cdef void _laid_down(self, Py_ssize_t size) noexcept:
        """A record of `size` bytes is in the buffer."""
        self.used += size
        self.accepted_bytes += size
        self.records += 1
        self.gate.left -= 1
        cdef Py_ssize_t block_from = self.cuts[self.cut_count - 1].at if self.cut_count else self.block.at
        if self.used - block_from >= BLOCK and self.cut_count < MOST_CUTS:
            self.cuts[self.cut_count].at = self.used
            self.cuts[self.cut_count].records = self.records
            self.cut_count += 1

    cdef int _flush(self) except -1:
        # The interpreter may be let go of in here, and `on_block` is Python.
        take_turn(self.gate.guard)
        try:
            self._write_out()
        finally:
            give_turn(self.gate.guard)
        return 0

    cdef int _write_out(self) except -1:
        cdef Py_ssize_t written = self.written
        while written < self.used:
            written += self.door.pwrite(
                self.handle, self.buffer + written, self.used - written, self.origin + written
            )
        self.written = self.used
        self.records_written = self.records
        if self.cut_count:
            self._hand_over_blocks()
        self._sum_to(self.written)
        if self.wal != NULL:
            if self.written > self.block.at:
                self._show(&self.wal.open_rows[self.flushes & 1], self.written, self.records_written)
                self.flushes += 1
            if self.staged:
                self.staged = 0
                diskq_store(<int64_t*> &self.wal.state, 0)
        return 0

    cdef void _sum_to(self, Py_ssize_t at) noexcept:
        """The open block's checksum reaches to byte `at` of the buffer."""
        if at > self.summed:
            self.block_crc = crc32c_of(self.block_crc, self.buffer + self.summed, at - self.summed)
            self.summed = at

    cdef void _show(self, ShownRow* where, Py_ssize_t at, int64_t records) noexcept:
        """Let who comes after a kill know the open block, up to byte `at` of the buffer."""
        cdef ShownRow row
        row.file = self.file_number
        row.end = self.origin + at
        row.size = <uint32_t> (at - self.block.at)
        row.records = <uint32_t> (records - self.block.records)
        row.crc = self.block_crc
        row.check = crc32c_of(0, &row, SHOWN)
        where[0] = row

    cdef void _rewind(self, Py_ssize_t used, int64_t records) noexcept:
        """Forget the records after `used`, of which no block has been handed over."""
        self.gate.left += self.records - records
        self.records = records
        self.accepted_bytes -= self.used - used
        self.used = used
        while self.cut_count and self.cuts[self.cut_count - 1].at > used:
            self.cut_count -= 1

    cdef int _hand_over_blocks(self) except -1:
        """All is written: hand the finished blocks over, and keep only the open one."""
        cdef int i
        for i in range(self.cut_count):
            self._hand_over(self.cuts[i])
        self.cut_count = 0
        self._keep_open_block()
        return 0

    cdef void _keep_open_block(self) noexcept:
        """Drop the bytes before the open block: they are written, and their block is handed over."""
        self.used -= self.block.at
        memmove(self.buffer, self.buffer + self.block.at, self.used)
        self.origin += self.block.at
        self.written -= self.block.at
        self.summed -= self.block.at
        self.block.at = 0

    cdef int _hand_over(self, Cut cut) except -1:
        cdef Py_ssize_t size = cut.at - self.block.at
        cdef int64_t records = cut.records - self.block.records
        cdef uint32_t crc
        self._sum_to(cut.at)
        crc = self.block_crc
        if self.wal != NULL:
            self._show(&self.wal.rows[self.blocks % SHOWN_ROWS], cut.at, cut.records)
            self.blocks += 1
        self.block = cut
        self.block_crc = 0
        self.on_block(self.origin + cut.at, size, records, crc)
        return 0

    cdef int _grow(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t capacity = max(START_CAPACITY, self.capacity)
        while capacity < self.used + size:
            capacity *= 2
        cdef char* buffer = <char*> PyMem_RawRealloc(self.buffer, capacity)
        if buffer == NULL:
            raise MemoryError()
        self.buffer = buffer
        self.capacity = capacity
        return 0

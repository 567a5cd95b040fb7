# The append buffer: the path of every message into the page cache, in any format.
#
# Law: a record is accepted whole or not at all; the page cache gets whole records, in order; the bytes of a
# failed write are not counted, and the next write overwrites them.
#
# An accepted message survives the process, because it is written before its sender goes on; or because it is
# staged in the write-ahead log, a page of memory shared with a file, which is the page cache already: there it
# waits, at most until other tasks run, to be written together with the next ones by one system call. After a
# kill the write-ahead log has the records that were not written, and the checksums of written ones that are
# not in their file yet.
#
# The buffer holds what is not yet written, and the open checksum block: the records since the
# last block ended. A block ends at the first record boundary at or past BLOCK_SIZE, and its
# checksum is handed to `on_block` once it is written. Files, rolling and limits are the
# owner's task: it retargets the buffer, and gets control (a refusal) whenever the gate is closed,
# the limit is reached or a body needs checking.
#
# This class knows no format. Each format's buffer derives from it: it encodes a record at the place that
# `_room_for` returns, counts it (`_laid_down`), and makes it as safe as its `Mode` promises (`_settle`). The
# calls that add records are the same in each: the `append` of an appender for one record, `append_many` for
# several, `append_encoded` for records that are encoded already.

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.string cimport memcpy, memmove

from diskq._native.core.crc32c cimport crc32c_of
from diskq._native.core.file_calls cimport calls_of
from diskq._native.core.log_entry cimport ENTRY, PART, TO_THE_END, begin_entry, begin_part, show_entry
from diskq._native.core.read_ahead cimport ReadAhead
from diskq._native.core.thread_guard cimport check_guard, give_turn, take_turn

cdef extern from "platform.h":
    void diskq_store(int64_t* where, int64_t value) nogil
    uint64_t diskq_le64(uint64_t value) nogil
    uint32_t diskq_le32(uint32_t value) nogil

cdef enum:
    BLOCK = 4 * 1024
    START_CAPACITY = 576           # doubled three times it holds a block and the record that ends it
    START_CUTS = 5

BLOCK_SIZE = BLOCK

cdef enum:
    SHOWN = 28                     # bytes of a shown row that its check covers

# Of a write-ahead log: where its rows, its entry and the records of that begin.
WAL_ROWS = <Py_ssize_t> &(<WriteAheadLog*> NULL).open_rows
WAL_ROW_COUNT = 2 + SHOWN_ROWS
WAL_ENTRY = <Py_ssize_t> &(<WriteAheadLog*> NULL).entry
WAL_RECORDS = <Py_ssize_t> &(<WriteAheadLog*> NULL).records


cdef class AppendBuffer:
    """Takes records in, and writes whole ones into the page cache. Abstract: formats subclass it in compiled code.

    `on_block(end, size, records, crc)` gets each finished block, once it is written: where it ends in the
    file, how many bytes and records it is, and its crc32c.
    """

    def __cinit__(self, fs, framing, Gate gate not None, on_block):
        self.file_calls = calls_of(fs)  # the subclass uses the framing
        self.gate = gate
        self.on_block = on_block
        self.handle = -1
        self.written_in = -1

    def __dealloc__(self):
        self.detach_wal()
        PyMem_RawFree(self.wal_memory)
        PyMem_RawFree(self.buffer)
        PyMem_RawFree(self.cuts)

    # --- for a reader that has caught up ----------------------------------------------------------

    def lend(self, ReadAhead ahead not None):
        """Give the reader the bytes from its position on that are still here. False: there are none."""
        cdef int64_t position = ahead.origin + ahead.at
        cdef Py_ssize_t start = position - self.origin
        if position < self.origin or start >= self.used:
            return False
        ahead.hold(self.buffer + start, self.used - start)
        return True

    def since(self, int64_t position):
        """Return the written bytes from this byte of the file on; None if they are not all in memory still."""
        cdef Py_ssize_t start = position - self.origin
        if position < self.origin:
            return None
        return self.buffer[start : self.written] if start < self.written else b""

    # --- the write-ahead log --------------------------------------------------------------------------------

    def attach_wal(self, memory, uint64_t number):
        """Use `memory` as the write-ahead log of this number: a file's, zeros but for its headers, valid until detached."""
        assert self.wal == NULL
        if self.wal_memory == NULL:
            self.wal_memory = <Py_buffer*> PyMem_RawMalloc(sizeof(Py_buffer))
            if self.wal_memory == NULL:
                raise MemoryError
        PyObject_GetBuffer(memory, self.wal_memory, PyBUF_WRITABLE)
        self.wal = <WriteAheadLog*> self.wal_memory.buf
        self.wal_number = number
        self.wal_sequence = 0
        self.wal_room = self.wal_memory.len - <Py_ssize_t> WAL_RECORDS
        self.staged = 0

    def detach_wal(self):
        """Detach the write-ahead log. Its content stays. Idempotent."""
        if self.wal != NULL:
            self.wal = NULL
            PyBuffer_Release(self.wal_memory)

    @property
    def has_wal(self):
        """True if the checksums of everything written survive a kill, whether their rows are written or not."""
        return self.wal != NULL

    def wipe_wal(self):
        """Clear the write-ahead log, if everything is written."""
        if self.wal != NULL and self.used == self.written:
            self.staged = 0
            diskq_store(<int64_t*> &self.wal.entry.state, 0)

    # --- where it writes --------------------------------------------------------------------------

    def retarget(self, int handle, int64_t end, int64_t limit):
        """Continue at byte `end` of another file. Everything must be flushed and its block closed."""
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
        """Write the waiting records. Raises OSError if that fails; they then go on waiting."""
        self._flush()

    def close_block(self):
        """End the open block at the last written record, so that checksums reach to it."""
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
        """Make the records since `used` and `records` at least as safe as `mode` says.

        Writes if many bytes wait. Raises OSError if that fails; the records are then not accepted.
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
        """Stage what is in the buffer from `before` on in the write-ahead log, to be written later. False: not done."""
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
        """Begin an entry anew, since everything is written. The next staged record belongs at this place."""
        self.wal_sequence += 1
        self.staged = 0
        self.staged_file = self.file_number
        self.staged_at = self.origin + self.written
        self.staged_crc = begin_part(
            &self.wal.part,
            begin_entry(&self.wal.entry, self.wal_number, self.wal_sequence, self.wal_sequence),
            0, 0, self.staged_file, self.staged_at, <uint32_t> TO_THE_END,
        )

    cdef bint _goes_on(self, Py_ssize_t before) noexcept:
        """True if all waiting records are in the write-ahead log. Records held in memory only are not."""
        return self.staged_at + self.staged == self.origin + before and self.staged_file == self.file_number

    cdef void _put_on_wal(self, Py_ssize_t before) noexcept:
        """Append what is in the buffer from `before` on to the entry."""
        cdef Py_ssize_t size = self.used - before
        memcpy(self.wal.records + self.staged, self.buffer + before, size)
        self.staged_crc = crc32c_of(self.staged_crc, self.buffer + before, size)
        self.staged += size
        show_entry(&self.wal.entry, ENTRY + PART + self.staged, self.staged_crc)

    cdef char* _room_for(self, Py_ssize_t size) except NULL:
        """Return the place for the next record, of `size` bytes; the caller then calls `_laid_down`."""
        check_guard(self.gate.guard)
        return self._space_for(size)

    cdef char* _space_for(self, Py_ssize_t size) except NULL:
        """Do the same, for a caller that has checked the guard."""
        if self.used + size > self.capacity:
            self._grow(size)
        return self.buffer + self.used

    cdef void _laid_down(self, Py_ssize_t size) noexcept:
        """Count a record of `size` bytes that is in the buffer now."""
        self.used += size
        self.accepted_bytes += size
        self.records += 1
        self.gate.left -= 1
        cdef Py_ssize_t block_from = self.cuts[self.cut_count - 1].at if self.cut_count else self.block.at
        if self.used - block_from >= BLOCK:
            if self.cut_count < self.cut_room or self._make_room_for_cuts():
                self.cuts[self.cut_count].at = self.used
                self.cuts[self.cut_count].records = self.records
                self.cut_count += 1

    cdef bint _make_room_for_cuts(self) noexcept:
        """Get memory for more block ends. False: there are many, or there is no memory, and the block goes on."""
        cdef int room = self.cut_room * 2 if self.cut_room else START_CUTS
        cdef Cut* cuts
        if room > MOST_CUTS:
            return False
        cuts = <Cut*> PyMem_RawRealloc(self.cuts, room * sizeof(Cut))
        if cuts == NULL:
            return False
        self.cuts = cuts
        self.cut_room = room
        return True

    cdef int _flush(self) except -1:
        # The interpreter's lock may be released in here, and `on_block` is Python.
        take_turn(self.gate.guard)
        try:
            self._write_out()
        finally:
            give_turn(self.gate.guard)
        return 0

    cdef int _write_out(self) except -1:
        cdef Py_ssize_t written = self.written
        while written < self.used:
            written += self.file_calls.pwrite(
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
                diskq_store(<int64_t*> &self.wal.entry.state, 0)
        return 0

    cdef void _sum_to(self, Py_ssize_t at) noexcept:
        """Extend the open block's checksum to byte `at` of the buffer."""
        if at > self.summed:
            self.block_crc = crc32c_of(self.block_crc, self.buffer + self.summed, at - self.summed)
            self.summed = at

    cdef void _show(self, ShownRow* where, Py_ssize_t at, int64_t records) noexcept:
        """Show the open block, up to byte `at` of the buffer, to the open after a kill."""
        cdef ShownRow row
        row.file = <int64_t> diskq_le64(<uint64_t> self.file_number)
        row.end = diskq_le64(<uint64_t> (self.origin + at))
        row.size = diskq_le32(<uint32_t> (at - self.block.at))
        row.records = diskq_le32(<uint32_t> (records - self.block.records))
        row.crc = diskq_le32(self.block_crc)
        row.check = diskq_le32(crc32c_of(0, &row, SHOWN))
        where[0] = row

    cdef void _rewind(self, Py_ssize_t used, int64_t records) noexcept:
        """Drop the records after `used`, none of which is in a block that was handed over."""
        self.gate.left += self.records - records
        self.records = records
        self.accepted_bytes -= self.used - used
        self.used = used
        while self.cut_count and self.cuts[self.cut_count - 1].at > used:
            self.cut_count -= 1

    cdef int _hand_over_blocks(self) except -1:
        """Hand over the finished blocks, since everything is written, and keep only the open one."""
        cdef int i
        for i in range(self.cut_count):
            self._hand_over(self.cuts[i])
        self.cut_count = 0
        self._keep_open_block()
        return 0

    cdef void _keep_open_block(self) noexcept:
        """Drop the bytes before the open block, which are written, and whose blocks are handed over."""
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

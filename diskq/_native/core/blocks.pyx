# Rows of checksums, and their blocks. Law: a row is valid if its own check matches, a block if its row's
# checksum matches, and no byte past the given ones is touched.
#
# The rows of a stretch are unpacked and its blocks compared here, because a block of 4 KiB takes the
# processor less time than a few lines of Python take the interpreter. storage/checksums.py defines the
# checksum: its function is called on memory, one block after the other.
# Format of a row: docs/format/checksums.md.

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint32_t, uint64_t

from diskq._native.core.byte_order cimport get_u32_le, get_u64_le, put_u32_le, put_u64_le
from diskq._native.core.crc32c cimport crc32c_of

cdef enum:
    ROW = 24             # end u64, size u32, records u32, crc32c u32, check u32
    CHECKED = 20         # the bytes of a row that its check covers

# No file is that large; and an addition to a position below it still fits into an int64_t.
cdef uint64_t MOST_END = <uint64_t> 1 << 62

ROW_SIZE = ROW


cdef void put_row(char* row, uint64_t end, uint32_t size, uint32_t records, uint32_t crc) noexcept nogil:
    put_u64_le(row, end)
    put_u32_le(row + 8, size)
    put_u32_le(row + 12, records)
    put_u32_le(row + 16, crc)
    put_u32_le(row + CHECKED, crc32c_of(0, row, CHECKED))


def packed_row(uint64_t end, uint32_t size, uint32_t records, uint32_t crc):
    """Return the row of a block of so many bytes and records, which ends at byte `end` of the data file."""
    cdef char row[ROW]
    put_row(row, end, size, records, crc)
    return row[:ROW]


cdef struct Block:
    uint64_t start       # bytes of the data file
    uint64_t end
    uint32_t records
    uint32_t crc
    int64_t row_end      # the byte of the checksum file after its row


cdef class _Memory:
    """Memory lent for one call."""

    cdef const char* data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void*> self.data, self.size, 1, flags)


cdef class Blocks:
    """Rows of one checksum file, in order. `crc` is the checksum's function, of bytes.

    Rows are checked when they are reached; those whose check is wrong are skipped.
    """

    cdef object crc
    cdef _Memory memory
    cdef bytes rows              # of the checksum file, whole ones
    cdef int64_t start           # their first byte in the checksum file
    cdef Py_ssize_t at           # the first of them that was not checked yet
    cdef Block* known            # the blocks of those that were checked
    cdef Py_ssize_t capacity
    cdef Py_ssize_t count        # the number of those blocks
    cdef Py_ssize_t head         # the index of the first of them

    def __cinit__(self, crc):
        self.crc = crc
        self.memory = _Memory()
        self.rows = b""

    def __dealloc__(self):
        PyMem_RawFree(self.known)

    def load(self, bytes rows not None, int64_t start):
        """Replace the rows by these, which begin at byte `start` of the checksum file. False: none is whole."""
        self.rows = rows
        self.start = start
        self.at = self.count = self.head = 0
        return self._reach(1)

    def first(self):
        """Return start, end, records and crc of the first block, and the byte after its row. None: there is none."""
        return self._told(self.head) if self._reach(1) else None

    def pass_to(self, uint64_t position):
        """Drop the blocks that end at or before byte `position`. Return the last of them, as `first`, or None."""
        cdef Py_ssize_t head = self.head
        while self._reach(1) and self.known[self.head].end <= position:
            self.head += 1
        return self._told(self.head - 1) if self.head > head else None

    def following(self, uint64_t most):
        """Return start, end, records and crc of the first block and of those that follow it without a gap.

        Together they have at most `most` bytes, or it is one larger block. Empty if there is none.
        """
        cdef Py_ssize_t i
        cdef Py_ssize_t n = self._run(most, <uint64_t> -1)
        cdef list found = []
        for i in range(self.head, self.head + n):
            found.append((self.known[i].start, self.known[i].end, self.known[i].records, self.known[i].crc))
        return found

    def counted(self, uint64_t most, uint64_t limit):
        """Return the number of records in these blocks, and the end of the last, which is by byte `limit`.

        None: there is no block.
        """
        cdef Py_ssize_t i
        cdef Py_ssize_t n = self._run(most, limit)
        cdef uint64_t records = 0
        for i in range(self.head, self.head + n):
            records += self.known[i].records
        return (records, self.known[self.head + n - 1].end) if n else None

    def reach(self, uint64_t most, uint64_t limit):
        """Return the end of the last of these blocks that ends at or before byte `limit`. None: there is none."""
        cdef Py_ssize_t n = self._run(most, limit)
        return self.known[self.head + n - 1].end if n else None

    def matching_end(self, const unsigned char[::1] data):
        """Return the end of the last block up to which all match `data`, which begins with the first block.

        If the first block does not match, or is incomplete, return where it begins.
        """
        cdef const char* bytes_ = <const char*> &data[0] if data.shape[0] else NULL
        cdef uint64_t left = data.shape[0]
        cdef Py_ssize_t i = self.head
        cdef uint64_t size
        cdef uint64_t start
        if not self._reach(1):
            raise IndexError("there is no block")
        start = self.known[i].start
        while self._reach(i - self.head + 1) and self.known[i].start == start:
            size = self.known[i].end - start
            if size > left or self._crc(bytes_, size) != self.known[i].crc:
                break
            start += size
            bytes_ += size
            left -= size
            i += 1
        return start

    # --- inside -----------------------------------------------------------------------------------

    cdef Py_ssize_t _run(self, uint64_t most, uint64_t limit) except -1:
        """Return how many of the first blocks follow each other, within `most` bytes (or one), up to `limit`."""
        cdef Py_ssize_t n = 0
        cdef Block* block
        cdef uint64_t start = 0
        cdef uint64_t end = 0
        while self._reach(n + 1):
            block = self.known + self.head + n
            if block.end > limit or (n and (block.start != end or block.end - start > most)):
                break
            if n == 0:
                start = block.start
            end = block.end
            n += 1
        return n

    cdef tuple _told(self, Py_ssize_t i):
        cdef Block* block = self.known + i
        return block.start, block.end, block.records, block.crc, block.row_end

    cdef bint _reach(self, Py_ssize_t n) except -1:
        """Check rows until `n` blocks are known. False: there are fewer."""
        while self.count - self.head < n:
            if PyBytes_GET_SIZE(self.rows) - self.at < ROW:
                return False
            self._look_at_next()
        return True

    cdef int _look_at_next(self) except -1:
        cdef Block block
        cdef const char* row = PyBytes_AS_STRING(self.rows) + self.at
        self.at += ROW
        if self._unpack(row, &block):
            block.row_end = self.start + self.at
            if self.count == self.capacity:
                self._grow()
            self.known[self.count] = block
            self.count += 1
        return 0

    cdef bint _unpack(self, const char* row, Block* block) except -1:
        """Unpack a row. False: there is none, or a corrupt one."""
        cdef uint32_t size = get_u32_le(row + 8)
        block.end = get_u64_le(row)
        if size > block.end or block.end > MOST_END or get_u32_le(row + CHECKED) != self._crc(row, CHECKED):
            return False
        block.start = block.end - size
        block.records = get_u32_le(row + 12)
        block.crc = get_u32_le(row + 16)
        return True

    cdef uint32_t _crc(self, const char* data, Py_ssize_t size) except? 0:
        self.memory.data = data
        self.memory.size = size
        return self.crc(self.memory)

    cdef int _grow(self) except -1:
        cdef Py_ssize_t capacity = max(64, 2 * self.capacity)
        cdef Block* known = <Block*> PyMem_RawRealloc(self.known, capacity * sizeof(Block))
        if known == NULL:
            raise MemoryError()
        self.known = known
        self.capacity = capacity
        return 0

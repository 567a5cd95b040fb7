# The read-ahead of a stream: the path of every message out of the page cache, with its offset in the partition.
#
# Law: only admitted records are delivered, and a record's offset is that of the one before plus one. A caller
# that knows of a gap sets `next_offset`. Bytes that no checksum covers are admitted as far as the index rows
# agree with the records about offset, byte and size.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t

from diskq._native.core.framing cimport END, Framing, Parts, Record
from diskq._native.core.gate cimport Gate
from diskq._native.core.message cimport message_of
from diskq._native.core.read_ahead cimport OffsetAhead
from diskq._native.stream.codec cimport INDEX_ROW, TripletFraming
from diskq._native.core.byte_order cimport get_u64_le


cdef class TripletAhead(OffsetAhead):
    """A stretch of a segment in memory, from which messages are read."""

    def __cinit__(self, fs, TripletFraming framing not None, Gate gate not None, Framing of_verified=None):
        pass

    def admit_rows(self, bytes rows not None, bint has_more=False, int64_t drift=0):
        """Admit the loaded records as far as these index rows agree with them.

        The first row must be that of `next_offset` at the first loaded byte; `drift` is the distance from a
        row's byte to that of its record. The record before one that does not agree is held back, too: the
        damage may begin in it. So is the last one of several, if `has_more` rows follow. Returns the number
        of rows that agree.
        """
        cdef const char* row = PyBytes_AS_STRING(rows)
        cdef Py_ssize_t left = PyBytes_GET_SIZE(rows) // INDEX_ROW
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t before = 0         # the start of the record before this one
        cdef uint64_t size
        cdef Parts parts
        cdef bint agrees = True
        with nogil:
            while left:
                size = get_u64_le(row + 16)
                agrees = (
                    get_u64_le(row) == <uint64_t> (self.next_offset + count)
                    and get_u64_le(row + 8) == <uint64_t> (self.origin + at - drift)
                )
                if not agrees or size > <uint64_t> (self.loaded - at):
                    break
                agrees = (
                    size != 0
                    and self.keyed.parts(self.buffer + at, self.loaded - at, &parts) == END
                    and <uint64_t> parts.size == size
                )
                if not agrees:
                    break
                before = at
                at += parts.size
                count += 1
                left -= 1
                row += INDEX_ROW
        if count and (not agrees or (count > 1 and (left or has_more))):
            at = before
            count -= 1
        self.admit(self.origin, self.origin + at)
        return count

    def find(self, int64_t position, uint64_t size):
        """Return the first loaded byte from `position` on where a record of `size` bytes begins; None: none."""
        cdef Py_ssize_t at = position - self.origin
        cdef Parts parts
        cdef bint is_found = False
        if at < 0 or size == 0:
            return None
        with nogil:
            while not is_found and at < self.loaded and size <= <uint64_t> (self.loaded - at):
                is_found = (
                    self.keyed.parts(self.buffer + at, self.loaded - at, &parts) == END
                    and <uint64_t> parts.size == size
                )
                at += 1
        return self.origin + at - 1 if is_found else None

    cdef object _made(self, const char* data, const Record* record):
        self.next_offset += 1
        return message_of(self.partition, data, &self.parts)


def find_row(
    bytes rows not None, Py_ssize_t at, Py_ssize_t step, int64_t start, int64_t base,
    int64_t offset, int64_t position, int64_t end,
):
    """Return where an index row may begin, looking every `step` bytes from byte `at` of these on; -1: nowhere.

    The row is that of message `offset` or a later one, but of none that belongs further on in the index of a
    segment that begins with message `base`, of which `rows` are the bytes from `start` on; and its record
    begins in bytes position:end of the data.
    """
    cdef const char* data = PyBytes_AS_STRING(rows)
    cdef Py_ssize_t last = PyBytes_GET_SIZE(rows) - INDEX_ROW
    cdef uint64_t low = max(0, position)
    cdef bint is_found = False
    if at < 0 or step <= 0 or offset < 0:
        return -1
    with nogil:
        while at <= last:
            is_found = (
                <uint64_t> offset <= get_u64_le(data + at) <= <uint64_t> (base + (start + at) // INDEX_ROW)
                and low <= get_u64_le(data + at + 8) < <uint64_t> end
            )
            if is_found:
                break
            at += step
    return at if is_found else -1


def descents(bytes rows not None, uint64_t before):
    """Return where those index rows begin whose record is before the record of the previous row.

    `before` is the byte of the record of the row before the first one.
    """
    cdef const char* data = PyBytes_AS_STRING(rows)
    cdef Py_ssize_t at
    cdef uint64_t position
    cdef list found = []
    for at in range(0, PyBytes_GET_SIZE(rows) // INDEX_ROW * INDEX_ROW, INDEX_ROW):
        position = get_u64_le(data + at + 8)
        if position < before:
            found.append(at)
        before = position
    return found

# The read-ahead: every message's way out of the page cache.
#
# Law: nothing is handed out that was not admitted, and nothing past what was loaded is touched.
#
# Its owner loads a stretch of a file, judges it (checksums, where there are any) and admits it
# up to some byte; records are then handed out one by one without asking, until they end or the
# gate shuts.

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.string cimport memcpy

from diskq._native.core.framing cimport ANY_OFFSET, CORRUPT, END, TORN, Extent, Record
from diskq._native.core.thread_guard cimport NOT_OURS, check_guard

from diskq._native.core.framing import STOPS as _STOPS


cdef class ReadAhead:
    """A stretch of a file in memory, records out.

    `of_verified` is the framing for bytes whose checksum agreed, where it judges less strictly: they
    are what was written, under whatever limits that was.
    """

    def __cinit__(self, fs, Framing framing not None, Gate gate not None, Framing of_verified=None):
        self.door = FileCalls(fs)
        self.framing = self.current = framing
        self.of_verified = framing if of_verified is None else of_verified
        self.gate = gate

    def __dealloc__(self):
        PyMem_RawFree(self.buffer)

    # --- the owner's side -------------------------------------------------------------------------

    def seek(self, int64_t position):
        """Be at byte `position` with nothing loaded."""
        self.origin = position
        self.loaded = self.at = self.admitted = 0
        self.stop = END

    def pass_over(self, int64_t end, Py_ssize_t records):
        """Count records, which their reader got by another way, and be at byte `end` behind them."""
        self.seek(end)
        self.records += records
        self.gate.left -= records

    def load(self, int handle, int64_t start, Py_ssize_t size):
        """Hold the bytes start:start+size of the file instead, none of them admitted.

        Returns how many bytes there were. Raises OSError, MemoryError.
        """
        if self.gate.guard.owner == NOT_OURS:
            self.gate.guard.refuse()
        self._make_room(size)
        self.seek(start)
        self.loaded = self.door.pread(handle, self.buffer, size, start)
        return self.loaded

    def view(self, int64_t start, int64_t end):
        """The loaded bytes start:end of the file; valid until the next load."""
        if not self.origin <= start <= end <= self.origin + self.loaded:
            raise IndexError(f"bytes {start}:{end} are not loaded")
        return PyMemoryView_FromMemory(self.buffer + (start - self.origin), end - start, PyBUF_READ)

    def admit(self, int64_t start, int64_t end, bint is_verified=False):
        """Let the records in bytes start:end of the file be handed out."""
        if not self.origin <= start <= end <= self.origin + self.loaded:
            raise IndexError(f"bytes {start}:{end} are not loaded")
        self.current = self.of_verified if is_verified else self.framing
        self.at = start - self.origin
        self.admitted = end - self.origin
        self.stop = END

    @property
    def position(self):
        """The file's byte where the next record begins."""
        return self.origin + self.at

    @property
    def is_ready(self):
        """Was more admitted than was handed out?"""
        return self.at < self.admitted

    @property
    def why(self):
        """Why no more records came: END of what was admitted, or TORN or CORRUPT at `position`."""
        return _STOPS[<int> self.stop]

    # --- the fast doors: they ask the gate, and judge nothing -------------------------------------

    def take(self):
        """The next body. None: not done; ask the owner."""
        if not self.gate.admits():
            return None
        return self._take()

    def take_untimed(self):
        """As `take`, for a caller who cannot yield: the slice may be over."""
        if self.gate.left <= 0:
            return None
        return self._take()

    def take_some(self, Py_ssize_t max_items, Py_ssize_t max_bytes):
        """The next bodies, as `take_many`. None: not done; ask the owner."""
        if self.at >= self.admitted or not self.gate.admits() or self.gate.left < max_items:
            return None
        return self.take_many(max_items, max_bytes) or None

    # --- the owner's doors: the gate is his -------------------------------------------------------

    def take_now(self):
        """The next body, whatever the gate says. None: see `why`."""
        return self._take()

    cpdef list take_many(self, Py_ssize_t max_items, Py_ssize_t max_bytes):
        """At most `max_items` bodies of together at most `max_bytes`, but one however large."""
        cdef list bodies = []
        cdef Record record
        cdef Py_ssize_t left = max_bytes
        check_guard(self.gate.guard)
        while max_items > 0 and self.at < self.admitted:
            if self._decode(&record) != END or (record.body_size > left and bodies):
                break
            bodies.append(self._made(self.buffer + self.at, &record))
            self.at += record.size
            left -= record.body_size
            max_items -= 1
        self.records += len(bodies)
        self.gate.left -= len(bodies)
        return bodies

    def take_columns(self, Py_ssize_t max_records, Py_ssize_t max_bytes):
        """Return the next messages by column: records of together at most `max_bytes`, but one however large.

        No object is made for a message. None: nothing is admitted, see `why`.
        """
        return self._take_columns(max_records, max_bytes, ANY_OFFSET)

    def count(self):
        """Pass over all records that were admitted, and tell how many; see `why`."""
        cdef Record record
        cdef Py_ssize_t counted = 0
        while self.at < self.admitted:
            if self._decode(&record) != END:
                break
            self.at += record.size
            counted += 1
        return counted

    # --- inside -----------------------------------------------------------------------------------

    cdef int _make_room(self, Py_ssize_t size) except -1:
        cdef char* buffer
        if size > self.capacity:
            buffer = <char*> PyMem_RawRealloc(self.buffer, size)
            if buffer == NULL:
                raise MemoryError()
            self.buffer = buffer
            self.capacity = size
        return 0

    cdef int hold(self, const char* data, Py_ssize_t size) except -1:
        """Hold these bytes, which lie at `position` of the file, all of them admitted."""
        self._make_room(size)
        self.seek(self.origin + self.at)
        memcpy(self.buffer, data, size)
        self.loaded = self.admitted = size
        return 0

    cdef object _take(self):
        cdef Record record
        cdef Py_ssize_t at = self.at
        check_guard(self.gate.guard)
        if at >= self.admitted or self._decode(&record) != END:
            return None
        message = self._made(self.buffer + at, &record)
        self.at = at + record.size
        self.records += 1
        self.gate.left -= 1
        return message

    cdef object _take_columns(self, Py_ssize_t max_records, Py_ssize_t max_bytes, int64_t first_offset):
        cdef const char* data = self.buffer + self.at
        cdef Py_ssize_t left = self.admitted - self.at
        cdef Record record
        cdef Extent extent
        if left <= 0 or max_records <= 0:
            return None
        self.current.measure(data, min(left, max_bytes), first_offset, max_records, &extent)
        if extent.records == 0:
            self.current.measure(data, left, first_offset, 1, &extent)
        if extent.records == 0:
            self._decode(&record)
            return None
        if left > max_bytes:
            extent.stop = END  # a record that `max_bytes` cut is for the next call
        columns = self.current.columns(data, &extent, False)
        self.at += extent.end
        self.records += extent.records
        self.gate.left -= extent.records
        return columns

    cdef object _made(self, const char* data, const Record* record):
        """What is handed out for the record at `data`: its body. Formats that have more to say override it."""
        return PyBytes_FromStringAndSize(data + record.body, record.body_size)

    cdef Stop _decode(self, Record* record) noexcept:
        self.stop = self.current.decode(self.buffer + self.at, self.admitted - self.at, record)
        self.claimed = record.size if self.stop == TORN else 0
        return self.stop


cdef class OffsetAhead(ReadAhead):
    """A stretch of a file in memory, messages out, of a format whose records have offsets.

    Abstract: formats subclass it in compiled code. `partition` is that of the messages, and `next_offset` the offset
    of the one that comes next: both may be set. A record that says another offset is CORRUPT.
    """

    def __cinit__(self, fs, KeyedFraming framing not None, Gate gate not None, Framing of_verified=None):
        self.keyed = framing

    def skip_to(self, int64_t offset):
        """Pass over what is admitted, up to message `offset`. Returns the `next_offset` that was reached."""
        cdef Record record
        while self.next_offset < offset and self.at < self.admitted and self._decode(&record) == END:
            self.at += record.size
            self.next_offset += 1
        return self.next_offset

    def peek(self):
        """The next message, which stays. None: nothing is admitted, see `why`."""
        cdef Record record
        if self.at >= self.admitted or self._decode(&record) != END:
            return None
        message = self._made(self.buffer + self.at, &record)
        self.next_offset -= 1
        return message

    @property
    def next_size(self):
        """Bytes of key and value of the message that comes next; 0 where none is admitted."""
        cdef Record record
        return record.body_size if self.at < self.admitted and self._decode(&record) == END else 0

    def take_columns(self, Py_ssize_t max_records, Py_ssize_t max_bytes):
        """As that of `ReadAhead`; the first message is `next_offset`, as it was before."""
        columns = self._take_columns(max_records, max_bytes, self.next_offset)
        if columns is not None:
            self.next_offset += columns.records
        return columns

    cdef Stop _decode(self, Record* record) noexcept:
        # What a message takes is its key and its value: that is what `max_bytes` is of.
        self.parts.offset = self.next_offset
        self.stop = self.keyed.parts(self.buffer + self.at, self.admitted - self.at, &self.parts)
        if self.stop == END and self.parts.offset != self.next_offset:
            self.stop = CORRUPT
        record.size = self.parts.size
        if self.stop == END:
            record.body = self.parts.value
            record.body_size = self.parts.key_size + self.parts.value_size
        self.claimed = 0 if self.stop == END else self.parts.size
        return self.stop

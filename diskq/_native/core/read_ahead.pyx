# The read-ahead: the path of every message out of the page cache.
#
# Law: only admitted records are delivered, and no byte past the loaded ones is touched.
#
# Its owner loads a stretch of a file, verifies it (by checksums, if there are any) and admits it up to some
# byte; records are then delivered one by one without calling the owner, until they end or the gate closes.

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.string cimport memcpy

from diskq._native.core.file_calls cimport calls_of
from diskq._native.core.framing cimport ANY_OFFSET, CORRUPT, END, TORN, Extent, Record, measured_columns
from diskq._native.core.thread_guard cimport NOT_OURS, check_guard, lets_in

from diskq._native.core.framing import STOPS as _STOPS


cdef class ReadAhead:
    """A stretch of a file in memory, from which records are read.

    `of_verified`, if given, is a less strict framing for bytes whose checksum matched: they are as they were
    written, under any limits.
    """

    def __cinit__(self, fs, Framing framing not None, Gate gate not None, Framing of_verified=None):
        self.file_calls = calls_of(fs)
        self.framing = self.current = framing
        self.of_verified = framing if of_verified is None else of_verified
        self.gate = gate

    def __dealloc__(self):
        PyMem_RawFree(self.buffer)

    # --- the owner's side -------------------------------------------------------------------------

    def seek(self, int64_t position):
        """Go to byte `position` with nothing loaded."""
        self.origin = position
        self.loaded = self.at = self.admitted = 0
        self.stop = END

    def pass_over(self, int64_t end, Py_ssize_t records):
        """Count records that the reader got in another way, and go to byte `end` after them."""
        self.seek(end)
        self.records += records
        self.gate.left -= records

    def load(self, int handle, int64_t start, Py_ssize_t size):
        """Load the bytes start:start+size of the file, none of them admitted.

        Returns the number of bytes loaded. Raises OSError, MemoryError.
        """
        if self.gate.guard.owner == NOT_OURS:
            self.gate.guard.refuse()
        self._make_room(size)
        self.seek(start)
        self.loaded = self.file_calls.pread(handle, self.buffer, size, start)
        return self.loaded

    def view(self, int64_t start, int64_t end):
        """Return the loaded bytes start:end of the file; valid until the next load."""
        if not self.origin <= start <= end <= self.origin + self.loaded:
            raise IndexError(f"bytes {start}:{end} are not loaded")
        return PyMemoryView_FromMemory(self.buffer + (start - self.origin), end - start, PyBUF_READ)

    def admit(self, int64_t start, int64_t end, bint is_verified=False):
        """Allow the records in bytes start:end of the file to be delivered."""
        if not self.origin <= start <= end <= self.origin + self.loaded:
            raise IndexError(f"bytes {start}:{end} are not loaded")
        self.current = self.of_verified if is_verified else self.framing
        self.at = start - self.origin
        self.admitted = end - self.origin
        self.stop = END

    @property
    def position(self):
        """The file's byte at which the next record begins."""
        return self.origin + self.at

    @property
    def is_ready(self):
        """True if admitted bytes are left."""
        return self.at < self.admitted

    @property
    def why(self):
        """Why no more records came: END of the admitted bytes, or TORN or CORRUPT at `position`."""
        return _STOPS[<int> self.stop]

    # --- the fast path: it checks the gate and nothing else ---------------------------------------

    def take(self):
        """Return the next body. None: take the slow path."""
        if not self.gate.admits():
            return None
        return self._take()

    def take_untimed(self):
        """Do as `take`, for a caller that cannot yield: the time slice may be over."""
        if self.gate.left <= 0:
            return None
        return self._take()

    def take_some(self, Py_ssize_t max_items, Py_ssize_t max_bytes):
        """Return the next bodies, as `take_many`. None: take the slow path."""
        if self.at >= self.admitted or not self.gate.admits() or self.gate.left < max_items:
            return None
        return self.take_many(max_items, max_bytes) or None

    # --- for the owner, which needs no permission of the gate -------------------------------------

    def take_now(self):
        """Return the next body, regardless of the gate. None: see `why`."""
        return self._take()

    cpdef list take_many(self, Py_ssize_t max_items, Py_ssize_t max_bytes):
        """Return at most `max_items` bodies with a total of at most `max_bytes`, or one larger body."""
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
        """Return the next messages by column: records with a total of at most `max_bytes`, or one larger record.

        No object is made for a message. None: nothing is admitted, see `why`.
        """
        return self._take_columns(max_records, max_bytes, ANY_OFFSET)

    def count(self):
        """Skip all admitted records, and return how many they were; see `why`."""
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
        """Hold these bytes of the file from `position` on, all of them admitted."""
        self._make_room(size)
        self.seek(self.origin + self.at)
        memcpy(self.buffer, data, size)
        self.loaded = self.admitted = size
        return 0

    cdef object _take(self):
        cdef Record record
        cdef Py_ssize_t at = self.at
        if not lets_in(self.gate.guard) or at >= self.admitted or self._decode(&record) != END:
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
        columns = measured_columns(self.current, data, &extent, False)
        self.at += extent.end
        self.records += extent.records
        self.gate.left -= extent.records
        return columns

    cdef object _made(self, const char* data, const Record* record):
        """Return what is delivered for the record at `data`: its body. Formats with more parts override it."""
        return PyBytes_FromStringAndSize(data + record.body, record.body_size)

    cdef Stop _decode(self, Record* record) noexcept:
        self.stop = self.current.decode(self.buffer + self.at, self.admitted - self.at, record)
        self.claimed = record.size if self.stop == TORN else 0
        return self.stop


cdef class OffsetAhead(ReadAhead):
    """A stretch of a file in memory, from which messages are read, of a format whose records have offsets.

    Abstract: formats subclass it in compiled code. `partition` is that of the messages, and `next_offset` the offset
    of the next one: both may be set. A record with another offset is CORRUPT.
    """

    def __cinit__(self, fs, KeyedFraming framing not None, Gate gate not None, Framing of_verified=None):
        self.keyed = framing

    def skip_to(self, int64_t offset):
        """Skip admitted messages up to message `offset`. Returns the `next_offset` that was reached."""
        cdef Record record
        while self.next_offset < offset and self.at < self.admitted and self._decode(&record) == END:
            self.at += record.size
            self.next_offset += 1
        return self.next_offset

    def peek(self):
        """Return the next message without consuming it. None: nothing is admitted, see `why`."""
        cdef Record record
        if self.at >= self.admitted or self._decode(&record) != END:
            return None
        message = self._made(self.buffer + self.at, &record)
        self.next_offset -= 1
        return message

    @property
    def next_size(self):
        """Return the bytes of key and value of the next message; 0 if none is admitted."""
        cdef Record record
        return record.body_size if self.at < self.admitted and self._decode(&record) == END else 0

    def take_columns(self, Py_ssize_t max_records, Py_ssize_t max_bytes):
        """Do as that of `ReadAhead`; the first message is the old `next_offset`."""
        columns = self._take_columns(max_records, max_bytes, self.next_offset)
        if columns is not None:
            self.next_offset += columns.records
        return columns

    cdef Stop _decode(self, Record* record) noexcept:
        # The size of a message is that of its key and value: `max_bytes` is of those.
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

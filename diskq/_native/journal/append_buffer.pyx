# The append buffer of a journal: records with consecutive offsets.
#
# The record that fills a file is its last one: the buffer calls its owner (`on_full`) in the same call, before
# the next record.

from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int64_t

from diskq._native.core.append_buffer cimport FLUSH_AT, STAGED, WRITTEN, Mode
from diskq._native.core.gate cimport FORCED, Admission, Gate
from diskq._native.core.offset_buffer cimport OffsetBuffer, Plain, is_plain, now_by, size_of_values
from diskq._native.core.send_batch cimport Gathering
from diskq._native.journal.codec cimport OVERHEAD, SejFraming, sej_lay_down
from diskq._native.core.views cimport start_of


cdef class SejBuffer(OffsetBuffer):
    """The active file of a journal: takes messages in, and writes records into the page cache.

    An item is a value, (key, value), (key, value, timestamp) or (key, value, timestamp, type). `clock()`
    returns the time (ns since the Unix epoch) for messages without one, None: the system's clock. `on_full()` is
    called when the file is full and written; it does not raise. `is_awake`: True if waiting records will be
    written soon. `room`: the bytes that may pass the fast path.
    """

    cdef object clock
    cdef object on_full
    cdef public bint is_awake
    cdef public int64_t room

    def __cinit__(self, fs, SejFraming framing not None, Gate gate not None, on_block):
        """Check the types: the framing that the base class keeps is sej's."""

    def count_from(self, int64_t next_offset, clock, on_full):
        """Set the offset of the next record. Once, before the first record."""
        self.first = self.base = next_offset
        self.clock = clock
        self.on_full = on_full

    def begin(self, int64_t base):
        """Write later records into the file that begins at offset `base`."""
        self.base = base

    @property
    def is_flushed(self):
        """True if all records are in the page cache."""
        return self.used == self.written

    # --- adding records ---------------------------------------------------------------------------

    def appender(self, Mode mode, Admission admission):
        """Return an appender, which adds messages in that mode, and checks that of the gate."""
        return SejAppender(self, mode, admission)

    def gathering(self, current_task, Py_ssize_t largest):
        """Return what gathers messages to be written together later."""
        return SejGathering(self, current_task, largest)

    def first_odd(self, list items, Py_ssize_t start=0):
        """Return the index of the first item from `start` on that needs checking; -1: none does."""
        cdef Plain plain
        cdef int its_type = 0
        cdef Py_ssize_t i
        for i in range(start, len(items)):
            if not self._is_plain_item(items[i], &plain, &its_type):
                return i
        return -1

    def size_of(self, list items):
        """Return the total size of the values of plain items."""
        return size_of_values(items)

    def append_many(self, list items, Py_ssize_t start, Mode mode):
        """Take in items[start:] until the file is full; return the index of the first one left out.

        All must be plain (`first_odd`). Items without a time all get the same one. The gate is not checked. STAGED
        ones are written unless `is_awake`. Raises OSError if a write fails; `next_offset` then shows how many are
        accepted all the same.
        """
        cdef Py_ssize_t i = start
        cdef Py_ssize_t n = len(items)
        cdef Py_ssize_t used = self.used
        cdef int64_t records = self.records
        cdef int64_t now = now_by(self.clock)
        cdef Plain plain
        cdef int its_type = 0
        try:
            while i < n and not self._is_full():
                if not self._is_plain_item(items[i], &plain, &its_type):
                    raise TypeError(f"item {i} needs judgement")
                self._lay(&plain, its_type, now)
                i += 1
                if self._is_full() or self.used - self.written >= FLUSH_AT:
                    self._flush()
                    used, records = self.used, self.records
            if mode == WRITTEN or (mode == STAGED and not (self.is_awake and self._stage(used))):
                self._flush()
        except BaseException:
            self._rewind(used, records)
            raise
        if self._is_full():
            self.on_full()
        return i

    def append_encoded(self, const unsigned char[::1] data, Py_ssize_t start=0):
        """Take in the encoded records data[start:]. Each must have the next offset.

        Returns the byte after the last one taken, where the next call is to begin; raises as `_take_encoded`.
        """
        cdef Py_ssize_t end = self._take_encoded(start_of(data), data.shape[0], start)
        if end > start and self._is_full():
            self.on_full()
        return end

    # --- inside -----------------------------------------------------------------------------------

    cdef bint _is_plain(self, object value, object key, object timestamp, object its_type, Plain* plain) except -1:
        if not is_plain(value, key, timestamp, self.keyed, plain):
            return False
        # sej treats a record whose size needs more than 31 bits as damage.
        if OVERHEAD + plain.key_size + plain.value_size > INT32_MAX:
            return False
        return type(its_type) is int and 0 <= its_type <= 255

    cdef bint _is_plain_item(self, object item, Plain* plain, int* type_of_it) except -1:
        cdef object value = item
        cdef object key = None
        cdef object timestamp = None
        cdef object its_type = 0
        if type(item) is tuple:
            if len(<tuple> item) == 2:
                key, value = <tuple> item
            elif len(<tuple> item) == 3:
                key, value, timestamp = <tuple> item
            elif len(<tuple> item) == 4:
                key, value, timestamp, its_type = <tuple> item
            else:
                return False
        if not self._is_plain(value, key, timestamp, its_type, plain):
            return False
        type_of_it[0] = its_type
        return True

    cdef int _lay(self, const Plain* plain, int its_type, int64_t now) except -1:
        """Encode one message. The file must not be full."""
        cdef Py_ssize_t size = OVERHEAD + plain.key_size + plain.value_size
        sej_lay_down(
            self._room_for(size), self.first + self.records, plain.timestamp if plain.has_time else now, its_type,
            plain.key, plain.key_size, plain.value, plain.value_size,
        )
        self._laid_down(size)
        return 0

    cdef bint _may_pass(self, object value) noexcept:
        """True if it needs no slow path: it will be written soon, and few bytes are unsynced."""
        return self.is_awake and type(value) is bytes and PyBytes_GET_SIZE(value) <= self.room

    cdef object _append(self, object value, object key, object timestamp, object its_type, Mode mode):
        cdef Plain plain
        cdef Py_ssize_t used = self.used
        cdef int64_t records = self.records
        if self._is_full() or not self._is_plain(value, key, timestamp, its_type, &plain):
            return None
        self._lay(&plain, its_type, 0 if plain.has_time else now_by(self.clock))
        self.room -= self.used - used
        if self._is_full():
            self._settle(used, records, WRITTEN)
            self.on_full()
        else:
            self._settle(used, records, WRITTEN if mode == STAGED and not self.is_awake else mode)
        return self.first + records


cdef class SejAppender:
    """Adds messages to a buffer, in one mode. It makes no decisions: the buffer's owner gets what it refuses.

    If it checks the gate, the buffer must be awake, and have space for the message.
    """

    cdef SejBuffer buffer
    cdef Mode mode
    cdef Admission admission

    def __cinit__(self, SejBuffer buffer not None, Mode mode, Admission admission):
        self.buffer = buffer
        self.mode = mode
        self.admission = admission

    def append(self, value, key=None, timestamp=None, type=0):
        """Add one message, and return its offset. None: take the slow path (file full, or to be checked).

        Raises OSError if the write fails; the message is then not accepted.
        """
        if self.admission != FORCED:
            if not self.buffer._may_pass(value) or not self.buffer.gate.lets_pass(self.admission):
                return None
        return self.buffer._append(value, key, timestamp, type, self.mode)


cdef class SejGathering(Gathering):
    """Gathers messages that are to be written to a buffer together, as items of `append_many`."""

    cdef SejBuffer buffer

    def __cinit__(self, SejBuffer buffer not None, current_task, Py_ssize_t largest):
        self.buffer = buffer
        self.gate = buffer.gate

    def add(self, value, key=None, timestamp=None, type=0):
        """Add a message of the running task, and return its number in the batch. -1: it needs the slow path."""
        cdef Plain plain
        if self.batch is None or not self.buffer._is_plain(value, key, timestamp, type, &plain):
            return -1
        return self._add((key, value, timestamp, type), OVERHEAD + plain.key_size + plain.value_size)

# The way of a journal's messages into the page cache: records in, one after the other, each with the
# offset behind the one before.
#
# A file is left for the next one after the record that fills it: the buffer tells its owner so in the
# same call (`on_full`), before the next record.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport INT32_MAX, int64_t
from libc.string cimport memcpy

from diskq._native.appendbuffer cimport FLUSH_AT, AppendBuffer
from diskq._native.framing cimport END
from diskq._native.gate cimport Gate, wall_clock_ns
from diskq._native.sej cimport OVERHEAD, SejFraming, SejParts, sej_lay_down, sej_parts

cdef enum Way:
    HELD = 0       # in memory
    WRITTEN = 1    # in the page cache
    JOTTED = 2     # on the slate, or in the page cache


cdef struct Item:                  # one message, as it is to be laid down; of objects that others keep alive
    const char* key
    Py_ssize_t key_size
    const char* value
    Py_ssize_t value_size
    int type
    bint has_time
    int64_t timestamp


cdef class SejBuffer(AppendBuffer):
    """The active file of a journal: messages in, records in the page cache.

    An item is a value, (key, value), (key, value, timestamp) or (key, value, timestamp, type). `clock()`
    tells the time (ns since the Unix epoch) for messages that have none, None: the system's. `on_full()` is
    called when the file is full and written; it does not raise. `is_awake`: somebody sees to it that what
    waits is written soon. `room`: so many bytes may pass the fast doors.
    """

    cdef SejFraming sej
    cdef object clock
    cdef object on_full
    cdef readonly int64_t base             # offset of the file's first record
    cdef int64_t first                     # the offset of the next record is this, and the records so far
    cdef readonly int64_t accepted_bytes   # of records, over all files
    cdef public bint is_awake
    cdef public int64_t room

    def __cinit__(self, fs, SejFraming framing not None, Gate gate not None, on_block):
        self.sej = framing

    def count_from(self, int64_t next_offset, clock, on_full):
        """Once, before the first record: it gets this offset."""
        self.first = self.base = next_offset
        self.clock = clock
        self.on_full = on_full

    def begin(self, int64_t base):
        """The records to come go into the file that begins at offset `base`."""
        self.base = base

    # --- where it is ------------------------------------------------------------------------------

    @property
    def next_offset(self):
        return self.first + self.records

    @property
    def written_offset(self):
        """The offset behind the last record in the page cache."""
        return self.first + self.records_written

    @property
    def is_flushed(self):
        """Are all records in the page cache?"""
        return self.used == self.written

    @property
    def is_full(self):
        """Has the file reached its size? Then nothing more is taken in."""
        return self._is_full()

    # --- the fast doors: they ask the gate, and judge nothing -------------------------------------

    def put_message(self, value, key=None, timestamp=None, type=0):
        """Have one message survive the process: its offset. None: not done; ask the owner.

        It stands on the slate, if there is one, and waits for `flush`; else it is written. Only behind others
        that wait: the first one is refused as well. Raises OSError where the disk refuses; the message is
        then not in.
        """
        if not self._may_pass(value) or not self.gate.admits():
            return None
        return self._put_message(value, key, timestamp, type, JOTTED)

    def put_message_untimed(self, value, key=None, timestamp=None, type=0):
        """As `put_message`, for a caller who cannot yield: the slice may be over."""
        if not self._may_pass(value) or self.gate.left <= 0:
            return None
        return self._put_message(value, key, timestamp, type, JOTTED)

    def put_message_through(self, value, key=None, timestamp=None, type=0):
        """As `put_message_untimed`, and it is written."""
        if not self._may_pass(value) or self.gate.left <= 0:
            return None
        return self._put_message(value, key, timestamp, type, WRITTEN)

    # --- the owner's doors: the gate is his -------------------------------------------------------

    def put_message_now(self, value, key=None, timestamp=None, type=0):
        """As `put_message_through`, whatever the gate says. None: the file is full, or it needs judgement."""
        return self._put_message(value, key, timestamp, type, WRITTEN)

    def hold_message_now(self, value, key=None, timestamp=None, type=0):
        """As `put_message_now`, without writing: that is left to `flush`."""
        return self._put_message(value, key, timestamp, type, HELD)

    def first_odd(self, list items, Py_ssize_t start=0):
        """The index of the first item from `start` on that needs judgement; -1: none does."""
        cdef Item item
        cdef Py_ssize_t i
        for i in range(start, len(items)):
            if not self._is_plain(items[i], &item):
                return i
        return -1

    def size_of(self, list items):
        """Bytes of the values of items that are plain, together."""
        cdef Py_ssize_t total = 0
        for item in items:
            total += len(<bytes> (<tuple> item)[1]) if type(item) is tuple else len(<bytes> item)
        return total

    def put_items(self, list items, Py_ssize_t start, bint through):
        """Take in items[start:] as far as the file lets them; the index of the first one left out.

        All must be plain (`first_odd`). Who has no time gets one, the same for all. Written at the end if
        `through`, and whenever much is waiting. Raises OSError where the disk refuses; `next_offset` then
        tells how many are in all the same.
        """
        cdef Py_ssize_t i = start
        cdef Py_ssize_t n = len(items)
        cdef Py_ssize_t used = self.used
        cdef int64_t records = self.records
        cdef int64_t now = self._now()
        cdef Item item
        try:
            while i < n and not self._is_full():
                if not self._is_plain(items[i], &item):
                    raise TypeError(f"item {i} needs judgement")
                self._append_item(&item, now)
                i += 1
                if self._is_full() or self.used - self.written >= FLUSH_AT:
                    self._flush()
                    used, records = self.used, self.records
            if through and not (self.is_awake and self._stage(used)):
                self._flush()
        except BaseException:
            self._rewind(used, records)
            raise
        if self._is_full():
            self.on_full()
        return i

    def put_encoded(self, const unsigned char[::1] data, Py_ssize_t start=0):
        """Take in records that are encoded already, data[start:]. Each must say the offset that is next.

        So many as go into one write (about 256 KiB) and into the file: returns the byte behind them, where the
        next call is to begin. They wait for `flush`, unless they are so many. Raises ValueError at bytes that
        are no whole record, or another one's, and OSError where the disk refuses; nothing of this call is then in.
        """
        cdef Py_ssize_t n = data.shape[0]
        cdef Py_ssize_t at = start
        cdef Py_ssize_t used = self.used
        cdef int64_t records = self.records
        cdef SejParts parts
        if not 0 <= start <= n:
            raise IndexError(f"byte {start} of {n}")
        try:
            while at < n and not self._is_full() and self.used - self.written < FLUSH_AT:
                if sej_parts(<const char*> &data[at], n - at, &parts) != END:
                    raise ValueError(f"no whole record at byte {at} of {n}")
                if parts.offset != self.first + self.records:
                    raise ValueError(
                        f"message {parts.offset} at byte {at} of {n}, the next one is {self.first + self.records}"
                    )
                memcpy(self._room_for(parts.size), &data[at], parts.size)
                self._laid_down(parts.size)
                self.accepted_bytes += parts.size
                at += parts.size
            if self._is_full() or self.used - self.written >= FLUSH_AT:
                self._flush()
        except BaseException:
            self._rewind(used, records)
            raise
        if at > start and self._is_full():
            self.on_full()
        return at

    # --- inside -----------------------------------------------------------------------------------

    cdef bint _is_full(self) noexcept:
        return self.origin + self.used >= self.limit

    cdef int64_t _now(self) except? -1:
        return wall_clock_ns() if self.clock is None else self.clock()

    cdef bint _may_pass(self, object value) noexcept:
        """Without asking: it will be written soon, and it is not too much that is unsynced."""
        return self.is_awake and type(value) is bytes and PyBytes_GET_SIZE(value) <= self.room

    cdef bint _is_plain(self, object given, Item* item) except -1:
        cdef object value = given
        cdef object key = None
        cdef object timestamp = None
        cdef object its_type = 0
        if type(given) is tuple:
            if len(<tuple> given) == 2:
                key, value = <tuple> given
            elif len(<tuple> given) == 3:
                key, value, timestamp = <tuple> given
            elif len(<tuple> given) == 4:
                key, value, timestamp, its_type = <tuple> given
            else:
                return False
        return self._is_fine(value, key, timestamp, its_type, item)

    cdef bint _is_fine(self, object value, object key, object timestamp, object its_type, Item* item) except -1:
        """Are these what they should be? Then `item` has them."""
        if type(value) is not bytes:
            return False
        item.value = PyBytes_AS_STRING(value)
        item.value_size = PyBytes_GET_SIZE(value)
        if item.value_size < self.sej.min_size or item.value_size > self.sej.max_size:
            return False
        item.key = NULL
        item.key_size = 0
        if type(key) is bytes:
            item.key = PyBytes_AS_STRING(key)
            item.key_size = PyBytes_GET_SIZE(key)
        elif type(key) is str:
            try:
                item.key = PyUnicode_AsUTF8AndSize(key, &item.key_size)
            except UnicodeEncodeError:
                return False
        elif key is not None:
            return False
        # sej takes a record of more than 31 bits for damage.
        if item.key_size > self.sej.max_key_size or OVERHEAD + item.key_size + item.value_size > INT32_MAX:
            return False
        if type(its_type) is not int or not 0 <= its_type <= 255:
            return False
        item.type = its_type
        item.has_time = timestamp is not None
        if item.has_time:
            if type(timestamp) is not int or not -(2**63) <= timestamp < 2**63:
                return False
            item.timestamp = timestamp
        return True

    cdef int _append_item(self, const Item* item, int64_t now) except -1:
        """Lay one message down. The file must not be full."""
        cdef Py_ssize_t size = OVERHEAD + item.key_size + item.value_size
        sej_lay_down(
            self._room_for(size), self.first + self.records, item.timestamp if item.has_time else now, item.type,
            item.key, item.key_size, item.value, item.value_size,
        )
        self._laid_down(size)
        self.accepted_bytes += size
        return 0

    cdef object _put_message(self, object value, object key, object timestamp, object its_type, Way way):
        cdef Item item
        cdef Py_ssize_t used = self.used
        cdef int64_t records = self.records
        if self._is_full() or not self._is_fine(value, key, timestamp, its_type, &item):
            return None
        self._append_item(&item, 0 if item.has_time else self._now())
        self.room -= self.used - used
        if self._is_full() or self.used - self.written >= FLUSH_AT:
            way = WRITTEN
        if way == WRITTEN or (way == JOTTED and not self._stage(used)):
            try:
                self._flush()
            except OSError:
                self._rewind(used, records)
                raise
            if self._is_full():
                self.on_full()
        return self.first + records

    cdef void _rewind(self, Py_ssize_t used, int64_t records) noexcept:
        self.accepted_bytes -= self.used - used
        AppendBuffer._rewind(self, used, records)

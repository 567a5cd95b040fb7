# The append buffers of a stream: one for each partition, and a router that sends each message to its partition.
#
# Law: a record's rows are written after the record, the index row last: a reader that finds an index row
# finds the record. The rows of single records may wait, to be written together; the data file is
# the authority, and recovery rebuilds the rows from it.
#
# The record that fills a segment is its last one. The router calls its owner (`on_full`) in the same call,
# before the next record.
#
# A stream may have very many partitions, of which few are written to at a time. Nothing here walks over them
# all: the buffers that may have something to write are listed (`active`), from their first record until all
# of it is written, and what the others have accepted is one sum.

from operator import attrgetter

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t
from libc.string cimport memmove

from diskq._native.core.append_buffer cimport FLUSH_AT, STAGED, WRITTEN, Mode
from diskq._native.core.gate cimport FORCED, Admission, Gate
from diskq._native.core.offset_buffer cimport OffsetBuffer, Plain, is_plain, key_bytes, now_by, size_of_values
from diskq._native.core.send_batch cimport Gathering
from diskq._native.stream.codec cimport (
    INDEX_ROW,
    TIMEINDEX_ROW,
    TripletFraming,
    fnv1,
    put_index_row,
    put_timeindex_row,
)
from diskq._native.core.views cimport start_of

from diskq._native.core.message import Position as _Position

cdef enum:
    START_ROWS = 256
    MADE_KEY = 32                  # hex digits of a generated key

cdef object _make_tuple = tuple.__new__
cdef object _partition_of = attrgetter("partition")


cdef class TripletBuffer(OffsetBuffer):
    """One partition's active segment: takes messages in, and writes records and rows into the page cache."""

    def __cinit__(self, fs, TripletFraming framing not None, Gate gate not None, on_block):
        self.triplets = framing
        self.index_handle = self.timeindex_handle = -1

    def __dealloc__(self):
        PyMem_RawFree(self.index_rows)
        PyMem_RawFree(self.timeindex_rows)

    def number(self, int partition, int64_t next_offset):
        """Set the partition's number and its next offset. Once, before the first record."""
        self.partition = partition
        self.first = self.rows_from = self.base = next_offset

    def begin_rows(self, int64_t base, int index_handle, int timeindex_handle):
        """Write the rows of later records to these files, of the segment that begins at `base`."""
        if self.rows_from != self.first + self.records:
            raise AssertionError("a segment was left with rows that are not written")
        self.base = base
        self.index_handle = index_handle
        self.timeindex_handle = timeindex_handle

    def adopt(self, int64_t count):
        """Count records that are in the next file already, with their rows. Between two files, all being written."""
        if self.handle >= 0 or not self.is_flushed:
            raise AssertionError("records were adopted into a segment that is being written")
        self.first += count
        self.rows_from += count

    @property
    def rows_written(self):
        """The offset after that of the last record whose rows are in the page cache."""
        return self.rows_from

    @property
    def is_flushed(self):
        """True if all records and their rows are in the page cache."""
        return self.used == self.written and self.rows_from == self.first + self.records

    def write_rows(self):
        """Write the rows of the written records. Raises OSError; they then go on waiting."""
        cdef int64_t count = self.first + self.records_written - self.rows_from
        cdef int64_t row = self.rows_from - self.base
        cdef Py_ssize_t left
        if count <= 0:
            return
        self._write(self.timeindex_handle, self.timeindex_rows, count * TIMEINDEX_ROW, row * TIMEINDEX_ROW)
        self._write(self.index_handle, self.index_rows, count * INDEX_ROW, row * INDEX_ROW)
        self.rows_from += count
        left = self.first + self.records - self.rows_from
        if left:
            memmove(self.timeindex_rows, self.timeindex_rows + count * TIMEINDEX_ROW, left * TIMEINDEX_ROW)
            memmove(self.index_rows, self.index_rows + count * INDEX_ROW, left * INDEX_ROW)

    # --- inside -----------------------------------------------------------------------------------

    cdef bint _append_triplet(
        self, const char* key, Py_ssize_t key_size, int64_t timestamp, const char* value, Py_ssize_t value_size
    ) except -1:
        """Encode one record and its rows. False: the segment is full."""
        cdef Py_ssize_t size = self.triplets.size_of(key_size, value_size)
        if self._is_full():
            return False
        self.triplets.lay_down(self._room_for(size), key, key_size, timestamp, value, value_size)
        self._take_in(size, timestamp)
        return True

    cdef int _take_in(self, Py_ssize_t size, int64_t timestamp) except -1:
        cdef int64_t offset = self.first + self.records
        cdef Py_ssize_t row = offset - self.rows_from
        if row >= self.rows_room:
            self._make_room_for_a_row()
        put_index_row(self.index_rows + row * INDEX_ROW, offset, self.origin + self.used, size)
        put_timeindex_row(self.timeindex_rows + row * TIMEINDEX_ROW, offset, timestamp)
        self._laid_down(size)
        return 0

    cdef int _make_room_for_a_row(self) except -1:
        cdef Py_ssize_t room = max(START_ROWS, 2 * self.rows_room)
        cdef char* rows = <char*> PyMem_RawRealloc(self.index_rows, room * INDEX_ROW)
        if rows == NULL:
            raise MemoryError()
        self.index_rows = rows
        rows = <char*> PyMem_RawRealloc(self.timeindex_rows, room * TIMEINDEX_ROW)
        if rows == NULL:
            raise MemoryError()
        self.timeindex_rows = rows
        self.rows_room = room
        return 0

    cdef int _write(self, int handle, const char* data, Py_ssize_t size, int64_t offset) except -1:
        cdef Py_ssize_t taken
        while size:
            taken = self.file_calls.pwrite(handle, data, size, offset)
            data += taken
            size -= taken
            offset += taken
        return 0


cdef class StreamRouter:
    """Takes messages in, and routes each by its key to a partition of the stream.

    `new_key()` makes a key for a message without one. `clock()` returns the time (ns since the Unix
    epoch), None: the system's clock. `on_full(partition)` is called when a segment is full and written;
    it does not raise. `is_awake`: True if waiting rows will be written soon. `room`: the bytes that may pass
    the fast path; each message counts `index_bytes` bytes besides its record. `batch_starts`: for each
    partition of the last batch of `append_many`, the next offset that it had before.
    """

    def __cinit__(self, buffers, TripletFraming framing not None, Gate gate not None, new_key, clock, on_full):
        cdef TripletBuffer buffer
        self.buffers = tuple(buffers)
        self.count = len(self.buffers)
        self.active = []
        self.observers = []
        self.batch_starts = {}
        for buffer in self.buffers:
            buffer.is_active = False
            self.idle_records += buffer.records
            self.idle_bytes += buffer.accepted_bytes
            if not buffer.is_flushed:
                self._activate(buffer)
        self.framing = framing
        self.gate = gate
        self.new_key = new_key
        self.clock = clock
        self.on_full = on_full
        self.touched = []

    def __dealloc__(self):
        PyMem_RawFree(self.routes)

    # --- adding records ---------------------------------------------------------------------------

    def appender(self, Mode mode, Admission admission):
        """Return an appender, which adds messages in that mode, and checks that of the gate."""
        return StreamAppender(self, mode, admission)

    def gathering(self, current_task, Py_ssize_t largest):
        """Return what gathers messages to be written together later."""
        return StreamGathering(self, current_task, largest)

    def first_odd(self, list items, Py_ssize_t start=0):
        """Return the index of the first item from `start` on that needs checking; -1: none does.

        Items are values, (key, value) or (key, value, timestamp).
        """
        cdef Py_ssize_t i
        cdef object value, key, timestamp
        cdef Plain plain
        for i in range(start, len(items)):
            item = items[i]
            key = timestamp = None
            if type(item) is tuple:
                if len(<tuple> item) == 2:
                    key, value = <tuple> item
                elif len(<tuple> item) == 3:
                    key, value, timestamp = <tuple> item
                else:
                    return i
            else:
                value = item
            if not is_plain(value, key, timestamp, self.framing, &plain):
                return i
        return -1

    def size_of(self, list items):
        """Return the total size of the values of plain items."""
        return size_of_values(items)

    def room_of(self, list items, key):
        """Return the total size of the records of plain items; `key` is for items that have none."""
        cdef Py_ssize_t total = 0
        cdef Py_ssize_t size = 0
        cdef object own_key, value
        for item in items:
            own_key, value = key, item
            if type(item) is tuple:
                own_key = (<tuple> item)[0] or key
                value = (<tuple> item)[1]
            size = MADE_KEY
            if own_key:
                key_bytes(own_key, &size)
            total += self.framing.size_of(size, len(<bytes> value))
        return total

    def begin_batch(self):
        """Begin another batch of `append_many` calls, for `left_out` and `batch_starts`."""
        self.routed = 0
        self.batch_starts = {}

    def append_many(self, list items, Py_ssize_t start, key, timestamp, Mode mode):
        """Take in items[start:] while their segments have space; return the index of the first one left out.

        All must be plain (`first_odd`). `key` and `timestamp` are for items that have none. The gate is not
        checked. STAGED ones are written unless `is_awake`. Raises OSError if a write fails: items not written
        by then are not accepted, in any partition (`left_out`).
        """
        cdef Py_ssize_t i = start
        cdef Py_ssize_t n = len(items)
        cdef TripletBuffer buffer
        cdef object own_key, own_time, value
        cdef object routed_key = None
        cdef object now = timestamp
        if not 0 <= start <= n:
            raise ValueError(f"start is 0 to {n}, got {start}")
        if now is None:
            now = now_by(self.clock)
        self._make_room_for_routes(n)
        self.routed = start
        try:
            while i < n:
                value = items[i]
                own_key, own_time = key, now
                if type(value) is tuple:
                    if (<tuple> value)[0] is not None:
                        own_key = (<tuple> value)[0]
                    if len(<tuple> value) == 3 and (<tuple> value)[2] is not None:
                        own_time = (<tuple> value)[2]
                    value = (<tuple> value)[1]
                own_key = own_key or self.new_key()
                if own_key is not routed_key:
                    buffer = self._route(own_key)
                    routed_key = own_key
                self.routes[i] = buffer.partition
                self.routed = i + 1
                if not buffer.is_in_batch:
                    self._touch(buffer)
                if not self._lay(buffer, value, own_key, own_time):
                    break
                i += 1
                if buffer._is_full() or buffer.used - buffer.written >= FLUSH_AT:
                    buffer._flush()
                    self._touch(buffer)
                    if buffer._is_full():
                        self.on_full(buffer.partition)
                        self._touch(buffer)
            if mode == STAGED or mode == WRITTEN:
                for buffer in self.touched:
                    if not (mode == STAGED and self.is_awake and buffer._stage(buffer.batch_used)):
                        buffer._flush()
                    buffer.batch_used, buffer.batch_records = buffer.used, buffer.records
        except BaseException:
            for buffer in self.touched:
                buffer._rewind(buffer.batch_used, buffer.batch_records)
            raise
        finally:
            for buffer in self.touched:
                buffer.is_in_batch = False
            self.touched.clear()
        return i

    def append_encoded(self, Py_ssize_t partition, const unsigned char[::1] data, Py_ssize_t start=0):
        """Take in the encoded records data[start:] at the end of that partition.

        Returns the byte after the last one taken, where the next call is to begin; raises as `_take_encoded`.
        """
        cdef TripletBuffer buffer = self.buffers[partition]
        cdef Py_ssize_t end
        if not buffer.is_active:
            self._activate(buffer)
        end = buffer._take_encoded(start_of(data), data.shape[0], start)
        if end > start and buffer._is_full():
            self.on_full(buffer.partition)
        return end

    def taken(self):
        """Return how many messages of the last batch of `append_many` each partition got, if it got any."""
        cdef TripletBuffer buffer
        cdef dict taken = {}
        for partition, start in self.batch_starts.items():
            buffer = <TripletBuffer> self.buffers[partition]
            if buffer.first + buffer.records > start:
                taken[partition] = buffer.first + buffer.records - start
        return taken

    def left_out(self, list items):
        """Return, in order, the items of the last batch of `append_many` that were not accepted.

        A batch fails for one partition, and what others have written by then stays: of each partition the first
        ones were accepted, as many as `taken` says.
        """
        cdef Py_ssize_t i
        cdef dict left = self.taken()
        cdef list rest = []
        for i in range(self.routed):
            if left.get(self.routes[i], 0) > 0:
                left[self.routes[i]] -= 1
            else:
                rest.append(items[i])
        rest += items[self.routed:]
        return rest

    def routed_to(self):
        """Return the partition that each item of the last batch of `append_many` went to, as far as it came."""
        return [self.routes[i] for i in range(self.routed)]

    def changes(self):
        """Return a new list of the partitions that take records from now on; `close` it."""
        return Changes(self)

    @property
    def active_partitions(self):
        """The partitions in which records or rows may wait to be written; those of a failed write are among them."""
        return [(<TripletBuffer> buffer).partition for buffer in self.active]

    def flush(self):
        """Write the waiting records of all partitions. Raises OSError if a write fails: those go on waiting."""
        self._write_all(False)

    def write_rows(self):
        """Write the waiting rows of all partitions. Raises OSError if a write fails: those go on waiting."""
        try:
            self._write_all(True)
        finally:
            self._note_idle()
        self.is_awake = False

    @property
    def records(self):
        """Records accepted, by all partitions."""
        cdef int64_t total = self.idle_records
        for buffer in self.active:
            total += (<TripletBuffer> buffer).records
        return total

    @property
    def accepted_bytes(self):
        """Bytes of records accepted, by all partitions."""
        cdef int64_t total = self.idle_bytes
        for buffer in self.active:
            total += (<TripletBuffer> buffer).accepted_bytes
        return total

    @property
    def waiting_bytes(self):
        """Bytes of accepted records that are not yet written, by all partitions."""
        cdef Py_ssize_t total = 0
        for buffer in self.active:
            total += (<TripletBuffer> buffer).used - (<TripletBuffer> buffer).written
        return total

    @property
    def is_flushed(self):
        """True if all records and their rows are in the page cache."""
        cdef TripletBuffer buffer
        for buffer in self.active:
            if not buffer.is_flushed:
                return False
        return True

    # --- inside -----------------------------------------------------------------------------------

    cdef bint _may_pass(self, object value) noexcept:
        """True if it needs no slow path: its rows will be written soon, and few bytes are unsynced."""
        return self.is_awake and type(value) is bytes and PyBytes_GET_SIZE(value) <= self.room

    cdef object _append(self, object value, object key, object timestamp, Mode mode):
        cdef Plain plain
        cdef TripletBuffer buffer
        cdef Py_ssize_t used
        cdef int64_t records
        if not is_plain(value, key, timestamp, self.framing, &plain):
            return None
        if plain.key_size == 0:
            key = self.new_key()
            plain.key = key_bytes(key, &plain.key_size)
        if not plain.has_time:
            plain.timestamp = now_by(self.clock)
        buffer = <TripletBuffer> (<tuple> self.buffers)[fnv1(plain.key, plain.key_size) % self.count]
        if not buffer.is_active:
            self._activate(buffer)
        used, records = buffer.used, buffer.records
        if not buffer._append_triplet(plain.key, plain.key_size, plain.timestamp, plain.value, plain.value_size):
            return None
        position = _make_tuple(_Position, (buffer.partition, buffer.first + records))
        self.room -= buffer.used - used + self.index_bytes
        if buffer._is_full():
            buffer._settle(used, records, WRITTEN)
            self.on_full(buffer.partition)
        else:
            buffer._settle(used, records, WRITTEN if mode == STAGED and not self.is_awake else mode)
        return position

    cdef TripletBuffer _route(self, object key):
        """Return the partition of `key`, which is bytes or str."""
        cdef Py_ssize_t size = 0
        cdef const char* data = key_bytes(key, &size)
        return <TripletBuffer> (<tuple> self.buffers)[fnv1(data, size) % self.count]

    cdef bint _lay(self, TripletBuffer buffer, object value, object key, object timestamp) except -1:
        """Encode one message. False: the segment is full."""
        cdef Py_ssize_t size = 0
        cdef const char* data = key_bytes(key, &size)
        return buffer._append_triplet(data, size, timestamp, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))

    cdef int _make_room_for_routes(self, Py_ssize_t n) except -1:
        cdef int* routes
        if n > self.routes_room:
            routes = <int*> PyMem_RawRealloc(self.routes, n * sizeof(int))
            if routes == NULL:
                raise MemoryError()
            self.routes = routes
            self.routes_room = n
        return 0

    cdef int _activate(self, TripletBuffer buffer) except -1:
        """List a buffer as one that may have something to write. Before its next record."""
        cdef Changes changes
        self.active.append(buffer)
        buffer.is_active = True
        self.idle_records -= buffer.records
        self.idle_bytes -= buffer.accepted_bytes
        for changes in self.observers:
            changes.partitions.add(buffer.partition)
        return 0

    cdef int _note_idle(self) except -1:
        """Drop the buffers from the list of which everything is written."""
        cdef TripletBuffer buffer
        cdef list active = []
        for buffer in self.active:
            if not buffer.is_flushed:
                active.append(buffer)
                continue
            buffer.is_active = False
            self.idle_records += buffer.records
            self.idle_bytes += buffer.accepted_bytes
        self.active = active
        return 0

    cdef int _write_all(self, bint rows) except -1:
        """Write the waiting records or rows of each partition; then raise the first OSError."""
        cdef TripletBuffer buffer
        cdef object failure = None
        if len(self.active) > 1:
            self.active.sort(key=_partition_of)  # on a full disk each makes room for the next one
        for buffer in self.active:
            try:
                if rows:
                    buffer.write_rows()
                elif buffer.used != buffer.written:
                    buffer._flush()
            except OSError as its:
                failure = failure or its
        if failure is not None:
            raise failure
        return 0

    cdef int _touch(self, TripletBuffer buffer) except -1:
        """Mark the state to go back to if the batch cannot be written."""
        if not buffer.is_in_batch:
            if not buffer.is_active:
                self._activate(buffer)
            self.touched.append(buffer)
            buffer.is_in_batch = True
            self.batch_starts.setdefault(buffer.partition, buffer.first + buffer.records)
        buffer.batch_used, buffer.batch_records = buffer.used, buffer.records
        return 0


cdef class Changes:
    """The partitions that took records since they were taken from here last. `close` it when it is not needed."""

    def __cinit__(self, StreamRouter router not None):
        self.router = router
        self.partitions = set(router.active_partitions)
        router.observers.append(self)

    def take(self):
        """Return them. Those with something to write stay, and are returned again when it is written."""
        cdef TripletBuffer buffer
        cdef set left = set()
        cdef set found = self.partitions
        if not found:
            return ()
        for partition in found:
            buffer = <TripletBuffer> self.router.buffers[partition]
            if buffer.is_active:
                left.add(partition)
        self.partitions = left
        return found

    def close(self):
        """Note no more. Idempotent."""
        if self in self.router.observers:
            self.router.observers.remove(self)


cdef class StreamAppender:
    """Adds messages to a stream, in one mode. It makes no decisions: the stream gets what it refuses.

    If it checks the gate, the router must be awake, and have space for the message. Rows wait for `write_rows`.
    """

    def __cinit__(self, StreamRouter router not None, Mode mode, Admission admission):
        self.router = router
        self.mode = mode
        self.admission = admission

    def append(self, value, key=None, timestamp=None):
        """Add one message, and return its `Position`. None: take the slow path (segment full, or to be checked).

        Raises OSError if the write fails; the message is then not accepted.
        """
        if self.admission != FORCED:
            if not self.router._may_pass(value) or not self.router.gate.lets_pass(self.admission):
                return None
        return self.router._append(value, key, timestamp, self.mode)


cdef class StreamGathering(Gathering):
    """Gathers messages that are to be written to a stream together, as items of `append_many`."""

    def __cinit__(self, StreamRouter router not None, current_task, Py_ssize_t largest):
        self.router = router
        self.gate = router.gate

    def add(self, value, key=None, timestamp=None):
        """Add a message of the running task, and return its number in the batch. -1: it needs the slow path."""
        cdef Plain plain
        cdef Py_ssize_t key_size
        if self.batch is None or not is_plain(value, key, timestamp, self.router.framing, &plain):
            return -1
        key_size = plain.key_size if plain.key_size else MADE_KEY
        return self._add(
            (key, value, timestamp), self.router.framing.size_of(key_size, plain.value_size) + self.router.index_bytes
        )

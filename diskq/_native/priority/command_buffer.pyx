# The end of a priority store's log: commands are encoded, and written to the active segment.
#
# Law: a command is written before it is carried out; several are written by one system call; what a failed
# write left is not counted, and is overwritten or cut off.
#
# The layout is the one that TaskFlux reads ("aligned"); the owner encodes the document's itself. Rolling to the
# next segment, zeros ahead of the log, full disks and limits are the owner's task, too.
#
# Messages whose senders wait for the same sync are gathered in an `AddBatch`, for any queues of the store, and
# written together.

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Size
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc

from diskq._native.core.byte_order cimport put_u32_be
from diskq._native.core.gate cimport COUNTED, TIMED
from diskq._native.core.thread_guard cimport check_guard
from diskq._native.priority.codec cimport ADD_FIELDS, END_SIZE, REMOVE_FIELDS, lay_add, lay_remove, record_size

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

cdef enum:
    LEAST_CAPACITY = 16 * 1024
    KEPT_CAPACITY = 1024 * 1024  # memory for a larger write is given back after it
    FEWEST_GATHERED = 16


@cython.final
cdef class CommandBuffer:
    """Writes commands after the last record of a segment.

    `write_zeros(end)` is called before a write that would end after byte `allocated`, if the owner
    `preallocates`: the write then ends at byte `end`.
    """

    def __cinit__(self, fs, Gate gate not None, Gate gate_out not None, write_zeros):
        self.file_calls = FileCalls(fs)
        self.gate = gate
        self.gate_out = gate_out
        self.write_zeros = write_zeros
        self.handle = -1
        self.term = 1

    def __dealloc__(self):
        PyMem_RawFree(self.memory)

    def retarget(self, int handle, int64_t base, int64_t end, int64_t next_offset, int64_t allocated):
        """Continue after byte `end` of a segment, whose file has `allocated` bytes. A handle of -1: there is none."""
        self.handle = handle
        self.base = base
        self.end = end
        self.next_offset = next_offset
        self.allocated = allocated
        self.is_noted = False

    # --- writing ----------------------------------------------------------------------------------

    def write(self, bytes data not None, Py_ssize_t records):
        """Write encoded records; `data` has the end marker after them. They are counted by the caller.

        Raises OSError; there may then be bytes after `end`.
        """
        self._write(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), records)

    def write_adds(self, bytes name not None, list payloads not None, keys, Py_ssize_t start=0):
        """Write commands that add `payloads[start:]` to a queue. Returns the index after the last one.

        `keys` is one number for all of them, or a list with one for each. It ends with the record that reaches the
        hard limit. Raises as `write`, and OverflowError for a key beyond 64 bits.
        """
        cdef Py_ssize_t fields = ADD_FIELDS + PyBytes_GET_SIZE(name)
        cdef Py_ssize_t count = len(payloads)
        cdef Py_ssize_t room = self._room()
        cdef Py_ssize_t total = 0
        cdef Py_ssize_t stop = start
        cdef Py_ssize_t i
        cdef bint is_list = isinstance(keys, list)
        cdef int64_t key = 0
        cdef char* at
        if not 0 <= start <= count:
            raise ValueError(f"start is 0 to {count}, got {start}")
        if is_list and len(keys) != count:
            raise ValueError("as many keys as payloads")
        if not is_list:
            key = keys
        while stop < count and (total < room or stop == start):
            total += record_size(fields + PyBytes_GET_SIZE(<bytes?> payloads[stop]), False)
            stop += 1
        at = self._space(total + END_SIZE)
        for i in range(start, stop):
            if is_list:
                key = (<list> keys)[i]
            at = lay_add(at, name, key, <bytes> payloads[i], self.term, False)
        self._write_counted(total, stop - start)
        return stop

    def write_removes(self, bytes name not None, list ids not None, Py_ssize_t start=0):
        """Write commands that remove `ids[start:]` from a queue, as `write_adds` does."""
        cdef Py_ssize_t size = record_size(REMOVE_FIELDS + PyBytes_GET_SIZE(name), False)
        cdef Py_ssize_t most = max(<Py_ssize_t> 1, (self._room() + size - 1) // size)
        cdef Py_ssize_t stop = start + min(most, len(ids) - start)
        cdef Py_ssize_t i
        cdef char* at
        if not 0 <= start <= len(ids):
            raise ValueError(f"start is 0 to {len(ids)}, got {start}")
        at = self._space((stop - start) * size + END_SIZE)
        for i in range(start, stop):
            at = lay_remove(at, name, ids[i], self.term, False)
        self._write_counted((stop - start) * size, stop - start)
        return stop

    def write_batch(self, AddBatch batch not None, Py_ssize_t start=0):
        """Write the messages gathered from number `start` on, and store them, hidden. Returns as `write_adds`.

        Raises OSError, after which none of them is in; and MemoryError, after which the log `is_ahead` of the state,
        or none of them is in.
        """
        cdef Py_ssize_t room = self._room()
        cdef Py_ssize_t total = 0
        cdef Py_ssize_t stop = start
        cdef Py_ssize_t i
        cdef QueueCalls calls
        cdef bytes payload
        cdef char* at
        if not 0 <= start <= batch.count:
            raise ValueError(f"start is 0 to {batch.count}, got {start}")
        while stop < batch.count and (total < room or stop == start):
            calls, payload = <QueueCalls> batch.calls[stop], <bytes> batch.payloads[stop]
            total += record_size(calls.fields + PyBytes_GET_SIZE(payload), False)
            stop += 1
        at = self._space(total + END_SIZE)
        for i in range(start, stop):
            calls, payload = <QueueCalls> batch.calls[i], <bytes> batch.payloads[i]
            at = lay_add(at, calls.name, batch.numbers[i].key, payload, self.term, False)
        self._write_counted(total, stop - start)
        self.is_ahead = True
        for i in range(start, stop):
            calls, payload = <QueueCalls> batch.calls[i], <bytes> batch.payloads[i]
            calls.table.add_one(batch.numbers[i].key, payload, True)
            batch.numbers[i].id = calls.table.last_id
        self.is_ahead = False
        return stop

    cdef Py_ssize_t _room(self) noexcept:
        return max(<int64_t> 0, self.hard_limit - self.end)

    cdef bint _takes(self, Py_ssize_t size, Admission admission) except -1:
        """True if a record of `size` bytes may be written now, without any preparation."""
        if not self.gate.lets_pass(admission) or self.batch is not None or not self.is_noted:
            return False
        check_guard(self.gate.guard)
        return self.end <= self.full_at and self.accepted_bytes + size <= self.most_bytes

    cdef char* _space(self, Py_ssize_t size) except NULL:
        """Return memory for the records of one write."""
        cdef Py_ssize_t capacity = max(<Py_ssize_t> LEAST_CAPACITY, size)
        cdef char* memory
        if size > self.capacity or (self.capacity > KEPT_CAPACITY and size <= KEPT_CAPACITY):
            memory = <char*> PyMem_RawRealloc(self.memory, capacity)
            if memory == NULL:
                raise MemoryError
            self.memory = memory
            self.capacity = capacity
        return self.memory

    cdef int _write_counted(self, Py_ssize_t size, Py_ssize_t records) except -1:
        """Write and count the records in memory, of `size` bytes."""
        put_u32_be(self.memory + size, 0)
        self._write(self.memory, size + END_SIZE, records)
        self.accepted_bytes += size
        self.passed += records
        return 0

    cdef int _write(self, const char* data, Py_ssize_t size, Py_ssize_t records) except -1:
        cdef Py_ssize_t done = 0
        if self.preallocates and self.end + size > self.allocated:
            self.write_zeros(self.end + size)
        while done < size:
            done += self.file_calls.pwrite(self.handle, data + done, size - done, self.end + done)
        self.end += size - END_SIZE
        self.allocated = max(self.allocated, self.end + END_SIZE)
        self.next_offset += records
        return 0


# --- what is written together -----------------------------------------------------------------------


cdef class AddBatch:
    """Messages of any queues, in order of arrival, and the tasks that sent them. `room`: about how many bytes fit.

    Each has a number, from 0 on, and gets an id when it is written.
    """

    def __cinit__(self, Py_ssize_t room):
        self.room = room
        self.tasks, self.calls, self.payloads = [], [], []

    def __dealloc__(self):
        PyMem_RawFree(self.numbers)

    def __len__(self):
        return self.count

    def id_of(self, Py_ssize_t number):
        """Return the id of a message; 0: it is not in the queue."""
        self._check(number)
        return self.numbers[number].id

    def set_id(self, Py_ssize_t number, uint64_t id):
        """Note that the message was written by itself."""
        self._check(number)
        self.numbers[number].id = id

    def message(self, Py_ssize_t number):
        """Return the queue, the payload and the priority of a message."""
        self._check(number)
        return (<QueueCalls> self.calls[number]).queue, self.payloads[number], self.numbers[number].key

    def tables(self):
        """Return the tables in which the messages are stored, as a dict without values."""
        return {(<QueueCalls> calls).table: None for calls in self.calls}

    cdef int _check(self, Py_ssize_t number) except -1:
        if not 0 <= number < self.count:
            raise IndexError(f"message {number} of {self.count}")
        return 0

    cdef int _append(self, QueueCalls calls, object payload, object task, int64_t key) except -1:
        cdef Py_ssize_t capacity
        cdef Numbers* numbers
        if self.count == self.capacity:
            capacity = max(<Py_ssize_t> FEWEST_GATHERED, 2 * self.capacity)
            numbers = <Numbers*> PyMem_RawRealloc(self.numbers, capacity * sizeof(Numbers))
            if numbers == NULL:
                raise MemoryError
            self.numbers = numbers
            self.capacity = capacity
        try:
            self.calls.append(calls)
            self.payloads.append(payload)
            self.tasks.append(task)
        except MemoryError:
            for each in (self.calls, self.payloads, self.tasks):
                del each[self.count :]
            raise
        self.numbers[self.count].key = key
        self.numbers[self.count].id = 0
        self.count += 1
        return 0


@cython.final
cdef class QueueCalls:
    """What is called for each message of one queue. It makes no decisions: the owner gets what it refuses.

    `queue` is whatever the owner calls it. Messages are bytes of `largest` bytes at most, of `largest_gathered` in a
    batch, with keys from `lowest` to `highest`. Nothing passes the `senders` and `receivers` that wait.
    """

    def __cinit__(
        self, CommandBuffer buffer not None, queue, RecordTable table not None, bytes name not None,
        int64_t lowest, int64_t highest, Py_ssize_t largest, Py_ssize_t largest_gathered,
    ):
        self.buffer = buffer
        self.queue = queue
        self.table = table
        self.name = name
        self.lowest = lowest
        self.highest = highest
        self.largest = largest
        self.largest_gathered = min(largest, largest_gathered)
        self.fields = ADD_FIELDS + PyBytes_GET_SIZE(name)
        self.senders, self.receivers = {}, {}

    # --- messages that wait for a sync ------------------------------------------------------------

    def gather(self, payload, key, task):
        """Add a message of a task to the buffer's batch, and return that; it is the batch's last one then.

        None: there is no batch, the message does not fit, or it needs checks. Raises in any thread but the store's.
        """
        return self._gather(payload, key, task)

    def gather_own(self, payload, key):
        """Do the same for the running task of a Trio run. None also if it is cancelled, or `running` is not set."""
        if self.running is None:
            return None
        task = self.running.context.task
        if task._cancel_status.effectively_cancelled:
            return None
        return self._gather(payload, key, task)

    cdef AddBatch _gather(self, object payload, object key, object task):
        cdef AddBatch batch = self.buffer.batch
        cdef Py_ssize_t size
        cdef int64_t number
        check_guard(self.buffer.gate.guard)
        if batch is None or not self.is_open or self.is_bounded or type(payload) is not bytes:
            return None
        size = PyBytes_GET_SIZE(payload)
        if size > self.largest_gathered or size > batch.room:
            return None
        if not self._key(key, &number):
            return None
        batch._append(self, payload, task, number)
        batch.room -= size
        return batch

    # --- messages that are written at once ---------------------------------------------------------

    def put(self, payload, key):
        """Write a message, which can be received at once. Returns its id; None: take the slow path.

        Raises OSError if the write fails; it is then not in the queue.
        """
        return self._put(payload, key, TIMED)

    def put_now(self, payload, key):
        """Do the same for a caller that cannot let other tasks run."""
        return self._put(payload, key, COUNTED)

    cdef object _put(self, object payload, object key, Admission admission):
        cdef CommandBuffer buffer = self.buffer
        cdef Py_ssize_t size
        cdef int64_t number
        if not self.is_open or self.is_bounded or type(payload) is not bytes:
            return None
        size = record_size(self.fields + PyBytes_GET_SIZE(payload), False)
        if PyBytes_GET_SIZE(payload) > self.largest or not buffer._takes(size, admission):
            return None
        if PyDict_Size(self.receivers) or PyDict_Size(self.senders) or not self._key(key, &number):
            return None
        self.table.reserve()
        lay_add(buffer._space(size + END_SIZE), self.name, number, <bytes> payload, buffer.term, False)
        buffer._write_counted(size, 1)
        buffer.gate.left -= 1
        self.table.add_one(number, <bytes> payload, False)
        return self.table.last_id

    def take(self):
        """Return the next message; None: there is none, or take the slow path."""
        if not self.table.ready or not self.is_open or PyDict_Size(self.receivers):
            return None
        if not self.buffer.gate_out.lets_pass(TIMED):
            return None
        check_guard(self.buffer.gate_out.guard)
        return self.table.take_one()

    def settle(self, record):
        """Write that a message is acknowledged. False: take the slow path.

        Raises OSError if the write fails; it is then in the receiver's hand as before.
        """
        cdef CommandBuffer buffer = self.buffer
        cdef Py_ssize_t size
        if type(record) is not PriorityRecord or not self.is_open or PyDict_Size(self.senders):
            return False
        size = record_size(REMOVE_FIELDS + PyBytes_GET_SIZE(self.name), False)
        if not self.table.holds(<PriorityRecord> record) or not buffer._takes(size, TIMED):
            return False
        lay_remove(buffer._space(size + END_SIZE), self.name, (<PriorityRecord> record).id, buffer.term, False)
        buffer._write_counted(size, 1)
        buffer.gate.left -= 1
        self.table.forget_one(<PriorityRecord> record)
        return True

    cdef bint _key(self, object key, int64_t* number) except -1:
        """Set the number of a key. False: it needs checks, or is out of range."""
        cdef int overflow = 0
        if type(key) is not int:
            return False
        number[0] = PyLong_AsLongLongAndOverflow(key, &overflow)
        return not overflow and self.lowest <= number[0] <= self.highest

# Checking the command log without executing it: every record and command is checked as `scan` does, and the
# remaining messages are counted. No object is made for any of them.
#
# Law: the count equals that after executing the log: each message of a queue gets the next id, and an id can be
# removed once.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcmp, memset

from diskq._native.priority.codec cimport (
    NARROW_HEAD,
    RECORD,
    UNKNOWN,
    Command,
    Record,
    Stop,
    judge_command,
    parse_record,
)
from diskq._native.core.views cimport start_of
from diskq._native.core.byte_order cimport get_i32_be, get_u64_be

from typing import NamedTuple

from diskq._native.priority.codec import STOPS as _STOPS

cdef enum:
    KNOWN_KINDS = 2      # of queues: H4 and QA; 0 is the default one


class TallyResult(NamedTuple):
    """The result of `CommandTally.add`: like `CommandScan`, without the commands."""

    records: int
    end: int
    stop: str
    term: int
    is_narrow: bool
    is_document: bool


cdef class _Queue:
    """The messages of one queue: those of a snapshot, and a bit for each later one."""

    cdef object table            # of the snapshot; None: the queue was not in it
    cdef uint64_t before         # the last id in the snapshot
    cdef uint64_t given          # the number of ids after that
    cdef Py_ssize_t capacity     # bytes
    cdef unsigned char* bits
    cdef Py_ssize_t stored       # of those with a bit

    def __cinit__(self, table):
        self.table = table
        self.before = 0 if table is None else table.last_id

    def __dealloc__(self):
        PyMem_RawFree(self.bits)

    cdef int add(self) except -1:
        cdef Py_ssize_t size
        cdef unsigned char* bits
        if <Py_ssize_t> (self.given >> 3) == self.capacity:
            size = max(4096, 2 * self.capacity)
            bits = <unsigned char*> PyMem_RawRealloc(self.bits, size)
            if bits == NULL:
                raise MemoryError()
            memset(bits + self.capacity, 0, size - self.capacity)
            self.bits, self.capacity = bits, size
        self.bits[self.given >> 3] |= 1 << (self.given & 7)
        self.given += 1
        self.stored += 1
        return 0

    cdef int remove(self, uint64_t id) except -1:
        cdef uint64_t number
        if id <= self.before:
            if self.table is not None:
                self.table.load_remove(id)
            return 0
        number = id - self.before - 1
        if number < self.given and self.bits[number >> 3] >> (number & 7) & 1:
            self.bits[number >> 3] &= ~(1 << (number & 7))
            self.stored -= 1
        return 0


cdef class CommandTally:
    """Counts the messages that a snapshot and the commands after it leave."""

    cdef dict queues
    cdef bytes name              # of the queue that the last command was for
    cdef _Queue queue

    def __cinit__(self, dict tables not None):
        """`tables`: by name, the loaded `RecordTable` of each queue of the snapshot."""
        self.queues = {name: _Queue(table) for name, table in tables.items()}
        self.name = None

    @property
    def stored(self):
        """Return the number of messages."""
        cdef _Queue queue
        total = 0
        for queue in self.queues.values():
            total += queue.stored + (0 if queue.table is None else queue.table.stored)
        return total

    def add(self, const unsigned char[::1] buffer, Py_ssize_t rest=-1, Py_ssize_t skip=0):
        """Count the records at the start of `buffer`, after the head of a segment's file, as `scan` does.

        The first `skip` records are in the snapshot already.
        """
        cdef const char* data = start_of(buffer)
        cdef Py_ssize_t left = buffer.shape[0]
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t records = 0
        cdef Record record
        cdef Command command
        cdef Stop stop, inner
        cdef int64_t term = 0
        cdef bint is_narrow = False
        cdef bint is_document = False
        rest = max(rest, left)
        while True:
            stop = parse_record(data + at, left - at, rest - at, &record)
            if stop != RECORD:
                break
            inner = judge_command(data + at + record.payload, record.payload_size, &command)
            if inner != RECORD:
                stop = inner
                break
            if records >= skip and not self._carry_out(data + at + record.payload, &command):
                stop = UNKNOWN
                break
            records += 1
            term = record.term
            is_narrow = record.payload == NARROW_HEAD
            is_document = is_document or record.is_document
            at += record.size
        return TallyResult(records, at, _STOPS[<int> stop], term, is_narrow, is_document)

    cdef bint _carry_out(self, const char* payload, const Command* command) except -1:
        """Apply a command. False: it creates a queue of an unknown kind."""
        cdef const char* fields = payload + command.fields
        cdef int32_t kind
        if self.name is None or PyBytes_GET_SIZE(self.name) != command.name_size or memcmp(
            PyBytes_AS_STRING(self.name), payload + 2, command.name_size
        ):
            self.name = PyBytes_FromStringAndSize(payload + 2, command.name_size)
            self.queue = self.queues.get(self.name)
        if command.kind == 0x52:
            if self.queue is not None:
                self.queue.remove(get_u64_be(fields))
        elif command.kind == 0x44:
            self.queues.pop(self.name, None)
            self.queue = None
        else:
            if command.kind == 0x43:
                kind = get_i32_be(fields)
                if self.queue is None and not 0 <= kind <= KNOWN_KINDS:
                    return False
            if self.queue is None:
                self.queue = self.queues[self.name] = _Queue(None)
            if command.kind == 0x41:
                self.queue.add()
        return True

# The messages of a stream and of a journal, and their positions. Law: one object is made for each delivered
# record, so they are small, their parts are read-only, and the garbage collector does not track them.

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN

from datetime import datetime, timedelta, timezone
from typing import NamedTuple

_EPOCH = datetime.fromtimestamp(0, timezone.utc)

# The timestamp of a journal's message without a time.
NULL_TIMESTAMP = INT64_MIN


class Position(NamedTuple):
    """The position of a message in a stream: its partition, and its offset there. Ordered like tuples."""

    partition: int
    offset: int


class Scan(NamedTuple):
    """The result of a codec's `scan`: the messages, the byte after the last whole record, and why it stopped."""

    messages: list
    valid_end: int
    stop: str


@cython.final
@cython.freelist(256)
@cython.no_gc
cdef class Message:
    """One message of a stream: its position, its time, its key and its value.

    `timestamp_ns` is nanoseconds since the Unix epoch, `key` and `value` are bytes. Two messages are
    equal if all their fields are.
    """

    def __init__(self, int partition, int64_t offset, int64_t timestamp_ns, bytes key not None, bytes value not None):
        self.partition = partition
        self.offset = offset
        self.timestamp_ns = timestamp_ns
        self.key = key
        self.value = value

    @property
    def timestamp(self):
        """The moment as an aware datetime in UTC, to the microsecond (rounded down).

        Never raises: 64 bits of nanoseconds reach from the year 1677 to 2262.
        """
        return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)

    @property
    def position(self):
        """Where it is: `Position(partition, offset)`."""
        return Position(self.partition, self.offset)

    def __eq__(self, other):
        if type(other) is not Message:
            return NotImplemented
        return self._parts() == (<Message> other)._parts()

    def __hash__(self):
        return hash(self._parts())

    def __reduce__(self):
        return Message, self._parts()

    def __repr__(self):
        return (
            f"Message(partition={self.partition}, offset={self.offset}, timestamp_ns={self.timestamp_ns}, "
            f"key={self.key!r}, value={self.value!r})"
        )

    cdef tuple _parts(self):
        return (self.partition, self.offset, self.timestamp_ns, self.key, self.value)


cdef Message message_of(int partition, const char* record, const Parts* parts):
    """Return the message whose parts these are, of the record that is there."""
    cdef Message message = Message.__new__(Message)
    message.partition = partition
    message.offset = parts.offset
    message.timestamp_ns = parts.timestamp
    message.key = PyBytes_FromStringAndSize(record + parts.key, parts.key_size)
    message.value = PyBytes_FromStringAndSize(record + parts.value, parts.value_size)
    return message


@cython.final
@cython.freelist(256)
@cython.no_gc
cdef class JournalMessage:
    """One message of a journal: its position, its time, its type, its key and its value.

    `timestamp_ns` is nanoseconds since the Unix epoch, None if the message has no time; `type` a number
    from 0 to 255 whose meaning the writer defines; `key` and `value` are bytes. `partition` is the number of
    the shard, 0 in a journal without shards. Two messages are equal if all their fields are.
    """

    def __init__(
        self, int partition, int64_t offset, timestamp_ns, int type, bytes key not None, bytes value not None
    ):
        self.partition = partition
        self.offset = offset
        self.nanoseconds = INT64_MIN if timestamp_ns is None else timestamp_ns
        self.type = type
        self.key = key
        self.value = value

    @property
    def timestamp_ns(self):
        """Nanoseconds since the Unix epoch; None: the message has no time."""
        return None if self.nanoseconds == INT64_MIN else self.nanoseconds

    @property
    def timestamp(self):
        """The moment as an aware datetime in UTC, to the microsecond (rounded down); None: no time."""
        if self.nanoseconds == INT64_MIN:
            return None
        return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)

    @property
    def position(self):
        """Where it is: `Position(partition, offset)`."""
        return Position(self.partition, self.offset)

    def __eq__(self, other):
        if type(other) is not JournalMessage:
            return NotImplemented
        return self._parts() == (<JournalMessage> other)._parts()

    def __hash__(self):
        return hash(self._parts())

    def __reduce__(self):
        return JournalMessage, self._parts()

    def __repr__(self):
        return (
            f"JournalMessage(partition={self.partition}, offset={self.offset}, "
            f"timestamp_ns={self.timestamp_ns}, type={self.type}, key={self.key!r}, value={self.value!r})"
        )

    cdef tuple _parts(self):
        return (self.partition, self.offset, self.timestamp_ns, self.type, self.key, self.value)


cdef JournalMessage journal_message_of(int partition, const char* record, const Parts* parts):
    """Return the message whose parts these are, of the record that is there."""
    cdef JournalMessage message = JournalMessage.__new__(JournalMessage)
    message.partition = partition
    message.offset = parts.offset
    message.nanoseconds = parts.timestamp
    message.type = parts.type
    message.key = PyBytes_FromStringAndSize(record + parts.key, parts.key_size)
    message.value = PyBytes_FromStringAndSize(record + parts.value, parts.value_size)
    return message

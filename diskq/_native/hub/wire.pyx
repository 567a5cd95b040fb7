# The requests and answers of a hub, converted directly between the wire format (Protocol Buffers 3) and sej's
# records: no object is made for a message. Format: docs/hub.md.
#
# Law: as a codec. Lengths are checked before memory is touched, no byte is read past the buffer, and ValueError
# says what is wrong without any of the content. As Protocol Buffers require, unknown fields are skipped, the
# last of repeated fields counts, and a missing field is 0 or empty.

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from diskq._native.core.framing cimport Parts
from diskq._native.core.message cimport journal_message_of
from diskq._native.journal.codec cimport OVERHEAD, sej_lay_down
from diskq._native.core.views cimport start_of
from diskq._native.core.byte_order cimport get_varuint, is_number, put_varuint, varuint_size

from typing import NamedTuple

cdef enum:
    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5
    MOST_KEY = 127
    LARGEST_TYPE = 255

# The numbers of the fields of messages: of a PutRequest, and of a GetResponse.
OF_PUT = 3
OF_GET = 1


class Request(NamedTuple):
    """The result of `read_put` and `read_get`: unchecked names, and the offset that Get asks for."""

    client: bytes
    journal: bytes
    messages: int
    largest: int
    offset: int


class Records(NamedTuple):
    """The result of `records`: records of consecutive messages, and what was left out.

    `skipped` messages came before `expected`. `gap` is the offset of the first message after a gap, None: there
    is no gap.
    """

    data: bytes
    taken: int
    skipped: int
    gap: int | None


cdef struct Field:
    uint64_t number
    int kind
    uint64_t value               # of a varint; of bytes their size
    const char* data             # of bytes


cdef struct Part:                # one message
    uint64_t offset
    int64_t timestamp
    uint64_t type
    const char* key
    Py_ssize_t key_size
    const char* value
    Py_ssize_t value_size


cdef struct Columns:             # the buffers of a `JournalColumns`
    int64_t first_offset
    int width
    const char* timestamps
    const char* types
    const char* keys
    const char* key_offsets
    const char* values
    const char* value_offsets


# --- reading --------------------------------------------------------------------------------------


cdef Py_ssize_t _field(const char* data, Py_ssize_t left, Field* field) noexcept nogil:
    """Read the field at `data`, and return its bytes; -1: it is not a field."""
    cdef uint64_t tag
    cdef Py_ssize_t at, size
    at = get_varuint(data, left, &tag)
    if at <= 0 or tag >> 3 == 0 or tag >> 3 > 536870911:
        return -1
    field.number = tag >> 3
    field.kind = tag & 7
    field.value = 0
    field.data = NULL
    if field.kind == VARINT:
        size = get_varuint(data + at, left - at, &field.value)
        return at + size if size > 0 else -1
    if field.kind == FIXED64:
        return at + 8 if left - at >= 8 else -1
    if field.kind == FIXED32:
        return at + 4 if left - at >= 4 else -1
    if field.kind != BYTES:
        return -1
    size = get_varuint(data + at, left - at, &field.value)
    if size <= 0:
        return -1
    at += size
    if field.value > <uint64_t> (left - at):
        return -1
    field.data = data + at
    return at + <Py_ssize_t> field.value


cdef bint _part(const char* data, Py_ssize_t size, Part* part) noexcept nogil:
    """Read a message from these bytes. False: they are not one."""
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t step
    cdef Field field
    part.offset = part.type = 0
    part.timestamp = 0
    part.key = part.value = data
    part.key_size = part.value_size = 0
    while at < size:
        step = _field(data + at, size - at, &field)
        if step < 0:
            return False
        at += step
        if field.kind == VARINT:
            if field.number == 1:
                part.offset = field.value
            elif field.number == 2:
                part.timestamp = <int64_t> field.value
            elif field.number == 3:
                part.type = <uint32_t> field.value
        elif field.kind == BYTES:
            if field.number == 4:
                part.key, part.key_size = field.data, <Py_ssize_t> field.value
            elif field.number == 5:
                part.value, part.value_size = field.data, <Py_ssize_t> field.value
    return True


cdef str _fault(const Part* part):
    """Return why no record can be made of the message; None: one can."""
    if not is_number(part.offset):
        return f"an offset of {part.offset} is none"
    if part.type > LARGEST_TYPE:
        return f"message {part.offset}: a type is 0 to {LARGEST_TYPE}, not {part.type}"
    if part.key_size > MOST_KEY:
        return f"message {part.offset}: a key of {part.key_size} bytes: at most {MOST_KEY} are allowed"
    if OVERHEAD + part.key_size + part.value_size > INT32_MAX:
        return f"message {part.offset}: a value of {part.value_size} bytes is too large"
    return None


cdef Py_ssize_t _read(
    const char* data, Py_ssize_t left, Py_ssize_t at, uint64_t of_messages, Field* field, Part* part, bint* is_message
) except -1:
    """Read the field at byte `at` of `left`, and return its bytes. A message is in `part`, too.

    Raises ValueError if it is not a field, or a message of which no record can be made.
    """
    cdef Py_ssize_t step = _field(data + at, left - at, field)
    if step < 0:
        raise ValueError(f"no field at byte {at} of {left}")
    is_message[0] = field.kind == BYTES and field.number == of_messages
    if is_message[0]:
        if not _part(field.data, <Py_ssize_t> field.value, part):
            raise ValueError(f"no message at byte {at} of {left}")
        fault = _fault(part)
        if fault is not None:
            raise ValueError(fault)
    return step


def read_put(const unsigned char[::1] buffer):
    """Read a PutRequest: check everything, and count the messages. Raises ValueError."""
    return _request(buffer, OF_PUT)


def read_get(const unsigned char[::1] buffer):
    """Read a GetRequest. Raises ValueError."""
    return _request(buffer, 0)


cdef object _request(const unsigned char[::1] buffer, uint64_t of_messages):
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t messages = 0
    cdef Py_ssize_t largest = 0
    cdef uint64_t offset = 0
    cdef Field field
    cdef Part part
    cdef bint is_message = False
    cdef bytes client = b""
    cdef bytes journal = b""
    while at < left:
        at += _read(data, left, at, of_messages, &field, &part, &is_message)
        if is_message:
            messages += 1
            largest = max(largest, part.value_size)
        elif field.kind == BYTES and field.number == 1:
            client = PyBytes_FromStringAndSize(field.data, <Py_ssize_t> field.value)
        elif field.kind == BYTES and field.number == 2:
            journal = PyBytes_FromStringAndSize(field.data, <Py_ssize_t> field.value)
        elif field.kind == VARINT and field.number == 3 and of_messages == 0:
            offset = field.value
    if offset >= <uint64_t> 1 << 63:
        raise ValueError(f"an offset of {offset} is none")
    return Request(client, journal, messages, largest, offset)


def records(const unsigned char[::1] buffer, uint64_t of_messages, int64_t expected):
    """Return the records of the messages from offset `expected` on, as far as they are consecutive.

    Raises ValueError if these are not messages.
    """
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t step
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t skipped = 0
    cdef Py_ssize_t end = left      # the place of the first message after a gap
    cdef int64_t next_offset = expected
    cdef Field field
    cdef Part part
    cdef bint is_message = False
    cdef bytes made
    cdef char* out
    gap = None
    while at < left:
        step = _read(data, left, at, of_messages, &field, &part, &is_message)
        if is_message:
            if <int64_t> part.offset < next_offset:
                skipped += 1
            elif <int64_t> part.offset > next_offset:
                gap, end = part.offset, at
                break
            else:
                size += OVERHEAD + part.key_size + part.value_size
                next_offset += 1
        at += step
    made = PyBytes_FromStringAndSize(NULL, size)
    out = PyBytes_AS_STRING(made)
    at = 0
    next_offset = expected
    with nogil:
        while at < end:
            step = _field(data + at, left - at, &field)
            if step < 0:
                break
            if field.kind == BYTES and field.number == of_messages:
                _part(field.data, <Py_ssize_t> field.value, &part)
                if <int64_t> part.offset == next_offset:
                    sej_lay_down(
                        out, next_offset, part.timestamp, <int> part.type,
                        part.key, part.key_size, part.value, part.value_size,
                    )
                    out += OVERHEAD + part.key_size + part.value_size
                    next_offset += 1
            at += step
    return Records(made, next_offset - expected, skipped, gap)


def messages(const unsigned char[::1] buffer, uint64_t of_messages):
    """Return the messages of a request or an answer, in order, whatever their offsets. Raises ValueError."""
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at = 0
    cdef Field field
    cdef Part part
    cdef Parts parts
    cdef bint is_message = False
    cdef list found = []
    while at < left:
        at += _read(data, left, at, of_messages, &field, &part, &is_message)
        if is_message:
            parts.offset, parts.timestamp, parts.type = part.offset, part.timestamp, part.type
            parts.key, parts.key_size = part.key - data, part.key_size
            parts.value, parts.value_size = part.value - data, part.value_size
            found.append(journal_message_of(0, data, &parts))
    return found


# --- writing --------------------------------------------------------------------------------------


def put_request(bytes client, bytes journal, columns):
    """Return a PutRequest with the messages of some columns (`JournalColumns`); None: without messages."""
    return _names(client, journal) + (b"" if columns is None else _messages(columns, OF_PUT))


def get_request(bytes client, bytes journal, int64_t offset):
    """Return a GetRequest for messages from `offset` on."""
    cdef bytes made = b""
    cdef char out[11]
    if offset:
        out[0] = 3 << 3
        made = out[:1 + put_varuint(out + 1, <uint64_t> offset)]
    return _names(client, journal) + made


def get_response(columns):
    """Return a GetResponse with the messages of some columns (`JournalColumns`); None: without messages."""
    return b"" if columns is None else _messages(columns, OF_GET)


cdef bytes _names(bytes client, bytes journal):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, _bytes_size(len(client)) + _bytes_size(len(journal)))
    cdef char* out = PyBytes_AS_STRING(made)
    out += _put_bytes(out, 1, PyBytes_AS_STRING(client), len(client))
    _put_bytes(out, 2, PyBytes_AS_STRING(journal), len(journal))
    return made


cdef bytes _messages(columns, int number):
    """Write each message of the columns as field `number`."""
    cdef Py_ssize_t records = columns.records
    cdef bytes timestamps = columns.timestamps
    cdef bytes types = columns.types
    cdef bytes keys = columns.keys
    cdef bytes key_ends = columns.key_offsets
    cdef bytes values = columns.values
    cdef bytes value_ends = columns.value_offsets
    cdef Columns its
    cdef Py_ssize_t i, size, total
    cdef Part part
    cdef bytes made
    cdef char* out
    its.first_offset = columns.first_offset
    its.width = columns.offset_width
    its.timestamps = PyBytes_AS_STRING(timestamps)
    its.types = PyBytes_AS_STRING(types)
    its.keys = PyBytes_AS_STRING(keys)
    its.key_offsets = PyBytes_AS_STRING(key_ends)
    its.values = PyBytes_AS_STRING(values)
    its.value_offsets = PyBytes_AS_STRING(value_ends)
    with nogil:
        total = 0
        for i in range(records):
            _take(&its, i, &part)
            total += 1 + _sized(_part_size(&part))
    made = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(made)
    with nogil:
        for i in range(records):
            _take(&its, i, &part)
            size = _part_size(&part)
            out[0] = <char> (number << 3 | BYTES)
            out += 1
            out += put_varuint(out, <uint64_t> size)
            out += _put_part(out, &part)
    return made


cdef inline void _take(const Columns* its, Py_ssize_t i, Part* part) noexcept nogil:
    cdef Py_ssize_t start = _number(its.key_offsets, i, its.width)
    part.offset = <uint64_t> (its.first_offset + i)
    memcpy(&part.timestamp, its.timestamps + 8 * i, 8)
    part.type = <unsigned char> its.types[i]
    part.key = its.keys + start
    part.key_size = _number(its.key_offsets, i + 1, its.width) - start
    start = _number(its.value_offsets, i, its.width)
    part.value = its.values + start
    part.value_size = _number(its.value_offsets, i + 1, its.width) - start


cdef inline Py_ssize_t _number(const char* numbers, Py_ssize_t i, int width) noexcept nogil:
    cdef int32_t narrow
    cdef int64_t wide
    if width == 4:
        memcpy(&narrow, numbers + 4 * i, 4)
        return narrow
    memcpy(&wide, numbers + 8 * i, 8)
    return wide


cdef inline Py_ssize_t _part_size(const Part* part) noexcept nogil:
    cdef Py_ssize_t size = 0
    if part.offset:
        size += 1 + varuint_size(part.offset)
    if part.timestamp:
        size += 1 + varuint_size(<uint64_t> part.timestamp)
    if part.type:
        size += 1 + varuint_size(part.type)
    return size + _bytes_size(part.key_size) + _bytes_size(part.value_size)


cdef inline Py_ssize_t _put_part(char* out, const Part* part) noexcept nogil:
    cdef Py_ssize_t at = 0
    if part.offset:
        out[at] = 1 << 3
        at += 1 + put_varuint(out + at + 1, part.offset)
    if part.timestamp:
        out[at] = 2 << 3
        at += 1 + put_varuint(out + at + 1, <uint64_t> part.timestamp)
    if part.type:
        out[at] = 3 << 3
        at += 1 + put_varuint(out + at + 1, part.type)
    at += _put_bytes(out + at, 4, part.key, part.key_size)
    return at + _put_bytes(out + at, 5, part.value, part.value_size)


cdef inline Py_ssize_t _sized(Py_ssize_t size) noexcept nogil:
    return varuint_size(<uint64_t> size) + size


cdef inline Py_ssize_t _bytes_size(Py_ssize_t size) noexcept nogil:
    return 1 + _sized(size) if size else 0


cdef inline Py_ssize_t _put_bytes(char* out, int number, const char* data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t at
    if not size:
        return 0
    out[0] = <char> (number << 3 | BYTES)
    at = 1 + put_varuint(out + 1, <uint64_t> size)
    memcpy(out + at, data, size)
    return at + size

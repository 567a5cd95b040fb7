# The codec of TaskFlux's command log: records, and the four commands in them. Format:
# docs/format/taskflux.md.
#
# Law: lengths are checked before memory is touched, and no byte is read past the buffer. A reader accepts
# every layout that the format's document and its programs allow, record by record; a writer writes two:
#
#   aligned    the term in 8 bytes, zeros fill the payload up to a multiple of 4 and are part of it.
#              TaskFlux reads it: its parsers stop after a command's last field.
#   document   as in the format's document: the term in 4 bytes, the zeros after the payload.

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from diskq._native.priority.crc32_mpeg2 cimport CRC_START, crc32_of
from diskq._native.core.views cimport start_of
from diskq._native.core.byte_order cimport get_i32_be, get_u64_be, put_u32_be, put_u64_be

from typing import NamedTuple

FILE_HEAD = bytes.fromhex("1276ad5500000001")
"""The first bytes of a segment: a marker, and the version."""
END_MARKER = bytes(4)
MARKER = bytes.fromhex("aaf534c4")

CREATE, DELETE, ADD, REMOVE = 0x43, 0x44, 0x41, 0x52

# Why a scan stopped, as Python strings.
STOPS = (
    "END", "MORE", "torn", "no record's marker", "term below 1", "impossible length", "wrong checksum",
    "UNKNOWN", "BAD",
)

class CommandScan(NamedTuple):
    """The result of `scan`: commands, as tuples that begin with their kind, and why it stopped.

    (CREATE, name, implementation, max_messages, max_message_size, (lowest, highest)), None for unset
    fields; (DELETE, name); (ADD, name, key, payload); (REMOVE, name, id). Names and payloads are bytes.
    """

    commands: list
    records: int
    end: int
    stop: str
    term: int
    is_narrow: bool
    is_document: bool
    trailing: int


cdef inline bint _is_marker(const char* data) noexcept nogil:
    return <uint32_t> get_i32_be(data) == <uint32_t> 0xAAF534C4


cdef inline bint _are_zeros(const char* data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(size):
        if data[i]:
            return False
    return True


cdef Stop _try(
    const char* data, Py_ssize_t left, Py_ssize_t rest, Py_ssize_t head, Record* record
) noexcept nogil:
    """Read the record at `data` with a head of `head` bytes; `left` bytes are in memory, `rest` in the file."""
    cdef int64_t term
    cdef int32_t length
    if rest < head:
        return TORN
    if left < head:
        return MORE
    term = <int64_t> get_u64_be(data + 4) if head == WIDE_HEAD else get_i32_be(data + 4)
    if term < 1:
        return BAD_TERM
    length = get_i32_be(data + head - 4)
    if length < 0:
        return BAD_LENGTH
    if length > rest - head:
        return TORN
    if length > left - head:
        return MORE
    if crc32_of(CRC_START, data + head, length) != <uint32_t> get_i32_be(data + head - 8):
        return BAD_CHECKSUM
    record.size = head + length
    record.payload = head
    record.payload_size = length
    record.term = term
    record.is_document = head == NARROW_HEAD
    return RECORD


cdef Stop parse_record(const char* data, Py_ssize_t left, Py_ssize_t rest, Record* record) noexcept nogil:
    cdef Stop wide, narrow
    cdef Py_ssize_t behind, fill
    if rest < 4:
        return END if _are_zeros(data, rest) else TORN
    if left < 4:
        return MORE
    if _are_zeros(data, 4):
        return END
    if not _is_marker(data):
        return NO_MARKER
    if rest >= 8 and left < 8:
        return MORE
    # A term of 4 bytes is at least 1; one of 8 begins with four zeros if it is below 2**32.
    narrow = NO_MARKER
    if rest >= 8 and not _are_zeros(data + 4, 4):
        narrow = _try(data, left, rest, NARROW_HEAD, record)
    if narrow != RECORD:
        wide = _try(data, left, rest, WIDE_HEAD, record)
        if wide != RECORD:
            if narrow == MORE or wide == MORE:
                return MORE
            return wide if narrow == NO_MARKER or narrow == BAD_TERM else narrow
    # Zeros after the payload, up to a multiple of 4. They differ from an end marker by the next record's
    # marker after them: three zeros and its first byte are neither.
    behind = rest - record.size
    if behind and left - record.size < min(behind, <Py_ssize_t> 4):
        return MORE
    if behind >= 4 and not _is_marker(data + record.size) and not _are_zeros(data + record.size, 4):
        fill = -record.payload_size & 3
        if fill and _are_zeros(data + record.size, fill):
            record.size += fill
            record.is_document = True
    return RECORD


# --- reading ---------------------------------------------------------------------------------------

cdef class _Names:
    """A cache of the last name: most commands are for the same queue, and share one object."""

    cdef bytes last

    def __cinit__(self):
        self.last = b""

    cdef bytes get(self, const char* data, Py_ssize_t size):
        if PyBytes_GET_SIZE(self.last) != size or memcmp(PyBytes_AS_STRING(self.last), data, size):
            self.last = PyBytes_FromStringAndSize(data, size)
        return self.last


cdef bint _is_name(const char* data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(size):
        if not 33 <= <unsigned char> data[i] <= 126:
            return False
    return True


cdef inline object _limit(int32_t value):
    return None if value == -1 else value


cdef Stop judge_command(const char* data, Py_ssize_t size, Command* command) noexcept nogil:
    """Read the command in a payload: RECORD and all of `command` filled; UNKNOWN; or BAD."""
    cdef Py_ssize_t at
    cdef int32_t first, second
    if size == 0:
        return BAD
    command.kind = <unsigned char> data[0]
    if command.kind != 0x43 and command.kind != 0x44 and command.kind != 0x41 and command.kind != 0x52:
        return UNKNOWN
    if size < 2:
        return BAD
    command.name_size = <unsigned char> data[1]
    at = command.fields = 2 + command.name_size
    if at > size or not _is_name(data + 2, command.name_size):
        return BAD
    if command.kind == 0x41:
        if size - at < 12:
            return BAD
        command.length = get_i32_be(data + at + 8)
        if not 0 <= command.length <= size - at - 12:
            return BAD
        command.used = at + 12 + command.length
    elif command.kind == 0x52:
        if size - at < 8:
            return BAD
        command.used = at + 8
    elif command.kind == 0x44:
        command.used = at
    else:
        if size - at < 13:
            return BAD
        first, second = get_i32_be(data + at + 4), get_i32_be(data + at + 8)
        if first < -1 or second < -1 or (data[at + 12] and size - at < 29):
            return BAD
        command.used = at + 13
        if data[at + 12]:
            command.used = at + 29
            if <int64_t> get_u64_be(data + at + 13) > <int64_t> get_u64_be(data + at + 21):
                return BAD
    return RECORD


cdef object _command(const char* data, Py_ssize_t size, _Names names, Py_ssize_t* used, Stop* stop):
    """Return the command in a payload, and its bytes; None and `stop` if there is none."""
    cdef Command command
    cdef const char* fields
    stop[0] = judge_command(data, size, &command)
    if stop[0] != RECORD:
        return None
    used[0] = command.used
    fields = data + command.fields
    name = names.get(data + 2, command.name_size)
    if command.kind == 0x41:
        payload = PyBytes_FromStringAndSize(fields + 12, command.length)
        return command.kind, name, <int64_t> get_u64_be(fields), payload
    if command.kind == 0x52:
        return command.kind, name, get_u64_be(fields)
    if command.kind == 0x44:
        return command.kind, name
    keys = None
    if fields[12]:
        keys = (<int64_t> get_u64_be(fields + 13), <int64_t> get_u64_be(fields + 21))
    limits = _limit(get_i32_be(fields + 4)), _limit(get_i32_be(fields + 8))
    return command.kind, name, get_i32_be(fields), *limits, keys


def scan(
    const unsigned char[::1] buffer, Py_ssize_t rest=-1, Py_ssize_t skip=0, bint only_records=False,
    Py_ssize_t most=-1,
):
    """Return the commands of the records at the start of `buffer`, after the head of a segment's file.

    `rest` is the number of bytes in the file from there on, by default those of `buffer`. The commands of the
    first `skip` records are not read, and none are if `only_records`; it stops after `most` records, if that
    is not negative. Returns a `CommandScan`: `end` is the byte after the last whole record, `stop` is "END" where the
    log ends, "MORE" where the buffer does or `most` were found, "UNKNOWN" or
    "BAD" at a whole record without a command, and otherwise says what is wrong with the bytes there.
    `term` is the last record's, 0 without one; `is_narrow`: it takes 4 bytes; `is_document`: some record
    has a feature of the document's layout; `trailing` counts the commands with bytes after them that are no fill.
    """
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t used = 0
    cdef Py_ssize_t records = 0
    cdef Py_ssize_t trailing = 0
    cdef Py_ssize_t extra
    cdef bint is_document = False
    cdef bint is_narrow = False
    cdef int64_t term = 0
    cdef Record record
    cdef Stop stop, inner
    cdef list commands = []
    cdef _Names names = _Names()
    if rest < left:
        rest = left
    while True:
        if records == most:
            stop = MORE
            break
        stop = parse_record(data + at, left - at, rest - at, &record)
        if stop != RECORD:
            break
        if records >= skip and not only_records:
            command = _command(data + at + record.payload, record.payload_size, names, &used, &inner)
            if command is None:
                stop = inner
                break
            extra = record.payload_size - used
            if extra and (
                extra > 3 or record.payload_size & 3 or not _are_zeros(data + at + record.payload + used, extra)
            ):
                trailing += 1
            commands.append(command)
        records += 1
        term = record.term
        is_narrow = record.payload == NARROW_HEAD
        is_document = is_document or record.is_document
        at += record.size
    return CommandScan(commands, records, at, STOPS[<int> stop], term, is_narrow, is_document, trailing)


def has_record(const unsigned char[::1] buffer, Py_ssize_t start=0):
    """True if there is a whole record anywhere in `buffer` from byte `start` on. Raises ValueError below 0."""
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t size = buffer.shape[0]
    cdef Py_ssize_t at
    cdef Record record
    cdef bint found = False
    if start < 0:
        raise ValueError(f"start is 0 or more, got {start}")
    with nogil:
        for at in range(start, size - NARROW_HEAD + 1):
            if <unsigned char> data[at] == 0xAA and parse_record(data + at, size - at, size - at, &record) == RECORD:
                found = True
                break
    return found


# --- writing ---------------------------------------------------------------------------------------


cdef Py_ssize_t record_size(Py_ssize_t command, bint document) noexcept nogil:
    return ((command + 3) & ~<Py_ssize_t> 3) + (NARROW_HEAD if document else WIDE_HEAD)


cdef char* _lay_head(char* out, Py_ssize_t command, int64_t term, bint document) noexcept nogil:
    """Write a record's head without its checksum, and the zeros after its command. Returns the command's place."""
    cdef Py_ssize_t filled = (command + 3) & ~<Py_ssize_t> 3
    cdef Py_ssize_t head = NARROW_HEAD if document else WIDE_HEAD
    put_u32_be(out, <uint32_t> 0xAAF534C4)
    if document:
        put_u32_be(out + 4, <uint32_t> term)
    else:
        put_u64_be(out + 4, <uint64_t> term)
    put_u32_be(out + head - 4, <uint32_t> (command if document else filled))
    memset(out + head + command, 0, filled - command)
    return out + head


cdef inline void _finish(char* payload, Py_ssize_t command, bint document) noexcept nogil:
    cdef Py_ssize_t covered = command if document else (command + 3) & ~<Py_ssize_t> 3
    put_u32_be(payload - 8, crc32_of(CRC_START, payload, covered))


cdef char* lay_add(char* at, bytes name, int64_t key, bytes payload, int64_t term, bint document) noexcept:
    cdef Py_ssize_t name_size = PyBytes_GET_SIZE(name)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(payload)
    cdef Py_ssize_t command = ADD_FIELDS + name_size + size
    cdef char* field = _lay_head(at, command, term, document)
    field[0] = 0x41
    field[1] = <char> name_size
    memcpy(field + 2, PyBytes_AS_STRING(name), name_size)
    put_u64_be(field + 2 + name_size, <uint64_t> key)
    put_u32_be(field + 10 + name_size, <uint32_t> size)
    memcpy(field + ADD_FIELDS + name_size, PyBytes_AS_STRING(payload), size)
    _finish(field, command, document)
    return at + record_size(command, document)


cdef char* lay_remove(char* at, bytes name, uint64_t id, int64_t term, bint document) noexcept:
    cdef Py_ssize_t name_size = PyBytes_GET_SIZE(name)
    cdef Py_ssize_t command = REMOVE_FIELDS + name_size
    cdef char* field = _lay_head(at, command, term, document)
    field[0] = 0x52
    field[1] = <char> name_size
    memcpy(field + 2, PyBytes_AS_STRING(name), name_size)
    put_u64_be(field + 2 + name_size, id)
    _finish(field, command, document)
    return at + record_size(command, document)


def encode(bytes command not None, int64_t term=1, bint document=False):
    """Return a record with this command, and the end marker after it."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(command)
    cdef Py_ssize_t total = record_size(size, document)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, total + 4)
    cdef char* payload = _lay_head(PyBytes_AS_STRING(out), size, term, document)
    memcpy(payload, PyBytes_AS_STRING(command), size)
    _finish(payload, size, document)
    put_u32_be(PyBytes_AS_STRING(out) + total, 0)
    return out


def create_command(bytes name not None, int implementation, max_messages=None, max_message_size=None, keys=None):
    """Return the command that creates a queue; `keys` is (lowest, highest)."""
    out = bytearray((CREATE, len(name)))
    out += name
    for number in (implementation, max_messages, max_message_size):
        out += (-1 if number is None else number).to_bytes(4, "big", signed=True)
    out.append(keys is not None)
    for key in keys or ():
        out += key.to_bytes(8, "big", signed=True)
    return bytes(out)


def delete_command(bytes name not None):
    """Return the command that removes a queue."""
    return bytes((DELETE, len(name))) + name


def encode_adds(
    bytes name not None, list payloads not None, keys, Py_ssize_t start=0, Py_ssize_t room=-1,
    int64_t term=1, bint document=False,
):
    """Return records that add `payloads[start:]` to a queue, with the end marker; and the index after the last.

    `keys` is one number for all of them, or a list with one for each. It ends with the record that
    reaches `room` bytes; negative: no bound. Raises OverflowError for a key beyond 64 bits.
    """
    cdef Py_ssize_t fields = ADD_FIELDS + PyBytes_GET_SIZE(name)
    cdef Py_ssize_t count = len(payloads)
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t stop = start
    cdef Py_ssize_t i
    cdef bint is_list = isinstance(keys, list)
    cdef int64_t key = 0
    if not 0 <= start <= count:
        raise ValueError(f"start is 0 to {count}, got {start}")
    if is_list and len(keys) != count:
        raise ValueError("as many keys as payloads")
    if not is_list:
        key = keys
    while stop < count and (room < 0 or total < room or stop == start):
        total += record_size(fields + PyBytes_GET_SIZE(<bytes?> payloads[stop]), document)
        stop += 1
    cdef bytes out = PyBytes_FromStringAndSize(NULL, total + 4)
    cdef char* at = PyBytes_AS_STRING(out)
    for i in range(start, stop):
        if is_list:
            key = (<list> keys)[i]
        at = lay_add(at, name, key, <bytes> payloads[i], term, document)
    put_u32_be(at, 0)
    return out, stop


def encode_removes(
    bytes name not None, list ids not None, Py_ssize_t start=0, Py_ssize_t room=-1,
    int64_t term=1, bint document=False,
):
    """Return records that remove `ids[start:]` from a queue, as `encode_adds` does."""
    cdef Py_ssize_t size = record_size(REMOVE_FIELDS + PyBytes_GET_SIZE(name), document)
    cdef Py_ssize_t most = len(ids) - start
    cdef Py_ssize_t i
    if not 0 <= start <= len(ids):
        raise ValueError(f"start is 0 to {len(ids)}, got {start}")
    if room >= 0:
        most = min(most, max(<Py_ssize_t> 1, (room + size - 1) // size))
    cdef bytes out = PyBytes_FromStringAndSize(NULL, most * size + 4)
    cdef char* at = PyBytes_AS_STRING(out)
    for i in range(start, start + most):
        at = lay_remove(at, name, ids[i], term, document)
    put_u32_be(at, 0)
    return out, start + most

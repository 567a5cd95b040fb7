# The triplet codec: a record is a key, a timestamp and a value, with a row in the index and one in the
# timeindex. Format: docs/format/triplet.md.
#
# Law: lengths are checked before memory is touched, no byte is read past the buffer, and the three
# ends of a scan are distinct: END (a record boundary), TORN (the bytes ended inside a record),
# CORRUPT (a length that no writer wrote). No I/O, no state.
#
# Zeros are no record. Read as one they are an empty key at time 0 with an empty value, and no program writes a
# message without a key: `Push` of go-diskq makes one, as diskq does. A power cut leaves zeros.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.number cimport PyNumber_Index

from diskq._native.core.columns cimport Places, column_of, lay_out_by, measure_by
from diskq._native.core.framing cimport (
    ANY_OFFSET,
    CORRUPT,
    END,
    TORN,
    Extent,
    KeyedFraming,
    Parts,
    Stop,
    borrow,
    columns_of,
    count_of,
    stop_name,
)
from diskq._native.core.message cimport message_of
from diskq._native.core.views cimport start_of
from diskq._native.core.byte_order cimport (
    get_u32_le,
    get_u64_le,
    get_varuint,
    put_u32_le,
    put_u64_le,
    put_varuint,
    varuint_size,
)

from typing import NamedTuple

from diskq._native.core.message import Scan

cdef enum:
    KEY_LENGTH = 4
    TIMESTAMP = 8
    VALUE_LENGTH = 8

# The key's length word has 32 bits.
MAX_KEY = 2**32 - 1
# No file system holds a longer file, so a larger length is invalid.
MAX_VALUE = 2**62

INDEX_ROW_SIZE = INDEX_ROW
TIMEINDEX_ROW_SIZE = TIMEINDEX_ROW

cdef uint64_t LARGEST_KEY = MAX_KEY
cdef uint64_t LARGEST_VALUE = MAX_VALUE


class Encoded(NamedTuple):
    """The result of `encode`: the records, and their rows in the two indices."""

    data: bytes
    index_rows: bytes
    timeindex_rows: bytes


class Slices(NamedTuple):
    """The result of `slices`: where the parts of the records are; the rest as in `Scan`.

    Numbers are of 8 bytes, in the machine's byte order, one for each record. Key i is
    `buffer[key_starts[i] : key_ends[i]]`; values likewise.
    """

    records: int
    timestamps: bytes
    key_starts: bytes
    key_ends: bytes
    value_starts: bytes
    value_ends: bytes
    valid_end: int
    stop: str


class StreamColumns(NamedTuple):
    """The result of `columns`: the parts of the records by column; the rest as in `Scan`.

    Numbers are in the machine's byte order. Key i is `keys[o[i] : o[i + 1]]`, where o are the records + 1
    numbers of `offset_width` bytes (4 or 8, signed) in `key_offsets`; values likewise. So the buffers
    are Arrow binary columns, or large binary ones if the width is 8.
    """

    records: int
    timestamps: bytes
    keys: bytes
    key_offsets: bytes
    values: bytes
    value_offsets: bytes
    offset_width: int
    valid_end: int
    stop: str


cdef class TripletFraming(KeyedFraming):
    """The triplet record, for the compiled path.

    Values of `min_size` to `max_size` bytes with keys of up to `max_key_size` bytes may be written.
    Reading accepts every size that the length words can hold: limits are not part of the format.
    `varuint` selects the lengths of go-diskq's README instead of those that its code writes.
    """

    def __cinit__(self, min_size=0, max_size=MAX_VALUE, max_key_size=MAX_KEY, bint varuint=False):
        self._limit(min_size, max_size, MAX_VALUE)
        self._limit_keys(max_key_size, MAX_KEY)
        self.varuint = varuint
        self.overhead = 1 + TIMESTAMP + 1 if varuint else KEY_LENGTH + TIMESTAMP + VALUE_LENGTH

    cdef Stop parts(self, const char* data, Py_ssize_t left, Parts* parts) noexcept nogil:
        return _parts(&self.varuint, data, left, parts)

    cdef void measure(
        self, const char* data, Py_ssize_t left, int64_t first_offset, Py_ssize_t max_records, Extent* extent
    ) noexcept nogil:
        measure_by(_parts, &self.varuint, data, left, max_records, extent)

    cdef object columns(self, const char* data, const Extent* extent, bint wide):
        cdef Places to
        timestamps = column_of(extent.records * TIMESTAMP, <char**> &to.timestamps)
        to.validity = to.types = NULL
        rest = lay_out_by(_parts, &self.varuint, data, extent, wide, True, &to)
        return StreamColumns(extent.records, timestamps, *rest)

    cdef Py_ssize_t size_of(self, Py_ssize_t key_size, Py_ssize_t value_size) noexcept nogil:
        """Return the size of a record with a key and value of these sizes."""
        if self.varuint:
            return varuint_size(key_size) + key_size + TIMESTAMP + varuint_size(value_size) + value_size
        return KEY_LENGTH + key_size + TIMESTAMP + VALUE_LENGTH + value_size

    cdef void lay_down(
        self, char* out, const char* key, Py_ssize_t key_size, int64_t timestamp,
        const char* value, Py_ssize_t value_size,
    ) noexcept nogil:
        """Write the record of `size_of(key_size, value_size)` bytes at `out`."""
        if self.varuint:
            out += put_varuint(out, key_size)
        else:
            put_u32_le(out, <uint32_t> key_size)
            out += KEY_LENGTH
        memcpy(out, key, key_size)
        out += key_size
        put_u64_le(out, <uint64_t> timestamp)
        out += TIMESTAMP
        if self.varuint:
            out += put_varuint(out, value_size)
        else:
            put_u64_le(out, value_size)
            out += VALUE_LENGTH
        memcpy(out, value, value_size)


# For the Python functions, which have only the parameter `varuint`.
cdef tuple FRAMINGS = (TripletFraming(), TripletFraming(varuint=True))


cdef inline Stop _parts(void* varuint, const char* data, Py_ssize_t left, Parts* parts) noexcept nogil:
    parts.size = 0
    if left == 0:
        return END
    return _varuint_parts(data, left, parts) if (<bint*> varuint)[0] else _fixed_parts(data, left, parts)


cdef inline Stop _fixed_parts(const char* data, Py_ssize_t left, Parts* parts) noexcept nogil:
    cdef uint64_t value_size
    if left < KEY_LENGTH:
        return TORN
    parts.key = KEY_LENGTH
    parts.key_size = get_u32_le(data)
    parts.value = parts.size = KEY_LENGTH + parts.key_size + TIMESTAMP + VALUE_LENGTH
    if left < parts.size:
        return TORN
    value_size = get_u64_le(data + parts.value - VALUE_LENGTH)
    if value_size > LARGEST_VALUE:
        parts.size = 0
        return CORRUPT
    parts.value_size = value_size
    parts.size += value_size
    parts.timestamp = <int64_t> get_u64_le(data + parts.value - VALUE_LENGTH - TIMESTAMP)
    if parts.key_size == 0 and _are_zeros(parts):
        return CORRUPT
    return END if left >= parts.size else TORN


cdef inline Stop _varuint_parts(const char* data, Py_ssize_t left, Parts* parts) noexcept nogil:
    cdef uint64_t number = 0
    cdef Py_ssize_t taken = get_varuint(data, left, &number)
    if taken <= 0:
        return TORN if taken == 0 else CORRUPT
    if number > LARGEST_KEY:
        return CORRUPT
    parts.key = taken
    parts.key_size = number
    parts.size = parts.key + parts.key_size + TIMESTAMP + 1
    if left < parts.size:
        return TORN
    taken = get_varuint(data + parts.size - 1, left - parts.size + 1, &number)
    if taken == 0:
        parts.size += 1
        return TORN
    if taken < 0 or number > LARGEST_VALUE:
        parts.size = 0
        return CORRUPT
    parts.timestamp = <int64_t> get_u64_le(data + parts.key + parts.key_size)
    parts.value = parts.size - 1 + taken
    parts.value_size = number
    parts.size = parts.value + parts.value_size
    if parts.key_size == 0 and _are_zeros(parts):
        return CORRUPT
    return END if left >= parts.size else TORN


cdef inline bint _are_zeros(Parts* parts) noexcept nogil:
    """True, and no size, if these parts of a record without a key are zeros."""
    if parts.timestamp != 0 or parts.value_size != 0:
        return False
    parts.size = 0
    return True


cdef uint32_t fnv1(const char* key, Py_ssize_t size) noexcept nogil:
    cdef uint32_t h = 2166136261u
    cdef Py_ssize_t i
    for i in range(size):
        h = (h * 16777619u) ^ <unsigned char> key[i]
    return h


cdef void put_index_row(char* out, int64_t offset, int64_t position, int64_t size) noexcept nogil:
    put_u64_le(out, offset)
    put_u64_le(out + 8, position)
    put_u64_le(out + 16, size)


cdef void put_timeindex_row(char* out, int64_t offset, int64_t timestamp) noexcept nogil:
    put_u64_le(out, offset)
    put_u64_le(out + 8, <uint64_t> timestamp)


# --- for Python -----------------------------------------------------------------------------------


def encode(messages, int64_t first_offset=0, int64_t position=0, bint varuint=False):
    """Return the records of `messages`, triples of key, timestamp in nanoseconds and value, and their rows.

    The first is message `first_offset` of its partition, and its record is at byte `position` of its
    data file. Raises TypeError for a key or value that is not bytes, or a timestamp that is not an
    integer; OverflowError for one that does not fit into 64 bits; ValueError for a key over 2**32 - 1 bytes.
    """
    cdef TripletFraming framing = FRAMINGS[varuint]
    cdef const char* key = NULL
    cdef const char* value = NULL
    cdef Py_ssize_t key_size = 0
    cdef Py_ssize_t value_size = 0
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t size
    cdef int64_t timestamp
    cdef list alive = []
    for its_key, its_timestamp, its_value in messages:
        its_key = borrow(its_key, &key, &key_size)
        its_value = borrow(its_value, &value, &value_size)
        timestamp = PyNumber_Index(its_timestamp)
        if <uint64_t> key_size > LARGEST_KEY:
            raise ValueError(f"key of {key_size} bytes: the format ends at {MAX_KEY}")
        total += framing.size_of(key_size, value_size)
        alive.append((its_key, timestamp, its_value))
    cdef bytes data = PyBytes_FromStringAndSize(NULL, total)
    cdef bytes index = PyBytes_FromStringAndSize(NULL, len(alive) * INDEX_ROW)
    cdef bytes timeindex = PyBytes_FromStringAndSize(NULL, len(alive) * TIMEINDEX_ROW)
    cdef char* to_data = PyBytes_AS_STRING(data)
    cdef char* to_index = PyBytes_AS_STRING(index)
    cdef char* to_timeindex = PyBytes_AS_STRING(timeindex)
    for its_key, its_timestamp, its_value in alive:
        borrow(its_key, &key, &key_size)
        borrow(its_value, &value, &value_size)
        size = framing.size_of(key_size, value_size)
        timestamp = its_timestamp
        framing.lay_down(to_data, key, key_size, timestamp, value, value_size)
        put_index_row(to_index, first_offset, position, size)
        put_timeindex_row(to_timeindex, first_offset, timestamp)
        to_data += size
        to_index += INDEX_ROW
        to_timeindex += TIMEINDEX_ROW
        position += size
        first_offset += 1
    return Encoded(data, index, timeindex)


def scan(
    const unsigned char[::1] buffer, int partition=0, int64_t first_offset=0, bint varuint=False,
    Py_ssize_t max_records=MAX_VALUE,
):
    """Return the messages of the whole records at the start of `buffer`, at most `max_records` of them.

    Returns the messages, the first one as number `first_offset` of `partition`; the byte just after
    the last of their records (0 <= valid_end <= len(buffer)); and why it stopped: END at a record
    boundary, TORN inside a record, CORRUPT at a length that no file can hold. Never reads
    past `buffer`; allocates no memory by an unverified length. Format: docs/format/triplet.md.
    """
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at = 0
    cdef Parts parts
    cdef Stop stop = END
    cdef list messages = []
    parts.offset = first_offset
    while at < left and max_records > 0:
        stop = _parts(&varuint, data + at, left - at, &parts)
        if stop != END:
            break
        messages.append(message_of(partition, data + at, &parts))
        at += parts.size
        parts.offset += 1
        max_records -= 1
    return Scan(messages, at, stop_name(stop))


def slices(const unsigned char[::1] buffer, bint varuint=False, Py_ssize_t max_records=MAX_VALUE):
    """Do as `scan` without copying: return where in `buffer` the parts are, see `Slices`.

    No object is made for a message. Raises MemoryError.
    """
    cdef TripletFraming framing = FRAMINGS[varuint]
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Extent extent
    cdef Parts parts
    cdef Py_ssize_t i
    cdef Py_ssize_t at = 0
    cdef int64_t* out[5]
    cdef list made = []
    with nogil:
        framing.measure(data, left, ANY_OFFSET, max_records, &extent)
    for i in range(5):
        numbers = PyBytes_FromStringAndSize(NULL, extent.records * sizeof(int64_t))
        out[i] = <int64_t*> PyBytes_AS_STRING(numbers)
        made.append(numbers)
    with nogil:
        for i in range(extent.records):
            if _parts(&varuint, data + at, left - at, &parts) != END:
                break
            out[0][i] = parts.timestamp
            out[1][i] = at + parts.key
            out[2][i] = at + parts.key + parts.key_size
            out[3][i] = at + parts.value
            out[4][i] = at + parts.value + parts.value_size
            at += parts.size
    if at != extent.end:
        raise BufferError("the bytes were changed while they were read")
    return Slices(extent.records, *made, extent.end, stop_name(extent.stop))


def count(const unsigned char[::1] buffer, bint varuint=False, Py_ssize_t max_records=MAX_VALUE):
    """Do as `scan`, but count the records instead of making their messages."""
    cdef TripletFraming framing = FRAMINGS[varuint]
    return count_of(framing, start_of(buffer), buffer.shape[0], ANY_OFFSET, max_records)


def columns(
    const unsigned char[::1] buffer, bint varuint=False, Py_ssize_t max_records=MAX_VALUE, bint wide=False
):
    """Do as `scan`, but return columns: see `StreamColumns`. No object is made for a message.

    Offsets have 4 bytes if they fit, 8 otherwise and always if `wide`: columns that are to be combined need
    one width. Raises MemoryError.
    """
    cdef TripletFraming framing = FRAMINGS[varuint]
    return columns_of(framing, start_of(buffer), buffer.shape[0], ANY_OFFSET, max_records, wide)


def index_rows(const unsigned char[::1] buffer):
    """Return the whole rows in `buffer`: each message's offset, its record's byte, and the record's size."""
    cdef const char* row = start_of(buffer)
    cdef Py_ssize_t i
    cdef list found = []
    for i in range(buffer.shape[0] // INDEX_ROW):
        found.append((get_u64_le(row), get_u64_le(row + 8), get_u64_le(row + 16)))
        row += INDEX_ROW
    return found


def timeindex_rows(const unsigned char[::1] buffer):
    """Return the whole rows in `buffer`: each message's offset, and its timestamp in nanoseconds."""
    cdef const char* row = start_of(buffer)
    cdef Py_ssize_t i
    cdef list found = []
    for i in range(buffer.shape[0] // TIMEINDEX_ROW):
        found.append((get_u64_le(row), <int64_t> get_u64_le(row + 8)))
        row += TIMEINDEX_ROW
    return found


def key_hash(bytes key not None):
    """Return the 32-bit FNV-1 hash (not 1a): a message goes to partition `key_hash(key) % partition_count`."""
    return fnv1(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))

# The triplet codec: a record is a key, a timestamp and a value; beside it a row in the index and one
# in the timeindex. Format: docs/format/triplet.md.
#
# Law: lengths are judged before memory is touched, nothing is read past the buffer, and the three
# ends of a scan are kept apart: END (a record boundary), TORN (the bytes ended inside a record),
# CORRUPT (a length that no writer wrote). No I/O, no state.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from diskq._native.framing cimport CORRUPT, END, TORN, Framing, Record, Stop
from diskq._native.wire cimport (
    get_u32_le,
    get_u64_le,
    get_varuint,
    put_u32_le,
    put_u64_le,
    put_varuint,
    varuint_size,
)

cdef enum:
    KEY_LENGTH = 4
    TIMESTAMP = 8
    VALUE_LENGTH = 8

# The key's length word has 32 bits.
MAX_KEY = 2**32 - 1
# No file system holds a longer file: a length beyond it is no length.
MAX_VALUE = 2**62

INDEX_ROW_SIZE = INDEX_ROW
TIMEINDEX_ROW_SIZE = TIMEINDEX_ROW

cdef uint64_t LARGEST_KEY = MAX_KEY
cdef uint64_t LARGEST_VALUE = MAX_VALUE


cdef class TripletFraming(Framing):
    """The triplet record, for the compiled path.

    Values of `min_size` to `max_size` bytes with keys of up to `max_key_size` bytes may be written.
    Reading asks only for what the length words can say: limits are not part of the format.
    `varuint` selects the lengths of go-diskq's README instead of those that its code writes.
    """

    def __cinit__(self, min_size=0, max_size=MAX_VALUE, max_key_size=MAX_KEY, bint varuint=False):
        if not 0 <= min_size <= max_size <= MAX_VALUE:
            raise ValueError(f"need 0 <= min_size <= max_size <= {MAX_VALUE}, got {min_size} and {max_size}")
        if not 0 <= max_key_size <= MAX_KEY:
            raise ValueError(f"need 0 <= max_key_size <= {MAX_KEY}, got {max_key_size}")
        self.min_size = min_size
        self.max_size = max_size
        self.max_key_size = max_key_size
        self.varuint = varuint
        self.overhead = 1 + TIMESTAMP + 1 if varuint else KEY_LENGTH + TIMESTAMP + VALUE_LENGTH

    cdef Stop decode(self, const char* data, Py_ssize_t left, Record* record) noexcept nogil:
        cdef Parts parts
        cdef Stop stop = self.parts(data, left, &parts)
        record.size = parts.size
        if stop == END:
            record.body = parts.value
            record.body_size = parts.value_size
        return stop

    cdef Stop parts(self, const char* data, Py_ssize_t left, Parts* parts) noexcept nogil:
        """The record at `data`: END and all of `parts` filled; TORN and `size`, if it tells; or CORRUPT."""
        parts.size = 0
        if left == 0:
            return END
        if self.varuint:
            return _varuint_parts(data, left, parts)
        return _fixed_parts(data, left, parts)

    cdef Py_ssize_t size_of(self, Py_ssize_t key_size, Py_ssize_t value_size) noexcept nogil:
        """The bytes of a record with such a key and value."""
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
    return END if left >= parts.size else TORN


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


def key_hash(bytes key not None):
    """FNV-1, 32 bits (not 1a): a message goes to partition `key_hash(key) % partition_count`."""
    return fnv1(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))

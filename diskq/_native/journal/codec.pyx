# The sej codec: a record is an offset, a timestamp, a type, a key and a value, and its own size at its end,
# so that a journal can be read backwards, too. Format: docs/format/sej.md.
#
# Law: lengths are checked before memory is touched, no byte is read past the buffer, and the three
# ends of a scan are distinct: END (a record boundary), TORN (the bytes ended inside a record),
# CORRUPT (bytes that no writer wrote: a bad length, a different size at the end, an offset that is not the
# next one). No I/O, no state.

from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

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
from diskq._native.core.message cimport journal_message_of
from diskq._native.core.views cimport start_of
from diskq._native.core.byte_order cimport get_i32_be, get_u32_be, get_u64_be, is_number, put_u32_be, put_u64_be

from typing import NamedTuple

from diskq._native.core.message import Scan

# The key's length is 8 bits with a sign, the value's 32.
MAX_KEY = 127
MAX_VALUE = 2**31 - 1
# sej reads the size at a record's end with a sign, and treats a larger record as damage. Here it is read
# without one, which covers every record that the lengths can describe.
MAX_RECORD = 2**31 - 1

RECORD_OVERHEAD = OVERHEAD

cdef enum:
    TIMESTAMP = 8
    MOST_KEY = 127
    OFFSET = 8


class JournalBackScan(NamedTuple):
    """The result of `scan_back`: the messages, the last one first; the byte where the first of their records
    begins; why it stopped; and the claimed size of a record that begins before the buffer, or 0.
    """

    messages: list
    start: int
    stop: str
    claimed: int


class JournalColumns(NamedTuple):
    """The result of `columns`: the parts of the records by column; the rest as in `Scan`.

    The offsets are `first_offset` and those that follow it. Numbers are in the machine's byte order:
    timestamps have 8 bytes, types one. `time_validity` is a bitmap, lowest bit first, None if every
    message has a time; a message without one has the timestamp NULL_TIMESTAMP. Key i is `keys[o[i] : o[i + 1]]`,
    where o are the records + 1 numbers of `offset_width` bytes (4 or 8, signed) in `key_offsets`; values
    likewise. So the buffers are Arrow binary columns, or large binary ones if the width is 8.
    """

    records: int
    first_offset: int
    timestamps: bytes
    time_validity: bytes | None
    types: bytes
    keys: bytes
    key_offsets: bytes
    values: bytes
    value_offsets: bytes
    offset_width: int
    valid_end: int
    stop: str


cdef class SejFraming(KeyedFraming):
    """The sej record, for the compiled path.

    Values of `min_size` to `max_size` bytes with keys of up to `max_key_size` bytes may be written.
    Reading accepts every size that the length words can hold: limits are not part of the format.
    """

    def __cinit__(self, min_size=0, max_size=MAX_VALUE, max_key_size=MAX_KEY):
        self._limit(min_size, max_size, MAX_VALUE)
        self._limit_keys(max_key_size, MAX_KEY)
        self.overhead = OVERHEAD

    cdef Stop parts(self, const char* data, Py_ssize_t left, Parts* parts) noexcept nogil:
        # For a CORRUPT record, `size` is by its lengths, if only its last word disagrees.
        return _parts(data, left, parts)

    cdef void measure(
        self, const char* data, Py_ssize_t left, int64_t first_offset, Py_ssize_t max_records, Extent* extent
    ) noexcept nogil:
        cdef Chain chain
        chain.first_offset = chain.next_offset = first_offset
        chain.without_time = 0
        measure_by(_next_parts, &chain, data, left, max_records, extent)
        extent.first_offset = chain.first_offset
        extent.without_time = chain.without_time

    cdef object columns(self, const char* data, const Extent* extent, bint wide):
        cdef Places to
        cdef bytes validity = None
        to.validity = NULL
        timestamps = column_of(extent.records * TIMESTAMP, <char**> &to.timestamps)
        if extent.without_time:
            validity = column_of((extent.records + 7) // 8, &to.validity)
        types = column_of(extent.records, &to.types)
        rest = lay_out_by(_parts_by, NULL, data, extent, wide, True, &to)
        return JournalColumns(extent.records, max(0, extent.first_offset), timestamps, validity, types, *rest)


cdef SejFraming ANY_SIZE = SejFraming()  # for reading, if the caller has none


cdef struct Chain:               # records with consecutive offsets
    int64_t first_offset
    int64_t next_offset
    Py_ssize_t without_time


cdef inline Stop _next_parts(void* chain, const char* data, Py_ssize_t left, Parts* parts) noexcept nogil:
    """Do as `_parts`; CORRUPT also if the record is not the next one of the chain."""
    cdef Chain* its = <Chain*> chain
    cdef Stop stop = _parts(data, left, parts)
    if stop != END:
        return stop
    if parts.offset != its.next_offset:
        if its.next_offset != ANY_OFFSET:
            return CORRUPT
        its.first_offset = parts.offset
    its.next_offset = parts.offset + 1
    its.without_time += parts.timestamp == INT64_MIN
    return END


cdef inline Stop _parts_by(void* nothing, const char* data, Py_ssize_t left, Parts* parts) noexcept nogil:
    return _parts(data, left, parts)


cdef inline Stop _parts(const char* data, Py_ssize_t left, Parts* parts) noexcept nogil:
    cdef int32_t value_size
    cdef signed char key_size
    parts.size = parts.value = parts.value_size = parts.key_size = 0
    parts.key = HEAD
    if left == 0:
        return END
    parts.size = OVERHEAD
    if left < HEAD:
        return TORN
    key_size = <signed char> data[HEAD - 1]
    if key_size < 0:
        parts.size = 0
        return CORRUPT
    parts.key_size = key_size
    parts.value = HEAD + key_size + LENGTH
    parts.size = parts.value + TRAILER
    if left < parts.value:
        return TORN
    value_size = get_i32_be(data + parts.value - LENGTH)
    if value_size < 0:
        parts.size = 0
        return CORRUPT
    parts.value_size = value_size
    parts.size += value_size
    if left < parts.size:
        return TORN
    if get_u32_be(data + parts.size - TRAILER) != <uint32_t> parts.size:
        return CORRUPT
    parts.offset = <int64_t> get_u64_be(data)
    if not is_number(<uint64_t> parts.offset):
        return CORRUPT
    parts.timestamp = <int64_t> get_u64_be(data + 8)
    parts.type = <unsigned char> data[16]
    return END


cdef void sej_lay_down(
    char* out, int64_t offset, int64_t timestamp, int type,
    const char* key, Py_ssize_t key_size, const char* value, Py_ssize_t value_size,
) noexcept nogil:
    """Write the record of `OVERHEAD + key_size + value_size` bytes at `out`."""
    put_u64_be(out, <uint64_t> offset)
    put_u64_be(out + 8, <uint64_t> timestamp)
    out[16] = <char> type
    out[17] = <char> key_size
    memcpy(out + HEAD, key, key_size)
    out += HEAD + key_size
    put_u32_be(out, <uint32_t> value_size)
    memcpy(out + LENGTH, value, value_size)
    put_u32_be(out + LENGTH + value_size, <uint32_t> (OVERHEAD + key_size + value_size))


# --- for Python -----------------------------------------------------------------------------------


def encode(messages, int64_t first_offset=0):
    """Return the records of `messages`: tuples of key, timestamp in nanoseconds (None: no time), type, value.

    The first is message `first_offset` of its journal. Raises TypeError for what is not bytes, ValueError
    for a key of more than 127 bytes, a type outside 0..255 or a record that is larger than sej reads.
    """
    cdef const char* key
    cdef const char* value
    cdef Py_ssize_t key_size = 0
    cdef Py_ssize_t value_size = 0
    cdef Py_ssize_t total = 0
    cdef int64_t timestamp
    cdef list alive = []
    for its_key, its_timestamp, its_type, its_value in messages:
        its_key = borrow(its_key, &key, &key_size)
        its_value = borrow(its_value, &value, &value_size)
        if key_size > MOST_KEY:
            raise ValueError(f"key of {key_size} bytes: the length has room for {MOST_KEY}")
        if not 0 <= its_type <= 255:
            raise ValueError(f"a type is 0 to 255, got {its_type}")
        if OVERHEAD + key_size + value_size > INT32_MAX:
            raise ValueError(f"a record of {OVERHEAD + key_size + value_size} bytes: sej reads up to {MAX_RECORD}")
        alive.append((its_key, INT64_MIN if its_timestamp is None else its_timestamp, its_type, its_value))
        total += OVERHEAD + key_size + value_size
    if not is_number(<uint64_t> first_offset) or not is_number(<uint64_t> first_offset + len(alive)):
        raise ValueError(f"offsets are 0 to 2**62 - 1, got {len(alive)} messages from {first_offset} on")
    cdef bytes data = PyBytes_FromStringAndSize(NULL, total)
    cdef char* out = PyBytes_AS_STRING(data)
    for its_key, its_timestamp, its_type, its_value in alive:
        borrow(its_key, &key, &key_size)
        borrow(its_value, &value, &value_size)
        timestamp = its_timestamp
        sej_lay_down(out, first_offset, timestamp, its_type, key, key_size, value, value_size)
        out += OVERHEAD + key_size + value_size
        first_offset += 1
    return data


def scan(
    const unsigned char[::1] buffer, int64_t first_offset=ANY_OFFSET, int partition=0, Py_ssize_t max_records=2**62
):
    """Return the messages of the whole records at the start of `buffer`, at most `max_records` of them.

    The first must be message `first_offset` (-1: any), and each of the others the next one.
    Returns the messages; the byte just after the last of their records (0 <= valid_end <= len(buffer)); and
    why it stopped: END at a record boundary, TORN inside a record, CORRUPT at bytes that no writer wrote. Never
    reads past `buffer`; allocates no memory by an unverified length. Format: docs/format/sej.md.
    """
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at = 0
    cdef int64_t expected = first_offset
    cdef Parts parts
    cdef Stop stop = END
    cdef list messages = []
    while at < left and max_records > 0:
        stop = _parts(data + at, left - at, &parts)
        if stop == END and expected != ANY_OFFSET and parts.offset != expected:
            stop = CORRUPT
        if stop != END:
            break
        messages.append(journal_message_of(partition, data + at, &parts))
        at += parts.size
        expected = parts.offset + 1
        max_records -= 1
    return Scan(messages, at, stop_name(stop))


def scan_back(
    const unsigned char[::1] buffer, int64_t next_offset=ANY_OFFSET, int partition=0, Py_ssize_t max_records=2**62
):
    """Return the messages of the whole records at the end of `buffer`, the last one first, at most `max_records`.

    The last must be the one before `next_offset` (-1: any). See `JournalBackScan`: END at the start of `buffer`,
    TORN if a record begins before it, CORRUPT at bytes that no writer wrote.
    """
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t at = buffer.shape[0]
    cdef Py_ssize_t size = 0
    cdef int64_t expected = next_offset
    cdef Parts parts
    cdef Stop stop = END
    cdef list messages = []
    while at > 0 and max_records > 0:
        stop = _step_back(data, at, expected, &parts)
        size = parts.size
        if stop != END:
            break
        at -= size
        messages.append(journal_message_of(partition, data + at, &parts))
        expected = parts.offset
        max_records -= 1
    return JournalBackScan(messages, at, stop_name(stop), size if stop == TORN else 0)


def boundary(const unsigned char[::1] buffer, int64_t next_offset):
    """Return the start and offset of the first of the whole records at the end of `buffer`.

    The last one is that before `next_offset`. No object is made for a message.
    """
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t at = buffer.shape[0]
    cdef Parts parts
    with nogil:
        while at > 0 and _step_back(data, at, next_offset, &parts) == END:
            at -= parts.size
            next_offset -= 1
    return at, next_offset


cdef inline Stop _step_back(
    const char* data, Py_ssize_t at, int64_t next_offset, Parts* parts
) noexcept nogil:
    """Read the record that ends at byte `at`, which is greater than 0."""
    cdef Py_ssize_t size
    parts.size = 0
    if at < TRAILER:
        return TORN
    size = get_u32_be(data + at - TRAILER)
    if size < OVERHEAD:
        return CORRUPT
    if size > at:
        parts.size = size
        return TORN
    if _parts(data + at - size, size, parts) != END or parts.size != size:
        return CORRUPT
    return END if next_offset == ANY_OFFSET or parts.offset == next_offset - 1 else CORRUPT


def count(const unsigned char[::1] buffer, int64_t first_offset=ANY_OFFSET, Py_ssize_t max_records=2**62):
    """Do as `scan`, but count the records instead of making their messages."""
    return count_of(ANY_SIZE, start_of(buffer), buffer.shape[0], first_offset, max_records)


def columns(
    const unsigned char[::1] buffer, int64_t first_offset=ANY_OFFSET, Py_ssize_t max_records=2**62, bint wide=False
):
    """Do as `scan`, but return columns: see `JournalColumns`. No object is made for a message.

    Offsets have 4 bytes if they fit, 8 otherwise and always if `wide`: columns that are to be combined need
    one width. Raises MemoryError.
    """
    return columns_of(ANY_SIZE, start_of(buffer), buffer.shape[0], first_offset, max_records, wide)


def blocks(const unsigned char[::1] buffer, int64_t first_offset, Py_ssize_t size):
    """Split the whole records at the start of `buffer` into blocks of at least `size` bytes: (end, records) of each.

    The remaining records make a block of their own. The first is message `first_offset`.
    """
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t records = 0
    cdef Parts parts
    cdef list found = []
    while at < left and _parts(data + at, left - at, &parts) == END and parts.offset == first_offset:
        at += parts.size
        first_offset += 1
        records += 1
        if at - start >= size:
            found.append((at, records))
            start, records = at, 0
    if records:
        found.append((at, records))
    return found


# --- after damage ---------------------------------------------------------------------------------


def resume(
    const unsigned char[::1] buffer, int64_t expected, int64_t next_offset=ANY_OFFSET, bint may_be_torn=False
):
    """Find where records continue after the one at the start of `buffer`, which is not the record of `expected`.

    Returns the byte and the offset there; None: nowhere. There must be a whole record, with a plausible offset:
    at least one record was lost, and each has at least 26 bytes. And its place must be confirmed, since a value
    may hold the bytes of records. Confirmations, in this order:

    - the lengths of the broken record, or the size at its end, lead to it;
    - `next_offset` is known, the offset after the end of `buffer`: of all plausible places, the one from which
      the longest chain of records begins;
    - it is not known: as before, if the chain reaches the end, or the next record, whose end is missing. Not if
      the first one `may_be_torn`, an unfinished write: then no record follows it, whatever its value looks like.
    """
    cdef const char* data = start_of(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at, end, led
    cdef Py_ssize_t best = -1
    cdef Py_ssize_t best_end = -1
    cdef int64_t offset, best_offset, reached
    cdef Parts parts
    cdef bint is_found = False
    best_offset = 0
    with nogil:
        # By the broken record's own lengths, if only its other fields are wrong.
        led = 0
        if _parts(data, left, &parts) != TORN and 0 < parts.size < left:
            led = parts.size
            if _fits(data, left, led, expected, next_offset, &parts) and parts.offset == expected + 1:
                best, best_offset, is_found = led, parts.offset, True
        at = OVERHEAD
        while not is_found and at <= left - OVERHEAD:
            if not _fits(data, left, at, expected, next_offset, &parts):
                at += 1
                continue
            offset = parts.offset
            if _is_led_to(data, at, led, offset - expected):
                best, best_offset, is_found = at, offset, True
                break
            end, reached = at, offset
            while end < left and _parts(data + end, left - end, &parts) == END and parts.offset == reached:
                end += parts.size
                reached += 1
            if next_offset == ANY_OFFSET and (may_be_torn or not _goes_on(data, left, end, reached)):
                at += 1
                continue
            if end > best_end:
                best, best_end, best_offset = at, end, offset
            at = end
    return (best, best_offset) if best >= 0 else None


cdef inline bint _fits(
    const char* data, Py_ssize_t left, Py_ssize_t at, int64_t expected, int64_t next_offset, Parts* parts
) noexcept nogil:
    """True if there is a whole record at byte `at` that may be a later one than `expected`."""
    cdef int64_t offset
    if left - at < OVERHEAD:
        return False
    offset = <int64_t> get_u64_be(data + at)
    if offset <= expected or offset - expected > max(<Py_ssize_t> 1, at // OVERHEAD):
        return False
    if next_offset != ANY_OFFSET and offset >= next_offset:
        return False
    return _parts(data + at, left - at, parts) == END


cdef inline bint _is_led_to(const char* data, Py_ssize_t at, Py_ssize_t led, int64_t lost) noexcept nogil:
    """True if the size before byte `at` leads back to the broken record, or to the one after it."""
    cdef Py_ssize_t size = get_u32_be(data + at - TRAILER)
    return (size == at and lost == 1) or (led > 0 and size == at - led and lost == 2)


cdef inline bint _goes_on(const char* data, Py_ssize_t left, Py_ssize_t end, int64_t offset) noexcept nogil:
    """True if records end here because nothing is left, or because the next one is incomplete."""
    cdef Parts parts
    if end == left:
        return True
    return (
        left - end >= OFFSET
        and <int64_t> get_u64_be(data + end) == offset
        and _parts(data + end, left - end, &parts) == TORN
    )

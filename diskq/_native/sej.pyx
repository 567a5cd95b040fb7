# The sej codec: a record is an offset, a timestamp, a type, a key and a value, and its own size at its end,
# so that a journal is read from behind as well. Format: docs/format/sej.md.
#
# Law: lengths are judged before memory is touched, nothing is read past the buffer, and the three
# ends of a scan are kept apart: END (a record boundary), TORN (the bytes ended inside a record),
# CORRUPT (no writer wrote this: a length, a size at the end that is another one, an offset that is not
# the next one). No I/O, no state.

from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from diskq._native.framing cimport CORRUPT, END, TORN, Framing, Record, Stop, borrow
from diskq._native.message cimport new_journal_message
from diskq._native.wire cimport get_i32_be, get_u32_be, get_u64_be, is_number, put_u32_be, put_u64_be

from typing import NamedTuple

from diskq._native.framing import STOPS as _STOPS

# The key's length is 8 bits with a sign, the value's 32.
MAX_KEY = 127
MAX_VALUE = 2**31 - 1
# sej reads the size at a record's end with a sign, and takes a larger record for damage. Here it is read
# without one, which tells every record that lengths can make.
MAX_RECORD = 2**31 - 1

RECORD_OVERHEAD = OVERHEAD

cdef enum:
    TIMESTAMP = 8
    MOST_KEY = 127
    OFFSET = 8
    UNKNOWN = -1


class Scan(NamedTuple):
    """What `scan` found: the messages, the byte after the last whole record, and why it stopped."""

    messages: list
    valid_end: int
    stop: str


class BackScan(NamedTuple):
    """What `scan_back` found: the messages, the last one first; the byte where the first of their records
    begins; why it stopped; and of a record that begins before the buffer the size it gives itself, or 0.
    """

    messages: list
    start: int
    stop: str
    claimed: int


class Count(NamedTuple):
    """What `count` found: as `Scan`, the number of messages alone."""

    records: int
    valid_end: int
    stop: str


class JournalColumns(NamedTuple):
    """What `columns` found: the parts of the records by column, and as `Scan`.

    The offsets are `first_offset` and those that follow it. Numbers are in the machine's byte order:
    timestamps have 8 bytes, types one. `time_validity` is a bitmap, lowest bit first, None where every
    message has a time; who has none has the timestamp NULL_TIMESTAMP. Key i is `keys[o[i] : o[i + 1]]`,
    where o are the records + 1 numbers of `offset_width` bytes (4 or 8, signed) in `key_offsets`; values
    likewise. So the buffers are what Arrow calls binary columns, or large binary ones where the width is 8.
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


cdef class SejFraming(Framing):
    """The sej record, for the compiled path.

    Values of `min_size` to `max_size` bytes with keys of up to `max_key_size` bytes may be written.
    Reading asks only for what the length words can say: limits are not part of the format.
    """

    def __cinit__(self, min_size=0, max_size=MAX_VALUE, max_key_size=MAX_KEY):
        if not 0 <= min_size <= max_size <= MAX_VALUE:
            raise ValueError(f"need 0 <= min_size <= max_size <= {MAX_VALUE}, got {min_size} and {max_size}")
        if not 0 <= max_key_size <= MAX_KEY:
            raise ValueError(f"need 0 <= max_key_size <= {MAX_KEY}, got {max_key_size}")
        self.min_size = min_size
        self.max_size = max_size
        self.max_key_size = max_key_size
        self.overhead = OVERHEAD

    cdef Stop decode(self, const char* data, Py_ssize_t left, Record* record) noexcept nogil:
        cdef SejParts parts
        cdef Stop stop = sej_parts(data, left, &parts)
        record.size = parts.size
        if stop == END:
            record.body = parts.value
            record.body_size = parts.value_size
        return stop


cdef Stop sej_parts(const char* data, Py_ssize_t left, SejParts* parts) noexcept nogil:
    """The record at `data`: END and all of `parts` filled; TORN and `size`, if it tells; or CORRUPT.

    Of a CORRUPT one `size` is what its lengths say, where only its last word says otherwise.
    """
    return _parts(data, left, parts)


cdef inline Stop _parts(const char* data, Py_ssize_t left, SejParts* parts) noexcept nogil:
    cdef int32_t value_size
    cdef signed char key_size
    parts.size = parts.value = parts.value_size = parts.key_size = 0
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


# --- many records at once, in compiled code --------------------------------------------------------


cdef void sej_measure(
    const char* data, Py_ssize_t left, int64_t first_offset, Py_ssize_t max_records, SejExtent* extent
) noexcept nogil:
    """How far whole records go at the start of `data`, at most `max_records`, and what they hold.

    The first is to be message `first_offset`, -1: whichever it is.
    """
    cdef SejParts parts
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t records = 0
    cdef Py_ssize_t key_bytes = 0
    cdef Py_ssize_t value_bytes = 0
    cdef Py_ssize_t without_time = 0
    cdef int64_t expected = first_offset
    cdef Stop stop = END
    while at < left and records < max_records:
        stop = _parts(data + at, left - at, &parts)
        if stop != END:
            break
        if parts.offset != expected:
            if expected != UNKNOWN:
                stop = CORRUPT
                break
            expected = first_offset = parts.offset
        key_bytes += parts.key_size
        value_bytes += parts.value_size
        without_time += parts.timestamp == INT64_MIN
        records += 1
        expected += 1
        at += parts.size
    extent.first_offset = first_offset
    extent.records = records
    extent.end = at
    extent.key_bytes = key_bytes
    extent.value_bytes = value_bytes
    extent.without_time = without_time
    extent.stop = stop


cdef object sej_columns_of(
    const char* data, Py_ssize_t left, int64_t first_offset, Py_ssize_t max_records, bint wide=False
):
    """The `JournalColumns` of at most `max_records` whole records at the start of `data`.

    Their offsets have 8 bytes if `wide`, or where 4 cannot tell them. Two passes, so that each buffer is
    made once, as large as it is to be. Other threads run meanwhile: raises BufferError where one of them
    changed the bytes. Raises MemoryError.
    """
    cdef SejExtent extent
    with nogil:
        sej_measure(data, left, first_offset, max_records, &extent)
    cdef Py_ssize_t width = 8 if wide or max(extent.key_bytes, extent.value_bytes) > INT32_MAX else 4
    cdef bytes timestamps = PyBytes_FromStringAndSize(NULL, extent.records * TIMESTAMP)
    cdef bytes validity = PyBytes_FromStringAndSize(NULL, (extent.records + 7) // 8) if extent.without_time else None
    cdef bytes types = PyBytes_FromStringAndSize(NULL, extent.records)
    cdef bytes keys = PyBytes_FromStringAndSize(NULL, extent.key_bytes)
    cdef bytes key_offsets = PyBytes_FromStringAndSize(NULL, (extent.records + 1) * width)
    cdef bytes values = PyBytes_FromStringAndSize(NULL, extent.value_bytes)
    cdef bytes value_offsets = PyBytes_FromStringAndSize(NULL, (extent.records + 1) * width)
    cdef int64_t* to_timestamps = <int64_t*> PyBytes_AS_STRING(timestamps)
    cdef unsigned char* to_validity = NULL
    cdef char* to_types = PyBytes_AS_STRING(types)
    cdef char* to_keys = PyBytes_AS_STRING(keys)
    cdef char* to_key_offsets = PyBytes_AS_STRING(key_offsets)
    cdef char* to_values = PyBytes_AS_STRING(values)
    cdef char* to_value_offsets = PyBytes_AS_STRING(value_offsets)
    cdef bint is_done
    if validity is not None:
        to_validity = <unsigned char*> PyBytes_AS_STRING(validity)
        memset(to_validity, 0, (extent.records + 7) // 8)
    with nogil:
        if width == 4:
            is_done = _lay_out[int32_t](
                data, &extent, to_timestamps, to_validity, to_types,
                to_keys, <int32_t*> to_key_offsets, to_values, <int32_t*> to_value_offsets,
            )
        else:
            is_done = _lay_out[int64_t](
                data, &extent, to_timestamps, to_validity, to_types,
                to_keys, <int64_t*> to_key_offsets, to_values, <int64_t*> to_value_offsets,
            )
    if not is_done:
        raise BufferError("the bytes were changed while they were read")
    return JournalColumns(
        extent.records, max(0, extent.first_offset), timestamps, validity, types,
        keys, key_offsets, values, value_offsets, width, extent.end, _STOPS[<int> extent.stop],
    )


ctypedef fused Place:
    int32_t
    int64_t


cdef bint _lay_out(
    const char* data, const SejExtent* extent, int64_t* timestamps, unsigned char* validity, char* types,
    char* keys, Place* key_offsets, char* values, Place* value_offsets,
) noexcept nogil:
    """Copy the parts of the records of `extent` into columns made for it. False: they are others."""
    cdef SejParts parts
    cdef Py_ssize_t i
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t key_at = 0
    cdef Py_ssize_t value_at = 0
    for i in range(extent.records):
        if (
            at == extent.end
            or _parts(data + at, extent.end - at, &parts) != END
            or parts.key_size > extent.key_bytes - key_at
            or parts.value_size > extent.value_bytes - value_at
        ):
            return False
        timestamps[i] = parts.timestamp
        if validity != NULL and parts.timestamp != INT64_MIN:
            validity[i >> 3] |= 1 << (i & 7)
        types[i] = <char> parts.type
        key_offsets[i] = <Place> key_at
        value_offsets[i] = <Place> value_at
        memcpy(keys + key_at, data + at + HEAD, parts.key_size)
        memcpy(values + value_at, data + at + parts.value, parts.value_size)
        key_at += parts.key_size
        value_at += parts.value_size
        at += parts.size
    key_offsets[extent.records] = <Place> key_at
    value_offsets[extent.records] = <Place> value_at
    return key_at == extent.key_bytes and value_at == extent.value_bytes


# --- for Python -----------------------------------------------------------------------------------


def encode(messages, int64_t first_offset=0):
    """The records of `messages`: tuples of key, timestamp in nanoseconds (None: no time), type, value.

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
    const unsigned char[::1] buffer, int64_t first_offset=UNKNOWN, int partition=0, Py_ssize_t max_records=2**62
):
    """The messages of the whole records at the start of `buffer`, at most `max_records` of them.

    The first is to be message `first_offset` (-1: whichever it is), and each of the others the next one.
    Returns the messages; the byte just after the last of their records (0 <= valid_end <= len(buffer)); and
    why it stopped: END at a record boundary, TORN inside a record, CORRUPT at what no writer wrote. Never
    reads past `buffer`; asks for no memory on the word of a length. Format: docs/format/sej.md.
    """
    cdef const char* data = _start(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at = 0
    cdef int64_t expected = first_offset
    cdef SejParts parts
    cdef Stop stop = END
    cdef list messages = []
    while at < left and max_records > 0:
        stop = _parts(data + at, left - at, &parts)
        if stop == END and expected != UNKNOWN and parts.offset != expected:
            stop = CORRUPT
        if stop != END:
            break
        messages.append(_message(partition, data + at, &parts))
        at += parts.size
        expected = parts.offset + 1
        max_records -= 1
    return Scan(messages, at, _STOPS[<int> stop])


def scan_back(
    const unsigned char[::1] buffer, int64_t next_offset=UNKNOWN, int partition=0, Py_ssize_t max_records=2**62
):
    """The messages of the whole records at the end of `buffer`, the last one first, at most `max_records`.

    The last is to be the one before `next_offset` (-1: whichever it is). Returns as `BackScan` says: END at
    the start of `buffer`, TORN where a record begins before it, CORRUPT at what no writer wrote.
    """
    cdef const char* data = _start(buffer)
    cdef Py_ssize_t at = buffer.shape[0]
    cdef Py_ssize_t size = 0
    cdef int64_t expected = next_offset
    cdef SejParts parts
    cdef Stop stop = END
    cdef list messages = []
    while at > 0 and max_records > 0:
        stop = _step_back(data, at, expected, &parts)
        size = parts.size
        if stop != END:
            break
        at -= size
        messages.append(_message(partition, data + at, &parts))
        expected = parts.offset
        max_records -= 1
    return BackScan(messages, at, _STOPS[<int> stop], size if stop == TORN else 0)


def boundary(const unsigned char[::1] buffer, int64_t next_offset):
    """As far back from the end of `buffer` as whole records go: where the first of them begins, its offset.

    The last one is that before `next_offset`. No object is made for a message.
    """
    cdef const char* data = _start(buffer)
    cdef Py_ssize_t at = buffer.shape[0]
    cdef SejParts parts
    with nogil:
        while at > 0 and _step_back(data, at, next_offset, &parts) == END:
            at -= parts.size
            next_offset -= 1
    return at, next_offset


cdef inline Stop _step_back(
    const char* data, Py_ssize_t at, int64_t next_offset, SejParts* parts
) noexcept nogil:
    """The record that ends at byte `at`, which is not the first one."""
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
    return END if next_offset == UNKNOWN or parts.offset == next_offset - 1 else CORRUPT


def count(const unsigned char[::1] buffer, int64_t first_offset=UNKNOWN, Py_ssize_t max_records=2**62):
    """As `scan`, counting the records instead of making their messages."""
    cdef const char* data = _start(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef SejExtent extent
    with nogil:
        sej_measure(data, left, first_offset, max_records, &extent)
    return Count(extent.records, extent.end, _STOPS[<int> extent.stop])


def columns(
    const unsigned char[::1] buffer, int64_t first_offset=UNKNOWN, Py_ssize_t max_records=2**62, bint wide=False
):
    """As `scan`, by column: see `JournalColumns`. No object is made for a message.

    Offsets have 4 bytes where those can tell them, 8 otherwise and always if `wide`: columns that are
    to go together need one width. Raises MemoryError.
    """
    return sej_columns_of(_start(buffer), buffer.shape[0], first_offset, max_records, wide)


def blocks(const unsigned char[::1] buffer, int64_t first_offset, Py_ssize_t size):
    """The whole records at the start of `buffer` in blocks of at least `size` bytes: (end, records) of each.

    Records that are left over make a block of their own. The first is message `first_offset`.
    """
    cdef const char* data = _start(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t records = 0
    cdef SejParts parts
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


# --- behind damage --------------------------------------------------------------------------------


def resume(
    const unsigned char[::1] buffer, int64_t expected, int64_t next_offset=UNKNOWN, bint may_be_torn=False
):
    """Where records go on behind the one at the start of `buffer`, which is not the record of `expected`.

    Returns the byte and the offset there; None: nowhere. What is taken for a record must be one, with an
    offset that fits between: at least one was lost, and each has 26 bytes. And something must vouch for its
    place, as a value may hold the bytes of records. In this order:

    - the lengths of the broken record, or the size at its end, lead to it;
    - `next_offset` is known, the offset behind the end of `buffer`: of all places that fit, from the one from
      which records follow each other the furthest;
    - it is not known: as before, if they follow each other to the end, or into the next record, of which
      the end is missing. Not if the first one `may_be_torn`, a write that was not finished: nothing is
      then behind it, whatever its value looks like.
    """
    cdef const char* data = _start(buffer)
    cdef Py_ssize_t left = buffer.shape[0]
    cdef Py_ssize_t at, end, led
    cdef Py_ssize_t best = -1
    cdef Py_ssize_t best_end = -1
    cdef int64_t offset, best_offset, reached
    cdef SejParts parts
    cdef bint is_found = False
    best_offset = 0
    with nogil:
        # By the broken one's own lengths, where only what it says of itself beside them is wrong.
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
            if next_offset == UNKNOWN and (may_be_torn or not _goes_on(data, left, end, reached)):
                at += 1
                continue
            if end > best_end:
                best, best_end, best_offset = at, end, offset
            at = end
    return (best, best_offset) if best >= 0 else None


cdef inline bint _fits(
    const char* data, Py_ssize_t left, Py_ssize_t at, int64_t expected, int64_t next_offset, SejParts* parts
) noexcept nogil:
    """Is there a whole record at byte `at` that may be a later one than `expected`?"""
    cdef int64_t offset
    if left - at < OVERHEAD:
        return False
    offset = <int64_t> get_u64_be(data + at)
    if offset <= expected or offset - expected > max(<Py_ssize_t> 1, at // OVERHEAD):
        return False
    if next_offset != UNKNOWN and offset >= next_offset:
        return False
    return _parts(data + at, left - at, parts) == END


cdef inline bint _is_led_to(const char* data, Py_ssize_t at, Py_ssize_t led, int64_t lost) noexcept nogil:
    """Does the size in front of byte `at` lead back to the broken record, or to the one behind it?"""
    cdef Py_ssize_t size = get_u32_be(data + at - TRAILER)
    return (size == at and lost == 1) or (led > 0 and size == at - led and lost == 2)


cdef inline bint _goes_on(const char* data, Py_ssize_t left, Py_ssize_t end, int64_t offset) noexcept nogil:
    """Do records end here because nothing is left, or because the next one is not all there?"""
    cdef SejParts parts
    if end == left:
        return True
    return (
        left - end >= OFFSET
        and <int64_t> get_u64_be(data + end) == offset
        and _parts(data + end, left - end, &parts) == TORN
    )


# --- inside -----------------------------------------------------------------------------------


cdef inline object _message(int partition, const char* record, const SejParts* parts):
    return new_journal_message(
        partition,
        parts.offset,
        parts.timestamp,
        parts.type,
        PyBytes_FromStringAndSize(record + HEAD, parts.key_size),
        PyBytes_FromStringAndSize(record + parts.value, parts.value_size),
    )


cdef inline const char* _start(const unsigned char[::1] buffer) noexcept:
    return <const char*> &buffer[0] if buffer.shape[0] else NULL

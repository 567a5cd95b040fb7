# Columns into records: Arrow columns as a stream's bytes, without an object for a message.
#
# Law: all rows of a batch are encoded, or none is. Offsets, bits and row counts of the buffers are checked
# before memory is touched, since the caller may have made them wrong. Arrow's memory is read through the
# buffer protocol: pyarrow is not needed here.
#
# A message goes where StreamRouter would put it: to partition key_hash(key) % partition_count, and one
# without a key gets a random one first.

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from diskq._native.stream.codec cimport TripletFraming, fnv1

from typing import NamedTuple

cdef enum:
    START_ROOM = 64 * 1024
    SEED = 32                      # random bytes per batch, from which keys are made
    KEY = 32                       # hex digits of a UUID

cdef enum Why:
    FINE
    NULL_VALUE
    VALUE_SIZE
    KEY_SIZE
    TIMESTAMP_RANGE
    PARTITION_RANGE
    VALUE_BOUNDS
    KEY_BOUNDS
    NO_MEMORY


class BinaryColumn(NamedTuple):
    """A column of bytes in Arrow's layout: binary, or string, with offsets of 4 or 8 bytes.

    Its first row is row `offset` of the buffers, which is how Arrow slices. `validity` is a bitmap, None
    if no row is null; `data` may be None if it is empty.
    """

    validity: object
    offset: int
    offsets: object
    offset_width: int
    data: object


class NumberColumn(NamedTuple):
    """A column of integers in Arrow's layout; `validity` and `offset` as in `BinaryColumn`."""

    validity: object
    offset: int
    data: object


class ColumnBatch(NamedTuple):
    """Rows by column: the arguments of `ColumnEncoder.add`."""

    rows: int
    values: BinaryColumn
    keys: BinaryColumn | None = None
    timestamps: NumberColumn | None = None
    partitions: NumberColumn | None = None
    unit: int = 1


class RowError(ValueError):
    """A row cannot be a message. Nothing of its batch was accepted.

    `reason` is "null value", "value size", "key size", "timestamp" or "partition"; `number` is the size,
    the timestamp or the partition of that row.
    """

    def __init__(self, row, reason, number, message):
        super().__init__(row, reason, number, message)
        self.row = row
        self.reason = reason
        self.number = number

    def __str__(self):
        return f"row {self.row}: {self.args[3]}"


cdef struct Bin:                   # the waiting records of one partition
    char* data
    Py_ssize_t used
    Py_ssize_t room
    int64_t records
    Py_ssize_t batch_used          # as before the batch
    int64_t batch_records


cdef struct Bytes:
    const unsigned char* validity  # NULL: none is null
    const char* offsets            # NULL: there is no such column
    const char* data
    Py_ssize_t data_size
    Py_ssize_t first
    bint is_wide


cdef struct Digits:
    const unsigned char* validity
    const char* data               # NULL: there is no such column
    Py_ssize_t first


cdef struct Random:                # xoshiro256**
    uint64_t s[4]


cdef class _Lent:
    """Borrowed memory, valid while this object exists."""

    cdef Py_buffer buffer
    cdef bint is_held

    def __cinit__(self, lender):
        PyObject_GetBuffer(lender, &self.buffer, PyBUF_SIMPLE)
        self.is_held = True

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.buffer)


cdef class ColumnEncoder:
    """Takes rows in by column, and returns each partition's records.

    `random_bytes(n)` returns n random bytes (as os.urandom), for the keys of rows without one. `clock()` returns
    nanoseconds since the Unix epoch, for rows without a timestamp. For one thread at a time, though others run
    while it works.
    """

    cdef TripletFraming framing
    cdef object random_bytes
    cdef object clock
    cdef Bin* bins
    cdef uint32_t count
    cdef bint is_busy

    def __cinit__(self, TripletFraming framing not None, uint32_t partition_count, random_bytes, clock):
        if partition_count == 0:
            raise ValueError("a stream has at least 1 partition")
        self.framing = framing
        self.random_bytes = random_bytes
        self.clock = clock
        self.bins = <Bin*> PyMem_RawCalloc(partition_count, sizeof(Bin))
        if self.bins == NULL:
            raise MemoryError()
        self.count = partition_count

    def __dealloc__(self):
        cdef uint32_t i
        if self.bins != NULL:
            for i in range(self.count):
                PyMem_RawFree(self.bins[i].data)
            PyMem_RawFree(self.bins)

    @property
    def partition_count(self):
        return self.count

    def add(self, Py_ssize_t rows, values, keys=None, timestamps=None, partitions=None, int64_t unit=1):
        """Take in this many rows of `values`, and of the other columns, see `ColumnBatch`.

        A timestamp (8 bytes, signed) counts units of `unit` nanoseconds; rows without one all get the present
        time. A null or empty key is generated. A row goes to its entry in `partitions` (4 bytes, signed), if that
        is not null, regardless of its key. Raises RowError if a row cannot be a message, ValueError if the
        buffers contradict each other, MemoryError; nothing of the batch is then accepted.
        """
        cdef Bytes its_values, its_keys
        cdef Digits its_timestamps, its_partitions
        cdef Random random
        cdef Py_ssize_t row = 0
        cdef int64_t number = 0
        cdef int64_t now
        cdef Why why
        cdef list alive = []
        if rows < 0:
            raise ValueError(f"{rows} rows")
        if unit < 1:
            raise ValueError(f"a unit of {unit} nanoseconds")
        _bytes_of("values", values, rows, &its_values, alive)
        _bytes_of("keys", keys, rows, &its_keys, alive)
        _digits_of("timestamps", timestamps, rows, 8, &its_timestamps, alive)
        _digits_of("partitions", partitions, rows, 4, &its_partitions, alive)
        if rows == 0:
            return
        if its_values.offsets == NULL:
            raise TypeError("values are a column of bytes, not None")
        now = self.clock()
        _seed(&random, self.random_bytes(SEED))
        self._begin()
        try:
            with nogil:
                why = self._lay_down(
                    rows, &its_values, &its_keys, &its_timestamps, &its_partitions, unit, now, &random, &row, &number
                )
                if why != FINE:
                    self._rewind()
        finally:
            self.is_busy = False
        if why != FINE:
            self._refuse(why, row, number, unit)

    @property
    def total(self):
        """Bytes of the waiting records of all partitions."""
        cdef uint32_t i
        cdef Py_ssize_t total = 0
        for i in range(self.count):
            total += self.bins[i].used
        return total

    def waiting(self, uint32_t partition):
        """Return the bytes of this partition's waiting records."""
        return self._bin(partition).used

    def records(self, uint32_t partition):
        """Return the number of this partition's waiting records."""
        return self._bin(partition).records

    def take(self, uint32_t partition):
        """Take this partition's waiting records. Returns them, back to back, and their number."""
        cdef Bin* bin = self._bin(partition)
        taken = PyBytes_FromStringAndSize(bin.data, bin.used), bin.records
        bin.used = bin.records = 0
        return taken

    # --- inside -----------------------------------------------------------------------------------

    cdef Bin* _bin(self, uint32_t partition) except NULL:
        if partition >= self.count:
            raise IndexError(f"partition {partition} of {self.count}")
        if self.is_busy:
            raise RuntimeError("another thread is adding to it")
        return self.bins + partition

    cdef int _begin(self) except -1:
        cdef uint32_t i
        if self.is_busy:
            raise RuntimeError("another thread is adding to it")
        self.is_busy = True
        for i in range(self.count):
            self.bins[i].batch_used = self.bins[i].used
            self.bins[i].batch_records = self.bins[i].records
        return 0

    cdef void _rewind(self) noexcept nogil:
        cdef uint32_t i
        for i in range(self.count):
            self.bins[i].used = self.bins[i].batch_used
            self.bins[i].records = self.bins[i].batch_records

    @cython.cdivision(True)
    cdef Why _lay_down(
        self, Py_ssize_t rows, const Bytes* values, const Bytes* keys, const Digits* timestamps,
        const Digits* partitions, int64_t unit, int64_t now, Random* random, Py_ssize_t* at, int64_t* number,
    ) noexcept nogil:
        """Encode all rows. If not FINE, row `at` is wrong, by the number that is set."""
        cdef Py_ssize_t i, size, value_size, key_size
        cdef const char* value
        cdef const char* key
        cdef char made[KEY]
        cdef int64_t timestamp, partition
        cdef int64_t earliest = INT64_MIN // unit
        cdef int64_t latest = INT64_MAX // unit
        cdef Bin* bin
        for i in range(rows):
            at[0] = i
            if not _is_valid(values.validity, values.first + i):
                return NULL_VALUE
            if not _find(values, i, &value, &value_size):
                return VALUE_BOUNDS
            if value_size < self.framing.min_size or value_size > self.framing.max_size:
                number[0] = value_size
                return VALUE_SIZE
            key_size = 0
            if keys.offsets != NULL and _is_valid(keys.validity, keys.first + i):
                if not _find(keys, i, &key, &key_size):
                    return KEY_BOUNDS
                if key_size > self.framing.max_key_size:
                    number[0] = key_size
                    return KEY_SIZE
            if key_size == 0:
                _make_key(random, made)
                key, key_size = made, KEY
            timestamp = now
            if timestamps.data != NULL and _is_valid(timestamps.validity, timestamps.first + i):
                memcpy(&timestamp, timestamps.data + 8 * (timestamps.first + i), 8)
                if timestamp < earliest or timestamp > latest:
                    number[0] = timestamp
                    return TIMESTAMP_RANGE
                timestamp *= unit
            partition = -1
            if partitions.data != NULL and _is_valid(partitions.validity, partitions.first + i):
                partition = _get_i32(partitions.data + 4 * (partitions.first + i))
                if partition < 0 or partition >= self.count:
                    number[0] = partition
                    return PARTITION_RANGE
            else:
                partition = fnv1(key, key_size) % self.count
            bin = self.bins + partition
            size = self.framing.size_of(key_size, value_size)
            if size > bin.room - bin.used and not _grow(bin, size):
                return NO_MEMORY
            self.framing.lay_down(bin.data + bin.used, key, key_size, timestamp, value, value_size)
            bin.used += size
            bin.records += 1
        return FINE

    cdef int _refuse(self, Why why, Py_ssize_t row, int64_t number, int64_t unit) except -1:
        if why == NULL_VALUE:
            raise RowError(row, "null value", None, "its value is null, and a message has one")
        if why == VALUE_SIZE:
            raise RowError(
                row, "value size", number,
                f"message of {number} bytes: allowed are {self.framing.min_size} to {self.framing.max_size} bytes",
            )
        if why == KEY_SIZE:
            raise RowError(
                row, "key size", number,
                f"key of {number} bytes: at most {self.framing.max_key_size} bytes are allowed",
            )
        if why == TIMESTAMP_RANGE:
            raise RowError(
                row, "timestamp", number,
                f"timestamp {number}, of {unit} ns each, is not between the years 1677 and 2262",
            )
        if why == PARTITION_RANGE:
            raise RowError(
                row, "partition", number, f"partition {number}: the stream has 0 to {self.count - 1}"
            )
        if why == VALUE_BOUNDS or why == KEY_BOUNDS:
            column = "values" if why == VALUE_BOUNDS else "keys"
            raise ValueError(f"{column}: the offsets of row {row} are not in order, or beyond the data")
        raise MemoryError()


# --- checking the buffers -------------------------------------------------------------------------


cdef int _bytes_of(str name, column, Py_ssize_t rows, Bytes* found, list alive) except -1:
    """Find the column's memory, and check that it holds that many rows. Objects to keep go into `alive`."""
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t width
    found.offsets = NULL
    if column is None:
        return 0
    validity, first, offsets, width, data = column
    if width != 4 and width != 8:
        raise ValueError(f"{name}: offsets of {width} bytes, they have 4 or 8")
    found.is_wide = width == 8
    found.first = _first_of(name, first)
    found.validity = _validity_of(name, validity, found.first, rows, alive)
    found.data = _memory_of(data, &found.data_size, alive)
    found.offsets = _memory_of(offsets, &size, alive)
    if rows and not _holds(size // width - 1, found.first, rows):
        raise ValueError(f"{name}: {size} bytes of offsets are too few for rows {found.first} to {first + rows}")
    return 0


cdef int _digits_of(str name, column, Py_ssize_t rows, Py_ssize_t width, Digits* found, list alive) except -1:
    cdef Py_ssize_t size = 0
    found.data = NULL
    if column is None:
        return 0
    validity, first, data = column
    found.first = _first_of(name, first)
    found.validity = _validity_of(name, validity, found.first, rows, alive)
    found.data = _memory_of(data, &size, alive)
    if rows and not _holds(size // width, found.first, rows):
        raise ValueError(f"{name}: {size} bytes are too few for rows {found.first} to {first + rows}")
    return 0


cdef Py_ssize_t _first_of(str name, first) except -1:
    cdef Py_ssize_t told = first
    if told < 0:
        raise ValueError(f"{name}: begin at row {told}")
    return told


cdef const unsigned char* _validity_of(
    str name, validity, Py_ssize_t first, Py_ssize_t rows, list alive
) except? NULL:
    cdef Py_ssize_t size = 0
    cdef const char* bits
    if validity is None:
        return NULL
    bits = _memory_of(validity, &size, alive)
    if rows and not _holds(size * 8 if size < INT64_MAX // 8 else size, first, rows):
        raise ValueError(f"{name}: {size} bytes of validity are too few for {rows} rows from row {first} on")
    return <const unsigned char*> bits


cdef inline bint _holds(Py_ssize_t room, Py_ssize_t first, Py_ssize_t rows) noexcept:
    return rows <= room and first <= room - rows


cdef const char* _memory_of(lender, Py_ssize_t* size, list alive) except? NULL:
    """Return a pointer that is not NULL if the memory exists, even if it is empty."""
    cdef _Lent lent
    size[0] = 0
    if lender is None:
        return NOTHING
    lent = _Lent(lender)
    alive.append(lent)
    size[0] = lent.buffer.len
    return <const char*> lent.buffer.buf if size[0] else NOTHING


cdef const char* NOTHING = b""


cdef inline bint _is_valid(const unsigned char* validity, Py_ssize_t row) noexcept nogil:
    return validity == NULL or (validity[row >> 3] >> (row & 7)) & 1


cdef inline int32_t _get_i32(const char* data) noexcept nogil:
    cdef int32_t number
    memcpy(&number, data, 4)
    return number


cdef inline bint _find(const Bytes* column, Py_ssize_t row, const char** data, Py_ssize_t* size) noexcept nogil:
    """Find the bytes of this row. False: they are not within the data."""
    cdef int64_t bounds[2]
    cdef const char* at
    if column.is_wide:
        memcpy(bounds, column.offsets + 8 * (column.first + row), 16)
    else:
        at = column.offsets + 4 * (column.first + row)
        bounds[0], bounds[1] = _get_i32(at), _get_i32(at + 4)
    if bounds[0] < 0 or bounds[1] < bounds[0] or bounds[1] > column.data_size:
        return False
    data[0] = column.data + bounds[0]
    size[0] = bounds[1] - bounds[0]
    return True


cdef bint _grow(Bin* bin, Py_ssize_t size) noexcept nogil:
    """Make space for `size` more bytes. False: there is no memory."""
    cdef Py_ssize_t room = max(START_ROOM, 2 * bin.room, bin.used + size)
    cdef char* data = <char*> PyMem_RawRealloc(bin.data, room)
    if data == NULL:
        return False
    bin.data = data
    bin.room = room
    return True


# --- keys for rows without one --------------------------------------------------------------------

# A generator seeded for each batch: reading 16 random bytes for each key would take longer than all else.
# Keys need to be unique, and are as unique as 256 random bits; they need not be hard to guess.


cdef int _seed(Random* random, bytes seed) except -1:
    if seed is None or PyBytes_GET_SIZE(seed) != SEED:
        raise ValueError(f"asked for {SEED} random bytes, got {seed!r}")
    memcpy(random.s, PyBytes_AS_STRING(seed), SEED)
    random.s[0] |= not (random.s[0] | random.s[1] | random.s[2] | random.s[3])  # a state of zeros would stay zero
    return 0


cdef inline uint64_t _next(Random* random) noexcept nogil:
    cdef uint64_t* s = random.s
    cdef uint64_t drawn = s[1] * 5
    cdef uint64_t t = s[1] << 17
    drawn = ((drawn << 7) | (drawn >> 57)) * 9
    s[2] ^= s[0]
    s[3] ^= s[1]
    s[1] ^= s[2]
    s[0] ^= s[3]
    s[2] ^= t
    s[3] = (s[3] << 45) | (s[3] >> 19)
    return drawn


cdef inline void _make_key(Random* random, char* out) noexcept nogil:
    """Write a random UUID (version 4) in 32 hex digits, as `Stream` makes it."""
    _put_hex(out, (_next(random) & ~(<uint64_t> 0xF000)) | 0x4000)
    _put_hex(out + 16, (_next(random) >> 2) | (<uint64_t> 1 << 63))


cdef inline void _put_hex(char* out, uint64_t number) noexcept nogil:
    """Write sixteen hex digits, the highest first; eight at a time, each in its byte."""
    cdef uint64_t digits, letters
    cdef int half
    for half in range(2):
        digits = (number >> 32) if half == 0 else number & 0xFFFFFFFFu
        digits = ((digits & 0xFFFF0000u) << 16) | (digits & 0xFFFFu)
        digits = ((digits << 8) & 0x00FF000000FF0000u) | (digits & 0x000000FF000000FFu)
        digits = ((digits << 4) & 0x0F000F000F000F00u) | (digits & 0x000F000F000F000Fu)
        letters = ((digits + 0x0606060606060606u) >> 4) & 0x0101010101010101u
        digits += 0x3030303030303030u + letters * (97 - 58)
        out[8 * half + 0] = <char> (digits >> 56)
        out[8 * half + 1] = <char> (digits >> 48)
        out[8 * half + 2] = <char> (digits >> 40)
        out[8 * half + 3] = <char> (digits >> 32)
        out[8 * half + 4] = <char> (digits >> 24)
        out[8 * half + 5] = <char> (digits >> 16)
        out[8 * half + 6] = <char> (digits >> 8)
        out[8 * half + 7] = <char> digits

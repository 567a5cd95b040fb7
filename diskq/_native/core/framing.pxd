# The encoding of one record around one body: what the compiled path needs from a codec. No state, no I/O.

from libc.stdint cimport int64_t

cdef enum Stop:
    END = 0        # at a record boundary: nothing is left
    TORN = 1       # inside a record: the bytes ended first
    CORRUPT = 2    # bytes that no writer wrote

cdef enum:
    ANY_OFFSET = -1             # in place of an expected offset: any offset


cdef struct Record:
    Py_ssize_t size             # the whole record, framing included; 0 if a torn one does not say
    Py_ssize_t body             # the start of its body, from the record's first byte
    Py_ssize_t body_size


cdef struct Parts:              # the parts of a record that has more than a body
    Py_ssize_t size             # of the whole record; of a torn one at least, 0: it does not say
    int64_t offset              # the expected one stays here if the record has none
    int64_t timestamp           # nanoseconds since the Unix epoch; in a journal INT64_MIN: none
    int type                    # of a journal's message
    Py_ssize_t key              # the start of its key, from the record's first byte
    Py_ssize_t key_size
    Py_ssize_t value            # the start of its value
    Py_ssize_t value_size


cdef struct Extent:             # the whole records at the start of some bytes
    Py_ssize_t records
    Py_ssize_t end              # the byte after the last of them
    Py_ssize_t key_bytes        # total
    Py_ssize_t value_bytes
    Stop stop                   # why it stopped: END also if enough were found
    int64_t first_offset        # of a journal's records, as `without_time`
    Py_ssize_t without_time


cdef class Framing:
    cdef readonly Py_ssize_t min_size      # bytes of a body, for writing and reading
    cdef readonly Py_ssize_t max_size      # of a body that may be written
    cdef readonly Py_ssize_t overhead      # bytes that framing adds to a body
    cdef int _limit(self, min_size, max_size, largest) except -1
    cdef void encode(self, char* out, const char* body, Py_ssize_t size) noexcept nogil
    cdef Stop decode(self, const char* data, Py_ssize_t left, Record* record) noexcept nogil
    cdef void measure(
        self, const char* data, Py_ssize_t left, int64_t first_offset, Py_ssize_t max_records, Extent* extent
    ) noexcept nogil
    cdef object columns(self, const char* data, const Extent* extent, bint wide)


cdef class KeyedFraming(Framing):
    cdef readonly Py_ssize_t max_key_size  # of a key that may be written
    cdef int _limit_keys(self, max_key_size, largest) except -1
    cdef Stop parts(self, const char* data, Py_ssize_t left, Parts* parts) noexcept nogil


cdef object borrow(object body, const char** data, Py_ssize_t* size)
cdef str stop_name(Stop stop)
cdef object count_of(
    Framing framing, const char* data, Py_ssize_t left, int64_t first_offset, Py_ssize_t max_records
)
cdef object measured_columns(Framing framing, const char* data, const Extent* extent, bint wide)
cdef object columns_of(
    Framing framing, const char* data, Py_ssize_t left, int64_t first_offset, Py_ssize_t max_records, bint wide
)

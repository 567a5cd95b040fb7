# How one record is laid around one body: what a codec tells the compiled path. No state, no I/O.

cdef enum Stop:
    END = 0        # at a record boundary: nothing is left
    TORN = 1       # inside a record: the bytes ended first
    CORRUPT = 2    # no writer wrote this


cdef struct Record:
    Py_ssize_t size             # the whole record, framing included; 0 where a torn one does not tell
    Py_ssize_t body             # where its body begins, counted from the record's first byte
    Py_ssize_t body_size


cdef class Framing:
    cdef readonly Py_ssize_t min_size      # of a body, bytes: both for writing and for reading
    cdef readonly Py_ssize_t max_size      # of a body that may be written
    cdef readonly Py_ssize_t overhead      # bytes that framing adds to a body
    cdef void encode(self, char* out, const char* body, Py_ssize_t size) noexcept nogil
    cdef Stop decode(self, const char* data, Py_ssize_t left, Record* record) noexcept nogil


cdef object borrow(object body, const char** data, Py_ssize_t* size)

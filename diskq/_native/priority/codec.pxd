# The command log's codec, for other compiled modules. No state, no I/O.

from libc.stdint cimport int32_t, int64_t, uint64_t


cdef enum Stop:
    END            # the log ends here: the end marker, or the end of the file
    MORE           # the buffer ends before the record does, and the file does not
    TORN           # the file ends inside the record
    NO_MARKER
    BAD_TERM
    BAD_LENGTH
    BAD_CHECKSUM
    UNKNOWN        # a whole record with an unknown command
    BAD            # a whole record with a command that is cut, or names no queue
    RECORD         # a whole record


cdef enum:
    WIDE_HEAD = 20       # for a record with its term in 8 bytes
    NARROW_HEAD = 16
    ADD_FIELDS = 14      # bytes of an `add` besides the name and the payload
    REMOVE_FIELDS = 10   # bytes of a `remove` besides the name
    END_SIZE = 4         # bytes of the end marker


cdef struct Record:
    Py_ssize_t size              # up to the next record
    Py_ssize_t payload           # its start, from the record's first byte
    Py_ssize_t payload_size
    int64_t term
    bint is_document             # it has a feature that only the document's layout has


cdef struct Command:
    unsigned char kind
    Py_ssize_t name_size         # the name begins at byte 2 of the payload
    Py_ssize_t fields            # the start of its fields, after the name
    int32_t length               # of a message's payload, at byte 12 of the fields
    Py_ssize_t used              # the bytes of the payload that it takes


cdef Stop parse_record(const char* data, Py_ssize_t left, Py_ssize_t rest, Record* record) noexcept nogil
cdef Stop judge_command(const char* data, Py_ssize_t size, Command* command) noexcept nogil

# Bytes of a record with a command of `command` bytes, up to the next record.
cdef Py_ssize_t record_size(Py_ssize_t command, bint document) noexcept nogil
# Encode a record at `at`, and return the byte after it. The caller has made sure that it fits.
cdef char* lay_add(char* at, bytes name, int64_t key, bytes payload, int64_t term, bint document) noexcept
cdef char* lay_remove(char* at, bytes name, uint64_t id, int64_t term, bint document) noexcept

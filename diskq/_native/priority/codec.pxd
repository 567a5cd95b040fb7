# What other compiled modules need of the command log's codec. No state, no I/O.

from libc.stdint cimport int32_t, int64_t


cdef enum Stop:
    END            # here the log ends: the end marker, or the end of the file
    MORE           # the buffer ends before the record does, and the file does not
    TORN           # the file ends inside the record
    NO_MARKER
    BAD_TERM
    BAD_LENGTH
    BAD_CHECKSUM
    UNKNOWN        # a whole record, and no command that is known
    BAD            # a whole record, and a command that is cut, or names no queue
    RECORD         # a whole record


cdef enum:
    WIDE_HEAD = 20       # of a record with its term in 8 bytes
    NARROW_HEAD = 16


cdef struct Record:
    Py_ssize_t size              # up to the next record
    Py_ssize_t payload           # where it begins, counted from the record's first byte
    Py_ssize_t payload_size
    int64_t term
    bint is_document             # something of it is as only the document has it


cdef struct Command:
    unsigned char kind
    Py_ssize_t name_size         # the name begins at byte 2 of the payload
    Py_ssize_t fields            # where its fields begin, behind the name
    int32_t length               # of a message's payload, at byte 12 of the fields
    Py_ssize_t used              # so many bytes of the payload it takes


cdef Stop parse_record(const char* data, Py_ssize_t left, Py_ssize_t rest, Record* record) noexcept nogil
cdef Stop judge_command(const char* data, Py_ssize_t size, Command* command) noexcept nogil

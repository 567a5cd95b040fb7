from libc.stdint cimport int64_t

from diskq._native.core.framing cimport Parts


cdef class Message:
    cdef readonly int partition
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ns
    cdef readonly bytes key
    cdef readonly bytes value
    cdef tuple _parts(self)


cdef Message message_of(int partition, const char* record, const Parts* parts)


cdef class JournalMessage:
    cdef readonly int partition
    cdef readonly int64_t offset
    cdef int64_t nanoseconds               # INT64_MIN: it has no time
    cdef readonly int type
    cdef readonly bytes key
    cdef readonly bytes value
    cdef tuple _parts(self)


cdef JournalMessage journal_message_of(int partition, const char* record, const Parts* parts)

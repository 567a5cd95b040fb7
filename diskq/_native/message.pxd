from libc.stdint cimport int64_t


cdef class Message:
    cdef readonly int partition
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ns
    cdef readonly bytes key
    cdef readonly bytes value
    cdef tuple _parts(self)


cdef Message new_message(int partition, int64_t offset, int64_t timestamp_ns, bytes key, bytes value)


cdef class JournalMessage:
    cdef readonly int partition
    cdef readonly int64_t offset
    cdef int64_t nanoseconds               # INT64_MIN: there are none
    cdef readonly int type
    cdef readonly bytes key
    cdef readonly bytes value
    cdef tuple _parts(self)


cdef JournalMessage new_journal_message(
    int partition, int64_t offset, int64_t nanoseconds, int type, bytes key, bytes value
)

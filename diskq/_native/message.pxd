from libc.stdint cimport int64_t


cdef class Message:
    cdef readonly int partition
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ns
    cdef readonly bytes key
    cdef readonly bytes value
    cdef tuple _parts(self)


cdef Message new_message(int partition, int64_t offset, int64_t timestamp_ns, bytes key, bytes value)

from libc.stdint cimport uint32_t

cdef enum:
    CRC_START = 0xFFFFFFFF


cdef uint32_t crc32_of(uint32_t crc, const char* data, Py_ssize_t size) noexcept nogil

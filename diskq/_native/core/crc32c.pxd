from libc.stdint cimport uint32_t


cdef uint32_t crc32c_of(uint32_t crc, const void* data, Py_ssize_t size) noexcept nogil

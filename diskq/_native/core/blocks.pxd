from libc.stdint cimport uint32_t, uint64_t


cdef void put_row(char* row, uint64_t end, uint32_t size, uint32_t records, uint32_t crc) noexcept nogil

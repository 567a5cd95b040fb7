# Integers as the formats lay them down. One line each, so that no codec spells a shift.

from libc.stdint cimport int32_t, uint32_t


cdef inline void put_u32_be(char* out, uint32_t value) noexcept nogil:
    out[0] = <char> (value >> 24)
    out[1] = <char> (value >> 16)
    out[2] = <char> (value >> 8)
    out[3] = <char> value


cdef inline int32_t get_i32_be(const char* data) noexcept nogil:
    cdef const unsigned char* b = <const unsigned char*> data
    return <int32_t> ((<uint32_t> b[0] << 24) | (<uint32_t> b[1] << 16) | (<uint32_t> b[2] << 8) | b[3])

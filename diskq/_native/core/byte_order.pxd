# Integers in the formats' byte orders. One line each, so that no codec has shifts of its own.

from libc.stdint cimport int32_t, uint32_t, uint64_t


cdef inline bint is_number(uint64_t value) noexcept nogil:
    """True if it can be the number of a message, a record or a file: below NO_NUMBER of diskq.storage.numbers."""
    return value < <uint64_t> 1 << 62


cdef inline void put_u32_be(char* out, uint32_t value) noexcept nogil:
    out[0] = <char> (value >> 24)
    out[1] = <char> (value >> 16)
    out[2] = <char> (value >> 8)
    out[3] = <char> value


cdef inline int32_t get_i32_be(const char* data) noexcept nogil:
    cdef const unsigned char* b = <const unsigned char*> data
    return <int32_t> ((<uint32_t> b[0] << 24) | (<uint32_t> b[1] << 16) | (<uint32_t> b[2] << 8) | b[3])


cdef inline uint32_t get_u32_be(const char* data) noexcept nogil:
    return <uint32_t> get_i32_be(data)


cdef inline void put_u64_be(char* out, uint64_t value) noexcept nogil:
    put_u32_be(out, <uint32_t> (value >> 32))
    put_u32_be(out + 4, <uint32_t> value)


cdef inline uint64_t get_u64_be(const char* data) noexcept nogil:
    return <uint64_t> get_u32_be(data) << 32 | get_u32_be(data + 4)


cdef inline void put_u32_le(char* out, uint32_t value) noexcept nogil:
    out[0] = <char> value
    out[1] = <char> (value >> 8)
    out[2] = <char> (value >> 16)
    out[3] = <char> (value >> 24)


cdef inline uint32_t get_u32_le(const char* data) noexcept nogil:
    cdef const unsigned char* b = <const unsigned char*> data
    return b[0] | (<uint32_t> b[1] << 8) | (<uint32_t> b[2] << 16) | (<uint32_t> b[3] << 24)


cdef inline void put_u64_le(char* out, uint64_t value) noexcept nogil:
    put_u32_le(out, <uint32_t> value)
    put_u32_le(out + 4, <uint32_t> (value >> 32))


cdef inline uint64_t get_u64_le(const char* data) noexcept nogil:
    return get_u32_le(data) | (<uint64_t> get_u32_le(data + 4) << 32)


# A varuint, as in Go's encoding/binary and Protocol Buffers: seven bits a byte, the lowest first; the high
# bit says that more follow. At most ten bytes make 64 bits.


cdef inline Py_ssize_t varuint_size(uint64_t value) noexcept nogil:
    cdef Py_ssize_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline Py_ssize_t put_varuint(char* out, uint64_t value) noexcept nogil:
    """Write a varuint. Returns the number of bytes."""
    cdef Py_ssize_t at = 0
    while value >= 0x80:
        out[at] = <char> (value | 0x80)
        value >>= 7
        at += 1
    out[at] = <char> value
    return at + 1


cdef inline Py_ssize_t get_varuint(const char* data, Py_ssize_t left, uint64_t* value) noexcept nogil:
    """Read a varuint. Returns the number of bytes; 0 if it goes on past `left`, -1 if it exceeds 64 bits."""
    cdef Py_ssize_t at
    cdef unsigned char byte
    cdef uint64_t told = 0
    for at in range(10):
        if at >= left:
            return 0
        byte = data[at]
        if at == 9 and byte > 1:
            return -1
        told |= <uint64_t> (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            value[0] = told
            return at + 1
    return -1

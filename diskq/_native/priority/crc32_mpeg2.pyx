# CRC-32/MPEG-2, the checksum of TaskFlux's files: polynomial 04C11DB7, initial value all
# ones, not reflected, not inverted at the end. So it chains: the result of one piece is the start of the next.
#
# Sixteen bytes per step: each is looked up in the table for the number of bytes that follow it.

cimport cython
from libc.stdint cimport uint32_t

cdef uint32_t[16][256] _TABLES


cdef void _fill() noexcept:
    cdef uint32_t value
    cdef int i, bit, k
    for i in range(256):
        value = <uint32_t> i << 24
        for bit in range(8):
            value = (value << 1) ^ (<uint32_t> 0x04C11DB7 if value & <uint32_t> 0x80000000 else 0)
        _TABLES[0][i] = value
    for k in range(1, 16):
        for i in range(256):
            value = _TABLES[k - 1][i]
            _TABLES[k][i] = (value << 8) ^ _TABLES[0][value >> 24]


_fill()


cdef uint32_t crc32_of(uint32_t crc, const char* data, Py_ssize_t size) noexcept nogil:
    cdef const unsigned char* b = <const unsigned char*> data
    while size >= 16:
        crc ^= (<uint32_t> b[0] << 24) | (<uint32_t> b[1] << 16) | (<uint32_t> b[2] << 8) | b[3]
        crc = (
            _TABLES[15][crc >> 24] ^ _TABLES[14][(crc >> 16) & 0xFF]
            ^ _TABLES[13][(crc >> 8) & 0xFF] ^ _TABLES[12][crc & 0xFF]
            ^ _TABLES[11][b[4]] ^ _TABLES[10][b[5]] ^ _TABLES[9][b[6]] ^ _TABLES[8][b[7]]
            ^ _TABLES[7][b[8]] ^ _TABLES[6][b[9]] ^ _TABLES[5][b[10]] ^ _TABLES[4][b[11]]
            ^ _TABLES[3][b[12]] ^ _TABLES[2][b[13]] ^ _TABLES[1][b[14]] ^ _TABLES[0][b[15]]
        )
        b += 16
        size -= 16
    while size > 0:
        crc = (crc << 8) ^ _TABLES[0][(crc >> 24) ^ b[0]]
        b += 1
        size -= 1
    return crc


@cython.boundscheck(False)  # of data[0], which is there
def crc32_mpeg2(const unsigned char[::1] data, uint32_t start=0xFFFFFFFF):
    """Return the checksum of `data`; `start` is that of the bytes before it.

    Other threads run meanwhile.
    """
    cdef uint32_t crc = start
    if data.shape[0]:
        with nogil:
            crc = crc32_of(crc, <const char*> &data[0], data.shape[0])
    return crc

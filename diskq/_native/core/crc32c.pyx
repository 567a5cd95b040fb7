# CRC-32C (Castagnoli), the checksum of blocks and of staged records, for compiled code: by the
# processor's instruction if it has one (SSE 4.2, ARMv8), else by tables.
#
# storage/checksums.py uses the library `crc32c` for the same; a test compares both. This one is here because
# a checksum for each record must not cost a call of the interpreter.

from libc.stdint cimport uint32_t

cdef extern from "crc32c.h":
    void diskq_crc32c_prepare() nogil
    uint32_t diskq_crc32c(uint32_t crc, const void* data, size_t size) nogil
    uint32_t diskq_crc32c_by_tables(uint32_t crc, const unsigned char* data, size_t size) nogil


diskq_crc32c_prepare()


cdef uint32_t crc32c_of(uint32_t crc, const void* data, Py_ssize_t size) noexcept nogil:
    """Return the checksum of bytes whose checksum is `crc` (0: no bytes), followed by `data`."""
    return diskq_crc32c(crc, data, size)


def crc32c(const unsigned char[::1] data, uint32_t start=0):
    """Return the checksum of `data`; `start` is that of the bytes before it."""
    return diskq_crc32c(start, &data[0] if data.shape[0] else NULL, data.shape[0])


def crc32c_by_tables(const unsigned char[::1] data, uint32_t start=0):
    """Return the same, calculated as on a processor without the instruction. For tests, on any processor."""
    return ~diskq_crc32c_by_tables(~start, &data[0] if data.shape[0] else NULL, data.shape[0])

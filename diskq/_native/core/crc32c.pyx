# CRC-32C (Castagnoli), the checksum of blocks, of staged records and of small files: by the processor's
# instruction if it has one (SSE 4.2, ARMv8), else by tables.
#
# The package `crc32c` calculates the same, as fast, and judges this one in tests. It has nothing that compiled
# code could call without the interpreter, which a checksum for each record must not cost.

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t

cdef extern from "crc32c.h":
    void diskq_crc32c_prepare() nogil
    uint32_t diskq_crc32c(uint32_t crc, const void* data, size_t size) nogil
    uint32_t diskq_crc32c_by_tables(uint32_t crc, const unsigned char* data, size_t size) nogil


# From this many bytes on the calculation takes longer than releasing the interpreter's lock.
cdef enum:
    RELEASE_THE_GIL_FROM = 32 * 1024


diskq_crc32c_prepare()


cdef uint32_t crc32c_of(uint32_t crc, const void* data, Py_ssize_t size) noexcept nogil:
    """Return the checksum of bytes whose checksum is `crc` (0: no bytes), followed by `data`."""
    return diskq_crc32c(crc, data, size)


def crc32c(data, uint32_t start=0):
    """Return the checksum of `data`; `start` is that of the bytes before it."""
    # Not a typed memoryview: making one takes as long as summing 1 KiB.
    cdef Py_buffer buffer
    cdef uint32_t found
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    if buffer.len < RELEASE_THE_GIL_FROM:
        found = diskq_crc32c(start, buffer.buf, buffer.len)
    else:
        with nogil:
            found = diskq_crc32c(start, buffer.buf, buffer.len)
    PyBuffer_Release(&buffer)
    return found


@cython.boundscheck(False)  # of data[0], which is there
def crc32c_by_tables(const unsigned char[::1] data, uint32_t start=0):
    """Return the same, calculated as on a processor without the instruction. For tests, on any processor."""
    return ~diskq_crc32c_by_tables(~start, &data[0] if data.shape[0] else NULL, data.shape[0])

# The file system for compiled code: pread and pwrite on a handle of the file system chosen at open.

from libc.stdint cimport int64_t

# Sync the bytes and sizes of files. Returns 0, or the errno of the first one that failed.
cdef int sync_handles(const int* handles, Py_ssize_t count) noexcept nogil

cdef FileCalls calls_of(fs)

cdef class FileCalls:
    cdef object fs              # None: the operating system
    cdef Py_ssize_t pwrite(self, int handle, const char* data, Py_ssize_t size, int64_t offset) except -1
    cdef Py_ssize_t pread(self, int handle, char* into, Py_ssize_t size, int64_t offset) except -1

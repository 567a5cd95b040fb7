# The door, compiled side. Law: the only file of this room that makes system calls on files; clocks are in
# the gate, and who asks to be told of changes goes to inotify.
#
# `native` file systems hand out file descriptors, and the calls below go straight to the kernel.
# Any other file system is asked through its Python verbs, so that CrashFS and FaultFS are the
# disk for the compiled path too.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno, PyErr_SetFromErrnoWithFilenameObject
from libc.errno cimport EINTR, ENOENT, errno
from libc.string cimport memcpy, strlen
from posix.stat cimport fstat, lstat, struct_stat
from posix.types cimport off_t

cdef extern from "Python.h":
    bytes PyUnicode_EncodeFSDefault(str path)

cdef extern from "<unistd.h>" nogil:
    ssize_t c_pwrite "pwrite" (int fd, const void* data, size_t size, off_t offset)
    ssize_t c_pread "pread" (int fd, void* into, size_t size, off_t offset)

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <fcntl.h>
    #ifdef SYNC_FILE_RANGE_WRITE
    #define diskq_start_writeback(fd) sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE)
    #else
    #define diskq_start_writeback(fd) 0
    #endif
    """
    int diskq_start_writeback(int fd) nogil

# Below this many bytes a call into the page cache is shorter than handing over the interpreter.
cdef enum:
    RELEASE_THE_GIL_FROM = 16 * 1024


cdef class Door:
    """pread and pwrite for compiled code, on the handles of one file system."""

    def __cinit__(self, fs):
        self.fs = None if fs.native else fs

    cdef Py_ssize_t pwrite(self, int handle, const char* data, Py_ssize_t size, int64_t offset) except -1:
        """Bytes taken, 0 < n <= size. Raises OSError."""
        cdef ssize_t taken
        if self.fs is not None:
            return self.fs.pwrite(handle, data[:size], offset)
        while True:
            if size < RELEASE_THE_GIL_FROM:
                taken = c_pwrite(handle, data, size, offset)
            else:
                with nogil:
                    taken = c_pwrite(handle, data, size, offset)
            if taken >= 0:
                return taken
            if errno != EINTR:
                PyErr_SetFromErrno(OSError)
            PyErr_CheckSignals()

    cdef Py_ssize_t pread(self, int handle, char* into, Py_ssize_t size, int64_t offset) except -1:
        """Bytes read: `size`, or fewer at the end of the file. Raises OSError."""
        cdef ssize_t got
        cdef Py_ssize_t total = 0
        cdef bytes data
        if self.fs is not None:
            data = self.fs.pread(handle, size, offset)
            total = min(PyBytes_GET_SIZE(data), size)
            memcpy(into, PyBytes_AS_STRING(data), total)
            return total
        while total < size:
            if size < RELEASE_THE_GIL_FROM:
                got = c_pread(handle, into + total, size - total, offset + total)
            else:
                with nogil:
                    got = c_pread(handle, into + total, size - total, offset + total)
            if got == 0:
                break
            if got > 0:
                total += got
            elif errno != EINTR:
                PyErr_SetFromErrno(OSError)
            else:
                PyErr_CheckSignals()
        return total


def start_writeback(int fd):
    """Ask the kernel to begin writing the file's dirty pages; a hint, so its answer is ignored."""
    with nogil:
        diskq_start_writeback(fd)


# --- what a file says of itself, without the dozen other things that os.stat tells --------------------


def size_of_file(int fd):
    """Bytes of the open file. Raises OSError."""
    cdef struct_stat told
    if fstat(fd, &told):
        PyErr_SetFromErrno(OSError)
    return told.st_size


def has_name(int fd):
    """Does a directory still lead to the open file? Raises OSError."""
    cdef struct_stat told
    if fstat(fd, &told):
        PyErr_SetFromErrno(OSError)
    return told.st_nlink > 0


def size_at(str path not None):
    """Bytes of the file at `path`, which is not followed if it is a link; None: there is none. Raises OSError."""
    cdef struct_stat told
    cdef bytes encoded = PyUnicode_EncodeFSDefault(path)
    cdef const char* name = PyBytes_AS_STRING(encoded)
    cdef int failed
    if PyBytes_GET_SIZE(encoded) != <Py_ssize_t> strlen(name):
        raise ValueError("embedded null character in a path")
    with nogil:
        failed = lstat(name, &told)
    if not failed:
        return told.st_size
    if errno != ENOENT:
        PyErr_SetFromErrnoWithFilenameObject(OSError, path)
    return None

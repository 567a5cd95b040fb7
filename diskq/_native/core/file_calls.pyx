# File calls for compiled code. Law: the only file of this package that makes system calls on files; clocks
# are in gate.pyx, and notification of changes is in inotify.pyx.
#
# `native` file systems hand out file descriptors, and the calls below go straight to the kernel.
# Any other file system is called through its Python methods, so that CrashFS and FaultFS are the disk for
# the compiled path, too.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno, PyErr_SetFromErrnoWithFilenameObject
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EINTR, ENOENT, errno
from libc.string cimport memcpy, strerror, strlen

cdef extern from "Python.h":
    bytes PyUnicode_EncodeFSDefault(str path)

cdef extern from "platform.h" nogil:
    int64_t diskq_pread(int fd, void* into, size_t size, int64_t offset)
    int64_t diskq_pwrite(int fd, const void* data, size_t size, int64_t offset)
    int diskq_stat_open(int fd, int64_t* size, int64_t* links)
    int diskq_stat_path(const char* path, int64_t* size)
    int diskq_full_sync(int fd)
    int diskq_data_sync(int fd)
    int diskq_sync_file_system(int fd)
    int diskq_boot_id(char* into, size_t size)
    void diskq_start_writeback(int fd)

# Below this many bytes a call into the page cache takes less time than releasing the interpreter's lock.
cdef enum:
    RELEASE_THE_GIL_FROM = 16 * 1024


cdef class FileCalls:
    """pread and pwrite for compiled code, on the handles of one file system."""

    def __cinit__(self, fs):
        self.fs = None if fs is None or fs.native else fs

    cdef Py_ssize_t pwrite(self, int handle, const char* data, Py_ssize_t size, int64_t offset) except -1:
        """Write, and return the number of bytes written, 0 < n <= size. Raises OSError."""
        cdef int64_t taken
        if self.fs is not None:
            return self.fs.pwrite(handle, data[:size], offset)
        while True:
            if size < RELEASE_THE_GIL_FROM:
                taken = diskq_pwrite(handle, data, size, offset)
            else:
                with nogil:
                    taken = diskq_pwrite(handle, data, size, offset)
            if taken >= 0:
                return taken
            if errno != EINTR:
                PyErr_SetFromErrno(OSError)
            PyErr_CheckSignals()

    cdef Py_ssize_t pread(self, int handle, char* into, Py_ssize_t size, int64_t offset) except -1:
        """Read, and return the number of bytes: `size`, or fewer at the end of the file. Raises OSError."""
        cdef int64_t got
        cdef Py_ssize_t total = 0
        cdef bytes data
        if self.fs is not None:
            data = self.fs.pread(handle, size, offset)
            total = min(PyBytes_GET_SIZE(data), size)
            if total:  # otherwise there may be no memory yet to read into
                memcpy(into, PyBytes_AS_STRING(data), total)
            return total
        while total < size:
            if size < RELEASE_THE_GIL_FROM:
                got = diskq_pread(handle, into + total, size - total, offset + total)
            else:
                with nogil:
                    got = diskq_pread(handle, into + total, size - total, offset + total)
            if got == 0:
                break
            if got > 0:
                total += got
            elif errno != EINTR:
                PyErr_SetFromErrno(OSError)
            else:
                PyErr_CheckSignals()
        return total


cdef FileCalls _of_system = FileCalls.__new__(FileCalls, None)


cdef FileCalls calls_of(fs):
    """Return the calls for handles of that file system. Those that go to the kernel are one object."""
    return _of_system if fs.native else FileCalls(fs)


def write_all(fs, int handle, data, int64_t offset):
    """Write all bytes of `data`, with more than one call of the system if need be. Raises OSError.

    A full disk then raises the error, instead of taking fewer bytes.
    """
    cdef FileCalls calls = calls_of(fs)
    cdef Py_buffer buffer
    cdef Py_ssize_t taken = 0
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        while taken < buffer.len:
            taken += calls.pwrite(
                handle, <const char*> buffer.buf + taken, buffer.len - taken, offset + taken
            )
    finally:
        PyBuffer_Release(&buffer)


def start_writeback(fs, int handle):
    """Let the kernel begin to write the file's bytes to the disk, and return at once. It makes nothing durable.

    A sync that comes later then has less to wait for, and reports what went wrong. Nothing is done where the
    system has no such call, or handles are not descriptors. Never raises.
    """
    if fs.native:
        with nogil:
            diskq_start_writeback(handle)


def full_sync(int fd):
    """Return when the file's bytes are on stable storage, not only in the disk's cache. Raises OSError."""
    cdef int failed
    while True:
        with nogil:
            failed = diskq_full_sync(fd)
        if not failed:
            return
        if errno != EINTR:
            PyErr_SetFromErrno(OSError)
        PyErr_CheckSignals()


cdef int sync_handles(const int* handles, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    # Start the write-back of all before waiting for the first: the disk then flushes its cache once for most of
    # them, which makes a barrier of two files about a fifth faster.
    for i in range(1, count):
        diskq_start_writeback(handles[i])
    for i in range(count):
        while diskq_data_sync(handles[i]):
            if errno != EINTR:
                return errno
    return 0


def sync_files(tuple handles not None):
    """Return when the bytes and the size of each open file are on stable storage. Raises OSError."""
    cdef Py_ssize_t count = len(handles), i
    cdef int failed
    cdef int* copies = <int*> PyMem_Malloc(max(count, 1) * sizeof(int))
    if copies is NULL:
        raise MemoryError
    try:
        for i in range(count):
            copies[i] = handles[i]
        with nogil:
            failed = sync_handles(copies, count)
    finally:
        PyMem_Free(copies)
    if failed:
        raise OSError(failed, strerror(failed).decode("utf-8", "replace"))


def sync_file_system(int fd):
    """Return when everything written to the file system of the open file is durable. Raises OSError."""
    cdef int failed
    with nogil:
        failed = diskq_sync_file_system(fd)
    if failed:
        PyErr_SetFromErrno(OSError)


def boot_id():
    """Return the kernel's identifier of this boot; empty if it has none, or has it in a file."""
    cdef char found[64]
    if diskq_boot_id(found, sizeof(found)):
        return ""
    return found[: sizeof(found)].split(b"\0")[0].decode("ascii", "replace")


# --- attributes of a file, without the dozen others that os.stat returns ------------------------------


def size_of_file(int fd):
    """Return the size of the open file in bytes. Raises OSError."""
    cdef int64_t size = 0, links = 0
    if diskq_stat_open(fd, &size, &links):
        PyErr_SetFromErrno(OSError)
    return size


def has_name(int fd):
    """True if a directory still refers to the open file. Raises OSError."""
    cdef int64_t size = 0, links = 0
    if diskq_stat_open(fd, &size, &links):
        PyErr_SetFromErrno(OSError)
    return links > 0


def size_at(str path not None):
    """Return the bytes of the file at `path`, without following a link; None if there is none. Raises OSError."""
    cdef int64_t size = 0
    cdef bytes encoded = PyUnicode_EncodeFSDefault(path)
    cdef const char* name = PyBytes_AS_STRING(encoded)
    cdef int failed
    if PyBytes_GET_SIZE(encoded) != <Py_ssize_t> strlen(name):
        raise ValueError("embedded null character in a path")
    with nogil:
        failed = diskq_stat_path(name, &size)
    if not failed:
        return size
    if errno != ENOENT:
        PyErr_SetFromErrnoWithFilenameObject(OSError, path)
    return None

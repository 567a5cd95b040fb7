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

cdef extern from "Python.h":
    bytes PyUnicode_EncodeFSDefault(str path)

cdef extern from "platform.h" nogil:
    int64_t diskq_pread(int fd, void* into, size_t size, int64_t offset)
    int64_t diskq_pwrite(int fd, const void* data, size_t size, int64_t offset)
    int diskq_stat_open(int fd, int64_t* size, int64_t* links)
    int diskq_stat_path(const char* path, int64_t* size)
    int diskq_full_sync(int fd)
    int diskq_sync_file_system(int fd)
    int diskq_boot_id(char* into, size_t size)
    void diskq_start_writeback(int fd)

# Below this many bytes a call into the page cache is shorter than handing over the interpreter.
cdef enum:
    RELEASE_THE_GIL_FROM = 16 * 1024


cdef class FileCalls:
    """pread and pwrite for compiled code, on the handles of one file system."""

    def __cinit__(self, fs):
        self.fs = None if fs.native else fs

    cdef Py_ssize_t pwrite(self, int handle, const char* data, Py_ssize_t size, int64_t offset) except -1:
        """Bytes taken, 0 < n <= size. Raises OSError."""
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
        """Bytes read: `size`, or fewer at the end of the file. Raises OSError."""
        cdef int64_t got
        cdef Py_ssize_t total = 0
        cdef bytes data
        if self.fs is not None:
            data = self.fs.pread(handle, size, offset)
            total = min(PyBytes_GET_SIZE(data), size)
            if total:  # else there may be no memory yet to read into
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


def start_writeback(int fd):
    """Ask the kernel to begin writing the file's dirty pages; a hint, so its answer is ignored."""
    with nogil:
        diskq_start_writeback(fd)


def full_sync(int fd):
    """Have the file's bytes on stable storage, not in a cache of the disk's own. Raises OSError."""
    cdef int failed
    while True:
        with nogil:
            failed = diskq_full_sync(fd)
        if not failed:
            return
        if errno != EINTR:
            PyErr_SetFromErrno(OSError)
        PyErr_CheckSignals()


def sync_file_system(int fd):
    """Return when all that was written to the file system of the open file is durable. Raises OSError."""
    cdef int failed
    with nogil:
        failed = diskq_sync_file_system(fd)
    if failed:
        PyErr_SetFromErrno(OSError)


def boot_id():
    """The kernel's name for "since this machine started"; empty where it has none, or a file for it."""
    cdef char found[64]
    if diskq_boot_id(found, sizeof(found)):
        return ""
    return found[: sizeof(found)].split(b"\0")[0].decode("ascii", "replace")


# --- what a file says of itself, without the dozen other things that os.stat tells --------------------


def size_of_file(int fd):
    """Bytes of the open file. Raises OSError."""
    cdef int64_t size = 0, links = 0
    if diskq_stat_open(fd, &size, &links):
        PyErr_SetFromErrno(OSError)
    return size


def has_name(int fd):
    """Does a directory still lead to the open file? Raises OSError."""
    cdef int64_t size = 0, links = 0
    if diskq_stat_open(fd, &size, &links):
        PyErr_SetFromErrno(OSError)
    return links > 0


def size_at(str path not None):
    """Bytes of the file at `path`, which is not followed if it is a link; None: there is none. Raises OSError."""
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

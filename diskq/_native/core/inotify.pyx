# inotify(7): the kernel reports changes of files. Law: one system call per function, no state.
#
# For one reader of a descriptor that never blocks; storage/file_watch.py waits until it is readable, and knows
# what its numbers mean. On a system without inotify, `init` raises ENOSYS and nothing else is ever called.

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.exc cimport PyErr_SetFromErrno, PyErr_SetFromErrnoWithFilename
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t

cdef extern from "Python.h":
    bytes PyUnicode_EncodeFSDefault(object path)

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #ifdef __linux__
    #include <sys/inotify.h>
    #include <unistd.h>
    #define diskq_read_events(fd, into, size) read(fd, into, size)
    #define diskq_close_events(fd) close(fd)
    #define diskq_inotify_init() inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
    #else
    struct inotify_event { int wd; uint32_t mask, cookie, len; char name[]; };
    static int no_inotify(void) { errno = ENOSYS; return -1; }
    #define diskq_inotify_init() no_inotify()
    #define inotify_add_watch(fd, path, mask) no_inotify()
    #define inotify_rm_watch(fd, watch) no_inotify()
    #define diskq_read_events(fd, into, size) no_inotify()
    #define diskq_close_events(fd) no_inotify()
    enum { IN_MODIFY = 2, IN_MOVED_FROM = 0x40, IN_MOVED_TO = 0x80, IN_CREATE = 0x100, IN_DELETE = 0x200,
           IN_Q_OVERFLOW = 0x4000, IN_IGNORED = 0x8000, IN_ONLYDIR = 0x1000000 };
    #endif
    """
    struct inotify_event:
        int wd
        uint32_t mask
        uint32_t len
    int c_init "diskq_inotify_init" ()
    int c_add_watch "inotify_add_watch" (int fd, const char* path, uint32_t mask)
    int c_rm_watch "inotify_rm_watch" (int fd, int watch)
    Py_ssize_t c_read "diskq_read_events" (int fd, void* into, size_t size)
    int c_close "diskq_close_events" (int fd)
    const uint32_t IN_MODIFY, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_Q_OVERFLOW, IN_IGNORED
    const uint32_t IN_ONLYDIR

cdef enum:
    BUFFER = 16 * 1024  # some hundred events; the longest one takes 272 bytes

MODIFY = IN_MODIFY
NAMES = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR
OVERFLOW = IN_Q_OVERFLOW
IGNORED = IN_IGNORED


def init():
    """Return a descriptor that does not block, and that a child does not inherit. Raises OSError."""
    cdef int fd = c_init()
    if fd < 0:
        PyErr_SetFromErrno(OSError)
    return fd


def add_watch(int fd, str path not None, uint32_t mask):
    """Watch `path`, and return the number that its events will have: the same for the same file. Raises OSError."""
    cdef bytes encoded = PyUnicode_EncodeFSDefault(path)
    cdef int watch = c_add_watch(fd, PyBytes_AS_STRING(encoded), mask)
    if watch < 0:
        PyErr_SetFromErrnoWithFilename(OSError, PyBytes_AS_STRING(encoded))
    return watch


def rm_watch(int fd, int watch):
    """End a watch. One that has ended by itself is ignored."""
    c_rm_watch(fd, watch)


def read_events(int fd):
    """Return the events since the last call: a list of (watch, mask), which may be empty. Raises OSError."""
    cdef char buffer[BUFFER]
    cdef inotify_event* event
    cdef Py_ssize_t at = 0
    cdef list events = []
    cdef Py_ssize_t size = c_read(fd, buffer, BUFFER)
    if size < 0:
        if errno == EAGAIN or errno == EINTR:
            return events
        PyErr_SetFromErrno(OSError)
    while at < size:
        event = <inotify_event*> (buffer + at)
        events.append((event.wd, event.mask))
        at += sizeof(inotify_event) + event.len
    return events


def close(int fd):
    """Close the descriptor, with all its watches."""
    c_close(fd)

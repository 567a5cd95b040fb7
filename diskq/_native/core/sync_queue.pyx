# Work for threads that execute syncs. Law: a sync of open files is executed, and reported, without the
# interpreter's lock. Its caller needs no thread of Python to hear of it: a descriptor becomes readable.
#
# Any number of threads serve one queue. They sleep in `serve`, execute the syncs that are added there, and return
# from it with other work, which is Python.
#
# To wake a thread that sleeps takes some 20 us, twice for each sync: to its thread, and back. So a lone sender
# waits for its sync awake (`spin`), and the thread that executed it waits awake for the next one.

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.pythread cimport (
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)
from cpython.exc cimport PyErr_SetFromErrno
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t
from libc.string cimport strerror

from diskq._native.core.file_calls cimport sync_handles

cdef extern from "platform.h" nogil:
    int64_t diskq_monotonic_ns()
    int diskq_open_signal(int* ends)
    void diskq_send_signal(int fd)
    void diskq_clear_signal(int fd)
    void diskq_close_signal(const int* ends)
    void* diskq_load_pointer(void* where)
    void diskq_pause()

cdef enum:
    WAIT = 1
    LOOKS = 64                  # at what is awaited, between two looks at the clock
    MOST_MISSES = 10

cdef int64_t LONGEST_AWAKE = 300_000    # nanoseconds

cdef struct Work:
    Work* next
    PyObject* owner         # a reference of this work's: whom it is reported to; or the work itself, if Python
    bint is_python
    int error               # errno; 0: it is durable
    int64_t took            # nanoseconds
    Py_ssize_t count
    int handles[1]          # and more

# A thread that has nothing to do: it sleeps until `bell` is released.
cdef struct Sleeper:
    Sleeper* next
    PyThread_type_lock bell


cdef class SyncQueue:
    cdef PyThread_type_lock mutex   # held for a few instructions, and never while the interpreter's lock is taken
    cdef Work* first
    cdef Work* last
    cdef Work* done                 # the last one first
    cdef Sleeper* sleepers
    cdef Py_ssize_t length, threads, busy
    cdef bint is_ended
    cdef bint is_watched            # a thread waits in `spin`: it needs no signal
    cdef bint is_awake              # one that serves waits without sleeping: it needs no bell
    cdef int misses, waits_left_out # of such a thread
    cdef int ends[2]

    def __cinit__(self):
        self.ends[0] = self.ends[1] = -1
        self.mutex = PyThread_allocate_lock()
        if self.mutex is NULL:
            raise MemoryError

    def __dealloc__(self):
        # No thread is inside: each one holds a reference. In a child of a fork none is, and the mutex may be held.
        self.close()
        drop(self.first)
        drop(self.done)
        if self.mutex is not NULL:
            PyThread_free_lock(self.mutex)

    # --- for the thread that waits ------------------------------------------------------------------

    def open(self):
        """Return a descriptor that is readable while `executed` has something. Raises OSError."""
        if self.ends[0] < 0 and diskq_open_signal(self.ends) < 0:
            PyErr_SetFromErrno(OSError)
        return self.ends[0]

    def close(self):
        """Close the descriptor. No thread may serve any more. Idempotent."""
        if self.ends[0] >= 0:
            diskq_close_signal(self.ends)
            self.ends[0] = self.ends[1] = -1

    def expect(self, Py_ssize_t threads):
        """Count on so many more threads, or fewer, to serve."""
        PyThread_acquire_lock(self.mutex, WAIT)
        self.threads += threads
        PyThread_release_lock(self.mutex)

    def add_sync(self, tuple handles not None, owner not None):
        """Have files synced, in this order; `executed` then has the `owner`. After `open`.

        Handles are file descriptors. True: no thread is free for it, so one more should serve.
        """
        cdef Py_ssize_t count = len(handles), i
        cdef Work* work = new_work(owner, count)
        try:
            for i in range(count):
                work.handles[i] = handles[i]
        except:
            drop(work)
            raise
        return self.add_work(work)

    def add(self, work not None):
        """Have `serve` return `work` in one of the threads. True: no thread is free for it, as `add_sync`."""
        return self.add_work(new_work(work, -1))

    cdef bint add_work(self, Work* work) noexcept:
        cdef Sleeper* sleeper
        cdef bint needs_thread
        PyThread_acquire_lock(self.mutex, WAIT)
        if self.last is NULL:
            self.first = work
        else:
            self.last.next = work
        self.last = work
        self.length += 1
        needs_thread = self.length > self.threads - self.busy
        sleeper = NULL
        if not self.is_awake or self.length > 1:
            sleeper = self.sleepers
        if sleeper is not NULL:
            self.sleepers = sleeper.next
        PyThread_release_lock(self.mutex)
        if sleeper is not NULL:
            PyThread_release_lock(sleeper.bell)
        return needs_thread

    def executed(self):
        """Return the syncs executed since the last call, in order: (owner, OSError or None, nanoseconds)."""
        diskq_clear_signal(self.ends[0])
        return self.take_done()

    def spin(self, int64_t nanoseconds):
        """Do the same as soon as there is one, without sleeping; [] if there is none after so long.

        A thread that sleeps is woken too late, and with cold caches: for one that has nothing else to do.
        Without the interpreter's lock.
        """
        PyThread_acquire_lock(self.mutex, WAIT)
        self.is_watched = True
        PyThread_release_lock(self.mutex)
        with nogil:
            wait_awake(&self.done, nanoseconds)
        PyThread_acquire_lock(self.mutex, WAIT)
        self.is_watched = False
        PyThread_release_lock(self.mutex)
        return self.take_done()

    cdef list take_done(self):
        cdef Work* work
        cdef Work* following
        cdef list executed = []
        PyThread_acquire_lock(self.mutex, WAIT)
        work = self.done
        self.done = NULL
        PyThread_release_lock(self.mutex)
        while work is not NULL:
            failure = OSError(work.error, strerror(work.error).decode("utf-8", "replace")) if work.error else None
            executed.append((<object> work.owner, failure, work.took))
            following = work.next
            work.next = NULL
            drop(work)
            work = following
        executed.reverse()
        return executed

    # --- for the threads ------------------------------------------------------------------------------

    def serve(self):
        """Execute syncs until there is other work, and return that: call `finished` then. None: `end` was called.

        Blocks without the interpreter's lock.
        """
        cdef Work* work
        cdef Sleeper sleeper
        sleeper.next = NULL
        sleeper.bell = PyThread_allocate_lock()
        if sleeper.bell is NULL:
            raise MemoryError
        PyThread_acquire_lock(sleeper.bell, WAIT)
        with nogil:
            work = self.next_work(&sleeper)
        PyThread_release_lock(sleeper.bell)
        PyThread_free_lock(sleeper.bell)
        if work is NULL:
            return None
        found = <object> work.owner
        drop(work)
        return found

    cdef Work* next_work(self, Sleeper* sleeper) noexcept nogil:
        """Return the next work that is Python; this thread is busy then. NULL: `end` was called."""
        cdef Work* work
        cdef bint is_first, may_follow = False
        PyThread_acquire_lock(self.mutex, WAIT)
        while True:
            if may_follow and self.first is NULL and not self.is_awake:
                self.stay_awake()
            while self.first is NULL and not self.is_ended:
                sleeper.next = self.sleepers
                self.sleepers = sleeper
                PyThread_release_lock(self.mutex)
                PyThread_acquire_lock(sleeper.bell, WAIT)
                PyThread_acquire_lock(self.mutex, WAIT)
            work = self.first
            if work is NULL:
                break
            self.first = work.next
            if self.first is NULL:
                self.last = NULL
            work.next = NULL
            self.length -= 1
            self.busy += 1
            if work.is_python:
                break
            PyThread_release_lock(self.mutex)
            work.took = diskq_monotonic_ns()
            work.error = sync_handles(work.handles, work.count)
            work.took = diskq_monotonic_ns() - work.took
            PyThread_acquire_lock(self.mutex, WAIT)
            self.busy -= 1
            may_follow = self.is_watched
            is_first = self.done is NULL and not self.is_watched
            work.next = self.done
            self.done = work
            if is_first:
                PyThread_release_lock(self.mutex)
                diskq_send_signal(self.ends[1])
                PyThread_acquire_lock(self.mutex, WAIT)
        PyThread_release_lock(self.mutex)
        return work

    cdef void stay_awake(self) noexcept nogil:
        """Wait for work for a short time without sleeping. Holds the mutex before and after, but not meanwhile.

        A thread that waits awake for one sync often adds the next one soon. Where it does not, this is left out,
        more often each time.
        """
        if self.waits_left_out:
            self.waits_left_out -= 1
            return
        self.is_awake = True
        PyThread_release_lock(self.mutex)
        wait_awake(&self.first, LONGEST_AWAKE)
        PyThread_acquire_lock(self.mutex, WAIT)
        self.is_awake = False
        if self.first is not NULL:
            self.misses = 0
        else:
            self.misses = min(self.misses + 1, <int> MOST_MISSES)
            self.waits_left_out = 1 << self.misses

    def finished(self):
        """Note that the work that `serve` returned is done: the thread is free, and will serve again."""
        PyThread_acquire_lock(self.mutex, WAIT)
        self.busy -= 1
        PyThread_release_lock(self.mutex)

    def end(self):
        """Make `serve` return None in each thread, once all work is done."""
        cdef Sleeper* sleeper
        cdef Sleeper* following
        PyThread_acquire_lock(self.mutex, WAIT)
        self.is_ended = True
        sleeper = self.sleepers
        self.sleepers = NULL
        PyThread_release_lock(self.mutex)
        while sleeper is not NULL:
            following = sleeper.next  # afterwards it may be gone
            PyThread_release_lock(sleeper.bell)
            sleeper = following


cdef void wait_awake(Work** where, int64_t nanoseconds) noexcept nogil:
    """Return when there is work, or after so long, without sleeping."""
    cdef int64_t end = diskq_monotonic_ns() + nanoseconds
    cdef int i
    while diskq_load_pointer(where) is NULL and diskq_monotonic_ns() < end:
        for i in range(LOOKS):
            if diskq_load_pointer(where) is not NULL:
                break
            diskq_pause()


cdef Work* new_work(object owner, Py_ssize_t count) except NULL:
    cdef Work* work = <Work*> PyMem_RawMalloc(sizeof(Work) + max(count, 0) * sizeof(int))
    if work is NULL:
        raise MemoryError
    Py_INCREF(owner)
    work.next = NULL
    work.owner = <PyObject*> owner
    work.is_python = count < 0
    work.error = 0
    work.took = 0
    work.count = count
    return work


cdef void drop(Work* work) noexcept:
    """Free it, and all that follow."""
    cdef Work* following
    while work is not NULL:
        following = work.next
        Py_DECREF(<object> work.owner)
        PyMem_RawFree(work)
        work = following

# Threads that sleep until one event, and wake one another. Law: each that was given to `wake_all` returns from
# `sleep`, whatever becomes of the others.
#
# Threads that are woken all at once want the interpreter's lock all at once, and most of them sleep a second time
# for it. So who wakes them wakes the first one only, and each wakes the next before it asks for that lock: they
# come to it one after the other, and none waits for what another one does with it.
#
# Whatever follows `wake_all` finds all of them awake at once: `is_awake`, and who is woken by whom, are changed
# with the interpreter's lock held. A thread that a signal takes out of its sleep is not asleep: it is no link of
# a chain, or wakes the next one at once.

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    NOWAIT_LOCK,
    PY_LOCK_INTR,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)

cdef extern from "pythread.h":
    int PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int is_interruptible) nogil


cdef class ChainedWait:
    """The wait of one thread for one event."""

    cdef PyThread_type_lock lock        # locked until it is woken
    cdef PyThread_type_lock next_lock   # the next one's, until that is woken; NULL: there is none
    cdef ChainedWait next               # keeps that lock
    cdef readonly bint is_asleep
    cdef readonly bint is_awake

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError
        PyThread_acquire_lock(self.lock, NOWAIT_LOCK)

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    def sleep(self):
        """Return when it is awake. Raises what a signal's handler raises."""
        cdef int how
        while not self.is_awake:
            self.is_asleep = True
            with nogil:
                how = PyThread_acquire_lock_timed(self.lock, -1, 1)
                if how != PY_LOCK_INTR:
                    self.wake_next()
            self.is_asleep = False
            if how == PY_LOCK_INTR:
                self.wake_next()  # it may have become a link meanwhile
                if not self.is_awake:
                    PyErr_CheckSignals()
            self.next = None

    cdef void wake_next(self) noexcept nogil:
        if self.next_lock != NULL:
            PyThread_release_lock(self.next_lock)
            self.next_lock = NULL

    def wake(self):
        """Wake it, by itself. Does nothing if it is awake."""
        if not self.is_awake:
            self.is_awake = True
            PyThread_release_lock(self.lock)


def wake_all(waits):
    """Wake those of them that are not awake, in this order."""
    cdef ChainedWait wait, first = None, last = None
    for wait in waits:
        if wait.is_awake:
            continue
        wait.is_awake = True
        if not wait.is_asleep:
            continue  # it will not fall asleep
        if last is None:
            first = wait
        else:
            last.next, last.next_lock = wait, wait.lock
        last = wait
    if first is not None:
        PyThread_release_lock(first.lock)

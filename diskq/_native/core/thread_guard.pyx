# The thread guard: one thread at a time is inside an engine, and the others wait for it.
#
# Law: nobody but the thread that holds it changes the engine. The interpreter's lock does not ensure that: it
# is released in system calls, and between any two lines of Python.
#
# A thread that is inside may enter again, as callbacks do, and has to leave as often. While no thread waits,
# taking it is a comparison, and giving it back another one; a lock of the system is made only by a thread that
# has to wait, and it waits without the interpreter's lock.
#
# Who gets it next: the thread that waits longest is woken when the guard is given back, but until it runs any
# thread may enter, so that a thread that calls again and again need not wait for a switch of threads each
# time. A thread that was woken in vain is handed the guard the next time: so each waits for two calls of
# others, and those of the threads before it, at most.
#
# A channel binds the guard to its thread: calls from other threads are refused by the same comparison, since
# they would wait for as long as the channel is open.
#
# In a child of a fork every existing guard is held for ever by no thread of the child: inherited stores belong
# to the parent. That costs no call anything.

from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.pythread cimport (
    NOWAIT_LOCK,
    PY_LOCK_INTR,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_get_thread_ident,
    PyThread_release_lock,
    PyThread_type_lock,
)

from weakref import WeakSet

cdef extern from "pythread.h":
    int PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int is_interruptible) nogil

_guards = WeakSet()


def leave_guards_to(long process, error):
    """In a child, give all existing guards to `process`: taking one raises `error(path, process)`."""
    for guard in list(_guards):
        (<ThreadGuard> guard).leave_to(process, error)


cdef Waiter* _new_waiter(long thread) except NULL:
    # Not on the stack: at the end of the interpreter a thread may vanish while it waits.
    cdef Waiter* waiter = <Waiter*> PyMem_RawMalloc(sizeof(Waiter))
    if waiter == NULL:
        raise MemoryError
    waiter.lock = PyThread_allocate_lock()
    if waiter.lock == NULL:
        PyMem_RawFree(waiter)
        raise MemoryError
    PyThread_acquire_lock(waiter.lock, NOWAIT_LOCK)
    waiter.thread = thread
    waiter.is_queued = waiter.is_woken = waiter.has_lost = False
    waiter.next = NULL
    return waiter


cdef class ThreadGuard:
    """A thread guard. `busy()` makes the error for a call that may not wait.

    `take` and `give` are for the hottest calls, the `with` statement for all others:

        try:
            guard.take()
            ...
        finally:
            guard.give()

    Taken inside the `try`, so that no signal comes between; a refused caller, and one whose wait a signal's
    handler ends by an exception, gives nothing back.
    """

    def __cinit__(self, busy=None):
        self.busy = busy
        _guards.add(self)

    cdef leave_to(self, long process, error):
        if self.owner != NOT_OURS:
            self.owner = NOT_OURS
            self.first = NULL  # those threads are not in this process
            self.opened_by = process
            self.forked = error

    cdef int refuse(self) except -1:
        if self.owner == NOT_OURS:
            busy = self.unbound if self.is_bound else self.busy
            raise self.forked("" if busy is None else busy().path, self.opened_by)
        raise RuntimeError("another thread is inside") if self.busy is None else self.busy()

    cdef bint turn_away(self) except -1:
        """Raise if the guard is bound, or of another process; return False if it is worth waiting for."""
        if self.is_bound or self.owner == NOT_OURS:
            self.refuse()
        return False

    # --- waiting ----------------------------------------------------------------------------------

    cdef int wait(self, long me) except -1:
        """Return when this thread holds the guard. Raises as `turn_away`, and what a signal's handler raises."""
        cdef Waiter* waiter
        cdef int how
        self.turn_away()
        waiter = _new_waiter(me)
        self._join(waiter, False)
        try:
            while True:
                with nogil:
                    how = PyThread_acquire_lock_timed(waiter.lock, -1, 1)
                if self.owner == me:
                    return 0  # it was handed over
                if self.owner != 0:
                    self.turn_away()
                if how == PY_LOCK_INTR and self.owner != 0:
                    # Not in the line meanwhile: the handler may want the guard itself.
                    self._leave(waiter)
                    PyErr_CheckSignals()
                    if self.owner != 0:
                        self.turn_away()
                        self._join(waiter, True)
                if self.owner == 0:
                    self.owner = me
                    return 0
                if how != PY_LOCK_INTR:
                    waiter.has_lost = True
                waiter.is_woken = False
        finally:
            self._leave(waiter)
            PyThread_free_lock(waiter.lock)
            PyMem_RawFree(waiter)

    cdef void _join(self, Waiter* waiter, bint is_first) noexcept:
        cdef Waiter** at = &self.first
        while not is_first and at[0] != NULL:
            at = &at[0].next
        waiter.next = at[0]
        at[0] = waiter
        waiter.is_queued = True

    cdef void _leave(self, Waiter* waiter) noexcept:
        """Take the waiter out of the line. If the guard is free, the next one is woken: no wake-up is lost."""
        cdef Waiter** at = &self.first
        if waiter.is_queued:
            while at[0] != waiter:
                at = &at[0].next
            at[0] = waiter.next
            waiter.is_queued = False
        if self.owner == 0 and self.first != NULL:
            self.wake_next()

    cdef void wake_next(self) noexcept:
        """Wake the first waiter, since the guard is free; or hand it the guard."""
        cdef Waiter* waiter = self.first
        if waiter.has_lost:
            self.owner = waiter.thread
            self.first = waiter.next
            waiter.is_queued = False
        if not waiter.is_woken:
            waiter.is_woken = True
            PyThread_release_lock(waiter.lock)

    # --- for Python -------------------------------------------------------------------------------

    @property
    def waiting(self):
        """The number of threads that wait for it."""
        cdef Py_ssize_t count = 0
        cdef Waiter* waiter = self.first
        while waiter != NULL:
            count += 1
            waiter = waiter.next
        return count

    def check(self):
        """Raise what `busy` makes if another thread holds the guard; it is not taken."""
        check_guard(self)

    def take(self):
        """Take the guard, and wait while another thread holds it. Raises if it is bound to another thread."""
        take_turn(self)

    def give(self):
        """Give the guard back."""
        give_turn(self)

    def bind(self, busy):
        """Bind the guard to this thread until `unbind`. Meanwhile all others are refused, with `busy()`.

        Waits for no thread: raises what `busy` made so far if one is inside. Threads that wait are refused.
        """
        cdef Waiter* waiter
        check_guard(self)
        take_turn(self)
        self.unbound, self.busy = self.busy, busy
        self.is_bound = True
        waiter = self.first
        while waiter != NULL:
            if not waiter.is_woken:
                waiter.is_woken = True
                PyThread_release_lock(waiter.lock)
            waiter = waiter.next

    def unbind(self):
        """End the binding: any thread may enter again, one at a time."""
        self.is_bound = False
        self.busy, self.unbound = self.unbound, None
        give_turn(self)

    def __enter__(self):
        take_turn(self)

    def __exit__(self, kind, error, trace):
        give_turn(self)

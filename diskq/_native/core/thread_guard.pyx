# The thread guard: one thread at a time is inside an engine.
#
# Law: a call while another thread is inside is refused before it changes anything. The interpreter's lock does
# not ensure that: it is released in system calls, and between any two lines of Python.
#
# A thread that is inside may enter again, as callbacks do, and has to leave as often. It is not a lock: no
# thread waits. A lock held by a thread that waits for stable storage would block every other caller, Trio's
# thread included; and callers that already take turns pay for a comparison, not for a lock.
#
# A channel binds the guard to its thread: calls from other threads are refused by the same comparison.
#
# In a child of a fork every existing guard is held for ever by no thread of the child: inherited stores belong
# to the parent. That costs no call anything.

from cpython.pythread cimport PyThread_get_thread_ident

from weakref import WeakSet

_guards = WeakSet()


def leave_guards_to(long process, error):
    """In a child, give all existing guards to `process`: taking one raises `error(path, process)`."""
    for guard in list(_guards):
        (<ThreadGuard> guard).leave_to(process, error)


cdef class ThreadGuard:
    """A thread guard. `busy()` makes the error that is raised while another thread is inside.

    `take` and `give` are for the hottest calls, the `with` statement for all others:

        try:
            guard.take()
            ...
        finally:
            guard.give()

    Taken inside the `try`, so that no signal comes between; a refused caller gives nothing back.
    """

    def __cinit__(self, busy=None):
        self.busy = busy
        _guards.add(self)

    cdef leave_to(self, long process, error):
        if self.owner != NOT_OURS:
            self.owner = NOT_OURS
            self.opened_by = process
            self.forked = error

    cdef int refuse(self) except -1:
        if self.owner == NOT_OURS:
            busy = self.busy if self.unbound is None else self.unbound
            raise self.forked("" if busy is None else busy().path, self.opened_by)
        raise RuntimeError("another thread is inside") if self.busy is None else self.busy()

    def check(self):
        """Raise what `busy` makes if another thread holds the guard; it is not taken."""
        check_guard(self)

    def take(self):
        """Take the guard. Raises what `busy` makes if another thread holds it."""
        take_turn(self)

    def give(self):
        """Give the guard back."""
        give_turn(self)

    def bind(self, busy):
        """Bind the guard to this thread until `unbind`. Meanwhile `busy()` makes the error for all others."""
        take_turn(self)
        self.unbound, self.busy = self.busy, busy

    def unbind(self):
        """End the binding: one thread at a time may enter again."""
        self.busy, self.unbound = self.unbound, None
        give_turn(self)

    def __enter__(self):
        take_turn(self)

    def __exit__(self, kind, error, trace):
        give_turn(self)

# The turn: one thread at a time is inside an engine.
#
# Law: who comes while another thread is inside is refused before anything is changed. The interpreter's lock
# does not see to that: it is let go of in system calls, and between any two lines of Python.
#
# A thread that is inside may come in again, as callbacks do, and has to go out as often. It is no lock:
# nobody waits. A lock held by a thread that waits for stable storage would stop whoever else comes, Trio
# among them; and who takes turns already pays for a comparison, not for a lock.
#
# A channel binds the turn to its thread for good: whoever comes from another one is refused by the same
# comparison.
#
# In a child of a fork every turn that there was is taken, for ever, by nobody that is there: what the child
# inherited is its parent's. So that costs no call anything.

from cpython.pythread cimport PyThread_get_thread_ident

from weakref import WeakSet

_guards = WeakSet()


def leave_guards_to(long process, error):
    """In a child: all turns that there are belong to `process`; who asks for one gets `error(path, process)`."""
    for guard in list(_guards):
        (<ThreadGuard> guard).leave_to(process, error)


cdef class ThreadGuard:
    """`busy()` makes the error that is raised for those who come while another thread is inside.

    `take` and `give` are for the hottest calls, the `with` statement for all others:

        try:
            turn.take()
            ...
        finally:
            turn.give()

    Taken inside the `try`, so that no signal comes between; who was refused gives nothing back.
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
        """Raises what `busy` makes where it is another thread's; nobody comes in."""
        check_guard(self)

    def take(self):
        """Come in. Raises what `busy` makes where another thread is inside."""
        take_turn(self)

    def give(self):
        """Go out again."""
        give_turn(self)

    def bind(self, busy):
        """Keep the turn for this thread until `unbind`. Meanwhile `busy()` makes the error for all others."""
        take_turn(self)
        self.unbound, self.busy = self.busy, busy

    def unbind(self):
        """What was bound may be used by one thread at a time again."""
        self.busy, self.unbound = self.unbound, None
        give_turn(self)

    def __enter__(self):
        take_turn(self)

    def __exit__(self, kind, error, trace):
        give_turn(self)

# The turn: one thread at a time is inside an engine.
#
# Law: who comes while another thread is inside is refused before anything is changed. The interpreter's lock
# does not see to that: it is let go of in system calls, and between any two lines of Python.
#
# A thread that is inside may come in again, as callbacks do, and has to go out as often. It is no lock: nobody
# waits. A lock held by a thread that waits for the platter would stop whoever else comes, Trio among them; and
# who takes turns already pays for a comparison, not for a lock.
#
# A channel binds the turn to its thread for good: whoever comes from another one is refused by the same comparison.

from cpython.pythread cimport PyThread_get_thread_ident


cdef class Turn:
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

    cdef int refuse(self) except -1:
        raise RuntimeError("another thread is inside") if self.busy is None else self.busy()

    def check(self):
        """Raises what `busy` makes where it is another thread's; nobody comes in."""
        check_turn(self)

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

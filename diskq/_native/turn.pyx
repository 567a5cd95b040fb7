# The turn: one thread at a time is inside an engine.
#
# Law: who comes while another thread is inside is refused before anything is changed. The interpreter's lock
# does not see to that: it is let go of in system calls, and between any two lines of Python.
#
# A thread that is inside may come in again, as callbacks do, and has to go out as often. It is no lock: nobody
# waits. A lock held by a thread that waits for the platter would stop whoever else comes, Trio among them; and
# who takes turns already pays for a comparison, not for a lock.

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

    cdef int check(self) except -1:
        """For what is over before the interpreter is let go of, where `owner` is not 0. Raises if it is another's."""
        if self.owner != 0 and self.owner != <long> PyThread_get_thread_ident():
            self.refuse()
        return 0

    def take(self):
        """Come in. Raises what `busy` makes where another thread is inside."""
        take_turn(self)

    def give(self):
        """Go out again."""
        give_turn(self)

    def __enter__(self):
        take_turn(self)

    def __exit__(self, kind, error, trace):
        give_turn(self)

# The turn, for compiled code: taken and given back without a call, where nobody else has it.

from cpython.pythread cimport PyThread_get_thread_ident

cdef enum:
    NOT_OURS = -1                          # no thread's number: another process has it


cdef class ThreadGuard:
    cdef long owner                        # the thread inside; 0: none
    cdef int depth                         # so often it has come in
    cdef object busy
    cdef object unbound                    # what `busy` was before, while it is bound
    cdef long opened_by                    # the process that has it, where that is not this one
    cdef object forked                     # the error of those who ask for it then
    cdef object __weakref__
    cdef int refuse(self) except -1
    cdef leave_to(self, long process, error)


cdef inline int take_turn(ThreadGuard guard) except -1:
    """Come in. Raises where another thread is inside."""
    cdef long me = PyThread_get_thread_ident()
    if guard.owner != me:
        if guard.owner != 0:
            guard.refuse()
        guard.owner = me
    guard.depth += 1
    return 0


cdef inline int check_guard(ThreadGuard guard) except -1:
    """For what is over before the interpreter is let go of: raises where another thread is inside."""
    if guard.owner != 0 and guard.owner != <long> PyThread_get_thread_ident():
        guard.refuse()
    return 0


cdef inline void give_turn(ThreadGuard guard) noexcept:
    """Go out again. Nothing happens where another thread is inside, or none."""
    if guard.owner == <long> PyThread_get_thread_ident():
        guard.depth -= 1
        if guard.depth == 0:
            guard.owner = 0

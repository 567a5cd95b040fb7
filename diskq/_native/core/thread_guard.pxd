# The thread guard for compiled code: taken and given back without a call, if no other thread holds it.

from cpython.pythread cimport PyThread_get_thread_ident

cdef enum:
    NOT_OURS = -1                          # no thread's number: another process has it


cdef class ThreadGuard:
    cdef long owner                        # the thread that holds it; 0: none
    cdef int depth                         # how often that thread has taken it
    cdef object busy
    cdef object unbound                    # what `busy` was before, while it is bound
    cdef long opened_by                    # the process that holds it, if that is another one
    cdef object forked                     # the error for callers in this process then
    cdef object __weakref__
    cdef int refuse(self) except -1
    cdef leave_to(self, long process, error)


cdef inline int take_turn(ThreadGuard guard) except -1:
    """Take the guard. Raises if another thread holds it."""
    cdef long me = PyThread_get_thread_ident()
    if guard.owner != me:
        if guard.owner != 0:
            guard.refuse()
        guard.owner = me
    guard.depth += 1
    return 0


cdef inline int check_guard(ThreadGuard guard) except -1:
    """Raise if another thread holds the guard. For work that ends before the interpreter's lock is released."""
    if guard.owner != 0 and guard.owner != <long> PyThread_get_thread_ident():
        guard.refuse()
    return 0


cdef inline void give_turn(ThreadGuard guard) noexcept:
    """Give the guard back. Does nothing if another thread holds it, or none."""
    if guard.owner == <long> PyThread_get_thread_ident():
        guard.depth -= 1
        if guard.depth == 0:
            guard.owner = 0

# The thread guard for compiled code: taken and given back without a call, if no other thread holds it.

from cpython.pythread cimport PyThread_get_thread_ident, PyThread_type_lock

cdef enum:
    NOT_OURS = -1                          # no thread's number: another process has it


cdef struct Waiter:
    # A thread that waits for the guard.
    PyThread_type_lock lock                # locked until the thread is woken
    long thread
    bint is_queued
    bint is_woken                          # `lock` was released, and the thread has not run since
    bint has_lost                          # it was woken before, and another thread came first
    Waiter* next


cdef class ThreadGuard:
    cdef long owner                        # the thread that holds it; 0: none
    cdef readonly int depth                         # how often that thread has taken it
    cdef Waiter* first                     # the threads that wait, in order of arrival; NULL: none
    cdef object busy
    cdef object unbound                    # what `busy` was before, while it is bound
    cdef bint is_bound
    cdef long opened_by                    # the process that holds it, if that is another one
    cdef object forked                     # the error for callers in this process then
    cdef object __weakref__
    cdef int refuse(self) except -1
    cdef bint turn_away(self) except -1
    cdef int wait(self, long me) except -1
    cdef void _join(self, Waiter* waiter, bint is_first) noexcept
    cdef void _leave(self, Waiter* waiter) noexcept
    cdef void wake_next(self) noexcept
    cdef leave_to(self, long process, error)


cdef inline int take_turn(ThreadGuard guard) except -1:
    """Take the guard, and wait while another thread holds it. Raises if it is bound to another thread."""
    cdef long me = PyThread_get_thread_ident()
    if guard.owner != me:
        if guard.owner != 0:
            guard.wait(me)
        else:
            guard.owner = me
    guard.depth += 1
    return 0


cdef inline int check_guard(ThreadGuard guard) except -1:
    """Raise if another thread holds the guard. For work that ends before the interpreter's lock is released."""
    if guard.owner != 0 and guard.owner != <long> PyThread_get_thread_ident():
        guard.refuse()
    return 0


cdef inline bint lets_in(ThreadGuard guard) except -1:
    """True if no other thread holds the guard, for such work. False: take the slow path, which takes the guard.

    Raises if it is bound to another thread.
    """
    if guard.owner != 0 and guard.owner != <long> PyThread_get_thread_ident():
        return guard.turn_away()
    return True


cdef inline void give_turn(ThreadGuard guard) noexcept:
    """Give the guard back. Does nothing if another thread holds it, or none."""
    if guard.owner == <long> PyThread_get_thread_ident():
        guard.depth -= 1
        if guard.depth == 0:
            guard.owner = 0
            if guard.first != NULL:
                guard.wake_next()

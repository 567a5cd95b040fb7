# The running task, for compiled code of other modules.


cdef class CancellationTest:
    cdef object context

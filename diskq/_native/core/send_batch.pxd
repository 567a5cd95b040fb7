from diskq._native.core.gate cimport Gate


cdef class SendBatch:
    cdef readonly list tasks               # the senders, in order
    cdef readonly list messages            # one of each
    cdef public Py_ssize_t room            # bytes that may still be added


cdef class Gathering:
    cdef public SendBatch batch            # None: messages are written one by one
    cdef object current_task
    cdef Py_ssize_t largest
    cdef Gate gate
    cdef Py_ssize_t _add(self, object message, Py_ssize_t size) except -2

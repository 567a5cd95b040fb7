# Sleeping until another task wakes this one, without a generator for each sleep. What the run loop sends differs
# from step to step: None at first, an outcome when the task is woken. So one object without state serves all.

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT

    ctypedef PySendResult (*sendfunc)(PyObject* iterator, PyObject* sent, PyObject** result)

    ctypedef struct PyAsyncMethods:
        sendfunc am_send

    ctypedef struct PyTypeObject:
        PyAsyncMethods* tp_as_async


cdef class Sleep:
    """Awaitable any number of times, by any number of tasks at once.

    `message` goes to the run loop. `woken` is the outcome of most sleeps, whose result is None.
    """

    cdef object message
    cdef object woken

    def __init__(self, message, woken):
        self.message = message
        self.woken = woken

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.message

    def send(self, sent):
        """Return the message if None is sent; otherwise the sleep is over, with that outcome."""
        if sent is None:
            return self.message
        raise StopIteration(self.result(sent))

    cdef object result(self, object sent):
        return None if sent is self.woken else sent.unwrap()


cdef PySendResult resume(PyObject* sleep, PyObject* sent, PyObject** result) except PYGEN_ERROR:
    """Do as `send`, for an interpreter that calls this instead, which needs no StopIteration."""
    cdef object found
    result[0] = NULL
    found = (<Sleep> sleep).message if <object> sent is None else (<Sleep> sleep).result(<object> sent)
    Py_INCREF(found)
    result[0] = <PyObject*> found
    return PYGEN_NEXT if <object> sent is None else PYGEN_RETURN


# Cython has no special method for this slot.
(<PyTypeObject*> Sleep).tp_as_async.am_send = <sendfunc> resume

# Messages that are gathered for one write and one sync, and the tasks that sent them. Law: a message is in the batch
# only if it needs no check any more, so that nothing but the disk can refuse it.

from diskq._native.core.thread_guard cimport check_guard


cdef class SendBatch:
    """Messages that wait to be written together, in order. `room`: about how many bytes fit."""

    def __cinit__(self, *_):
        self.tasks, self.messages = [], []

    def __init__(self, Py_ssize_t room):
        self.room = room


cdef class Gathering:
    """Adds messages of the running task to a `batch`, while there is one. Abstract: each format has its own.

    `current_task()` returns that task. Messages have `largest` bytes at most.
    """

    def __cinit__(self, buffer, current_task, Py_ssize_t largest):
        self.current_task = current_task
        self.largest = largest

    cdef Py_ssize_t _add(self, object message, Py_ssize_t size) except -2:
        """Add a message of `size` bytes, and return its number in the batch; -1: it does not fit."""
        cdef SendBatch batch = self.batch
        check_guard(self.gate.guard)
        if size > self.largest or size > batch.room:
            return -1
        task = self.current_task()
        batch.messages.append(message)
        try:
            batch.tasks.append(task)
        except MemoryError:
            del batch.messages[-1:]
            raise
        batch.room -= size
        return len(batch.tasks) - 1

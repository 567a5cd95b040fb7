# Whether the running task is cancelled. It reads two attributes of a Trio run's thread state without a Python
# call, since every message begins with it. The attributes are internal to Trio, so
# channels/core/cancellation.py checks that they exist, and passes the object in.

cdef class CancellationTest:
    """Returns True if the running task is cancelled. Raises RuntimeError outside a run, as Trio does.

    `context` is Trio's GLOBAL_RUN_CONTEXT, which has the running `task`, if any.
    """

    def __init__(self, context):
        self.context = context

    def __call__(self):
        try:
            task = self.context.task
        except AttributeError:
            raise RuntimeError("must be called from async context") from None
        return task._cancel_status.effectively_cancelled

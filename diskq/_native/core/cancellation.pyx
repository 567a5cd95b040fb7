# Is the running task cancelled? Two attributes of what a run of Trio keeps for its thread, asked without a
# call of Python's: every message begins with it. What is asked is Trio's own and not public, so it is given
# by channels/core/cancellation.py, which sees first whether it is there.

cdef class CancellationTest:
    """Called without arguments, in a task: is it cancelled? Raises RuntimeError outside a run, as Trio does.

    `context` has the running `task` where there is one: Trio's GLOBAL_RUN_CONTEXT.
    """

    cdef object context

    def __init__(self, context):
        self.context = context

    def __call__(self):
        try:
            task = self.context.task
        except AttributeError:
            raise RuntimeError("must be called from async context") from None
        return task._cancel_status.effectively_cancelled

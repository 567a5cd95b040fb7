# A handler of the standard library's logging that keeps records on disk until they are delivered. Law: a
# record that was handled survives the process, whichever thread or process logged it; logging never raises.

from __future__ import annotations

import contextlib
import logging
from typing import Unpack

from diskq.engine.spool.spool import Deliver, Spool
from diskq.errors import ForkedError
from diskq.keywords import ThreadedSpoolKeywords
from diskq.storage.fs import AnyPath
from diskq.storage.log_events import logged_aside

__all__ = ["SpoolHandler"]


class SpoolHandler(logging.Handler):
    """Puts each record, formatted, into a spool, whose thread delivers them. For `dictConfig`, too.

    Threads share it, and processes: each has a slot below `path`, also a child of a fork. Records of diskq's
    own loggers are left out: the spool logs itself. Those of a put go to standard error, from warnings on,
    and to no handler: it might be one that hands its records on to this one. Where the spool is full a record
    is handed to `handleError`, as every handler does with what it cannot write.
    """

    def __init__(
        self,
        path: AnyPath,
        deliver: Deliver,
        level: int | str = logging.NOTSET,
        **options: Unpack[ThreadedSpoolKeywords],
    ) -> None:
        """Open the spool at `path`, with slots. `deliver` and options are those of `Spool`.

        A batch has the formatted records, in UTF-8. Raises as `Spool`.

        Options (`SpoolOptions`). Sizes in bytes, durations in seconds. No option is part of the format: a
        spool may be reopened with other options at any time.

        - `max_messages=100`: A batch has at most this many messages.
        - `max_bytes=1024 * 1024`: A batch has at most this many bytes of messages; a single larger message is
          a batch of its own.
        - `backoff_initial=0.1`: The second try comes after this time; each later one waits twice as long as
          the one before.
        - `backoff_max=60.0`: No try waits longer than this.
        - `backoff_jitter=1.0`: A random time of up to this much is added, so that many processes do not retry
          at the same moment.
        - `linger=0.0`: A batch that is not full waits this long for more messages.
        - `max_attempts=None`: After this many tries a batch's messages become dead letters. None: it is tried
          without limit.
        - `retry_on=Exception`: Exceptions of `deliver` after which the batch is tried again; any other one
          ends the spool's block.
        - `pause_after=None`: After this many failures in a row delivery stops for `pause`, then tries once.
          None: it never stops.
        - `pause=60.0`: The length of that pause, to which up to a tenth is added at random.
        - `rate=None`: At most this many messages a second on average, each batch at once. None: as fast as
          possible.
        - `drain_timeout=0.0`: Leaving the block without an error waits up to this long for the remaining
          messages' delivery.
        - `commit="written"`: How durably a delivered batch is recorded before the next one is tried:
          `written`, it is not delivered again after a kill; `synced`, also not after a power cut, at the
          price of one sync for each batch.
        - `queue=QueueOptions()`: How the spool keeps its messages: durability, bounds, and what happens when
          it is full.
        """
        super().__init__(level)
        # A filter is asked before the lock of the handler is taken: the spool logs while it holds its own.
        self.addFilter(_is_of_the_program)
        self.spool: Spool = Spool(path, deliver, slots=True, **options)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            with logged_aside():
                self.spool.put_nowait(text.encode("utf-8", "backslashreplace"))
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Do nothing: what was handled is in the page cache, and survives the process."""

    def close(self) -> None:
        """Close the spool: what is not delivered waits for the next process."""
        with contextlib.suppress(ForkedError):  # a child that has logged nothing has none
            self.spool.close()
        super().close()


def _is_of_the_program(record: logging.LogRecord) -> bool:
    return record.name != "diskq" and not record.name.startswith("diskq.")

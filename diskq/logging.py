# A handler of the standard library's logging that keeps records on disk until they are delivered. Law: a
# record that was handled survives the process, whichever thread or process logged it; logging never raises.

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Unpack

from diskq.engine.spool.spool import Spool
from diskq.errors import ForkedError
from diskq.keywords import SpoolKeywords
from diskq.messages import Batch
from diskq.storage.fs import AnyPath

__all__ = ["SpoolHandler"]


class SpoolHandler(logging.Handler):
    """Puts each record, formatted, into a spool, whose thread delivers them. For `dictConfig`, too.

    Threads share it, and processes: each has a slot below `path`, also a child of a fork. Records of diskq's
    own loggers are left out: the spool logs itself. Where the spool is full a record is handed to
    `handleError`, as every handler does with what it cannot write.
    """

    def __init__(
        self,
        path: AnyPath,
        deliver: Callable[[Batch], object],
        level: int | str = logging.NOTSET,
        **options: Unpack[SpoolKeywords],
    ) -> None:
        """Open the spool at `path`, with slots. `deliver` and options are those of `Spool`.

        A batch has the formatted records, in UTF-8. Raises as `Spool`.
        """
        super().__init__(level)
        # A filter is asked before the lock of the handler is taken: the spool logs while it holds its own.
        self.addFilter(_is_of_the_program)
        self.spool = Spool(path, deliver, slots=True, **options)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.spool.put_nowait(self.format(record).encode("utf-8", "backslashreplace"))
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

# Objects that are closed. Law: the end of a `with` block closes, and a second `close` does nothing.
#
# An object that is dropped without `close` warns, as Python's own files do, and lets go of its descriptors
# and locks, without a promise: nothing is synced, as if its process had been killed. The collector may
# call it in any thread and inside any call, so it takes no lock. A child of a fork holds nothing, and lets go
# of nothing. Neither does it concern a disk in memory, whose handles are numbers.

from __future__ import annotations

import contextlib
import sys
import warnings
from abc import ABC, abstractmethod
from types import TracebackType
from typing import NoReturn, Self

from diskq.errors import ForkedError
from diskq.storage.fs import FileSystem, holds_descriptors

__all__ = ["Closing", "Dropped"]


class Closing(ABC):
    """An object with `close`, which a `with` block calls at its end."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Close it. Idempotent."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be passed to another process: pass its path, and open it there"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A child of a fork that leaves the block closes nothing: the resource is its parent's.
        with contextlib.suppress(ForkedError):
            self.close()


class Dropped(ABC):
    """An object that warns and lets go of its files when it is dropped without having been closed."""

    __slots__ = ()

    @abstractmethod
    def _unclosed(self) -> tuple[FileSystem, str] | None:
        """Return the file system of what is open, and what it is, for the warning; None: nothing is open."""

    @abstractmethod
    def _let_go_dropped(self) -> None:
        """Close all files, without a promise. Takes no lock."""

    def __del__(self) -> None:
        try:
            unclosed = self._unclosed()
            if unclosed is None or not holds_descriptors(unclosed[0]):
                return
        except (AttributeError, ForkedError):
            return  # `__init__` raised, and has closed what it had opened; or it is the parent's, in a child
        try:
            text = f"unclosed {unclosed[1]}: use a with block, or call close()"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
        finally:
            if not sys.is_finalizing():  # otherwise the process ends, and all of this with it
                with contextlib.suppress(OSError):
                    self._let_go_dropped()

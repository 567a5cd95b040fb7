# Closing files and other resources, at the end of a block or at once.
#
# Law: the owner forgets a handle before it closes it, since close(2) releases the number even if it fails:
# a second close could close another file. Closing several handles closes all, even if one fails.

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from diskq.errors import ForkedError
from diskq.storage.fs import FileSystem

__all__ = ["Closing", "let_go", "opened"]


def let_go(fs: FileSystem, *handles: int) -> None:
    """Close files that were only read; numbers below 0 are ignored. Never raises: no data can be lost."""
    for handle in handles:
        if handle >= 0:
            with contextlib.suppress(OSError):
                fs.close(handle)


@contextlib.contextmanager
def opened(
    fs: FileSystem, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
) -> Iterator[int]:
    """Open a file for a `with` block, at whose end it is closed. Raises OSError, as `fs.open`."""
    handle = fs.open(path, write=write, create=create, exclusive=exclusive)
    try:
        yield handle
    finally:
        fs.close(handle)


class Closing(ABC):
    """An object with `close`, which a `with` block calls at its end."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Close it. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A child of a fork that leaves the block closes nothing: the resource is its parent's.
        with contextlib.suppress(ForkedError):
            self.close()

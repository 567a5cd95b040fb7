# What is closed at the end of a block, and how files are let go of.
#
# Law: a handle is forgotten before it is closed, since close(2) takes it away even where it fails:
# closed twice, it may be another file by then. And who lets go of several lets go of all, whatever one says.

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
    """Close files that were only read; numbers below 0 are none. Raises nothing: nothing was promised."""
    for handle in handles:
        if handle >= 0:
            with contextlib.suppress(OSError):
                fs.close(handle)


@contextlib.contextmanager
def opened(
    fs: FileSystem, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
) -> Iterator[int]:
    """The handle of a file, for the block: it is closed at the end. Raises OSError, as `fs.open`."""
    handle = fs.open(path, write=write, create=create, exclusive=exclusive)
    try:
        yield handle
    finally:
        fs.close(handle)


class Closing(ABC):
    """Something to be closed: `with` does so at the end of its block, however that ends."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A child of a fork that leaves the block has nothing to let go of: it is its parent's.
        with contextlib.suppress(ForkedError):
            self.close()

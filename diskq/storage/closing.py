# What is closed at the end of a block.

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Closing"]


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
        self.close()

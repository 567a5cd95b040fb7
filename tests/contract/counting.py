"""How much work a piece of code is, in calls: the clock of a busy machine says too little."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Calls", "counted", "without_collections"]


class Calls:
    """The calls of one thread: of Python functions, and of built-in functions and methods."""

    count = 0

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self.count += 1


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no cycles meanwhile: what an earlier test has left behind does work of diskq when it goes."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def counted() -> Iterator[Calls]:
    """Count what this thread calls in the block."""
    calls, before = Calls(), sys.getprofile()
    with without_collections():
        sys.setprofile(calls.note)
        try:
            yield calls
        finally:
            sys.setprofile(before)

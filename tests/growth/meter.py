"""How much work a call does, counted. A busy or slow machine changes nothing.

    small = work(lambda: info(store_of(10), fs=disk), disk)
    large = work(lambda: info(store_of(100), fs=disk), disk)
    growth(small, large)                 how many times as much, of each kind of work

Counted are lines of Python in diskq (each turn of a loop or a comprehension is one), the items over which a
builtin function (`max`, `sum`, `sorted` ...) walks, the calls of the file system, the names that it lists,
and the blocks that it reads and writes.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import diskq
from diskq.storage.fs import Identity, PosixFileSystem
from tests.contract.counting import without_collections

__all__ = ["MeteredDisk", "Work", "do_all", "growth", "work"]

_BLOCK = 4096
# A count below this is taken for this: a few more calls are no growth.
_FEW = 100
_WALKING = ("all", "any", "max", "min", "sorted", "sum")
_OURS = str(Path(diskq.__file__).parent) + "/"
_NOT_OURS = _OURS + "testing/"

Work = Counter[str]
"""What was counted, by kind."""


class MeteredDisk(PosixFileSystem):
    """The real disk, whose calls are counted. Nothing is synced: a test's files need not outlive it."""

    native = False

    def __init__(self) -> None:
        super().__init__()
        self.work: Work = Counter()
        self.boots = 0
        """How often the machine was started again."""

    def identity(self) -> Identity:
        return replace(super().identity(), boot_id=f"boot {self.boots}")

    def sync_files(self, handles: Sequence[int]) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass

    def sync_file_system(self, handle: int) -> None:
        pass


def _metered(name: str) -> Callable[..., Any]:
    call = getattr(PosixFileSystem, name)

    def counted(self: MeteredDisk, *args: Any, **kwargs: Any) -> Any:
        self.work["file system calls"] += 1
        found = call(self, *args, **kwargs)
        if name == "list_directory":
            self.work["names listed"] += len(found)
        elif name == "pread":
            self.work["blocks read"] += 1 + len(found) // _BLOCK
        elif name == "pwrite":
            self.work["blocks written"] += 1 + len(args[1]) // _BLOCK
        return found

    return counted


for _name in (
    *("close", "has_name", "is_link", "is_locked", "link", "list_directory", "make_directory", "open"),
    *("place_of", "pread", "pwrite", "remove_directory", "rename", "share_memory", "size", "size_of"),
    *("stamp_of", "truncate", "try_lock", "unlink"),
):
    setattr(MeteredDisk, _name, _metered(_name))


def work(act: Callable[[], object], disk: MeteredDisk) -> Work:
    """Call `act`, and return what was counted."""
    disk.work = Counter()
    with without_collections(), _walks_counted(disk.work), _lines_counted(disk.work):
        act()
    return disk.work


def do_all(acts: Iterable[Callable[[], object]]) -> None:
    """Call each of them, in order."""
    for act in acts:
        act()


@contextmanager
def _lines_counted(into: Work) -> Iterator[None]:
    lines = 0
    is_ours: dict[Any, bool] = {}

    def in_frame(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += 1
        return in_frame

    def at_call(frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        ours = is_ours.get(code)
        if ours is None:
            name = code.co_filename
            ours = is_ours[code] = name.startswith(_OURS) and not name.startswith(_NOT_OURS)
        return in_frame(frame, event, arg) if ours else None

    before = sys.gettrace()
    sys.settrace(at_call)
    threading.settrace(at_call)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(before)
        into["lines of Python"] += lines


@contextmanager
def _walks_counted(into: Work) -> Iterator[None]:
    calls = {name: getattr(builtins, name) for name in _WALKING}

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def walk(*args: Any, **kwargs: Any) -> Any:
            if len(args) == 1 and hasattr(args[0], "__len__"):
                into["items walked over"] += len(args[0])
            return call(*args, **kwargs)

        return walk

    for name, call in calls.items():
        setattr(builtins, name, counting(call))
    try:
        yield
    finally:
        for name, call in calls.items():
            setattr(builtins, name, call)


def growth(before: Work, after: Work) -> dict[str, float]:
    """Return how many times as large each count is, without those that are still small."""
    return {kind: round(count / max(_FEW, before[kind]), 2) for kind, count in after.items() if count > _FEW}

# Disks that keep a test's calls waiting until the test lets them go on.

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TypeVar

from diskq.storage.fs import FileSystem
from diskq.testing import FaultFS

SOON = 60.0
"""Seconds. What is awaited comes at once; only a fault takes that long."""

Disk = TypeVar("Disk", bound=FileSystem)


class HeldDisk(FaultFS[Disk]):
    """A disk on which, once `hold` was called, what a subclass says waits for `let_go`.

    `has_begun` is set when a call waits, and `waiting` is how many do.
    """

    def __init__(self, inner: Disk) -> None:
        super().__init__(inner)
        self.has_begun = threading.Event()
        self.waiting = 0
        self._go = threading.Event()
        self._go.set()

    def hold(self) -> None:
        self._go.clear()

    def let_go(self) -> None:
        self._go.set()

    def wait(self) -> None:
        """Wait as long as the disk is held."""
        if not self._go.is_set():
            self._count(1)
            self.has_begun.set()
            assert self._go.wait(SOON), "held for ever"
            self._count(-1)

    def _count(self, one: int) -> None:
        with self._mutex:
            self.waiting += one


class HeldSyncs(HeldDisk[Disk]):
    """A disk that keeps syncs of files waiting."""

    def sync_files(self, handles: Sequence[int]) -> None:
        self.wait()
        super().sync_files(handles)

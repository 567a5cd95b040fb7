# Systems of the tests' own, each with one fault: what a rig does not catch in them, it would not catch at
# all.

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from diskq.storage.fs import OsFileSystem
from tests.torture.promises import CRASHES, Documents
from tests.torture.systems import Opened, System

__all__ = ["LAZY", "NAMELESS", "SILENT", "SOUND", "TALKATIVE"]


class _Toy:
    """A file to each message: written beside its name, synced, renamed, and the directory synced."""

    syncs_files = True
    syncs_directory = True
    writes_late = False

    def __init__(self, directory: str, fs: OsFileSystem) -> None:
        self.directory = directory
        self.waiting: list[bytes] = []

    def put(self, body: bytes) -> None:
        if not self.writes_late:
            self._write(body)
            return
        self.waiting.append(body)
        if len(self.waiting) > 2:
            self._write(self.waiting.pop(0))

    def _write(self, body: bytes) -> None:
        name = os.path.join(self.directory, body[:8].hex())
        handle = os.open(name + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(handle, body)
        if self.syncs_files:
            self._sync(handle)
        os.close(handle)
        os.rename(name + ".new", name)
        if self.syncs_directory:
            handle = os.open(self.directory, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)

    def _sync(self, handle: int) -> None:
        os.fsync(handle)

    def take(self) -> bytes | None:
        raise NotImplementedError

    def read_all(self) -> list[bytes]:
        bodies = []
        for name in sorted(os.listdir(self.directory)):
            if not name.endswith(".new"):
                with open(os.path.join(self.directory, name), "rb") as file:
                    bodies.append(file.read())
        return bodies

    def close(self) -> None:
        for body in self.waiting:
            self._write(body)


class _Lazy(_Toy):
    syncs_files = False


class _Nameless(_Toy):
    syncs_directory = False


class _Talkative(_Toy):
    writes_late = True


class _Silent(_Toy):
    def _sync(self, handle: int) -> None:
        with suppress(OSError):
            super()._sync(handle)


def _system(name: str, opened: Callable[[str, OsFileSystem], Opened]) -> System:
    return System(name, opened, documents=Documents(CRASHES), takes=False)


SOUND = _system("sound", _Toy)
LAZY = _system("lazy", _Lazy)
NAMELESS = _system("nameless", _Nameless)
SILENT = _system("silent", _Silent)
TALKATIVE = _system("talkative", _Talkative)

# A store small enough to see through, for testing the harness: lines in a file, and a pointer file that
# says how many bytes of it count. As every store here, it syncs data, then names.

from __future__ import annotations

from diskq.testing import CrashFS

DATA, POINTER, TEMPORARY = "/toy/data", "/toy/pointer", "/toy/pointer.tmp"
DIGITS = 4


class ToyStore:
    def __init__(self, fs: CrashFS) -> None:
        self.fs = fs
        self.data = fs.open(DATA, write=True, create=True)
        self.end = 0
        if fs.size_of(POINTER) is not None:
            pointer = fs.open(POINTER)
            self.end = int(fs.pread(pointer, DIGITS, 0))
            fs.close(pointer)
        fs.truncate(self.data, self.end)

    @property
    def lines(self) -> list[bytes]:
        return self.fs.pread(self.data, self.end, 0).splitlines()

    def append(self, line: bytes) -> None:
        """Durable when it returns."""
        self.end += self.fs.pwrite(self.data, line + b"\n", self.end)
        self.fs.sync_files((self.data,))
        self.point_at(self.end)

    def point_at(self, end: int) -> None:
        temporary = self.fs.open(TEMPORARY, write=True, create=True)
        self.fs.truncate(temporary, 0)
        self.fs.pwrite(temporary, b"%0*d" % (DIGITS, end), 0)
        self.fs.sync_files((temporary,))
        self.fs.close(temporary)
        self.fs.rename(TEMPORARY, POINTER)
        self.fs.sync_directory("/toy")

    def close(self) -> None:
        self.fs.close(self.data)

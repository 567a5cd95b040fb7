# A table's files where pyarrow.fs puts them: an object store, HDFS, or whatever has a handler. Law: a file
# appears under its name whole. It is written into a temporary file of this machine, and put when it is
# complete.
#
# A put of an object store shows nothing before its end. Other file systems show a file while it grows: there
# it is put under a private name, and moved. Neither has locks of its own: who changes a table says so by an
# object (arrow_lock.py), which is renewed whenever a file is used. Updaters that meet nevertheless put the
# same messages under the same names.

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import Any

import pyarrow as pa
import pyarrow.fs

from diskq.storage.fs import FileSystem, Stamp, base_name, directory_of, join
from diskq.tables.arrow_lock import ArrowLock

__all__ = ["ArrowFiles", "located"]

# By `type_name`: what shows an object when all of it is there.
_OBJECT_STORES = ("s3", "gcs", "abfs")
# The schemes of their URIs.
_SCHEMES = {"s3": "s3", "gcs": "gs", "local": "file"}
_STAGED = ".tmp"
_CHUNK = 8 * 1024 * 1024


class ArrowFiles:
    """Files of a `pyarrow.fs.FileSystem`, with those operations of a `FileSystem` that a table needs."""

    native = False

    def __init__(self, files: Any, local: FileSystem) -> None:
        """`files` is of pyarrow's, or of fsspec's. Raises TypeError."""
        self.arrow: Any = files if isinstance(files, pa.fs.FileSystem) else _of_fsspec(files)
        self._local = local
        self._is_object_store = _innermost(self.arrow).type_name in _OBJECT_STORES
        self._numbers = itertools.count(1)
        self._opened: dict[int, Any] = {}
        self._staged: dict[str, Any] = {}  # by path: complete, or being written, and not put yet
        self._lock: ArrowLock | None = None

    def uri(self, path: str) -> str | None:
        """Return the path as a URI; None if the scheme is unknown."""
        scheme = _SCHEMES.get(self.arrow.type_name)
        return None if scheme is None else f"{scheme}://{path}"

    @contextmanager
    def locked(self, directory: str, guarded: str) -> Iterator[None]:
        """Hold the lock in `directory` for a `with` block. Raises LockedError, naming `guarded`; OSError."""
        with _errors():
            if not self._is_object_store:
                self.arrow.create_dir(directory, recursive=True)
            lock = ArrowLock(self.arrow, self._local, directory, guarded, self._put)
        self._lock = lock
        try:
            yield
        except BaseException:
            with suppress(OSError):
                lock.release()
            raise
        else:
            with _errors():
                lock.release()
        finally:
            self._lock = None

    def _renew(self) -> None:
        if self._lock is not None:
            with _errors():
                self._lock.renew()

    # --- files ------------------------------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        self._renew()
        if write:
            file = self._staged[path] = TemporaryFile()  # noqa: SIM115 - until it is put, or removed
        else:
            with _errors():
                file = self.arrow.open_input_file(path)
        handle = next(self._numbers)
        self._opened[handle] = file
        return handle

    def close(self, handle: int) -> None:
        file = self._opened.pop(handle)
        if file not in self._staged.values():
            file.close()

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self._renew()
        file = self._opened[handle]
        with _errors():
            file.seek(offset)
            data: bytes = file.read(size)
        return data

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        self._renew()
        file = self._opened[handle]
        file.seek(offset)
        written: int = file.write(data)
        return written

    def size(self, handle: int) -> int:
        file = self._opened[handle]
        size: int = file.seek(0, 2) if file in self._staged.values() else file.size()
        return size

    def sync_files(self, handles: Sequence[int]) -> None:
        """Do nothing: a put returns when the file system has it."""

    def sync_directory(self, path: str) -> None:
        """Do nothing: as `sync_files`."""

    # --- names ------------------------------------------------------------------------------------

    def rename(self, source: str, target: str) -> None:
        """Put the file that was written as `source` under the name `target`."""
        self._renew()
        file = self._staged.pop(source)
        with file, _errors():
            if self._is_object_store:
                self._put(file, target)
                return
            self.arrow.create_dir(directory_of(target), recursive=True)
            aside = join(directory_of(target), f".{base_name(source)}")
            self._put(file, aside)
            self.arrow.move(aside, target)

    def _put(self, file: Any, path: str) -> None:
        size = file.seek(0, 2)
        file.seek(0)
        try:
            with self.arrow.open_output_stream(path) as out:
                while chunk := file.read(_CHUNK):
                    out.write(chunk)
                    self._renew()
        finally:
            # A stream of pyarrow's is completed also when it is left by an error. What another updater has
            # put there is whole, and stays.
            found = self.arrow.get_file_info(path).size
            if found is not None and found != size:
                self.arrow.delete_file(path)
        if found != size:
            raise OSError(errno.EIO, f"{found} bytes of {size} were put", path)

    def unlink(self, path: str) -> None:
        if (file := self._staged.pop(path, None)) is not None:
            file.close()
            return
        if path.endswith(_STAGED):
            raise FileNotFoundError(errno.ENOENT, "it was put, or removed", path)
        self._renew()
        with _errors():
            self.arrow.delete_file(path)

    def list_directory(self, path: str) -> list[str]:
        with _errors():
            return [info.base_name for info in self.arrow.get_file_info(pa.fs.FileSelector(path))]

    def size_of(self, path: str) -> int | None:
        with _errors():
            info = self.arrow.get_file_info(path)
        return None if info.type == pa.fs.FileType.NotFound else info.size or 0

    def stamp_of(self, path: str) -> Stamp | None:
        """Return when the file was put; now, if the file system does not say."""
        with _errors():
            info = self.arrow.get_file_info(path)
        if info.type == pa.fs.FileType.NotFound:
            return None
        return Stamp(0, info.mtime_ns if info.mtime is not None else int(self._local.wall_clock() * 1e9))

    def unique_number(self) -> int:
        return self._local.unique_number()


def located(into: str, files: Any) -> tuple[Any, str]:
    """Return the file system of pyarrow's, or fsspec's, in which `into` is, and the path there.

    `files` is the one that is known; None: `into` is a URI. Raises ValueError, OSError.
    """
    if files is not None:
        return files, into
    try:
        found: tuple[Any, str] = pa.fs.FileSystem.from_uri(into)
    except pa.ArrowException as failure:
        raise ValueError(f"into is {into!r}: {failure}") from None
    return found


def _of_fsspec(files: Any) -> Any:
    if not (hasattr(files, "protocol") and hasattr(files, "_open")):
        raise TypeError(f"filesystem is one of pyarrow.fs, or of fsspec, got {type(files).__name__}")
    return pa.fs.PyFileSystem(pa.fs.FSSpecHandler(files))


def _innermost(files: Any) -> Any:
    """Return the file system that has the files of this one."""
    while isinstance(files, pa.fs.SubTreeFileSystem):
        files = files.base_fs
    return files


@contextmanager
def _errors() -> Iterator[None]:
    """Give errors of a network a number: without one, a reader of Parquet would take them for damage."""
    try:
        yield
    except OSError as failure:
        if failure.errno is not None:
            raise
        raise OSError(errno.EIO, str(failure)) from failure

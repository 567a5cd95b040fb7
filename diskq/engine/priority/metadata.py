# The metadata file of a priority store, whose lock keeps TaskFlux out. Law: it is whole or missing; damaged
# content is kept aside before the file is made anew.

from __future__ import annotations

from diskq._native.priority.state_codec import METADATA_SIZE, StoreMetadata, decode_metadata, encode_metadata
from diskq.engine.priority.files import StoreFiles
from diskq.errors import DamagedStoreError, LockedError, UnsupportedFormatError
from diskq.storage.barrier import PendingSyncs, let_go, read_small
from diskq.storage.fs import FileSystem, base_name
from diskq.storage.numbered_files import private_path
from diskq.storage.repairs import Repair, RepairKind, keep_copy

__all__ = ["MetadataFile"]


class MetadataFile:
    """The metadata file, locked from its open until `release`."""

    def __init__(
        self,
        fs: FileSystem,
        files: StoreFiles,
        pending_syncs: PendingSyncs,
        what: str,
        *,
        as_document: bool,
        begins_anew: bool,
    ) -> None:
        """Lock and read the file. If it is missing it is made, and all `pending_syncs` are executed with it.

        Raises LockedError, which names `what`, if another program has it; UnsupportedFormatError, OSError,
        and DamagedStoreError if it is damaged, unless `begins_anew`.
        """
        self._fs = fs
        self._files = files
        self._pending_syncs = pending_syncs
        self._what = what
        self._as_document = as_document
        self._handle = -1
        self.repairs: list[Repair] = []
        """Reports of damaged content that was replaced."""
        try:
            self._lock()
            self.content = self._read(begins_anew)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            self._fs.close(handle)

    def _lock(self) -> None:
        fs, path = self._fs, self._files.metadata
        while self._handle < 0:
            if fs.size_of(path) is None:
                self._write()
            handle = fs.open(path, write=True)
            try:
                if not fs.try_lock(handle):
                    raise LockedError(self._what, "TaskFlux, or another program")
                if not fs.size(handle):
                    self._write()  # the file was made, but never written
                if fs.has_name(handle):
                    self._handle, handle = handle, -1
            finally:
                let_go(fs, handle)  # if another file has just replaced it

    def _read(self, begins_anew: bool) -> StoreMetadata:
        path = self._files.metadata
        try:
            metadata = decode_metadata(read_small(self._fs, path, METADATA_SIZE) or b"")
        except ValueError as version:
            raise UnsupportedFormatError(path, f"version {version}", "version 1") from None
        if metadata is None and begins_anew:
            self._begin_anew()
            return self._read(begins_anew)
        if metadata is None:
            reason = "no metadata that a writer wrote"
            raise DamagedStoreError(path, 0, reason, kind="corrupt_metadata", root=self._files.root, lsn=None)
        return metadata

    def _begin_anew(self) -> None:
        """Make the file anew, and keep a copy of its content."""
        fs, path = self._fs, self._files.metadata
        aside = keep_copy(fs, self._handle, private_path(self._files.root, base_name(path)))
        size = fs.size(self._handle)
        self.repairs.append(
            Repair(
                path=path,
                kind=RepairKind.CORRUPT,
                kept=0,
                dropped=size,
                reason="no metadata that a writer wrote",
                saved_as=aside,
            )
        )
        self._write()
        self.release()
        self._lock()

    def _write(self) -> None:
        """Write the file under a temporary name and rename it: a partial file would be worse than none."""
        content = encode_metadata(1, -1, self._as_document)
        self._pending_syncs.freeze((), (self._files.metadata_as(content),)).execute(self._fs)

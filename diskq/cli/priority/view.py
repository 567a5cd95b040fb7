# A priority store, as the command line reads it. Law: read only: no lock is taken, no file is changed, and
# the process that has it open does not notice.

from __future__ import annotations

from diskq.cli.core.directories import check_directory
from diskq.cli.core.parsing import CommandError
from diskq.engine.priority.files import StoreFiles
from diskq.storage.fs import OsFileSystem

__all__ = ["check_store", "is_store"]


def is_store(path: str) -> bool:
    """True if there is a store at `path`. Raises CorruptionError for TaskFlux's settings, OSError."""
    try:
        StoreFiles.existing(OsFileSystem(), path)
    except FileNotFoundError:
        return False
    return True


def check_store(path: str, advice: str = "") -> None:
    """Raises CommandError unless there is a store at `path`."""
    check_directory(path, advice)
    if not is_store(path):
        raise CommandError(f"{path}: there is no store of priority queues here{advice}")

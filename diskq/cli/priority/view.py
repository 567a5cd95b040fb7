# A store of priority queues, from the command line. Law: look, and touch nothing: no lock is taken, no file
# is changed, whoever has it open does not notice.

from __future__ import annotations

from diskq.cli.core.directories import check_directory
from diskq.cli.core.parsing import CommandError
from diskq.engine.priority.files import StoreFiles
from diskq.storage.fs import OsFileSystem

__all__ = ["check_store", "is_store"]


def is_store(path: str) -> bool:
    """Is there a store at `path`? Raises CorruptionError for TaskFlux's settings, OSError."""
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

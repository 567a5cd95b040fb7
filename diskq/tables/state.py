# What the modules of a table share: where it is, how it is kept, and what is known of its files.

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diskq.options import TableOptions
from diskq.storage.fs import FileSystem
from diskq.tables.names import TableFile, TableFiles

if TYPE_CHECKING:
    from diskq.tables.arrow_files import ArrowFiles

__all__ = ["TableState", "TableUpdate"]


@dataclass(slots=True)
class TableState:
    """One table, in one process."""

    fs: FileSystem
    """Where the files of the table are."""
    source_fs: FileSystem
    """Where the stream or journal is."""
    path: str
    """The directory of the stream or journal."""
    names: TableFiles
    options: TableOptions
    known: set[str] = field(default_factory=set)
    """Files that were found whole."""
    is_kept: bool = False
    """True if the names of all files are known to be durable."""
    remote: ArrowFiles | None = None
    """`fs`, if it is of pyarrow's: it has locks of another kind, and directories are made by a put."""

    def uri(self, path: str) -> str | None:
        """Return the whole path of a file of the table as a URI; None if its file system has no scheme."""
        return f"file://{path}" if self.remote is None else self.remote.uri(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUpdate:
    """What an update, or a compaction, has changed."""

    made: tuple[TableFile, ...] = ()
    """The new files."""
    messages: int = 0
    """The number of messages in them."""
    written_bytes: int = 0
    """Their size."""
    removed: tuple[TableFile, ...] = ()
    """Files that were removed: their segments are gone, or a new file has their messages."""
    missing: int = 0
    """The number of messages that were left out, since they could not be read or were gone (`allow_gaps`)."""

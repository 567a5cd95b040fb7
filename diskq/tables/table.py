# The table of a stream or a journal, as programs hold it. Law: a table has nothing open between two calls,
# and whoever reads it needs no lock.
#
# pyarrow is imported when it is first needed: the public names are there without it.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, Unpack, cast

from diskq.engine.log.timestamps import as_timestamp
from diskq.errors import NotFoundError
from diskq.keywords import TableKeywords
from diskq.options import TableOptions, chosen_options
from diskq.storage.arguments import check_is, whole_number
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path, base_name
from diskq.tables.extras import needs_pyarrow
from diskq.tables.names import TableFile, TableFiles
from diskq.tables.state import TableState, TableUpdate

if TYPE_CHECKING:
    from diskq.tables.arrow_files import ArrowFiles
    from diskq.tables.sources import Kind

__all__ = ["ListsNames", "Table", "TableStatistics", "files_at", "open_table"]

TARGET_SIZE = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatistics:
    """What a table holds, from the names and sizes of its files."""

    files: int
    bytes_on_disk: int
    """The size of the files in bytes, without superseded ones."""
    superseded: int
    """The number of files that a compaction has replaced and that are still there: an update removes them,
    once `keep_replaced` is over."""
    ranges: Mapping[int, tuple[int, int]]
    """By partition: the first offset that the table has, and the one after the last."""

    @property
    def offsets(self) -> int:
        """The number of offsets in these ranges: that of messages, if none was missing."""
        return sum(end - start for start, end in self.ranges.values())


class Table:
    """The complete segments of a stream or a journal as Parquet files, one each, named by their offsets.

    A list of their names is an exact table: each message in the range of each partition once. What comes
    after is still in the stream (`read_arrow` reads both). One process at a time may change a table, any
    number may read it meanwhile. For one thread at a time.
    """

    def __init__(
        self,
        path: AnyPath,
        into: AnyPath,
        *,
        topic: str | None = None,
        host: str | None = None,
        filesystem: Any = None,
        options: TableOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Unpack[TableKeywords],
    ) -> None:
        """As `open_table`.

        Options (`TableOptions`).

        - `compression="zstd"`: How the pages of the files are compressed. Values that do not become smaller
          by it are left as they are.
        - `keep="all"`: `all`: files stay when retention removes their segments, so that the table is an
          archive. `segments`: a file goes once all messages in it are gone from the stream.
        - `allow_gaps=False`: True: messages that cannot be read, or that retention has removed before they
          came into the table, are left out, and their file says so. False: they are an error, and the table
          stays as it is.
        - `keep_replaced=0.0`: For this many seconds files stay that a compaction has replaced: for a
          DataFrame of Spark's, or a catalog, that has listed them. The next update or compaction after that
          removes them. Meanwhile a program that lists names itself reads their messages twice.
        """
        fs = fs or OsFileSystem()
        text = as_path(path)
        directory = as_path(into)
        remote: ArrowFiles | None = None
        files = fs
        if filesystem is not None or "://" in directory:
            with needs_pyarrow():
                from diskq.tables.arrow_files import ArrowFiles, located
            arrow, directory = located(directory, filesystem)
            if filesystem is None and arrow.type_name == "local":
                files = OsFileSystem()  # file:///lake is /lake, where files are synced and locked
            else:
                remote = ArrowFiles(arrow, fs)
                files = cast(FileSystem, remote)  # what it does not have, a table does not ask for
        names = TableFiles(files, directory, _checked_topic(text, topic), host)
        checked = chosen_options(Table, options, TableOptions, changes)
        self._state = TableState(files, fs, text, names, checked, remote=remote)

    @property
    def path(self) -> str:
        """The directory of the stream or journal."""
        return self._state.path

    @property
    def options(self) -> TableOptions:
        """How it is kept."""
        return self._state.options

    @property
    def topic(self) -> str:
        """The name in `topic=...`: that of the stream's directory, unless another was given."""
        return self._names.topic

    @property
    def directory(self) -> str:
        """The directory of the table, below `into`."""
        return self._names.directory

    @property
    def state(self) -> TableState:
        """For the package's own modules."""
        return self._state

    @property
    def _names(self) -> TableFiles:
        return self._state.names

    # --- changing it ------------------------------------------------------------------------------

    def update(
        self,
        *,
        until: datetime | int | None = None,
        each: Callable[[TableFile], object] | None = None,
    ) -> TableUpdate:
        """Bring the table up to the last complete segment that no power cut can take back.

        Files are written one after the other, each durable before it has its name, and `each` is called with
        it then. A kill leaves the files so far. With `until` (an aware datetime, or nanoseconds since 1970) a
        partition ends before the first segment with a message at that moment or later.

        Raises LockedError if another process updates the table, NotFoundError if there is no stream,
        TableMismatchError if the table is another stream's, TableGapError if messages are gone that it lacks
        or cannot be read, ForeignFilesError and CorruptionError for what is not a file of a table or not
        whole, DiskFullError, OSError. No half file stays in any case.
        """
        moment = None if until is None else as_timestamp(until)
        with needs_pyarrow():
            from diskq.tables.updating import Updating
        return Updating(self._state, moment, each).run()

    def compact(
        self,
        target_size: int = TARGET_SIZE,
        *,
        each: Callable[[TableFile], object] | None = None,
    ) -> TableUpdate:
        """Join files of a partition that follow each other, into files of up to `target_size` bytes.

        Files of at least half that size stay as they are. The new file is durable before those that it
        replaces are removed: until then (with `keep_replaced`, for that time), and after a kill in between,
        both are there. `Table.files` and `read_arrow` choose the larger one; who lists names, as a glob does,
        reads messages twice meanwhile.
        Raises as `update`, but needs no stream.
        """
        whole_number("target_size", target_size)
        if target_size < 1:
            raise ValueError(f"target_size is at least 1 byte, got {target_size}")
        with needs_pyarrow():
            from diskq.tables.compaction import compact
        return compact(self._state, target_size, each)

    # --- reading it -------------------------------------------------------------------------------

    def files(self) -> list[TableFile]:
        """Return the files that are the table, by partition and offset: each message in one of them.

        A list is exact also while the table is updated and compacted; a compaction may remove a file of it
        later, but not for `keep_replaced` seconds. Raises ForeignFilesError, TableGapError, OSError.
        """
        return self._names.files()

    def ends(self) -> dict[int, int]:
        """Return the offset after the last message of each partition that has files. Raises as `files`."""
        return {file.partition: file.next_offset for file in self.files()}

    def statistics(self) -> TableStatistics:
        """Return what the table holds. Nothing is opened. Raises as `files`."""
        listings = {partition: self._names.listing(partition) for partition in self._names.partitions()}
        files = [file for listing in listings.values() for file in listing.files]
        return TableStatistics(
            files=len(files),
            bytes_on_disk=sum(self._state.fs.size_of(file.path) or 0 for file in files),
            superseded=sum(len(listing.superseded) for listing in listings.values()),
            ranges={
                partition: (listing.files[0].first_offset, listing.files[-1].next_offset)
                for partition, listing in listings.items()
                if listing.files
            },
        )

    @property
    def schema(self) -> Any:
        """The `pyarrow.Schema` of the table: that of its files, with topic and partition.

        Raises NotFoundError if there is neither a stream nor a file.
        """
        with needs_pyarrow():
            from diskq.tables.arrow import schema_of, with_place
        return with_place(schema_of(self.kind()))

    def dataset(self) -> Any:
        """Return the present files as a `pyarrow.dataset.Dataset`, with their topic and partition.

        It has the files of now: make another one for later ones. Raises as `files`.
        """
        with needs_pyarrow():
            from diskq.tables.scan import dataset
        remote = self._state.remote
        return dataset(self._names, self.schema, None if remote is None else remote.arrow)

    def kind(self) -> Kind:
        """Return "stream" or "journal", by the stream, or by a file if it is gone. Raises as `schema`."""
        from diskq.tables.sources import open_source

        try:
            return open_source(self._state.source_fs, self.path).kind
        except NotFoundError:
            files = self.files()
            if not files:
                raise
        with needs_pyarrow():
            from diskq.tables.parquet import read_footer
        return read_footer(self._state.fs, files[-1]).kind


def open_table(
    path: AnyPath,
    into: AnyPath,
    *,
    topic: str | None = None,
    host: str | None = None,
    filesystem: Any = None,
    options: TableOptions | None = None,
    fs: FileSystem | None = None,
    **changes: Unpack[TableKeywords],
) -> Table:
    """Return the table of the stream or journal at `path`, in the directory `into`: `update` fills it.

    Its files are in `into/topic=.../partition=.../`; several tables may have one `into`. `topic` is the name
    of the stream's directory, unless it is given. With `host` they are in `into/host=...`: so the streams of
    several machines are one table. Nothing is opened or made yet: a table can be read when its stream is
    gone.

    `into` may be where pyarrow puts files: `s3://bucket/lake`, `gs://`, `hdfs://`; or a path in `filesystem`,
    a file system of `pyarrow.fs` or fsspec. There a file appears whole, by a put or a move. The lock is an
    object there, which counts for 60 s after the end of an updater that was killed.

    Raises TypeError, ValueError; OSError if pyarrow does not know what `into` names.

    Options (`TableOptions`).

    - `compression="zstd"`: How the pages of the files are compressed. Values that do not become smaller by it
      are left as they are.
    - `keep="all"`: `all`: files stay when retention removes their segments, so that the table is an archive.
      `segments`: a file goes once all messages in it are gone from the stream.
    - `allow_gaps=False`: True: messages that cannot be read, or that retention has removed before they came
      into the table, are left out, and their file says so. False: they are an error, and the table stays as
      it is.
    - `keep_replaced=0.0`: For this many seconds files stay that a compaction has replaced: for a DataFrame of
      Spark's, or a catalog, that has listed them. The next update or compaction after that removes them.
      Meanwhile a program that lists names itself reads their messages twice.
    """
    checked = chosen_options(open_table, options, TableOptions, changes)
    return Table(path, into, options=checked, topic=topic, host=host, filesystem=filesystem, fs=fs)


class ListsNames(Protocol):
    """What the list of a table's files needs of a file system."""

    def list_directory(self, path: str) -> list[str]:
        """Raises FileNotFoundError."""


def files_at(directory: str, fs: ListsNames | None = None) -> list[TableFile] | None:
    """Return the files of the table in this directory, `lake/topic=clicks`, as `Table.files`.

    It is one of `fs`; None: of this machine. Returns None if it has not the name of a table's.
    """
    # Nothing else of the file system is used.
    names = TableFiles.at(OsFileSystem() if fs is None else cast(FileSystem, fs), directory)
    return None if names is None else names.files()


def _checked_topic(path: str, topic: str | None) -> str:
    if topic is None:
        topic = base_name(path.rstrip("/"))
    check_is("topic", topic, str, "a name")
    if topic in ("", ".", ".."):
        raise ValueError(f"{path} has no name that a table could have: give one as topic")
    return topic

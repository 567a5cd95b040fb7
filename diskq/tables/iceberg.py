# A table's files in an Iceberg catalog, for engines that want one. Law: each snapshot lists exactly the files
# that the table had at one moment, so each message once; no file is copied or changed.
#
# The list of files stays the table, and the entry is made from it: a snapshot that was not made delays
# messages for the catalog's readers, and loses none.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from diskq.errors import TableMismatchError
from diskq.tables.arrow import schema_of
from diskq.tables.extras import needs
from diskq.tables.locking import locked
from diskq.tables.names import TableFile
from diskq.tables.parquet import read_footer
from diskq.tables.table import Table

__all__ = ["IcebergUpdate", "publish"]

# Properties of an Iceberg table that say whose files it lists.
_DIRECTORY = "diskq.table"
_STREAM = "diskq.stream"

# Without the first three, each snapshot adds a manifest that every query opens, and a file of metadata that
# stays. The files have no statistics of keys and values, and pyiceberg would warn of it file by file.
_PROPERTIES = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "write.metadata.metrics.column.key": "none",
    "write.metadata.metrics.column.value": "none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergUpdate:
    """The changes of one `publish`, in numbers of files."""

    added: int
    """Files that the new snapshot lists and the one before did not."""
    removed: int
    """Files that the new snapshot does not list any more: a compaction has replaced them, or they went with
    their segments."""


def publish(table: Table, catalog: Any, identifier: str) -> IcebergUpdate:
    """Make the Iceberg table `identifier` of `catalog` list the files of `table`, in one snapshot.

    `catalog` is one of pyiceberg's, and `identifier` has the namespace: "web.clicks". A table that does not
    exist is created, with its namespace. It has the columns of the files, and `partition`, by which it is
    partitioned. Without changes there is no snapshot. The lock of `table` is held meanwhile, so that no
    update or compaction changes the list.

    Readers of an earlier snapshot need the files that a compaction has replaced since: they stay for
    `keep_replaced` seconds of the table.

    Raises ValueError if `into` of the table is a relative path, or `identifier` has no namespace;
    TableMismatchError if `identifier` lists files of another directory, or of this stream before it was made
    again; LockedError; as `Table.files`; and what the catalog raises, such as pyiceberg's
    CommitFailedException if another program changed the Iceberg table: call it again. Nothing was changed
    in any of these cases.
    """
    namespace = identifier.rpartition(".")[0]
    if not namespace:
        raise ValueError(f"identifier is {identifier!r}: it needs a namespace, as in 'web.clicks'")
    if table.state.remote is None and not table.directory.startswith("/"):
        raise ValueError(f"into is in {table.directory}: a catalog needs the whole path, from / on")
    with needs("pyiceberg", "Iceberg's catalogs", "iceberg"):
        from pyiceberg.exceptions import NoSuchTableError
    try:
        listed = catalog.load_table(identifier)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(namespace)
        listed = _create(table, catalog, identifier)
    with locked(table.state):
        files = table.files()
        stream = read_footer(table.state.fs, files[-1]).stream if files else ""
        _check_source(table, listed, identifier, stream)
        by_uri = {_uri(table, file): file for file in files}
        entries = {task.file.file_path: task.file for task in listed.scan().plan_files()}
        gone = [entry for uri, entry in entries.items() if uri not in by_uri]
        new = [_entry(listed, uri, file) for uri, file in by_uri.items() if uri not in entries]
        if gone or new:
            with listed.transaction() as transaction:
                if stream and _STREAM not in listed.properties:
                    transaction.set_properties({_STREAM: stream})
                snapshot = transaction.update_snapshot()
                with snapshot.overwrite() if gone else snapshot.merge_append() as change:
                    for entry in gone:
                        change.delete_data_file(entry)
                    for entry in new:
                        change.append_data_file(entry)
    return IcebergUpdate(added=len(new), removed=len(gone))


def _check_source(table: Table, listed: Any, identifier: str, stream: str) -> None:
    """Raise TableMismatchError if the Iceberg table does not list files of this table."""
    directory = listed.properties.get(_DIRECTORY)
    if directory != table.directory:
        reason = f"it lists the files of {directory}" if directory else "diskq did not create it"
        raise TableMismatchError(identifier, table.directory, reason)
    before = listed.properties.get(_STREAM, "")
    if before and stream and before != stream:
        reason = f"it lists files of stream {before}, these are of stream {stream}: drop it, without PURGE"
        raise TableMismatchError(identifier, table.directory, reason)


def _create(table: Table, catalog: Any, identifier: str) -> Any:
    # No file has the column `partition`: Iceberg takes it from the entry of the file.
    schema = pa.schema([*schema_of(table.kind()), pa.field("partition", pa.int32())])
    with catalog.create_table_transaction(identifier, schema=schema) as transaction:
        with transaction.update_spec() as spec:
            spec.add_identity("partition")
        # Columns of the files have no ids of Iceberg's: they are found by their names.
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        own = {_DIRECTORY: table.directory, "schema.name-mapping.default": mapping}
        transaction.set_properties({**_PROPERTIES, **own})
    return catalog.load_table(identifier)


def _entry(listed: Any, uri: str, file: TableFile) -> Any:
    """Return the catalog's entry of a file: its statistics, and its partition."""
    from pyiceberg.io.pyarrow import parquet_file_to_data_file
    from pyiceberg.manifest import DataFile
    from pyiceberg.typedef import Record

    found = parquet_file_to_data_file(listed.io, listed.metadata, uri)
    # It would look for the partition in the statistics of a column that the file does not have.
    entry = DataFile.from_args(
        content=found.content,
        file_path=found.file_path,
        file_format=found.file_format,
        partition=Record(file.partition),
        record_count=found.record_count,
        file_size_in_bytes=found.file_size_in_bytes,
        column_sizes=found.column_sizes,
        value_counts=found.value_counts,
        null_value_counts=found.null_value_counts,
        nan_value_counts=found.nan_value_counts,
        lower_bounds=found.lower_bounds,
        upper_bounds=found.upper_bounds,
        split_offsets=found.split_offsets,
    )
    entry.spec_id = listed.metadata.default_spec_id
    return entry


def _uri(table: Table, file: TableFile) -> str:
    if (uri := table.state.uri(file.path)) is None:
        raise ValueError(f"{table.directory} is in a file system that has no URI")
    return uri

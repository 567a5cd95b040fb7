# A table in an Iceberg catalog. Law: whoever reads a snapshot gets each message of the table once, and no
# file was copied.

from __future__ import annotations

import shutil
import sys
from typing import Any

import pytest

import diskq
from diskq.errors import TableMismatchError
from diskq.tables.iceberg import publish

NAME = "web.clicks"


@pytest.fixture
def catalog(tmp_path):
    """A catalog in SQLite."""
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="pyiceberg is not installed")
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    opened = catalogs.load_catalog("lake", type="sql", uri=uri, warehouse=warehouse)
    yield opened
    opened.close()


@pytest.fixture
def table(tmp_path):
    fill(tmp_path, range(1000))
    opened = diskq.open_table(tmp_path / "clicks", tmp_path / "lake", keep_replaced=3600)
    opened.update()
    return opened


def fill(path, numbers):
    with diskq.Stream(path / "clicks", partition_count=3, segment_size=3000) as stream:
        stream.append_many([(b"user-%d" % (number % 7), b"/page/%d" % number) for number in numbers])


def rows(catalog: Any, **how: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = catalog.load_table(NAME).scan(**how).to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def in_table(table: diskq.Table) -> list[dict[str, Any]]:
    found = table.dataset().to_table().drop_columns("topic").to_pylist()
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


# --- a snapshot is the table ------------------------------------------------------------------


def test_a_snapshot_has_each_message_of_the_table_once(catalog, table, tmp_path, caplog):
    assert publish(table, catalog, NAME).added == len(table.files()) > 5
    assert rows(catalog) == in_table(table)
    fill(tmp_path, range(1000, 1500))
    update = table.update()
    result = publish(table, catalog, NAME)
    assert (result.added, result.removed) == (len(update.made), 0)
    assert rows(catalog) == in_table(table)
    assert not list((tmp_path / "warehouse").rglob("*.parquet"))
    assert not [record for record in caplog.records if record.name.startswith("pyiceberg")]


def test_without_new_files_there_is_no_new_snapshot(catalog, table):
    publish(table, catalog, NAME)
    before = catalog.load_table(NAME).history()
    result = publish(table, catalog, NAME)
    assert (result.added, result.removed) == (0, 0)
    assert catalog.load_table(NAME).history() == before


def test_after_a_compaction_the_joined_files_are_listed_and_an_older_snapshot_is_still_read(catalog, table):
    publish(table, catalog, NAME)
    older = catalog.load_table(NAME).scan()
    before = table.files()
    table.compact()
    result = publish(table, catalog, NAME)
    assert (result.added, result.removed) == (len(table.files()), len(before))
    assert rows(catalog) == in_table(table)
    assert older.to_arrow().num_rows == table.statistics().offsets


def test_files_that_went_with_their_segments_are_not_listed_any_more(catalog, tmp_path):
    fill(tmp_path, range(1000))
    table = diskq.open_table(tmp_path / "clicks", tmp_path / "lake", keep="segments")
    table.update()
    publish(table, catalog, NAME)
    with diskq.Stream(tmp_path / "clicks", retention_max_bytes=9000) as stream:
        stream.vacuum()
    update = table.update()
    assert len(update.removed) > 0
    assert publish(table, catalog, NAME).removed == len(update.removed)
    assert rows(catalog) == in_table(table)


def test_files_of_other_partitions_and_offsets_are_not_planned(catalog, table):
    publish(table, catalog, NAME)
    (partition, *_) = table.ends()
    wanted = f"partition = {partition} and offset < 10"
    assert [row["offset"] for row in rows(catalog, row_filter=wanted)] == list(range(10))
    assert len(list(catalog.load_table(NAME).scan(row_filter=wanted).plan_files())) == 1


# --- what is refused --------------------------------------------------------------------------


def test_an_entry_of_another_table_is_refused(catalog, table, tmp_path):
    publish(table, catalog, NAME)
    other = diskq.open_table(tmp_path / "clicks", tmp_path / "elsewhere")
    with pytest.raises(TableMismatchError, match=r"it lists the files of .*/lake/topic=clicks"):
        publish(other, catalog, NAME)
    assert rows(catalog) == in_table(table)


def test_an_entry_that_diskq_did_not_create_is_refused(catalog, table):
    catalog.create_namespace("web")
    catalog.create_table(NAME, schema=table.schema)
    with pytest.raises(TableMismatchError, match="diskq did not create it"):
        publish(table, catalog, NAME)


def test_an_entry_of_the_stream_before_it_was_made_again_is_refused(catalog, table, tmp_path):
    publish(table, catalog, NAME)
    for name in ("clicks", "lake"):
        shutil.rmtree(tmp_path / name)
    fill(tmp_path, range(1000))
    table = diskq.open_table(tmp_path / "clicks", tmp_path / "lake")
    table.update()
    with pytest.raises(TableMismatchError, match=r"it lists files of stream .* drop it"):
        publish(table, catalog, NAME)


def test_a_catalog_whose_warehouse_has_moved_names_the_file_that_is_missing(catalog, table, tmp_path):
    publish(table, catalog, NAME)
    (tmp_path / "warehouse").rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match=r"/warehouse/web/clicks/metadata/.*\.metadata\.json"):
        publish(table, catalog, NAME)


def test_without_pyiceberg_the_error_says_what_to_install(table, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyiceberg"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(ModuleNotFoundError, match=r"diskqueue\[iceberg\]"):
        publish(table, None, NAME)


def test_a_relative_path_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a catalog needs the whole path"):
        publish(diskq.open_table(tmp_path / "clicks", "lake"), None, NAME)


def test_an_identifier_without_a_namespace_is_refused(table):
    with pytest.raises(ValueError, match=r"it needs a namespace, as in 'web\.clicks'"):
        publish(table, None, "clicks")


def test_a_file_system_without_uris_is_refused(catalog, table, tmp_path):
    fs = pytest.importorskip("pyarrow.fs")
    subtree = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    with pytest.raises(ValueError, match="in a file system that has no URI"):
        publish(diskq.open_table(tmp_path / "clicks", "lake", filesystem=subtree), catalog, NAME)

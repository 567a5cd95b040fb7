# Tables where pyarrow.fs puts files. Law: as on a disk, a list of the names is an exact table, whatever
# fails, and whoever else puts files there.

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs as pafs
import pytest

from diskq.errors import CorruptionError
from diskq.options import TableOptions
from diskq.tables import arrow_files
from diskq.tables.reading import read_arrow
from diskq.tables.table import Table, open_table
from diskq.testing import CrashFS
from tests.tables.logs import JOURNAL, STREAM, fill_journal, fill_stream, in_log, in_table, read, rows, stream

MOCK = pafs._MockFileSystem


class Handler(pafs.FSSpecHandler):  # type: ignore[misc]
    """A handler written in Python, as that of fsspec, above another file system. `broken` puts fail then."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.inner = inner
        self.broken: list[int] = []

    def get_type_name(self) -> str:
        return "handled"

    def get_file_info(self, paths: Any) -> Any:
        return self.inner.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self.inner.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.inner.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self.inner.delete_file(path)

    def move(self, source: str, target: str) -> None:
        self.inner.move(source, target)

    def open_input_file(self, path: str) -> Any:
        return self.inner.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        out = self.inner.open_output_stream(path)
        if self.broken:
            out.write(b"x" * self.broken.pop())
            out.close()
            raise OSError("the network is down")
        return out


@pytest.fixture(params=["subtree", "mock", "handler", "object store"])
def files(request, tmp_path, monkeypatch):
    """File systems as pyarrow and others make them."""
    if request.param == "subtree":
        return pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    if request.param == "handler":
        return pafs.PyFileSystem(Handler(MOCK()))
    if request.param == "object store":
        monkeypatch.setattr(arrow_files, "_OBJECT_STORES", ("mock",))
        made = MOCK()
        for partition in range(2):  # it has directories, unlike an object store
            for topic in ("clicks", "events"):
                made.create_dir(f"lake/topic={topic}/partition={partition}")
        return made
    return MOCK()


@pytest.fixture
def fs():
    fs = CrashFS()
    fill_stream(fs)
    fill_journal(fs)
    return fs


def table(fs: CrashFS, files: Any, path: str = STREAM, **options: Any) -> Table:
    return open_table(path, "lake", filesystem=files, fs=fs, options=TableOptions(**options))


def names(files: Any) -> list[str]:
    found = files.get_file_info(pafs.FileSelector("lake", recursive=True))
    return sorted(info.path for info in found if info.type == pafs.FileType.File)


@pytest.mark.parametrize("path", [STREAM, JOURNAL])
def test_a_table_is_kept_there_and_read_with_the_tail(fs, files, path):
    its = table(fs, files, path)
    done = its.update()
    assert done.messages == len(in_table(its))
    assert names(files) == sorted(file.path for file in its.files())
    assert in_table(its) == [row for row in in_log(fs, path) if row[1] < its.ends()[row[0]]]
    assert read(fs, path, table=its) == in_log(fs, path)
    assert its.dataset().count_rows() == done.messages
    assert its.statistics().bytes_on_disk == done.written_bytes


def test_a_second_update_puts_nothing_and_a_later_one_goes_on(fs, files):
    table(fs, files).update()
    before = names(files)
    assert table(fs, files).update().made == ()
    assert names(files) == before
    fill_stream(fs, range(40, 80))
    assert table(fs, files).update().made
    assert read(fs, table=table(fs, files)) == in_log(fs)


def test_updaters_that_meet_put_the_same_files(fs, files):
    other = table(fs, files)
    table(fs, files).update(each=lambda _: other.update())
    assert read(fs, table=table(fs, files)) == in_log(fs)
    assert names(files) == sorted(file.path for file in other.files())


def test_small_files_are_joined_there(fs, files):
    its = table(fs, files)
    its.update()
    before = in_table(its)
    assert its.compact().removed
    assert len(names(files)) == 2
    assert in_table(its) == before


def test_files_go_with_their_segments_there(fs, files):
    its = table(fs, files, keep="segments")
    its.update()
    fill_stream(fs, range(40, 400), retention_max_bytes=2000)
    with stream(fs, retention_max_bytes=2000) as opened:
        opened.vacuum()
    done = its.update()
    assert done.removed
    assert not {file.path for file in done.removed} & set(names(files))


def test_a_put_that_fails_leaves_no_half_file(fs):
    handler = Handler(MOCK())
    files = pafs.PyFileSystem(handler)
    table(fs, files).update()
    before = names(files)
    fill_stream(fs, range(40, 80))
    handler.broken = [100]
    with pytest.raises(OSError, match="the network is down"):
        table(fs, files).update()
    assert names(files) == before
    table(fs, files).update()
    assert read(fs, table=table(fs, files)) == in_log(fs)


def test_a_file_that_is_not_whole_is_found(fs, files):
    its = table(fs, files)
    its.update()
    path = its.files()[0].path
    content = files.open_input_file(path).read()
    with files.open_output_stream(path) as out:
        out.write(content[:-3])
    with pytest.raises(CorruptionError):
        table(fs, files).update()


def test_the_streams_of_several_machines_are_one_table(tmp_path):
    each = {}
    for host in ("web1", "web 2"):
        fs = each[host] = CrashFS()
        fill_stream(fs)
        open_table(STREAM, f"file://{tmp_path}/lake", host=host, fs=fs).update()
    # On a disk, too, without pyarrow's file systems.
    assert (tmp_path / "lake" / "host=web1" / "topic=clicks").is_dir()
    whole = pa.dataset.dataset(str(tmp_path / "lake"), partitioning="hive")
    assert set(whole.to_table(["host"]).column("host").unique().to_pylist()) == {"web1", "web 2"}
    for host, fs in each.items():
        its = open_table(STREAM, f"file://{tmp_path}/lake", host=host, fs=fs)
        assert rows(read_arrow(STREAM, table=its, fs=fs)) == in_log(fs)
        assert its.update().made == ()


def test_what_is_no_file_system_is_refused(fs):
    with pytest.raises(ValueError, match="into is 'nowhere://lake'"):
        open_table(STREAM, "nowhere://lake", fs=fs)
    with pytest.raises(TypeError, match=r"filesystem is one of pyarrow\.fs, or of fsspec, got int"):
        open_table(STREAM, "lake", filesystem=7, fs=fs)

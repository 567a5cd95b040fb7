# Tables where pyarrow.fs puts files. Law: as on a disk, a list of the names is an exact table, whatever
# fails, and whoever else puts files there; and one updater at a time changes it.

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs as pafs
import pytest

from diskq.engine.stream.stream import Stream
from diskq.errors import CorruptionError, LockedError
from diskq.options import TableOptions
from diskq.tables import arrow_files
from diskq.tables.locking import locked
from diskq.tables.reading import read_arrow
from diskq.tables.table import Table, open_table
from diskq.testing import CrashFS
from tests.tables.logs import JOURNAL, STREAM, fill_journal, fill_stream, in_log, in_table, read, rows, stream

MOCK = pafs._MockFileSystem


class Handler(pafs.FSSpecHandler):  # type: ignore[misc]
    """A handler written in Python, as that of fsspec, above another file system.

    Puts under names that end with `fails` fail, each after a number of bytes of `broken`.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.inner = inner
        self.broken: list[int] = []
        self.fails = ".tmp"

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
        if self.broken and path.endswith(self.fails):
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
        for topic in ("clicks", "events"):  # it has directories, unlike an object store
            for directory in ("partition=0", "partition=1", ".diskq"):
                made.create_dir(f"lake/topic={topic}/{directory}")
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


# --- one updater at a time ------------------------------------------------------------------------

LOCKS = "lake/topic=clicks/.diskq"


def put(files: Any, path: str, content: bytes) -> None:
    files.create_dir(path.rpartition("/")[0], recursive=True)
    with files.open_output_stream(path) as out:
        out.write(content)


def locks(files: Any) -> list[str]:
    found = files.get_file_info(pafs.FileSelector(LOCKS, allow_not_found=True))
    return [info.path for info in found]


def test_a_second_updater_changes_nothing(fs, files):
    other = table(fs, files)
    seen = []

    def meet(_: Any) -> None:
        before = names(files)
        with pytest.raises(LockedError, match=r"topic=clicks is in use by process \d+ on crashfs since "):
            other.update()
        with pytest.raises(LockedError):
            other.compact()
        assert names(files) == before
        seen.append(len(locks(files)))

    table(fs, files).update(each=meet)
    assert set(seen) == {1}
    assert locks(files) == []
    assert other.update().made == ()
    assert other.compact().removed
    assert read(fs, table=table(fs, files)) == in_log(fs)


@pytest.mark.parametrize(
    "content", [b'{"pid": 7, "host": "web1", "since": 1, "renewed": %d}', b'{"pid": 7, "h']
)
def test_what_a_killed_updater_has_left_counts_for_a_minute(fs, files, content):
    now = int(fs.wall_clock())
    left = f"{LOCKS}/123.lock"
    put(files, left, content % now if b"%" in content else content)
    if b"%" not in content:  # it was killed while it put that: then the time of the put counts
        put_at = files.get_file_info(left).mtime
        fs.clock += put_at.timestamp() - now
    for seconds in (0, 59):
        fs.clock += seconds
        with pytest.raises(LockedError, match=r"123\.lock"):
            table(fs, files).update()
        assert locks(files) == [left]
    fs.clock += 2
    assert table(fs, files).update().made
    assert locks(files) == []


def test_an_updater_knows_its_own_lock_however_the_path_is_written(tmp_path):
    fs = CrashFS()
    fill_stream(fs)
    its = open_table(STREAM, f"{tmp_path}//lake/", filesystem=pafs.LocalFileSystem(), fs=fs)
    assert its.update().made
    assert its.update().made == ()


def test_an_updater_that_works_long_renews_its_lock(fs, files):
    other = table(fs, files)

    def meet(_: Any) -> None:
        fs.clock += 45
        with pytest.raises(LockedError):
            other.update()

    made = table(fs, files).update(each=meet).made
    assert len(made) * 45 > 200


def test_an_updater_that_stood_still_and_was_taken_for_dead_stops(fs, files):
    other = table(fs, files)
    done: list[Any] = []

    def meet(_: Any) -> None:
        if not done:
            fs.clock += 61
            done.append(other.update())

    with pytest.raises(LockedError, match="this one stood still for more than 60 s"):
        table(fs, files).update(each=meet)
    assert done[0].made
    assert read(fs, table=table(fs, files)) == in_log(fs)
    assert names(files) == sorted(file.path for file in other.files())


def test_a_lock_that_is_released_while_it_is_read_is_none(fs):
    handler = Handler(MOCK())
    files = pafs.PyFileSystem(handler)
    left = f"{LOCKS}/123.lock"
    put(files, left, b"{}")
    reading = handler.open_input_file

    def gone_meanwhile(path: str) -> Any:
        if path == left:
            handler.delete_file(path)
            raise OSError("GetObject: failed to flush response stream")
        return reading(path)

    handler.open_input_file = gone_meanwhile  # type: ignore[method-assign]
    assert table(fs, files).update().made


def test_one_that_waits_for_the_lock_puts_nothing(fs):
    handler = Handler(MOCK())
    files = pafs.PyFileSystem(handler)
    handler.fails = ".lock"

    def meet(_: Any) -> None:
        handler.broken = [5]
        with pytest.raises(LockedError):
            table(fs, files).update()
        handler.broken.clear()

    assert table(fs, files).update(each=meet).made


def test_a_lock_that_cannot_be_put_leaves_nothing(fs):
    handler = Handler(MOCK())
    handler.fails, handler.broken = ".lock", [5]
    files = pafs.PyFileSystem(handler)
    with pytest.raises(OSError, match="the network is down"):
        table(fs, files).update()
    assert locks(files) == []
    assert table(fs, files).update().made


# --- changes of a table ---------------------------------------------------------------------------


def test_small_files_are_joined_there(fs, files):
    its = table(fs, files)
    its.update()
    before = in_table(its)
    assert its.compact().removed
    assert len(names(files)) == 2
    assert in_table(its) == before


def test_files_that_were_joined_stay_there_for_as_long_as_was_asked(fs, files):
    its = table(fs, files, keep_replaced=10.0)
    its.update()
    before = its.files()
    assert its.compact().removed == ()
    put = [files.get_file_info(file.path).mtime.timestamp() for file in its.files()]
    fs.clock += min(put) + 5 - fs.wall_clock()
    assert its.update().removed == ()
    fs.clock += max(put) + 11 - fs.wall_clock()
    assert sorted(its.update().removed) == before


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
    # A URI of this machine's disk is a path.
    assert (tmp_path / "lake" / "host=web1" / "topic=clicks").is_dir()
    whole = pa.dataset.dataset(str(tmp_path / "lake"), partitioning="hive")
    assert set(whole.to_table(["host"]).column("host").unique().to_pylist()) == {"web1", "web 2"}
    for host, fs in each.items():
        its = open_table(STREAM, f"file://{tmp_path}/lake", host=host, fs=fs)
        assert rows(read_arrow(STREAM, table=its, fs=fs)) == in_log(fs)
        assert its.update().made == ()


def test_a_uri_of_a_file_is_a_path_with_its_lock(tmp_path):
    path, lake = tmp_path / "clicks", tmp_path / "a lake"
    with Stream(path, segment_size=400) as log:
        log.append_many([(b"key", b"value %d" % number * 5) for number in range(100)])
    its, by_path = open_table(path, lake.as_uri()), open_table(path, lake)
    assert its.directory == by_path.directory
    with locked(by_path.state), pytest.raises(LockedError):
        its.update()
    assert its.update().made
    assert its.files() == by_path.files()
    assert (lake / "topic=clicks" / ".diskq" / "table.lock").exists()


def test_what_is_no_file_system_is_refused(fs):
    with pytest.raises(ValueError, match="into is 'nowhere://lake'"):
        open_table(STREAM, "nowhere://lake", fs=fs)
    with pytest.raises(TypeError, match=r"filesystem is one of pyarrow\.fs, or of fsspec, got int"):
        open_table(STREAM, "lake", filesystem=7, fs=fs)

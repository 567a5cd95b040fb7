# The kind of a directory's files. Law: names decide, nothing is opened, and other files are no kind.

from __future__ import annotations

import pytest

from diskq.engine.journal.journal import Journal
from diskq.engine.layouts import layout_of, queue_names
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.stream.stream import Stream
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS
from tests.golden import test_nsq as golden
from tests.golden.journals import every_journal, golden_journal
from tests.golden.streams import every_stream, golden_stream

ROOT = "/q"


def with_files(*names: str) -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably(ROOT)
    for name in names:
        fs.write_durably(f"{ROOT}/{name}", b"")
    return fs


def test_a_queue_is_recognised_as_soon_as_it_was_opened():
    fs = with_files()
    Queue(ROOT, "q", fs=fs).close()
    assert (layout_of(fs, ROOT), queue_names(fs, ROOT)) == ("nsq", ["q"])


def test_a_stream_is_recognised_as_soon_as_it_was_opened():
    fs = with_files()
    Stream(ROOT, fs=fs).close()
    assert (layout_of(fs, ROOT), queue_names(fs, ROOT)) == ("triplet", [])


@pytest.mark.parametrize("folder", golden.FOLDERS)
def test_files_of_go_diskqueue_are_recognised(folder):
    path = str(golden.HERE / folder / "data")
    expected = sorted(case.name for case in golden.cases(folder))
    assert (layout_of(OsFileSystem(), path), queue_names(OsFileSystem(), path)) == ("nsq", expected)


@every_stream
def test_files_of_go_diskq_are_recognised(name, tmp_path):
    assert layout_of(OsFileSystem(), str(golden_stream(name, tmp_path))) == "triplet"


def test_each_of_several_queues_is_listed_by_its_data_or_metadata():
    fs = with_files("b.diskqueue.000000.dat", "a:c.diskqueue.meta.dat", "a:c.diskqueue.000003.dat")
    assert queue_names(fs, ROOT) == ["a:c", "b"]


@pytest.mark.parametrize(
    "name", ["q.diskqueue.000000.dat.bad", "q.diskqueue.meta.dat.17.tmp", "q.diskqueue.1.dat", "parquet"]
)
def test_other_files_are_of_no_kind(name):
    assert layout_of(with_files(name), ROOT) is None


def test_a_directory_that_is_not_there_is_an_error():
    with pytest.raises(FileNotFoundError):
        layout_of(with_files(), "/nowhere")


def test_a_journal_is_recognised_as_soon_as_it_was_opened():
    fs = with_files()
    Journal(ROOT, fs=fs).close()
    assert (layout_of(fs, ROOT), queue_names(fs, ROOT)) == ("sej", [])


@every_journal
def test_files_of_sej_are_recognised(name, tmp_path):
    assert layout_of(OsFileSystem(), str(golden_journal(name, tmp_path))) == "sej"


@pytest.mark.parametrize("name", ["jnl", "jnl/0.jnl", "jnl/000000000000000G.jnl"])
def test_what_is_called_as_a_journal_s_directory_is_none_yet(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert layout_of(OsFileSystem(), str(tmp_path)) is None

# Staged files: what `finish` returned is durable and as it was given; what was not finished is not there.

from __future__ import annotations

import array
import errno
import pickle

import pytest

from diskq._native.stream.codec import encode
from diskq._native.stream.columns import BinaryColumn, ColumnBatch, NumberColumn
from diskq.engine.stream.transactions import staging as module
from diskq.engine.stream.transactions.staging import Abandoned, StagedName, StagedReader
from diskq.errors import CorruptionError, DiskFullError, KeySizeError, MessageSizeError, StorageFailedError
from diskq.options import StreamOptions
from diskq.testing import CrashFS
from tests.engine.streams import (
    ROOT,
    Triple,
    disk,
    failing_disk,
    flip,
    held,
    opened,
    parted,
    triples,
    truncate,
)
from tests.engine.transactions import STAGING, files_of, staged_files, staging, transaction
from tests.reference import triplet_oracle as oracle


def binary(values: list[bytes]) -> BinaryColumn:
    offsets = array.array("i", [0])
    for value in values:
        offsets.append(offsets[-1] + len(value))
    return BinaryColumn(None, 0, offsets, 4, b"".join(values))


def columns(messages: list[Triple]) -> ColumnBatch:
    times = NumberColumn(None, 0, array.array("q", [when for _, when, _ in messages]))
    keys = binary([key for key, _, _ in messages])
    return ColumnBatch(len(messages), binary([value for _, _, value in messages]), keys, times)


def content(fs: CrashFS, name: str) -> bytes:
    return fs.read(f"{STAGING}/{name}")


def test_what_fills_an_extent_is_on_its_way_to_the_disk_before_the_task_ends(monkeypatch):
    monkeypatch.setattr(module, "_EXTENT", 1000)
    begun = []
    monkeypatch.setattr(module, "start_writeback", lambda fs, handle: begun.append(handle))
    with staging(disk(), partition_count=1, segment_size=8000) as writer:
        writer.add_columns(columns(triples(10)))
        assert begun == []
        writer.add_columns(columns(triples(30, start=10)))
        writer.add_columns(columns(triples(30, start=40)))
        assert len(set(begun)) == 2  # the common file, and one that can become a segment
        writer.finish()
    assert len(begun) == 2  # the last rows are few, and synced at once


@pytest.mark.parametrize("encoding", ["fixed", "varuint"])
def test_columns_are_staged_by_partition_and_committed(encoding):
    fs = disk()
    with staging(fs, encoding=encoding) as writer:
        for batch in (triples(30), triples(30, start=30)):
            writer.add_columns(columns(batch))
        staged = writer.finish()
    assert [extent.partition for extent in staged.extents] == [0, 1]
    with opened(fs, partition_count=2, encoding=encoding) as stream:
        stream.commit(transaction(staged))
    assert held(fs, varuint=encoding == "varuint") == parted(triples(60), 2)


def test_extents_are_written_when_much_waits_for_their_partition(monkeypatch):
    monkeypatch.setattr(module, "_EXTENT", 2000)
    fs = disk()
    with staging(fs) as writer:
        for number in range(20):
            writer.add_columns(columns(triples(20, start=20 * number)))
        staged = writer.finish()
    assert len(staged.extents) > 6
    assert all(extent.size >= 2000 for extent in staged.extents[:-2])
    found: dict[int, list[Triple]] = {0: [], 1: []}
    for extent in staged.extents:
        data = content(fs, staged.name)[extent.start : extent.start + extent.size]
        found[extent.partition] += oracle.records(data)[0]
    assert found == parted(triples(400), 2)


def test_what_waits_for_many_partitions_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_EXTENT", 2000)
    monkeypatch.setattr(module, "_MOST_WAITING", 5000)
    fs = disk()
    with staging(fs, partition_count=100) as writer:
        for number in range(4):
            writer.add_columns(columns(triples(60, start=60 * number, keys=100)))
        assert len(content(fs, str(staged_files(fs)[0]))) > 5000
        writer.finish()


def test_a_finished_file_survives_a_power_cut_and_says_little_when_it_is_sent():
    fs = disk()
    fs.make_directory_durably(ROOT)
    writer = staging(fs)
    writer.add_encoded(1, encode(triples(3)).data, 3)
    staged = writer.finish()
    assert content(fs.crash(), staged.name) == content(fs, staged.name)
    assert len(pickle.dumps(staged)) < 300
    assert pickle.loads(pickle.dumps(staged)) == staged


def test_what_is_not_finished_is_removed():
    fs = disk()
    with staging(fs) as writer:
        writer.add_encoded(0, encode(triples(3)).data, 3)
        assert staged_files(fs) == [writer.name]
    assert staged_files(fs) == []
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.finish()


def test_no_messages_are_no_file():
    fs = disk()
    with staging(fs) as writer:
        assert writer.finish().extents == ()
    assert staged_files(fs) == []


def test_a_row_that_cannot_be_a_message_fails_its_batch_with_an_error():
    fs = disk()
    options = StreamOptions(max_message_size=10, max_key_size=32)
    with staging(fs, options=options) as writer:
        good = [(b"k", 1, b"v")]
        writer.add_columns(columns(good))
        with pytest.raises(MessageSizeError) as size:
            writer.add_columns(columns([*good, (b"k", 1, b"x" * 11)]))
        assert (size.value.size, size.value.maximum) == (11, 10)
        with pytest.raises(KeySizeError):
            writer.add_columns(columns([*good, (b"k" * 33, 1, b"x")]))
        values = BinaryColumn(b"\0", 0, array.array("i", [0, 0]), 4, b"")
        with pytest.raises(ValueError, match="null"):
            writer.add_columns(ColumnBatch(1, values))
        with pytest.raises(ValueError, match="no partition 2"):
            writer.add_encoded(2, b"", 0)
        staged = writer.finish()
    assert sum(extent.records for extent in staged.extents) == 1


def test_without_key_and_time_they_are_drawn():
    fs = disk()
    with staging(fs, partition_count=1) as writer:
        writer.add_columns(ColumnBatch(2, binary([b"a", b"b"])))
        (extent,) = writer.finish().extents
    found = oracle.records(content(fs, writer.name)[extent.start :])[0]
    assert len({key for key, _, _ in found}) == 2
    assert all(len(key) == 32 and when == int(fs.wall_clock() * 1e9) for key, when, _ in found)


@pytest.mark.parametrize("room", [0, 10, 100])
def test_a_full_disk_is_raised_and_leaves_no_staged_file(room):
    fs = failing_disk()
    fs.capacity(room)
    with pytest.raises(DiskFullError, match="staged"), staging(fs) as writer:
        writer.add_encoded(0, encode(triples(30)).data, 30)
    assert staged_files(fs) == []


def test_a_sync_that_fails_is_not_believed():
    fs = failing_disk()
    fs.fail("sync_files", error=errno.EIO)
    with staging(fs) as writer:
        writer.add_encoded(0, encode(triples(3)).data, 3)
        with pytest.raises(StorageFailedError):
            writer.finish()
    assert staged_files(fs) == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a-1-2-0123.staged",
        "a-01-2-0123456789abcdef.staged",
        "a-1-2-0123456789abcdef",
        f"a-{2**63}-2-0123456789abcdef.staged",
    ],
)
def test_names_that_no_writer_gave(name):
    assert StagedName.parse(name) is None


@pytest.mark.parametrize("name", ["", "a-01.abandoned", "a-1", f"a-{2**63}.abandoned"])
def test_names_of_marks_that_no_writer_gave(name):
    assert Abandoned.parse(name) is None


def test_the_name_of_a_mark_says_what_was_abandoned():
    assert Abandoned.parse("a.b_C-7.abandoned") == ("a.b_C", 7)


def test_a_name_says_whose_it_is():
    fs = disk()
    writer = staging(fs, sink="a.b_C", epoch=2**63 - 1, task=12)
    parsed = StagedName.parse(writer.name)
    assert parsed is not None
    assert parsed[:3] == ("a.b_C", 2**63 - 1, 12)
    assert str(parsed) == writer.name


def test_records_behind_any_number_are_read(monkeypatch):
    monkeypatch.setattr(module, "_STRETCH", 300)
    fs = disk()
    messages = [(b"k", number, b"v" * (number * 37 % 400)) for number in range(40)]
    with staging(fs) as writer:
        writer.add_encoded(0, encode(messages).data, 40)
        (extent,) = writer.finish().extents
    with StagedReader(fs, files_of(fs), writer.name, varuint=False) as reader:
        for skip in range(41):
            data = b"".join(reader.records(extent, skip))
            assert oracle.records(data)[0] == messages[skip:]


@pytest.mark.parametrize("stretch", [30, 300])
@pytest.mark.parametrize("damage", [flip, truncate])
def test_an_extent_that_is_no_longer_as_it_was_verified_yields_nothing(monkeypatch, stretch, damage):
    """It is read in stretches, or at once."""
    monkeypatch.setattr(module, "_STRETCH", stretch)
    fs = disk()
    with staging(fs) as writer:
        writer.add_encoded(0, encode([(b"k", 1, b"value")] * 9).data, 9)
        (extent,) = writer.finish().extents
    with StagedReader(fs, files_of(fs), writer.name, varuint=False) as reader:
        reader.verify(extent)
        damage(fs, writer.path, extent.start + extent.size - 2)
        with pytest.raises(CorruptionError):
            next(reader.records(extent))

# Staged files become segments: their bytes are not written again, and all else is as if they had been.

from __future__ import annotations

from typing import Any

import pytest

from diskq._native.stream.codec import encode
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.engine.stream.transactions import staging as module
from diskq.engine.stream.transactions.transaction import read_intent
from diskq.errors import StagedError, StorageFailedError
from diskq.storage.budget import DiskBudget
from diskq.storage.checksums import sealed_end, verified_prefix
from diskq.testing import CrashFS, FaultFS
from tests.engine.stream.transactions.test_staging import columns
from tests.engine.stream.transactions.test_transaction import append_as_a_peer
from tests.engine.streams import (
    ROOT,
    data,
    disk,
    failing_disk,
    held,
    items,
    opened,
    parted,
    segments,
    sums,
    triple,
    triples,
)
from tests.engine.transactions import (
    files_of,
    refused_while_rotten,
    stage_files,
    staged_files,
    staging,
    transaction,
)

SIZE = 4000
ONE: dict[str, Any] = {"partition_count": 1, "segment_size": SIZE}


@pytest.fixture(autouse=True)
def small_extents(monkeypatch):
    """Segments of any size may be staged whole."""
    monkeypatch.setattr(module, "_EXTENT", 1)


def whole(fs, of, *, extent=10, **how):
    """These messages, staged so that some of their files can become segments."""
    count = 1 if isinstance(of, dict) and list(of) == [0] else 2
    return stage_files(fs, of, extent=extent, segment_size=SIZE, count=count, **how)


def bases(fs, partition=0):
    return list(segments(fs.files(), partition))


# --- staging --------------------------------------------------------------------------------------


def test_a_task_with_little_for_a_partition_stages_one_file():
    fs = disk()
    files = whole(fs, {0: triples(10), 1: triples(5)})
    assert [len(file.extents) for file in files] == [2]
    assert len(staged_files(fs)) == 1


def test_what_comes_after_the_first_extent_is_staged_whole():
    fs = disk()
    first, second = whole(fs, {0: triples(30), 1: triples(5)})
    assert [extent.records for extent in first.extents] == [10, 5]
    assert second.whole is not None
    assert (second.whole.records, second.whole.partition) == (20, 0)
    assert fs.read(files_of(fs).staged(second.name)) == encode(triples(30)[10:]).data


def test_a_file_ends_where_a_segment_does():
    fs = disk()
    files = whole(fs, {0: triples(400)})[1:]
    sizes = [file.whole.size for file in files if file.whole is not None]
    assert len(sizes) > 3
    assert all(SIZE <= size < SIZE * 1.2 for size in sizes[:-1])


def test_a_file_that_is_not_finished_leaves_nothing():
    fs = disk()
    writer = staging(fs, partition_count=1, segment_size=SIZE)
    for at in range(0, 300, 10):
        writer.add_encoded(0, encode(triples(10, start=at)).data, 10)
    assert len(staged_files(fs)) > 3
    writer.close()
    assert staged_files(fs) == []


def test_segments_that_are_small_are_not_staged_whole(monkeypatch):
    monkeypatch.setattr(module, "_EXTENT", SIZE)
    assert len(whole(disk(), {0: triples(400)})) == 1


def test_rows_wait_for_an_extent_and_the_last_ones_follow_the_others(monkeypatch):
    monkeypatch.setattr(module, "_EXTENT", 100)
    fs = disk()
    with staging(fs, partition_count=1, segment_size=SIZE) as writer:
        for number in range(60):
            writer.add_columns(columns([triple(number)]))
        file = writer.finish()
        (segment,) = writer.segments
    (first,) = file.extents
    assert 100 <= first.size < 200
    assert segment.whole is not None
    assert first.records + segment.whole.records == 60
    path = files_of(fs).staged(segment.name)
    assert fs.read(path) == encode([triple(number) for number in range(first.records, 60)]).data


def test_a_file_that_is_too_small_for_a_segment_is_copied():
    fs = disk()
    with opened(fs, **ONE) as stream:
        small, large = SIZE // 8 // 53, SIZE // 8 // 53 + 2
        for epoch, count in enumerate((small, large)):
            staged = whole(fs, {0: triples(count + 1)}, extent=1, epoch=epoch)
            assert len(staged) == 2
            stream.commit(transaction(*staged, epoch=epoch))
    assert bases(fs) == [0, small + 2]


# --- committing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["fixed", "varuint"])
def test_the_messages_are_in_the_stream_in_order(encoding):
    fs = disk()
    batches = [triples(100, start=5 + 100 * number) for number in range(3)]
    with opened(fs, partition_count=2, segment_size=SIZE, encoding=encoding) as stream:
        stream.append_many(items(triples(5)))
        staged = [
            file
            for task, batch in enumerate(batches)
            for file in whole(fs, batch, task=task, encoding=encoding)
        ]
        assert stream.commit(transaction(*staged))
        assert staged_files(fs) == []
        stream.append_many(items(triples(50, start=305)))
    assert held(fs, varuint=encoding == "varuint") == parted(triples(355), 2)


def test_a_staged_file_is_a_segment_and_was_not_written_again():
    fs = failing_disk()
    with opened(fs, **ONE) as stream:
        staged = whole(fs, {0: triples(50)})
        place = fs.place_of(files_of(fs).staged(staged[1].name))
        stream.commit(transaction(*staged))
        assert fs.place_of(data(10)) == place
    assert bases(fs.inner) == [0, 10]


def test_it_is_durable_when_commit_returns():
    fs = disk()
    with opened(fs, **ONE) as stream:
        stream.commit(transaction(*whole(fs, {0: triples(300)})))
        with opened(fs.crash()) as after:
            assert after.next_offsets == (300,)
            assert not after.repairs


def test_the_next_messages_go_on_in_the_last_of_them():
    fs = disk()
    with opened(fs, **ONE) as stream:
        stream.commit(transaction(*whole(fs, {0: triples(40)})))
        stream.append_many(items(triples(5, start=40)))
    assert bases(fs) == [0, 10]
    assert held(fs)[0] == triples(45)


def test_checksums_cover_each_byte():
    fs = disk()
    with opened(fs, **ONE) as stream:
        stream.commit(transaction(*whole(fs, {0: triples(400)})))
    there = bases(fs)
    assert len(there) > 3
    for base in there:
        path = data(base)
        assert verified_prefix(fs, path, sums(base), 0).end == fs.size_of(path)
    assert all(sealed_end(fs, sums(base)) == fs.size_of(data(base)) for base in there[:-1])


def test_its_messages_are_found_by_time():
    fs = disk()
    with opened(fs, **ONE) as stream:
        stream.commit(transaction(*whole(fs, {0: triples(1000)}, extent=200)))
    times = TimeLookup(fs, files_of(fs).partition(0))
    for number in (0, 1, 255, 256, 700, 999):
        assert times.offset_at_or_after(triple(number)[1]) == number


def test_a_segment_that_is_empty_is_not_replaced():
    """A reader may have it open, and would wait there forever."""
    fs = failing_disk()
    with opened(fs, **ONE) as stream, PartitionReader(fs, files_of(fs).partition(0)) as reader:
        reader.seek_oldest()
        assert reader.read() is None
        stream.commit(transaction(*whole(fs, {0: triples(90)})[1:]))
        assert [m.value for m in iter(reader.read, None)] == [value for _, _, value in triples(90)[10:]]
    assert held(fs.inner)[0] == triples(90)[10:]


def test_a_stream_with_a_budget_takes_messages_through_its_own_buffers():
    fs = disk()
    budget = DiskBudget(10_000_000)
    with opened(fs, **ONE, budget=budget) as stream:
        stream.commit(transaction(*whole(fs, {0: triples(90)})))
    assert held(fs)[0] == triples(90)


class _Watched(FaultFS[CrashFS]):
    """A disk that calls `look` after each call that changes a name."""

    look = staticmethod(lambda: None)

    def rename(self, source, target):
        super().rename(source, target)
        self.look()


def test_a_reader_beside_it_sees_whole_messages_in_order_at_each_moment():
    fs = _Watched(disk())
    seen: list[tuple[int, bytes]] = []
    with opened(fs, **ONE) as stream, PartitionReader(fs, files_of(fs).partition(0)) as reader:
        stream.append_many(items(triples(5)))
        reader.seek_oldest()

        def look():
            seen.extend((m.offset, m.value) for m in iter(reader.read, None))
            with PartitionReader(fs, files_of(fs).partition(0)) as other:
                other.seek_oldest()
                offsets = [m.offset for m in iter(other.read, None)]
                assert offsets == list(range(len(offsets)))
                assert other.losses == []

        fs.look = look
        stream.commit(transaction(*whole(fs, {0: triples(300, start=5)})))
        look()
        assert reader.losses == []
    assert seen == [(number, value) for number, (_, _, value) in enumerate(triples(305))]


# --- what is left of one that was cut short ----------------------------------------------------------


def killed(name, nth=1):
    """A disk on which a commit was killed at the nth rename of such a name."""
    fs = failing_disk()
    stream = opened(fs, **ONE)
    stream.append_many(items(triples(5)))
    staged = whole(fs, {0: triples(120, start=5)})
    fs.fail("rename", nth=nth, path=name, times=None)
    with pytest.raises(StorageFailedError):
        stream.commit(transaction(*staged))
    fs.heal()
    return fs.inner, staged


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("name", ["*.staged", "*.timeindex.*.tmp", "*.index.*.tmp"])
def test_the_next_open_carries_it_out(name, nth):
    before, staged = killed(name, nth)
    for fs in (before.kill(), before.crash()):
        assert read_intent(fs, files_of(fs)) is not None
        with opened(fs) as stream:
            assert stream.next_offsets == (125,)
            assert not stream.commit(transaction(*staged))
        assert held(fs)[0] == triples(125)
        assert staged_files(fs) == []
        assert not [path for path in fs.files() if path.endswith(".tmp")]


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("name", ["*.staged", "*.timeindex.*.tmp", "*.index.*.tmp"])
def test_a_peer_that_was_let_in_between_is_gone_round(name, nth):
    """Its owner file was removed by hand, and a go-diskq producer appended what it had."""
    before, _ = killed(name, nth)
    fs = before.kill()
    there = held(fs, may_trail=True)[0]
    peer = triples(3, start=1000)
    append_as_a_peer(fs, peer)
    for _ in range(2):
        with opened(fs) as stream:
            assert not stream.commit(transaction())
        assert held(fs)[0] == there + peer + triples(125)[len(there) :]


def test_a_staged_file_that_is_gone_and_is_no_segment_is_refused():
    before, staged = killed("*.staged")
    fs = before.kill()
    fs.unlink(files_of(fs).staged(staged[1].name))
    with pytest.raises(StagedError, match="the staged file is gone"):
        opened(fs)


def test_rot_in_one_that_is_no_segment_yet_is_refused_and_nothing_is_dropped():
    before, staged = killed("*.staged")
    fs = before.kill()
    path = files_of(fs).staged(staged[1].name)
    refused_while_rotten(fs, path, 40)
    assert held(fs)[0] == triples(125)


def test_staged_files_of_a_stream_are_named_as_its_own():
    fs = disk()
    for file in whole(fs, {0: triples(300)}, sink="a.b", epoch=7, task=3):
        parsed = module.StagedName.parse(file.name)
        assert parsed is not None
        assert parsed[:3] == ("a.b", 7, 3)
    assert f"{ROOT}/.diskq/staging" == files_of(fs).staging

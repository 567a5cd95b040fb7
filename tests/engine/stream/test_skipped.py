# Records whose producer died before it wrote their rows, and a go-diskq producer that went on after them.

from __future__ import annotations

import contextlib
import errno

import pytest

from diskq.engine.stream.stream import Stream
from diskq.options import StreamOptions
from diskq.testing import CrashFS, FaultFS, PowerCut
from tests.engine.partitions import messages, read
from tests.engine.streams import ROOT, data, disk, flip, held, index, opened, stored, timeindex, triples
from tests.reference import triplet_oracle as oracle

OURS, THEIRS = triples(9), triples(6, start=100)


def written(rows: int, *, has_times: bool = True):
    """A stream whose diskq producer died after `rows` index entries, and what a peer then wrote."""
    fs = disk()
    with opened(fs, partition_count=1) as stream:
        stream.append_many([(key, value, time) for key, time, value in OURS])
    whole = oracle.segment(OURS, 0)
    files = {
        "data": bytearray(whole["data"]),
        "index": bytearray(whole["index"][: 24 * rows]),
        "timeindex": bytearray(whole["timeindex"][: 16 * (len(OURS) if has_times else rows)]),
    }
    for key, time, value in THEIRS:
        offset, record = len(files["index"]) // 24, oracle.record(key, time, value)
        files["timeindex"] += oracle.timeindex_row(offset, time)
        files["index"] += oracle.index_row(offset, len(files["data"]), len(record))
        files["data"] += record
    for path, content in zip((data(), index(), timeindex()), files.values(), strict=True):
        fs.write_durably(path, bytes(content))
    return fs


@pytest.mark.parametrize("has_times", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 5, 8])
def test_all_of_both_get_rows_and_no_loss_is_reported(rows: int, has_times: bool) -> None:
    fs = written(rows, has_times=has_times)
    with opened(fs) as stream:
        assert [repair.records for repair in stream.repairs if repair.records != 0] == []
        reason = f"{len(OURS) - rows} messages have no index entries"
        assert any(reason in repair.reason for repair in stream.repairs)
        assert stream.next_offsets == (15,)
    assert held(fs)[0] == OURS + THEIRS  # and its files agree, row by row


def test_the_second_open_finds_nothing_to_mend() -> None:
    fs = written(5)
    with opened(fs):
        pass
    with opened(fs) as stream:
        assert stream.repairs == ()
    assert len(stored(fs)[0]) == 15


def rolled(rows: int, after: int) -> CrashFS:
    """As `written`, where the peer has begun another segment after `after` messages."""
    fs = disk()
    stream = Stream(ROOT, options=StreamOptions(partition_count=1), fs=fs, uses_wal=True)
    stream.append_many([(key, value, time) for key, time, value in OURS])
    stream.flush()
    fs = fs.kill()
    files = (data(), index(), timeindex())
    whole = oracle.segment(OURS, 0)
    content = {"data": bytearray(whole["data"]), "index": bytearray(whole["index"][: 24 * rows])}
    content["timeindex"] = bytearray(whole["timeindex"][: 16 * rows])
    for offset, (key, time, value) in enumerate(THEIRS[:after], rows):
        record = oracle.record(key, time, value)
        content["timeindex"] += oracle.timeindex_row(offset, time)
        content["index"] += oracle.index_row(offset, len(content["data"]), len(record))
        content["data"] += record
    for path, its in zip(files, content.values(), strict=True):
        fs.write_durably(path, bytes(its))
    base = rows + after
    others = oracle.segment(THEIRS[after:], base)
    for path, file in zip((data(base), index(base), timeindex(base)), others.values(), strict=True):
        fs.write_durably(path, file)
    return fs


@pytest.mark.parametrize("rows", [1, 5, 8])
@pytest.mark.parametrize("after", [0, 4])
@pytest.mark.parametrize("has_points", [True, False])
def test_where_the_peer_has_rolled_all_of_it_is_delivered_and_ours_are_kept_aside(
    rows: int, after: int, has_points: bool
) -> None:
    """Its next segment has the name of its first offset: no offsets are left for what has no rows."""
    fs = rolled(rows, after)
    if not has_points:
        fs.unlink(f"{ROOT}/.diskq/state")
    with opened(fs) as stream:
        (repair,) = (each for each in stream.repairs if each.records)
        assert (repair.path, repair.records) == (data(), len(OURS) - rows)
        assert repair.saved_as is not None
        lost = b"".join(oracle.record(*each) for each in OURS[rows:])
        assert fs.files()[repair.saved_as] == lost
    # go-diskq reads the data from its start, whatever the positions say.
    left = oracle.segment(OURS[:rows] + THEIRS[:after], 0)
    assert [fs.files()[path] for path in (data(), index(), timeindex())] == list(left.values())
    found, losses = read(fs)
    assert found == messages(OURS[:rows] + THEIRS)
    assert losses == []
    with opened(fs) as stream:
        assert stream.repairs == ()


def test_leaving_them_out_may_be_killed_anywhere() -> None:
    whole = rolled(5, 4)
    cut = 0
    while True:
        cut += 1
        first = whole.copy()
        first.cut_at = cut
        with contextlib.suppress(PowerCut):
            opened(first).close()
        second = first.kill()
        opened(second).close()
        assert read(second) == (messages(OURS[:5] + THEIRS), [])
        left = oracle.segment(OURS[:5] + THEIRS[:4], 0)
        assert [second.files()[path] for path in (data(), index(), timeindex())] == list(left.values())
        if not first.is_cut:
            break


def test_without_room_for_that_readers_of_ours_go_on() -> None:
    fs = FaultFS(rolled(5, 4))
    fs.fail("pwrite", error=errno.ENOSPC, path="*.new", times=None)
    with opened(fs) as stream:
        assert [repair.records for repair in stream.repairs if repair.records] == [4]
    assert read(fs.inner) == (messages(OURS[:5] + THEIRS), [])


def test_an_index_that_rotted_in_a_segment_before_the_last_leaves_nothing_out() -> None:
    fs = disk()
    stream = Stream(ROOT, options=StreamOptions(partition_count=1, segment_size=400), fs=fs, uses_wal=True)
    for key, time, value in OURS:
        stream.append_many([(key, value, time)])
        stream.flush()
    fs = fs.kill()
    fs.write_durably(index(), fs.files()[index()][:20])
    with opened(fs) as stream:
        assert [repair.records for repair in stream.repairs if repair.records != 0] == []
    assert read(fs) == (messages(OURS), [])


def test_a_rotten_record_among_those_that_a_checksum_covers_is_not_taken_for_one_without_a_row() -> None:
    fs = written(5)
    flip(fs, data(), len(oracle.record(*OURS[0])) + 30)
    with opened(fs) as stream:
        assert not any("have no index entries here" in repair.reason for repair in stream.repairs)

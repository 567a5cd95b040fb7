# Records whose producer died before it wrote their rows, and a go-diskq producer that went on after them.

from __future__ import annotations

import pytest

from tests.engine.streams import data, disk, flip, held, index, opened, stored, timeindex, triples
from tests.reference import triplet_oracle as oracle

OURS, THEIRS = triples(9), triples(6, start=100)


def written(rows: int, *, has_times: bool = True):
    """A stream of ours whose producer died after `rows` index rows, and what a peer then wrote."""
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
        assert any(f"{len(OURS) - rows} messages have no rows" in repair.reason for repair in stream.repairs)
        assert stream.next_offsets == (15,)
    assert held(fs)[0] == OURS + THEIRS  # and its files agree, row by row


def test_the_second_open_finds_nothing_to_mend() -> None:
    fs = written(5)
    with opened(fs):
        pass
    with opened(fs) as stream:
        assert stream.repairs == ()
    assert len(stored(fs)[0]) == 15


def test_a_rotten_record_among_those_that_a_checksum_covers_is_not_taken_for_one_without_a_row() -> None:
    fs = written(5)
    flip(fs, data(), len(oracle.record(*OURS[0])) + 30)
    with opened(fs) as stream:
        assert not any("have no rows here" in repair.reason for repair in stream.repairs)

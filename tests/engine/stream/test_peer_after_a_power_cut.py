# go-diskq, first after a power cut. It appends to whatever is at the ends of the three files: zeros, torn
# records, fragments of entries; and its first offset is the number of whole entries in the index. Law: what
# it wrote is delivered, in order, once, and so is what diskq had synced; zeros are no messages.

from __future__ import annotations

import pytest

from diskq._native.core.message import Message
from diskq.testing import CrashFS
from tests.engine.partitions import reader, rest
from tests.engine.streams import asides, data, disk, index, items, opened, sums, timeindex, triples
from tests.reference import triplet_oracle as oracle

OURS, LOST, THEIRS = triples(9), triples(4, start=50), triples(6, start=100)
WHOLE = oracle.segment([*OURS, *LOST], 0)
SYNCED = sum(len(oracle.record(*each)) for each in OURS)
RECORD = oracle.record(*LOST[0])


def left(entries: int, of_index: bytes, of_data: bytes) -> tuple[CrashFS, list[int]]:
    """A stream after a power cut and a peer, and the offsets that the peer gave its messages.

    Of diskq's nine synced messages so many have `entries`; after them, and after the data, come these bytes.
    """
    fs = disk()
    with opened(fs, partition_count=1) as stream:
        stream.append_many(items(OURS))
    content = WHOLE["data"][:SYNCED] + of_data
    rows = WHOLE["index"][: 24 * entries] + of_index
    times = WHOLE["timeindex"][: 16 * entries]
    offset, offsets = len(rows) // 24, []
    for each in THEIRS:
        record = oracle.record(*each)
        times += oracle.timeindex_row(offset, each[1])
        rows += oracle.index_row(offset, len(content), len(record))
        content += record
        offsets.append(offset)
        offset += 1
    for path, these in ((data(), content), (index(), rows), (timeindex(), times)):
        fs.write_durably(path, these)
    return fs, offsets


def everything(fs: CrashFS) -> tuple[list[Message], int, int]:
    """All messages, where reading ended, and the offset after the last message as a reader finds it."""
    with reader(fs) as its:
        end = its.next_offset()
        its.seek_oldest()
        found = rest(its)
        return found, its.position, end


CASES = {
    "nothing": (9, b"", b""),
    "zeros in the data": (9, b"", bytes(100)),
    "zeros in the data and in the index": (9, bytes(48), bytes(4096)),
    "zeros in the index": (9, bytes(72), b""),
    "a torn record": (9, b"", RECORD[:30]),
    "a torn record, and a fragment of its entry": (9, WHOLE["index"][216:221], RECORD[:30]),
    "entries whose records are gone": (9, WHOLE["index"][216:], b""),
    "entries whose records are zeros": (9, WHOLE["index"][216:], bytes(len(WHOLE["data"]) - SYNCED)),
    "a lost end of the index": (5, b"", b""),
    "a lost end of the index, the last entry": (8, b"", b""),
    "a torn index, and zeros in the data": (5, WHOLE["index"][120:127], bytes(100)),
    "a lost end of the index, and a torn record": (8, b"", RECORD[:40]),
    "a lost end of the index, and its zeros": (5, bytes(24 * 3), b""),
    "an index that is gone, and a torn record": (0, b"", RECORD[:25]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_both_wrote_is_delivered_in_order_and_nothing_else(case):
    fs, offsets = left(*CASES[case])
    with opened(fs) as stream:
        assert sum(repair.records or 0 for repair in stream.repairs) == max(0, offsets[0] - len(OURS))
        (next_offset,) = stream.next_offsets
    found, position, end = everything(fs)
    assert [(m.key, m.timestamp_ns, m.value) for m in found] == [*OURS, *THEIRS]
    assert [m.offset for m in found[:9]] == list(range(9))
    assert [m.offset for m in found[9:]] == [offset + max(0, 9 - offsets[0]) for offset in offsets]
    assert position == end == next_offset == found[-1].offset + 1


@pytest.mark.parametrize("case", CASES)
def test_the_next_open_finds_it_so_and_goes_on_after_it(case):
    fs, _ = left(*CASES[case])
    with opened(fs):
        pass
    before, _, _ = everything(fs)
    with opened(fs) as stream:
        assert stream.repairs == ()
        stream.append(b"new", key="k", durability="synced")
    found, position, end = everything(fs.crash())
    assert found[:-1] == before
    assert found[-1].value == b"new"
    assert position == end == found[-1].offset + 1


@pytest.mark.parametrize("size", [24, 240])
def test_zeros_at_the_ends_of_data_and_index_are_no_messages(size):
    fs, _ = left(9, b"", b"")
    for path in (data(), index(), timeindex()):
        fs.write_durably(path, fs.read(path) + bytes(size))
    assert len(everything(fs)[0]) == 15
    with opened(fs) as stream:
        assert stream.next_offsets == (15,)
        said = {repair.path: (repair.reason, repair.records) for repair in stream.repairs}
        assert said[data()] == (f"zeros ({size} bytes)", 0)
    assert len(everything(fs)[0]) == 15
    assert bytes(size) in asides(fs).values()


def test_offsets_that_jump_between_records_have_no_checksums_around_the_jump():
    """Readers count the messages of blocks that follow each other, and would not see it."""
    fs, offsets = left(9, WHOLE["index"][216:], b"")
    with opened(fs):
        pass
    with reader(fs) as its:
        its.seek(offsets[0])
        assert [m.offset for m in rest(its)] == offsets
    assert fs.size_of(sums())

# Auditing a segment. Law: a whole segment is never reported, whichever program wrote it and whatever is being
# written; every damaged byte is; and a reader's losses are counted.

from __future__ import annotations

import pytest

from diskq.engine.stream.audit import SegmentAudit, audit_segment, audit_tasks
from diskq.errors import NotFoundError
from diskq.storage.fs import FileSystem
from tests.engine.partitions import Laid, Peer, laid, read
from tests.engine.ram import RamFS
from tests.engine.streams import (
    ROOT,
    SETTINGS,
    data,
    disk,
    flip,
    index,
    items,
    opened,
    sums,
    timeindex,
    triples,
    truncate,
)
from tests.sampling import spread


def audits(fs: FileSystem) -> list[SegmentAudit]:
    found = [audit_segment(ROOT, task, fs) for task in audit_tasks(ROOT, fs)]
    return [audit for audit in found if audit is not None]


def problems(fs: FileSystem) -> dict[int, str]:
    """By the base of their segments."""
    return {audit.base: audit.problem for audit in audits(fs) if audit.problem}


# --- what is whole --------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["fixed", "varuint"])
def test_a_stream_of_ours_is_clean_open_and_closed(encoding):
    fs = disk()
    with opened(fs, partition_count=2, segment_size=4096, encoding=encoding) as stream:
        stream.append_many(items(triples(1000)))
        assert problems(fs) == {}
    found = audits(fs)
    assert problems(fs) == {}
    assert {audit.partition for audit in found} == {0, 1}
    assert sum(audit.records for audit in found) == 1000
    assert all(audit.checksummed_share == 1.0 for audit in found)


def test_it_tells_what_is_in_a_segment():
    first, second = audits(laid(10, 6).fs)
    assert (first.first_offset, first.last_offset, first.records, first.lost) == (0, 5, 6, 0)
    assert (second.first_offset, second.last_offset) == (6, 9)
    assert (first.first_timestamp_ns, first.last_timestamp_ns) == (10**18, 10**18 + 5)
    assert first.checksummed == first.size


def test_a_segment_without_a_message_is_clean():
    fs = disk()
    with opened(fs, partition_count=1):
        pass
    (only,) = audits(fs)
    assert (only.records, only.first_offset, only.first_timestamp_ns, only.problem) == (0, None, None, None)


def test_no_checksum_vouches_for_what_a_peer_wrote():
    assert {audit.checksummed_share for audit in audits(laid(10, 5, with_checksums=False).fs)} == {0.0}


def test_a_record_larger_than_a_stretch_is_looked_at():
    fs = disk()
    with opened(fs, partition_count=1) as stream:
        stream.append_many([(b"k", bytes(5_000_000), 1), (b"k", b"small", 2)])
    (only,) = audits(fs)
    assert (only.records, only.problem) == (2, None)


def test_a_peer_at_work_raises_no_alarm():
    peer = Peer(RamFS({data(0): b""}), segment_size=200)
    for _ in peer.begin():
        pass
    for triple in triples(20):
        for _ in peer.push(triple):
            assert problems(peer.fs) == {}


def test_a_segment_that_retention_took_meanwhile_is_no_problem():
    fs = laid(10, 5).fs
    first, *_ = audit_tasks(ROOT, fs)
    for path in (data(0), index(0), timeindex(0), sums(0)):
        fs.unlink(path)
    assert audit_segment(ROOT, first, fs) is None


# --- what is not ----------------------------------------------------------------------------------


@pytest.fixture
def patient() -> Laid:
    return laid(40, 20, length=20, block_size=256)


@pytest.mark.sampled
@pytest.mark.parametrize("base", [0, 20])
def test_no_byte_of_the_data_rots_unseen(patient, base):
    for at in spread(range(len(patient.fs.read(data(base))))):
        flip(patient.fs, data(base), at)
        assert list(problems(patient.fs)) == [base], at
        flip(patient.fs, data(base), at)


@pytest.mark.parametrize("path", [index, timeindex])
@pytest.mark.parametrize("base", [0, 20])
def test_no_byte_of_an_index_rots_unseen(patient, path, base):
    for at in range(len(patient.fs.read(path(base)))):
        flip(patient.fs, path(base), at)
        assert list(problems(patient.fs)) == [base], at
        flip(patient.fs, path(base), at)


@pytest.mark.sampled
@pytest.mark.parametrize("path", [data, index, timeindex])
def test_no_byte_is_missing_unseen(patient, path):
    content = patient.fs.read(path(0))
    for size in spread(range(len(content))):
        truncate(patient.fs, path(0), size)
        assert list(problems(patient.fs)) == [0], size
        patient.fs.write_durably(path(0), content)


@pytest.mark.parametrize("path", [data, index, timeindex])
def test_nothing_is_too_much_unseen(patient, path):
    patient.fs.write_durably(path(0), patient.fs.read(path(0)) + b"\0")
    assert list(problems(patient.fs)) == [0]


def test_what_is_lost_is_what_a_reader_loses(patient):
    for base, end in ((0, 20), (20, 40)):
        for at in range(0, len(patient.fs.read(data(base))), 7):
            flip(patient.fs, data(base), at)
            found = {audit.base: audit for audit in audits(patient.fs)}
            kept = [message for message in read(patient.fs)[0] if base <= message.offset < end]
            assert found[base].records == len(kept), at
            assert found[base].lost == 20 - len(kept), at
            flip(patient.fs, data(base), at)


def test_a_rotten_block_is_reported_with_its_messages(patient):
    flip(patient.fs, data(0), 40)
    first = next(audit for audit in audits(patient.fs) if audit.base == 0)
    (start, end), *_ = patient.blocks[0]
    assert first.problem == (
        f"bytes {start} to {end} of the data do not have their checksum; {first.lost} messages cannot be read"
    )
    assert first.checksummed == first.size - (end - start)


def test_an_index_that_is_wrong_costs_no_message_where_checksums_vouch(patient):
    flip(patient.fs, index(0), 24 * 3)
    assert problems(patient.fs) == {
        0: "the index's entry of offset 3 disagrees with its record; every message can be read"
    }


def test_a_segment_that_is_gone_from_the_middle_is_missed():
    fs = laid(15, 5).fs
    for path in (data(5), index(5), timeindex(5), sums(5)):
        fs.unlink(path)
    (problem,) = problems(fs).values()
    assert problem.startswith("offsets 5 to 9 are missing")
    assert next(audit for audit in audits(fs) if audit.base == 0).lost == 5


def test_a_partition_that_is_gone_is_missed():
    fs = laid(5, 5).fs
    fs.write_durably(SETTINGS, b'{"partition_count": 2}')
    assert [(audit.partition, audit.problem) for audit in audits(fs)] == [
        (0, None),
        (1, "the partition has no segment"),
    ]


def test_where_there_is_no_stream_there_is_nothing_to_look_at():
    with pytest.raises(NotFoundError):
        audit_tasks(ROOT, RamFS({}))

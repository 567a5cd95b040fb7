# Reading a partition. Law: every readable message is returned once, as it was sent and with its offset;
# others are reported; and whatever a crash, a full disk or rot left costs no more messages than it must.

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskq._native.core.message import Message
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.errors import NotFoundError, OffsetOutOfRangeError
from diskq.storage.checksums import ROW, unpack_row
from diskq.storage.fs import OsFileSystem
from tests.engine.partitions import Laid, Peer, laid, lay, messages, read, reader, rest
from tests.engine.ram import RamFS
from tests.engine.streams import (
    ROOT,
    Triple,
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
from tests.engine.streams import triple as triple_of
from tests.golden.streams import case, every_stream, golden_stream, told_of
from tests.reference import triplet_oracle as oracle
from tests.sampling import examples, sampled, spread

both_encodings = pytest.mark.parametrize("varuint", [False, True], ids=["fixed", "varuint"])
with_and_without_checksums = pytest.mark.parametrize(
    "with_checksums", [True, False], ids=["ours", "a peer's"]
)


def offsets(found: list[Message]) -> list[int]:
    return [message.offset for message in found]


# --- a partition in order -------------------------------------------------------------------------


@both_encodings
@with_and_without_checksums
def test_all_messages_come_in_the_order_of_their_offsets(varuint, with_checksums):
    partition = laid(1000, 300, varuint=varuint, with_checksums=with_checksums)
    assert read(partition.fs, varuint=varuint) == (partition.messages, [])


@both_encodings
@with_and_without_checksums
def test_columns_are_the_same_messages(varuint, with_checksums):
    partition = laid(1000, 300, varuint=varuint, with_checksums=with_checksums)
    found: list[Message] = []
    with reader(partition.fs, varuint=varuint) as its:
        its.seek_oldest()
        while (taken := its.columns(max_bytes=5000)) is not None:
            first, columns = taken
            assert first == len(found)
            assert columns.valid_end <= 5000
            found += messages(triples_of(columns), first)
    assert found == partition.messages


def triples_of(columns: Any) -> Iterator[Triple]:
    offsets = [memoryview(column).cast("i") for column in (columns.key_offsets, columns.value_offsets)]
    times = memoryview(columns.timestamps).cast("q")
    for number in range(columns.records):
        (k, k_end), (v, v_end) = ((column[number], column[number + 1]) for column in offsets)
        yield columns.keys[k:k_end], times[number], columns.values[v:v_end]


@with_and_without_checksums
@pytest.mark.parametrize("max_bytes", [1, 50, 100, 1000, 10**9])
def test_a_batch_ends_at_its_bounds_and_holds_one_message_at_least(with_checksums, max_bytes):
    partition = laid(200, 60, with_checksums=with_checksums, length=20)
    found: list[Message] = []
    with reader(partition.fs) as its:
        its.seek_oldest()
        while batch := its.read_many(25, max_bytes=max_bytes):
            size = sum(len(message.key) + len(message.value) for message in batch)
            assert len(batch) == 1 or (size <= max_bytes and len(batch) <= 25)
            found += batch
    assert found == partition.messages


@with_and_without_checksums
def test_a_batch_goes_on_into_the_next_segment(with_checksums):
    partition = laid(100, 10, with_checksums=with_checksums)
    with reader(partition.fs) as its:
        its.seek_oldest()
        assert its.read_many(95) == partition.messages[:95]


@both_encodings
@with_and_without_checksums
def test_a_message_may_be_larger_than_a_stretch_and_another_one_empty(varuint, with_checksums):
    sizes = [0, 10, 700_000, 0, 0, 300_000, 1, 600_000, 0]
    large = [(b"k" * (n % 3 * 5000), n - 4, random.Random(n).randbytes(size)) for n, size in enumerate(sizes)]
    partition = lay(large, [3, 4, 2], varuint=varuint, with_checksums=with_checksums)
    assert read(partition.fs, varuint=varuint) == (partition.messages, [])


def test_a_partition_without_segments_is_waited_at():
    fs = RamFS({f"{ROOT}/parts/000000/.nothing": b""})
    with reader(fs) as its:
        its.seek_oldest()
        assert (its.position, its.first_offset(), its.next_offset(), its.fill()) == (0, 0, 0, False)
        peer = Peer(fs, 100)
        list(peer.begin())
        peer.push_all(triples(10))
        assert rest(its) == messages(triples(10))


def test_a_partition_that_is_not_there_is_an_error(tmp_path):
    its = PartitionReader(OsFileSystem(), StreamFiles(OsFileSystem(), str(tmp_path)).partition(7))
    for verb in (its.seek_oldest, its.seek_newest, its.seek_active, its.first_offset, its.next_offset):
        with pytest.raises(NotFoundError):
            verb()


# --- where to begin -------------------------------------------------------------------------------


@both_encodings
@with_and_without_checksums
def test_any_offset_is_found(varuint, with_checksums):
    partition = laid(300, 110, varuint=varuint, with_checksums=with_checksums, block_size=500)
    with reader(partition.fs, varuint=varuint) as its:
        for offset in range(301):
            its.seek(offset)
            assert its.position == offset
            assert its.read_many(2) == partition.messages[offset : offset + 2]
    assert not its.losses


@with_and_without_checksums
def test_an_offset_is_found_without_reading_what_lies_before_it(with_checksums):
    partition = laid(20_000, 20_000, with_checksums=with_checksums)
    loaded = 0

    class Counting(RamFS):
        def pread(self, handle: int, size: int, offset: int) -> bytes:
            nonlocal loaded
            found = super().pread(handle, size, offset)
            loaded += len(found)
            return found

    with reader(Counting(partition.fs.files())) as its:
        for offset in (0, 1, 2, 9_999, 19_990, 19_999, 20_000):
            its.seek(offset)
            loaded_to_seek, loaded = loaded, 0
            assert loaded_to_seek < 300_000
            assert offsets(its.read_many(1)) == [offset][: 20_000 - offset]
            loaded = 0


def test_offsets_beyond_the_ends_are_errors_that_tell_the_ends():
    partition = laid(30, 10)
    for base in (0, 10):
        for path in (data(base), index(base), timeindex(base), sums(base)):
            partition.fs.unlink(path)
    with reader(partition.fs) as its:
        its.seek(25)
        for wrong in (0, 19, 31, 10**9):
            with pytest.raises(OffsetOutOfRangeError) as told:
                its.seek(wrong)
            assert (told.value.first_offset, told.value.next_offset, told.value.offset) == (20, 30, wrong)
            assert its.position == 25
        assert offsets(rest(its)) == [25, 26, 27, 28, 29]
        its.seek(30)
        assert its.read() is None
        its.seek_oldest()
        assert its.position == 20


@with_and_without_checksums
def test_the_newest_is_the_last_message_there_is(with_checksums):
    partition = laid(25, 10, with_checksums=with_checksums)
    with reader(partition.fs) as its:
        its.seek_newest()
        assert rest(its) == partition.messages[-1:]
        its.seek_active()
        assert its.position == 20


@with_and_without_checksums
def test_where_the_active_segment_is_empty_the_newest_is_waited_for(with_checksums):
    """As go-diskq does it."""
    partition = laid(20, 10, with_checksums=with_checksums)
    partition.fs.now |= {data(20): bytearray(), index(20): bytearray(), timeindex(20): bytearray()}
    with reader(partition.fs) as its:
        assert its.next_offset() == 20
        its.seek_newest()
        assert (its.position, its.read()) == (20, None)
        its.seek_active()
        assert (its.position, its.read()) == (20, None)


def test_where_the_only_segment_is_empty_the_newest_is_waited_for():
    fs = RamFS({data(7): b"", index(7): b"", timeindex(7): b""})
    with reader(fs) as its:
        its.seek_newest()
        assert (its.position, its.first_offset(), its.next_offset(), its.read()) == (7, 7, 7, None)


def test_a_segment_of_which_only_the_data_file_was_made_is_empty():
    fs = RamFS({data(0): b""})
    with reader(fs) as its:
        its.seek_oldest()
        assert its.read() is None


# --- files, and how many of them are held ---------------------------------------------------------


@with_and_without_checksums
def test_no_more_than_three_files_are_held_and_none_is_left_open(with_checksums):
    partition = laid(200, 10, with_checksums=with_checksums)
    flip(partition.fs, index(50), 30)
    most = 0
    with reader(partition.fs) as its:
        its.seek_oldest()
        for _ in range(200):
            assert its.read() is not None
            most = max(most, len(partition.fs._handles))
        its.seek_newest()
        its.next_offset()
        with pytest.raises(OffsetOutOfRangeError):
            its.seek(1000)
        its.seek(3)
        assert len(partition.fs._handles) <= 3
    assert most <= 3
    assert not partition.fs._handles
    its.close()


def test_a_reader_that_waits_makes_a_few_system_calls_and_no_more():
    partition = laid(20, 10)
    calls = 0

    class Counting(RamFS):
        def __getattribute__(self, name: str) -> Any:
            nonlocal calls
            calls += name in ("open", "pread", "size", "size_of", "list_directory")
            return super().__getattribute__(name)

    with reader(Counting(partition.fs.files())) as its:
        its.seek_oldest()
        assert offsets(rest(its)) == list(range(20))
        calls = 0
        for _ in range(100):
            assert not its.fill()
    assert calls <= 300


def test_what_retention_removes_is_read_to_its_end_by_who_has_it_open():
    partition = laid(30, 10)
    with reader(partition.fs) as its:
        its.seek(4)
        assert offsets(its.read_many(1)) == [4]
        for path in (data(0), index(0), timeindex(0), sums(0)):
            partition.fs.unlink(path)
        assert offsets(rest(its)) == list(range(5, 30))
    assert not its.losses


@with_and_without_checksums
def test_an_overtaken_reader_gets_the_offset_at_which_it_can_go_on(with_checksums):
    partition = laid(40, 10, with_checksums=with_checksums)
    with reader(partition.fs) as its:
        its.seek(4)
        assert offsets(its.read_many(1)) == [4]
        for base in (0, 10, 20):
            for path in (data(base), index(base), timeindex(base)):
                partition.fs.unlink(path)
        assert offsets(its.read_many(5)) == list(range(5, 10))
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError) as told:
                its.fill()
            assert (told.value.offset, told.value.first_offset, told.value.next_offset) == (10, 30, 40)
        its.seek(told.value.first_offset)
        assert offsets(rest(its)) == list(range(30, 40))


def test_a_batch_that_was_overtaken_within_is_handed_out_first():
    partition = laid(40, 10)
    with reader(partition.fs) as its:
        its.seek(4)
        assert its.fill()
        for base in (0, 10, 20):
            partition.fs.unlink(data(base))
        assert offsets(its.read_many(30)) == list(range(4, 10))
        with pytest.raises(OffsetOutOfRangeError):
            its.read_many(30)


def test_a_segment_that_is_gone_from_the_middle_is_a_loss():
    partition = laid(30, 10)
    partition.fs.unlink(data(10))
    found, lost = read(partition.fs)
    assert offsets(found) == [*range(10), *range(20, 30)]
    assert lost == [(10, 10)]


# --- go-diskq's own streams -----------------------------------------------------------------------


def read_golden(stream: Path, partition: int) -> list[Message]:
    fs = OsFileSystem()
    with PartitionReader(fs, StreamFiles(fs, str(stream)).partition(partition)) as its:
        its.seek_oldest()
        found = rest(its)
        assert sum(gap.count for gap in its.losses) == 0
    return found


def as_told(found: list[Message]) -> Any:
    return told_of((m.partition, m.offset, m.timestamp_ns, m.key, m.value) for m in found)


@every_stream
def test_every_message_of_a_golden_stream_is_read(name, tmp_path):
    stream = golden_stream(name, tmp_path)
    for partition, expected in case(name).messages.items():
        assert as_told(read_golden(stream, partition)) == expected


@pytest.mark.parametrize("name", ["torn_data", "torn_index"])
def test_what_go_diskq_wrote_behind_its_own_torn_bytes_is_read(name, tmp_path):
    stream = golden_stream(name, tmp_path)
    again = case(name).manifest["after_go_reopens_and_pushes_3"]["pushed"]
    fs = RamFS({})
    for path, at in ((data(), "data"), (index(), "index"), (timeindex(), "timeindex")):
        fs.now[path] = bytearray((stream / f"parts/000000/{0:020}.{at}").read_bytes())
    peer = Peer(fs, 10**6)
    peer.reopen()
    pushed = [(b"k", told["ts_ns"], bytes.fromhex(told["hex"])) for told in again]
    peer.push_all(pushed)
    before = case(name).messages[0]
    found, lost = read(fs)
    assert as_told(found[: len(before)]) == before
    assert found[len(before) :] == messages(pushed, len(before))
    assert not lost


# --- what a crash of go-diskq leaves --------------------------------------------------------------


def pushed_in_part(record: bytes, path: str, size: int) -> tuple[RamFS, Peer]:
    """Five messages, and of a sixth what a peer had written when `size` bytes of it had come to `path`."""
    fs = RamFS({})
    peer = Peer(fs, 10**6)
    list(peer.begin())
    peer.push_all(triples(5, length=40))
    writes = {
        timeindex(): oracle.timeindex_row(peer.offset, 5),
        data(): record,
        index(): oracle.index_row(peer.offset, peer.end, len(record)),
    }
    for written, content in writes.items():
        fs.now[written] += content[:size] if written == path else content
        if written == path:
            break
    return fs, peer


def crashed_pushes() -> Iterator[tuple[str, RamFS, list[Triple]]]:
    """A peer is killed inside a push, at every byte of its three writes; then it goes on, twice."""
    record = oracle.record(b"doomed", 5, b"x" * 40)
    for path, size in ((timeindex(), 16), (data(), len(record)), (index(), 24)):
        for kept in range(size + (path != index())):
            fs, peer = pushed_in_part(record, path, kept)
            yield f"{path[-9:]} cut at {kept}", fs, list(peer.pushed)


@pytest.mark.parametrize("after", [0, 1, 2, 7])
def test_every_acknowledged_message_is_read_after_a_crash_at_every_byte(after):
    for how, fs, before in crashed_pushes():
        peer = Peer(fs, 10**6, pushed=before)
        peer.reopen()
        peer.push_all(triples(after, length=40, start=100))
        found, lost = read(fs)
        assert found == messages(peer.pushed), how
        assert not lost, how


def test_every_acknowledged_message_is_read_after_many_crashes():
    rng = random.Random(3)
    for _ in range(200):
        fs = RamFS({})
        peer = Peer(fs, rng.choice([300, 10**6]))
        list(peer.begin())
        acknowledged: list[Message] = []
        doomed: list[Message] = []
        for crash in range(5):
            for triple in triples(rng.randrange(4), length=rng.choice([40, 40, 17]), start=10 * crash):
                acknowledged += messages([triple], peer.offset)
                peer.push_all([triple])
            path = rng.choice([timeindex(peer.base), data(peer.base), index(peer.base)])
            before = len(fs.now[path])
            triple = triple_of(1000 + crash, rng.choice([40, 17]))
            doomed += messages([triple], peer.offset)
            push = peer.push(triple)
            while len(fs.now[path]) == before:
                next(push)
            # A whole row in the index is a message that was pushed.
            del fs.now[path][rng.randrange(before, len(fs.now[path]) + (path != index(peer.base))) :]
            peer.reopen()
        found, _ = read(fs)
        # A record may be whole and have no row: then it is there, if no other has its offset.
        assert [message for message in found if message not in doomed] == acknowledged
        assert offsets(found) == sorted(set(offsets(found)))


def refused_pushes() -> Iterator[tuple[str, RamFS, Peer]]:
    """A full disk takes a part of one of a push's writes; the peer goes on as if nothing had been written."""
    for length in (40, 43):
        record = oracle.record(b"refused", 5, b"x" * length)
        for path, size in ((timeindex(), 16), (data(), len(record)), (index(), 24)):
            for taken in range(1, size):
                yield f"{path[-9:]} took {taken} of {size}", *pushed_in_part(record, path, taken)


def test_every_acknowledged_message_is_read_after_a_write_that_a_full_disk_refused():
    for how, fs, peer in refused_pushes():
        peer.push_all(triples(6, length=40, start=100))
        found, lost = read(fs)
        assert found == messages(peer.pushed), how
        assert not lost, how


@pytest.mark.parametrize("length", [40, 17])
def test_where_a_power_cut_left_more_of_the_index_than_of_the_data_no_message_is_altered(length):
    partition = laid(12, 12, length=40, with_checksums=False)
    for cut in range(len(partition.fs.read(data()))):
        fs = partition.fs.kill()
        truncate(fs, data(), cut)
        peer = Peer(fs, 10**6)
        peer.reopen()
        pushed = triples(4, length=length, start=100)
        peer.push_all(pushed)
        kept = [offset for offset, _, end in partition.records(0) if end <= cut]
        found, lost = read(fs)
        assert found == partition.messages[: len(kept)] + messages(pushed, 12), cut
        assert lost == ([(len(kept), 12 - len(kept))] if len(kept) < 12 else []), cut


# --- rot ------------------------------------------------------------------------------------------

MASKS = [0xFF, 0x01, 0x80, 0x10]


def check_order(
    partition: Laid, found: list[Message], lost: list[tuple[int, int]]
) -> tuple[set[int], set[int]]:
    """Check the order, and that losses are reported. Returns altered and missing messages."""
    assert offsets(found) == sorted(set(offsets(found)))
    told = {offset for first, count in lost for offset in range(first, first + count)}
    assert told == set(range(len(partition.triples))) - set(offsets(found))
    assert len(told) == sum(count for _, count in lost)
    whole = partition.messages
    return {message.offset for message in found if message != whole[message.offset]}, told


def damaged(partition: Laid, path: str, at: int, mask: int) -> tuple[set[int], set[int]]:
    fs = partition.fs.kill()
    flip(fs, path, at, mask)
    found, lost = read(fs, varuint=partition.varuint)
    assert not fs._handles
    return check_order(partition, found, lost)


@pytest.mark.sampled
@pytest.mark.slow
@both_encodings
@pytest.mark.parametrize("mask", MASKS, ids=hex)
def test_a_rotten_byte_of_data_with_checksums_costs_its_block(varuint, mask):
    partition = laid(36, 12, length=20, block_size=150, varuint=varuint)
    for base in partition.bases:
        for at in sampled(range(len(partition.fs.read(data(base)))), 300):
            (block,) = [(start, end) for start, end in partition.blocks[base] if start <= at < end]
            expected = {
                offset for offset, start, _ in partition.records(base) if block[0] <= start < block[1]
            }
            assert damaged(partition, data(base), at, mask) == (set(), expected)


@pytest.mark.sampled
@pytest.mark.slow
@both_encodings
@with_and_without_checksums
@pytest.mark.parametrize("mask", MASKS, ids=hex)
def test_a_rotten_byte_beside_the_data_costs_nothing(varuint, with_checksums, mask):
    partition = laid(36, 12, length=20, block_size=150, varuint=varuint, with_checksums=with_checksums)
    for path, content in partition.fs.files().items():
        if not path.endswith(".data"):
            for at in sampled(range(len(content.rstrip(b"\0"))), 100):
                assert damaged(partition, path, at, mask) == (set(), set()), (path, at)


@pytest.mark.sampled
@pytest.mark.slow
@both_encodings
@pytest.mark.parametrize("mask", MASKS, ids=hex)
def test_a_rotten_byte_of_a_peers_data_costs_its_message_or_cannot_be_told(varuint, mask):
    partition = laid(36, 12, length=20, varuint=varuint, with_checksums=False)
    for base in partition.bases:
        for offset, start, end in partition.records(base):
            key = len(partition.triples[offset][0])
            key_length, value_length = (1, 1) if varuint else (4, 8)
            value_at = start + key_length + key + 8
            lengths = {*range(start, start + key_length), *range(value_at, value_at + value_length)}
            for at in sampled(range(start, end), 10):
                altered, missing = damaged(partition, data(base), at, mask)
                assert altered | missing == {offset}
                # A key length of one byte may, with luck, be made up for by another byte of the record.
                assert (at not in lengths) == bool(altered) or (varuint and at == start)


@pytest.mark.sampled
@pytest.mark.slow
@both_encodings
@with_and_without_checksums
def test_of_data_cut_anywhere_every_whole_message_is_read_and_the_rest_is_told(varuint, with_checksums):
    partition = laid(36, 12, length=20, block_size=150, varuint=varuint, with_checksums=with_checksums)
    for base in partition.bases:
        size = len(partition.fs.read(data(base)))
        for cut in sampled(range(size), 300):
            fs = partition.fs.kill()
            truncate(fs, data(base), cut)
            with reader(fs, varuint=varuint) as its:
                its.seek_oldest()
                found = rest(its)
            lost = [(gap.offset, gap.count) for gap in its.losses]
            expected = {offset for offset, _, end in partition.records(base) if end > cut}
            assert check_order(partition, found, lost) == (set(), expected)
            (gap,) = its.losses
            whole = max((end for _, _, end in partition.records(base) if end <= cut), default=0)
            assert (gap.path, gap.start) == (data(base), whole)
            assert gap.end == (size if with_checksums else cut)


@pytest.mark.sampled
@pytest.mark.slow
@both_encodings
@with_and_without_checksums
def test_whatever_is_cut_beside_the_data_costs_nothing_that_was_complete(varuint, with_checksums):
    partition = laid(36, 12, length=20, block_size=150, varuint=varuint, with_checksums=with_checksums)
    for path, content in partition.fs.files().items():
        if path.endswith(".data"):
            continue
        for cut in sampled(range(len(content.rstrip(b"\0"))), 100):
            fs = partition.fs.kill()
            truncate(fs, path, cut)
            found, lost = read(fs, varuint=varuint)
            assert not lost
            if path == index(24) and not with_checksums:
                # The active segment: without its row a message is not there yet.
                assert found == partition.messages[: 24 + cut // 24]
            else:
                assert found == partition.messages


@both_encodings
@with_and_without_checksums
def test_files_beside_the_data_that_are_gone_cost_nothing_that_was_complete(varuint, with_checksums):
    partition = laid(36, 12, varuint=varuint, with_checksums=with_checksums)
    for path in partition.fs.files():
        if not path.endswith(".data"):
            fs = partition.fs.kill()
            fs.unlink(path)
            found, lost = read(fs, varuint=varuint)
            is_unknown = path == index(24) and not with_checksums
            assert (found, lost) == (partition.messages[: 24 if is_unknown else 36], [])


@both_encodings
def test_an_index_with_a_hole_of_zeros_costs_nothing_where_the_data_is_whole(varuint):
    partition = laid(600, 300, length=20, varuint=varuint, with_checksums=False)
    for start in range(0, 7200, 333):
        fs = partition.fs.kill()
        fs.now[index(0)][start : start + 1000] = bytes(len(fs.now[index(0)][start : start + 1000]))
        assert read(fs, varuint=varuint) == (partition.messages, [])


@both_encodings
def test_a_hole_of_zeros_in_a_peers_data_costs_the_messages_whose_lengths_it_took(varuint):
    partition = laid(60, 30, length=20, varuint=varuint, with_checksums=False)
    for start in range(0, len(partition.fs.read(data(0))), 7):
        fs = partition.fs.kill()
        fs.now[data(0)][start : start + 100] = bytes(len(fs.now[data(0)][start : start + 100]))
        found, lost = read(fs, varuint=varuint)
        touched = {offset for offset, at, end in partition.records(0) if at < start + 100 and start < end}
        altered, missing = check_order(partition, found, lost)
        assert altered | missing <= touched


@pytest.mark.sampled
@with_and_without_checksums
def test_every_offset_is_found_whatever_byte_of_the_index_is_rotten(with_checksums):
    partition = laid(12, 12, length=20, block_size=150, with_checksums=with_checksums)
    for at in spread(range(12 * 24)):
        fs = partition.fs.kill()
        flip(fs, index(), at, 0x04)
        with reader(fs) as its:
            for offset in range(12):
                its.seek(offset)
                assert its.read() == partition.messages[offset]
        assert not its.losses


def test_losses_before_the_start_of_a_reader_are_not_reported():
    partition = laid(36, 36, length=20, block_size=150)
    flip(partition.fs, data(), 10)
    truncate(partition.fs, index(), 0)
    block = partition.blocks[0][0][1]
    lost = len([start for _, start, _ in partition.records(0) if start < block])
    with reader(partition.fs) as its:
        its.seek(lost)
        assert offsets(rest(its)) == list(range(lost, 36))
        assert not its.losses
        its.seek(1)
        assert its.position == lost
        assert [(gap.offset, gap.count) for gap in its.losses] == [(0, lost)]


@pytest.mark.parametrize("size", [2**31, 2**40, 2**62, 2**63, 2**64 - 1], ids=hex)
@pytest.mark.parametrize("where", ["key length", "value length", "row's size", "row's position"])
@pytest.mark.parametrize("offset", [0, 3, 9])
def test_a_rotten_length_allocates_no_memory(size, where, offset):
    """D20: the peer allocates what a size field says."""
    partition = laid(10, 10, with_checksums=False)
    _, start, _ = partition.records(0)[offset]
    fs = partition.fs.kill()
    if where == "key length":
        fs.now[data()][start : start + 4] = min(size, 2**32 - 1).to_bytes(4, "little")
    elif where == "value length":
        fs.now[data()][start + 14 : start + 22] = size.to_bytes(8, "little")
    else:
        at = offset * 24 + (16 if where == "row's size" else 8)
        fs.now[index()][at : at + 8] = size.to_bytes(8, "little")
    tracemalloc.start()
    try:
        found, lost = read(fs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20
    altered, missing = check_order(partition, found, lost)
    assert not altered
    assert missing <= ({offset} if "length" in where else set())


# --- ours, a peer's, and ours again ---------------------------------------------------------------


def test_what_a_peer_wrote_between_two_of_our_blocks_is_read_by_the_index():
    partition = laid(40, 40, length=20, block_size=150)
    blocks = [unpack_row(row) for row in rows_of(partition.fs.read(sums()))]
    theirs = range(3, 6)
    start, end = (next(row.start for row in blocks[at:] if row) for at in (3, 6))
    for at in theirs:
        partition.fs.now[sums()][at * ROW.size : (at + 1) * ROW.size] = bytes(ROW.size)
    assert read(partition.fs) == (partition.messages, [])
    for at in range(start, end):
        altered, missing = damaged(partition, data(), at, 0xFF)
        (offset,) = [offset for offset, first, last in partition.records(0) if first <= at < last]
        assert altered | missing == {offset}
    for at in range(40 * 24):
        assert damaged(partition, index(), at, 0xFF) == (set(), set())


def rows_of(content: bytes) -> list[bytes]:
    return [content[at : at + ROW.size] for at in range(0, len(content), ROW.size)]


def test_an_index_that_is_mended_under_a_reader_costs_it_nothing():
    fs = RamFS({})
    peer = Peer(fs, 10**6)
    list(peer.begin())
    peer.push_all(triples(5))
    fs.now[index()] += b"torn"
    peer.reopen()
    peer.push_all(triples(5, start=5))
    with reader(fs) as its:
        its.seek_oldest()
        found = its.read_many(7) + rest(its)
        del fs.now[index()][5 * 24 : 5 * 24 + 4]
        peer.push_all(triples(5, start=10))
        found += rest(its)
    assert found == messages(peer.pushed)
    assert not its.losses


# --- after the real producer ----------------------------------------------------------------------


@both_encodings
@pytest.mark.parametrize("is_in_this_thread", [True, False])
def test_what_a_stream_appends_is_read_once_and_in_order(varuint, is_in_this_thread):
    rng = random.Random(8)
    fs = disk()
    encoding: Any = "varuint" if varuint else "fixed"
    with opened(fs, partition_count=1, segment_size=2000, encoding=encoding) as stream:
        live = stream.steps.live(0) if is_in_this_thread else None
        with reader(fs, varuint=varuint, live=live) as its:
            its.seek_oldest()
            found: list[Message] = []
            sent: list[Triple] = []
            while len(sent) < 500:
                batch = triples(rng.randrange(1, 12), length=rng.randrange(80), start=len(sent))
                sent += batch
                stream.append_many(items(batch))
                if rng.random() < 0.5:
                    found += its.read_many(rng.randrange(30))
                if rng.random() < 0.05:
                    stream.sync()
            stream.sync()
            found += rest(its)
            assert its.next_offset() == len(sent)
        assert found == messages(sent)
        assert not its.losses
    assert read(fs, varuint=varuint) == (messages(sent), [])


# --- a reader after an active producer ------------------------------------------------------------


def steps_of(peer: Peer, triples: list[Triple]) -> Iterator[str]:
    yield from peer.begin()
    for triple in triples:
        yield from peer.push(triple)


def test_at_every_step_of_a_peer_a_reader_has_exactly_what_was_pushed():
    fs = RamFS({f"{ROOT}/parts/000000/.nothing": b""})
    peer = Peer(fs, 150)
    found: list[Message] = []
    with reader(fs) as its:
        for _ in steps_of(peer, triples(50)):
            found += rest(its)
            assert found == messages(peer.pushed)
    assert not its.losses
    assert peer.base > 0


@both_encodings
def test_whenever_a_reader_looks_it_gets_each_message_once_and_in_order(varuint):
    """D1: the peer's consumer loses or repeats messages where a segment ends."""
    pushed = triples(3, length=20)
    for looks in itertools.product([False, True], repeat=10):
        fs = RamFS({f"{ROOT}/parts/000000/.nothing": b""})
        peer = Peer(fs, 60, varuint)
        turns = iter(looks)
        found: list[Message] = []
        with reader(fs, varuint=varuint) as its:
            for path in steps_of(peer, pushed):
                if not path.endswith(".timeindex") and next(turns):
                    found += rest(its)
            found += rest(its)
        assert found == messages(pushed)
        assert not its.losses
        assert peer.base == 2


class Racing(RamFS):
    """Between any two calls of the reader another process does that many steps."""

    def __init__(self, files: dict[str, bytes], steps: Iterator[Any], schedule: Callable[[], int]) -> None:
        super().__init__(files)
        self.steps = steps
        self.schedule = schedule
        self.is_over = False

    def race(self) -> None:
        for _ in range(self.schedule()):
            if next(self.steps, self) is self:
                self.is_over = True

    def open(self, path: str, **how: bool) -> int:
        self.race()
        return super().open(path, **how)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self.race()
        return super().pread(handle, size, offset)

    def size(self, handle: int) -> int:
        self.race()
        return super().size(handle)

    def size_of(self, path: str) -> int | None:
        self.race()
        return super().size_of(path)

    def list_directory(self, path: str) -> list[str]:
        self.race()
        return super().list_directory(path)


def racing(pushed: list[Triple], schedule: Callable[[], int], segment_size: int = 150) -> tuple[Racing, Peer]:
    fs = Racing({f"{ROOT}/parts/000000/.nothing": b""}, iter(()), schedule)
    peer = Peer(fs, segment_size)
    fs.steps = steps_of(peer, pushed)
    return fs, peer


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.sampled_from([40, 60, 150, 700]))
def test_whatever_a_peer_does_between_two_calls_of_a_reader_nothing_is_lost_or_repeated(steps, segment_size):
    pushed = triples(30)
    turns = itertools.cycle([*steps, 1])
    fs, _ = racing(pushed, lambda: next(turns), segment_size)
    found: list[Message] = []
    with reader(fs) as its:
        while not fs.is_over:
            found += rest(its)
        found += rest(its)
    assert found == messages(pushed)
    assert not its.losses


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_who_begins_while_a_peer_writes_begins_at_a_message_and_goes_on_from_there(steps):
    pushed = triples(30)
    turns = itertools.cycle([*steps, 1])
    fs, peer = racing(pushed, lambda: next(turns))
    while peer.offset < 5:
        fs.race()
    with reader(fs) as its:
        its.seek_newest()
        first = its.position
        found: list[Message] = []
        while not fs.is_over:
            found += rest(its)
        found += rest(its)
    assert first >= 4
    assert found == messages(pushed)[first:]
    assert not its.losses


@pytest.mark.parametrize("seed", range(60))
def test_what_retention_takes_from_a_reader_raises_and_all_else_is_read_once(seed):
    rng = random.Random(seed)
    pushed = triples(60)

    def vacuum() -> Iterator[None]:
        """After some pushes the oldest segment goes, file by file."""
        for _ in steps:
            yield
            bases = sorted(
                int(path.split("/")[-1].split(".")[0]) for path in fs.now if path.endswith(".data")
            )
            if len(bases) > 2 and rng.random() < 0.2:
                for path in (data(bases[0]), index(bases[0]), timeindex(bases[0])):
                    fs.unlink(path)
                    yield

    fs = Racing({f"{ROOT}/parts/000000/.nothing": b""}, iter(()), lambda: rng.choice([0, 0, 1, 3, 9]))
    peer = Peer(fs, 150)
    steps = steps_of(peer, pushed)
    fs.steps = vacuum()
    found: list[Message] = []
    skipped: list[int] = []
    with reader(fs) as its:
        is_last = False
        while not is_last:
            is_last = fs.is_over
            try:
                while (message := its.read()) is not None:
                    found.append(message)
            except OffsetOutOfRangeError as overtaken:
                skipped += range(overtaken.offset, overtaken.first_offset)
                its.seek_oldest()
                skipped += range(overtaken.first_offset, its.position)
    assert sorted(offsets(found) + skipped) == list(range(60))
    assert not its.losses
    assert all(message == messages(pushed)[message.offset] for message in found)


# --- a producer in this thread --------------------------------------------------------------------


class Live:
    """A diskq producer that reports where it is. Its index comes later than its data."""

    def __init__(self, fs: RamFS, segment_size: int) -> None:
        self.fs = fs
        self.segment_size = segment_size
        self.base = self.end = self.next_offset = 0
        self.waiting: list[tuple[str, bytes]] = []
        self._begin()

    def _begin(self) -> None:
        for path in (data(self.base), index(self.base), timeindex(self.base)):
            self.fs.now[path] = bytearray()

    def send(self, triple: Triple) -> None:
        record = oracle.record(*triple)
        self.waiting.append((index(self.base), oracle.index_row(self.next_offset, self.end, len(record))))
        self.fs.now[data(self.base)] += record
        self.end += len(record)
        self.next_offset += 1
        if self.end >= self.segment_size:
            self.write_rows()
            self.base, self.end = self.next_offset, 0
            self._begin()

    def write_rows(self) -> None:
        for path, row in self.waiting:
            self.fs.now[path] += row
        self.waiting.clear()


def test_what_a_producer_in_this_thread_sent_is_there_before_its_index():
    fs = RamFS({})
    live = Live(fs, 400)
    pushed = triples(200)
    rng = random.Random(5)
    with reader(fs, live=live) as its:
        its.seek_oldest()
        found: list[Message] = []
        for number, triple in enumerate(pushed):
            live.send(triple)
            if rng.random() < 0.3:
                live.write_rows()
            if rng.random() < 0.4:
                found += rest(its)
                assert found == messages(pushed[: number + 1])
        found += rest(its)
    assert found == messages(pushed)
    assert not its.losses


def test_who_begins_behind_a_producer_in_this_thread_needs_no_index_for_its_end():
    fs = RamFS({})
    live = Live(fs, 10**6)
    pushed = triples(50)
    for triple in pushed[:30]:
        live.send(triple)
    live.write_rows()
    for triple in pushed[30:]:
        live.send(triple)
    with reader(fs, live=live) as its:
        for offset in range(51):
            its.seek(offset)
            assert rest(its) == messages(pushed)[offset:]
        its.seek_newest()
        assert offsets(rest(its)) == [49]
        with pytest.raises(OffsetOutOfRangeError):
            its.seek(51)
    assert not its.losses


def test_bytes_that_were_there_before_the_producer_are_not_believed_on_its_word():
    partition = laid(12, 12, length=20, block_size=150)
    fs = partition.fs
    live = Live(RamFS({}), 10**6)
    live.end, live.next_offset = len(fs.read(data())), 12
    flip(fs, data(), 10)
    with reader(fs, live=live) as its:
        its.seek_oldest()
        found = rest(its)
    altered, missing = check_order(partition, found, [(gap.offset, gap.count) for gap in its.losses])
    assert not altered
    assert 0 in missing

# Every byte of a queue's files, damaged. Law: no altered message is delivered, a rotten byte of data costs
# at most the block it is in, one of a checksum or of the metadata costs nothing; and losses are reported.

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from diskq.engine.queue.files import QueueMetadata
from diskq.storage.checksums import ROW, unpack_row
from diskq.storage.repairs import Repair
from tests.engine.queues import (
    LOCK,
    bodies,
    data,
    disk,
    drained,
    flip,
    meta,
    opened,
    put_files,
    size,
    sums,
    taken,
    truncate,
    zero,
)
from tests.engine.queues import records as records_of
from tests.engine.ram import RamFS
from tests.reference.nsq_oracle import frames
from tests.sampling import sampled, spread

pytestmark = pytest.mark.usefixtures("quiet_log")

FILES = 3
FILE_SIZE = 9_000
CONSUMED = 20  # messages: the read position is inside the first file's first block


@dataclass(frozen=True)
class Queue:
    """A closed queue of three files, and the places of its messages."""

    fs: RamFS
    sent: list[bytes]
    starts: list[list[int]]
    """Where the records of each file begin."""
    blocks: list[list[tuple[int, int]]]
    """The checksummed blocks of each file, start and end."""

    def of_file(self, number: int, choice: Callable[[int, int], bool]) -> list[bytes]:
        """Return the unconsumed messages of a file whose records' start and end are chosen."""
        before = sum(map(len, self.starts[:number]))
        bodies = self.sent[before : before + len(self.starts[number])]
        return [
            body
            for index, (at, body) in enumerate(zip(self.starts[number], bodies, strict=True), before)
            if index >= CONSUMED and choice(at, at + 4 + len(body))
        ]

    def around(self, number: int, start: int, end: int) -> list[tuple[int, int]]:
        """The blocks of a file that bytes start:end touch."""
        return [block for block in self.blocks[number] if block[0] < end and start < block[1]]

    @property
    def read_position(self) -> int:
        return self.starts[0][CONSUMED]


@cache
def queue() -> Queue:
    fs = RamFS({})
    rng = random.Random(1)
    sent = []
    with opened(fs, segment_size=FILE_SIZE) as queue:
        while fs.size_of(data(FILES - 1)) is None or queue.steps.buffer.end < FILE_SIZE // 2:
            sent.append(rng.randbytes(rng.randrange(60, 200)))
            queue.put(sent[-1])
        for _ in range(CONSUMED):
            queue.get()
    starts, blocks = [], []
    for number in range(FILES):
        at, places = 0, []
        for body in frames(fs.read(data(number))):
            places.append(at)
            at += 4 + len(body)
        starts.append(places)
        content = fs.read(sums(number))
        rows = [unpack_row(content[at : at + ROW.size]) for at in range(0, len(content) // 24 * 24, 24)]
        blocks.append([(row.start, row.end) for row in rows if row and row.records])
    assert all(len(of_file) >= 2 for of_file in blocks)
    return Queue(RamFS(fs.files()), sent, starts, blocks)


def reopened(fs: RamFS) -> tuple[list[bytes], tuple[Repair, ...]]:
    """Return what is received from it, and what is reported."""
    with opened(fs, segment_size=FILE_SIZE) as queue:
        received = queue.get_many(10_000)
        assert queue.depth == 0
    return received, queue.repairs


def missing(received: list[bytes]) -> list[bytes]:
    """Return the missing messages; the others must be as sent and in order."""
    rest = iter(received)
    lost = []
    following = next(rest, None)
    for body in queue().sent[CONSUMED:]:
        if body == following:
            following = next(rest, None)
        else:
            lost.append(body)
    assert following is None, "an altered message, or one out of order"
    return lost


def records(repairs: tuple[Repair, ...]) -> int:
    """Return how many messages are lost, as reported."""
    total = 0
    for repair in repairs:
        assert repair.records is not None, repair
        total += repair.records
    return total


def ends_behind(cut: int) -> Callable[[int, int], bool]:
    return lambda _, end: end > cut


def check_that_it_is_over(fs: RamFS) -> None:
    """Check that nothing is reported twice, and that the queue works."""
    assert reopened(fs.kill()) == ([], ())
    with opened(fs.kill(), strict=True) as queue:
        queue.put(b"on we go")
        assert drained(queue) == [b"on we go"]


# --- data -------------------------------------------------------------------------------------


def check_rotten_data(fs: RamFS, number: int, start: int, end: int) -> None:
    """Bytes start:end of a file are not what was written."""
    received, repairs = reopened(fs)
    lost = missing(received)
    blocks = queue().around(number, start, end)
    position = queue().read_position if number == 0 else 0
    assert lost == queue().of_file(number, lambda at, _: any(a <= at < b for a, b in blocks))
    if not lost:
        assert not repairs
        return
    assert {repair.path for repair in repairs} == {data(number)}
    assert min(repair.kept for repair in repairs) <= max(start, position)
    assert max(repair.kept + repair.dropped for repair in repairs) >= end
    if start >= position:
        assert records(repairs) == len(lost)
    if number < FILES - 1:
        assert {repair.saved_as for repair in repairs} == {data(number) + ".bad"}
        assert fs.size_of(data(number) + ".bad")


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("mask, step", [(0xFF, 1), (0x01, 9), (0x80, 11)])
@pytest.mark.parametrize("number", range(FILES))
def test_a_rotten_byte_of_data_costs_its_block_and_no_more(number, mask, step):
    for at in sampled(range(0, size(queue().fs, data(number)), step), 400):
        fs = queue().fs.kill()
        flip(fs, data(number), at, mask)
        check_rotten_data(fs, number, at, at + 1)
        if at % 5 == 0:
            check_that_it_is_over(fs)


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(FILES))
def test_a_hole_of_zeros_in_the_data_costs_the_blocks_it_touches(number):
    whole = size(queue().fs, data(number))
    for at in spread(range(0, whole, 64)):
        fs = queue().fs.kill()
        before = fs.read(data(number))
        zero(fs, data(number), at, min(at + 64, whole))
        after = fs.read(data(number))
        changed = [place for place in range(whole) if before[place] != after[place]]
        check_rotten_data(fs, number, changed[0], changed[-1] + 1)


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("number, step", [(0, 7), (1, 1), (2, 1)])
def test_of_a_file_cut_anywhere_every_whole_message_is_delivered(number, step):
    whole = size(queue().fs, data(number))
    for cut in sampled(range(0, whole, step), 600):
        fs = queue().fs.kill()
        truncate(fs, data(number), cut)
        received, repairs = reopened(fs)
        lost = missing(received)
        assert lost == queue().of_file(number, ends_behind(cut))
        assert {repair.path for repair in repairs} == {data(number)}
        assert min(repair.kept for repair in repairs) <= max(cut, queue().read_position)
        assert max(repair.kept + repair.dropped for repair in repairs) == whole
        assert records(repairs) == len(lost)
        if cut % 10 == 0:
            check_that_it_is_over(fs)


@pytest.mark.parametrize("number", range(FILES))
def test_a_missing_file_costs_its_messages_and_is_reported(number):
    fs = queue().fs.kill()
    fs.unlink(data(number))
    received, repairs = reopened(fs)
    assert missing(received) == queue().of_file(number, lambda *_: True)
    (repair,) = repairs
    assert repair.path == data(number)
    assert repair.records == len(missing(received))
    check_that_it_is_over(fs)


# --- checksums and metadata --------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0xFF, 0x01, 0x80])
@pytest.mark.parametrize("number", range(FILES))
def test_a_rotten_byte_of_a_checksum_costs_nothing(number, mask):
    content = queue().fs.read(sums(number))
    for at in range(len(content.rstrip(b"\0")) + 50):
        fs = queue().fs.kill()
        if at < len(content):
            flip(fs, sums(number), at, mask)
        assert not missing(reopened(fs)[0])


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(FILES))
def test_checksums_cut_anywhere_zeroed_or_missing_cost_nothing(number):
    content = queue().fs.read(sums(number))
    for at in spread(range(min(len(content), len(content.rstrip(b"\0")) + 50))):
        fs = queue().fs.kill()
        truncate(fs, sums(number), at)
        assert not missing(reopened(fs)[0])
        fs = queue().fs.kill()
        zero(fs, sums(number), at, min(at + 64, size(fs, sums(number))))
        assert not missing(reopened(fs)[0])
    fs = queue().fs.kill()
    fs.unlink(sums(number))
    assert not missing(reopened(fs)[0])


def check_metadata(fs: RamFS) -> None:
    """All that was not consumed is delivered; what was consumed may come again before it."""
    received, repairs = reopened(fs)
    again = len(received) - (len(queue().sent) - CONSUMED)
    assert 0 <= again <= CONSUMED
    assert received == queue().sent[CONSUMED - again :]
    assert [repair.path for repair in repairs] == [meta()]
    assert repairs[0].records == 0
    check_that_it_is_over(fs)


@pytest.mark.sampled
@pytest.mark.parametrize("bit", range(8))
def test_a_rotten_bit_of_the_metadata_costs_nothing_and_is_reported(bit):
    for at in spread(range(size(queue().fs, meta()))):
        fs = queue().fs.kill()
        flip(fs, meta(), at, 1 << bit)
        check_metadata(fs)


def test_metadata_cut_anywhere_costs_nothing_and_is_reported():
    content = queue().fs.read(meta())
    for cut in range(len(content)):
        fs = queue().fs.kill()
        truncate(fs, meta(), cut)
        if content[:cut].count(b"\n") == 3 and content[:cut].endswith(b"\n"):
            assert reopened(fs) == (queue().sent[CONSUMED:], ()), "as a peer would write it"
        else:
            check_metadata(fs)


def test_metadata_zeroed_or_missing_costs_nothing_and_is_reported():
    fs = queue().fs.kill()
    zero(fs, meta(), 0, size(fs, meta()))
    check_metadata(fs)
    fs = queue().fs.kill()
    fs.unlink(meta())
    check_metadata(fs)


@pytest.mark.sampled
def test_whatever_the_lock_file_says_costs_nothing():
    for at in spread(range(size(queue().fs, LOCK))):
        fs = queue().fs.kill()
        flip(fs, LOCK, at)
        assert not missing(reopened(fs)[0])
    for cut in range(0, size(queue().fs, LOCK), 16):
        fs = queue().fs.kill()
        truncate(fs, LOCK, cut)
        assert not missing(reopened(fs)[0])
    fs = queue().fs.kill()
    fs.unlink(LOCK)
    assert not missing(reopened(fs)[0])


# --- impossible lengths -----------------------------------------------------------------------


@pytest.mark.parametrize("length", [2**30, 2**31 - 1, 2**31, 2**32 - 1], ids=hex)
@pytest.mark.parametrize("place", ["only file", "first file", "last file"])
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("is_known", [True, False], ids=["with metadata", "without metadata"])
def test_a_rotten_length_allocates_no_memory(length, place, at, is_known):
    """N15: the peer allocates what a length says, up to its maximum."""
    broken = records_of(*bodies(at)) + length.to_bytes(4, "big") + b"x" * 1000 + records_of(*bodies(3))
    whole = records_of(*bodies(5, start=50))
    files = {"only file": [broken], "first file": [broken, whole], "last file": [whole, broken]}[place]
    fs = disk()
    told = b"9\n0,0\n%d,%d\n" % (len(files) - 1, len(files[-1]))
    put_files(fs, files, told if is_known else None)
    tracemalloc.start()
    try:
        with opened(fs) as queue:
            received = drained(queue)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20
    before = bodies(5, start=50) if place == "last file" else []
    after = bodies(5, start=50) if place == "first file" else []
    assert received == [*before, *bodies(at), *after]
    (repair,) = [repair for repair in queue.repairs if repair.path != meta()]
    assert (repair.path, repair.kept) == (data(files.index(broken)), at * 104)
    assert repair.dropped == len(broken) - at * 104
    assert repair.records is None or not is_known


# --- several things at once -------------------------------------------------------------------


def damage_something(fs: RamFS, rng: random.Random) -> None:
    path = rng.choice(sorted(fs.files()))
    content = bytearray(fs.read(path))
    at = rng.randrange(len(content) + 1)
    kind = rng.choice(["flip", "cut", "zeros", "length", "grown", "doubled", "gone", "metadata"])
    if kind == "flip" and at < len(content):
        content[at] ^= rng.randrange(1, 256)
    elif kind == "cut":
        del content[at:]
    elif kind == "zeros":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    elif kind == "length":
        content[at : at + 4] = rng.choice([b"\x7f\xff\xff\xff", b"\0\0\x10\0", b"\xff\xff\xff\xff"])
    elif kind == "grown":
        content += rng.choice([rng.randbytes(at % 500), bytes(at)])
    elif kind == "doubled":
        content *= 2
    elif kind == "gone":
        fs.unlink(path)
        return
    elif kind == "metadata":
        path, numbers = meta(), (rng.randrange(-5, 300), *(rng.choice([0, 1, 2, 3, at]) for _ in range(4)))
        content[:] = b"%d\n%d,%d\n%d,%d\n" % numbers
    fs.write_durably(path, bytes(content))


@pytest.mark.parametrize("seed", range(5))
def test_after_any_damage_the_queue_opens_ends_and_goes_on(seed):
    rng = random.Random(seed)
    for _ in range(100):
        fs = queue().fs.kill()
        for _ in range(rng.randrange(1, 5)):
            damage_something(fs, rng)
        reopened(fs)
        check_that_it_is_over(fs)


# --- the depth ----------------------------------------------------------------------------------


def unsettle_metadata(fs, how):
    """Have the next open count: "without metadata", or "with a peer's", which says 200 messages."""
    if how == "without metadata":
        fs.unlink(meta())
    else:
        fs.write_durably(meta(), b"200\n" + fs.read(meta()).split(b"\n", 1)[1].rsplit(b"crc", 1)[0])


@pytest.mark.parametrize("how", ["without metadata", "with a peer's", "after a kill"])
def test_the_depth_is_never_less_than_what_is_left(how):
    """Messages that were counted by looking at them do not include those that are lost."""
    fs = disk()
    writer = opened(fs, segment_size=9000)
    writer.put_many(bodies(200))
    if how == "after a kill":
        fs = fs.kill()
    else:
        writer.close()
        unsettle_metadata(fs, how)
    flip(fs, data(0), 500)
    flip(fs, data(1), 500)
    received = 0
    with opened(fs, segment_size=9000) as queue:
        while queue.depth:
            received += taken(queue) is not None
        assert taken(queue) is None
        assert received == 200 - queue.statistics().lost < 200


@pytest.mark.parametrize("how", ["without metadata", "with a peer's"])
def test_what_was_not_counted_is_not_taken_off_by_a_later_open(how):
    """The open that counts leaves out what is lost, and the next one believes its metadata."""
    fs = disk()
    writer = opened(fs, segment_size=9000)
    writer.put_many(bodies(200))
    writer.close()
    unsettle_metadata(fs, how)
    flip(fs, data(0), 500)
    flip(fs, data(1), 500)
    with opened(fs, segment_size=9000) as queue:
        depth = queue.depth
    assert depth < 200
    for _ in range(2):
        with opened(fs, segment_size=9000) as queue:
            assert queue.depth == depth
            depth -= taken(queue) is not None
            queue.put(b"another one")
            depth += 1
    received = 0
    with opened(fs, segment_size=9000) as queue:
        while queue.depth:
            received += taken(queue) is not None
        assert taken(queue) is None
    assert received == depth
    assert b"counted" not in fs.read(meta()), "what was passed needs no note"


def test_what_was_passed_over_by_a_peek_is_taken_off_once():
    fs = disk()
    with opened(fs, segment_size=9000) as queue:
        queue.put_many(bodies(200))
    flip(fs, data(0), 500)
    for _ in range(3):
        with opened(fs, segment_size=9000) as queue:
            there = queue.peek_many(150)
            left = queue.depth
            queue.sync()
        assert len(there) == 150
    received = 0
    with opened(fs, segment_size=9000) as queue:
        assert queue.depth == left
        while queue.depth:
            received += taken(queue) is not None
        assert taken(queue) is None
    assert received == left


def test_damage_that_comes_between_what_a_peek_passed_over_is_taken_off_as_well():
    fs = disk()
    with opened(fs, segment_size=9000) as queue:
        queue.put_many(bodies(400))
    lost = []
    for numbers in ((0, 2), (1,)):
        for number in numbers:
            flip(fs, data(number), 500)
        with opened(fs, segment_size=9000) as queue:
            queue.peek_many(250)
            queue.sync()
            lost.append(queue.statistics().lost)
    assert lost[0] < lost[1]
    with opened(fs, segment_size=9000) as queue:
        assert queue.depth == 400 - lost[1] == len(drained(queue))


def test_damage_in_many_places_leaves_metadata_that_can_be_read():
    """Each of these opens passes over damage that none before it has passed over."""
    fs = disk()
    with opened(fs, segment_size=9000) as queue:
        queue.put_many(bodies(6000))
        for _ in range(20):
            queue.get()
    for number in range(1, 65):
        flip(fs, data(number), 500)
    for ahead in (*range(60, 3000, 45), 6000):
        with opened(fs, segment_size=9000) as queue:
            assert not queue.repairs
            assert queue.peek_many(ahead)[0] == bodies(1, start=20)[0]
            queue.sync()
    with opened(fs, segment_size=9000) as queue:
        assert queue.depth == len(drained(queue))


def test_messages_that_were_lost_in_a_file_that_is_dropped_leave_the_depth_with_it():
    fs = disk()
    options: dict[str, Any] = {"segment_size": 9000, "max_bytes": 64 * 1024, "on_full": "drop_oldest"}
    with opened(fs, **options) as queue:
        queue.put_many(bodies(400))
    flip(fs, data(0), 500)
    flip(fs, data(0), 8000)
    with opened(fs, **options) as queue:
        accepted = queue.depth
        while not queue.statistics().dropped:
            queue.put(b"another one")
            accepted += 1
        assert queue.depth == accepted - queue.statistics().dropped == len(drained(queue))


def test_after_a_clear_the_depth_is_right_also_if_the_metadata_had_counted_too_few():
    """As earlier versions did: damage that they had not counted was taken off."""
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(100))
    metadata = QueueMetadata.parse(fs.read(meta()))
    assert metadata is not None
    fs.write_durably(meta(), replace(metadata, depth=3).render())
    with opened(fs) as queue:
        for _ in range(10):
            queue.get()
        queue.clear()
        queue.put_many(bodies(5))
        assert queue.depth == 5 == len(drained(queue))

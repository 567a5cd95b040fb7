# Every byte of a segment's files, damaged, and what a crash of go-diskq leaves in them. Law: an open never
# refuses, never loses a whole record that can be verified, never changes a good one, assigns no offset twice
# that any file mentions, reports what it did, and does it once; and a reader gets the same message at the
# same offset before and after.

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from diskq._native.core.message import Message
from diskq.engine.log.recovery import MISSING
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.settings import StreamSettings
from diskq.engine.stream.stream import Stream
from diskq.errors import CorruptionError
from diskq.storage.checksums import ROW, unpack_row
from diskq.storage.repairs import Repair, RepairKind
from diskq.storage.state import HEAD_SIZE
from diskq.testing import CrashFS, PowerCut
from tests.engine.partitions import Peer, messages, read
from tests.engine.ram import RamFS
from tests.engine.streams import (
    LOCK,
    OWNER,
    POINTS,
    ROOT,
    Triple,
    asides,
    data,
    disk,
    flip,
    held,
    index,
    items,
    listed,
    opened,
    part,
    segments,
    stored,
    sums,
    timeindex,
    triple,
    triples,
    truncate,
)
from tests.golden.streams import case, golden_stream, told_of
from tests.reference import triplet_oracle as oracle
from tests.sampling import first, sampled, spread

pytestmark = pytest.mark.usefixtures("quiet_log")

every_flip = pytest.mark.parametrize(
    "mask, step",
    [
        (0x40, 3),
        *(pytest.param(*more, marks=pytest.mark.exhaustive) for more in [(0xFF, 1), (0x01, 2), (0x80, 3)]),
    ],
)
ONE: dict[str, Any] = {"partition_count": 1}


# --- the patients -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Patient:
    """One partition whose producer ended without a word, and what lies where in its active segment."""

    fs: RamFS
    sent: list[Triple]
    base: int
    """Of the active segment."""
    records: list[tuple[int, int]]
    """Of each record there: where it begins and ends."""
    covered: int
    """Up to this byte of the data checksums reach."""

    def files(self) -> tuple[str, str, str]:
        return data(self.base), index(self.base), timeindex(self.base)

    def at(self, position: int) -> int:
        """The message whose record holds this byte of the data."""
        return next(self.base + n for n, (_, end) in enumerate(self.records) if position < end)

    def block_at(self, position: int) -> set[int]:
        """The messages of the block that has this byte; of that record alone where nothing vouches for it."""
        content = self.fs.files().get(sums(self.base), b"")
        rows = [unpack_row(content[at : at + ROW.size]) for at in range(0, len(content) // 24 * 24, 24)]
        for row in rows:
            if row is not None and row.start <= position < row.end:
                return {
                    self.base + n for n, (start, _) in enumerate(self.records) if row.start <= start < row.end
                }
        return {self.at(position)}


def patient(fs: RamFS, sent: list[Triple]) -> Patient:
    *_, (base, files) = segments(fs.files(), 0).items()
    rows = [files["index"][at : at + 24] for at in range(0, len(files["index"]), 24)]
    places = [(int.from_bytes(row[8:16], "little"), int.from_bytes(row[16:], "little")) for row in rows]
    content = fs.files().get(sums(base), b"")
    row_ends = [unpack_row(content[at : at + 24]) for at in range(0, len(content) // 24 * 24, 24)]
    covered = max((row.end for row in row_ends if row), default=0)
    return Patient(fs, sent, base, [(start, start + size) for start, size in places], covered)


@cache
def ours() -> Patient:
    """A sealed segment, and one with two synced blocks and some messages that no checksum knows of.

    Without a redo log: what rots would be appended again from it.
    """
    fs = RamFS({})
    options = opened(disk(), segment_size=700, sync_to="files", **ONE).options
    stream = Stream(ROOT, fs=fs, options=options)
    sent = triples(24, length=31)
    stream.append_many(items(sent[:13]))
    stream.append_many(items(sent[13:17]), durability="synced")
    stream.append_many(items(sent[17:20]), durability="synced")
    stream.append_many(items(sent[20:]))
    return patient(fs.kill(), sent)


@cache
def peers() -> Patient:
    """The same of go-diskq's: no checksums, no recovery points, no private files."""
    fs, peer = pushing(700)
    peer.push_all(triples(24, length=31))
    return patient(fs.kill(), triples(24, length=31))


def pushing(segment_size: int = 10**6) -> tuple[RamFS, Peer]:
    """A disk with go-diskq's producer, which has pushed nothing yet."""
    settings = StreamSettings(partition_count=1, segment_size=segment_size)
    fs = RamFS({f"{ROOT}/settings.json": settings.render()})
    peer = Peer(fs, segment_size)
    list(peer.begin())
    return fs, peer


PATIENTS: dict[str, Callable[[], Patient]] = {"ours": ours, "a peer's": peers}
every_patient = pytest.mark.parametrize("whose", PATIENTS)


def test_the_patients_have_a_complete_segment_and_one_with_and_without_checksums():
    assert (ours().base, peers().base) == (13, 13)
    assert [len(it().records) for it in (ours, peers)] == [11, 11]
    assert ours().records[0][1] < ours().covered == ours().records[6][1]
    assert peers().covered == 0


# --- the check-up -------------------------------------------------------------------------------


def as_messages(sent: list[Triple]) -> list[Message]:
    return messages(sent)


def examined(
    fs: RamFS,
    sent: list[Triple],
    *,
    may_be_lost: set[int] = frozenset(),  # type: ignore[assignment]
    may_be_altered: set[int] = frozenset(),  # type: ignore[assignment]
    next_offset: int | None = None,
) -> tuple[Repair, ...]:
    """Open the stream, and check the law. Returns the repairs; `fs` is then as the open left it."""
    before, _ = read(fs.kill())
    stream = Stream(ROOT, fs=fs)
    assert stream.next_offsets == (len(sent) if next_offset is None else next_offset,)
    found, _ = read(fs)
    check_messages(found, sent, may_be_lost, may_be_altered)
    kept = {message.offset: message for message in found}
    assert [m for m in before if m.offset not in may_be_altered and kept.get(m.offset) != m] == []
    check_files(fs)
    repairs = stream.repairs
    for repair in repairs:
        assert repair.saved_as is None or repair.saved_as in fs.files(), "where is it?"
    check_that_it_is_over(fs.kill(), found)
    return repairs


def check_messages(
    found: list[Message], sent: list[Triple], may_be_lost: set[int], may_be_altered: set[int]
) -> None:
    offsets = [message.offset for message in found]
    assert offsets == sorted(set(offsets)), "repeated, or out of order"
    assert set(range(len(sent))) - set(offsets) <= may_be_lost, "lost"
    expected = as_messages(sent)
    for message in found:
        assert message == expected[message.offset] or message.offset in may_be_altered, "altered"


def check_files(fs: RamFS) -> None:
    """No private file is among the peer's files, and there are as many whole entries as records."""
    for base, files in segments(fs.files(), 0).items():
        assert len(files["index"]) % 24 == len(files["timeindex"]) % 16 == 0, base
        assert len(files["index"]) // 24 == len(files["timeindex"]) // 16, base
        for at in range(0, len(files["index"]), 24):
            place = int.from_bytes(files["index"][at + 8 : at + 16], "little")
            size = int.from_bytes(files["index"][at + 16 : at + 24], "little")
            assert place + size <= len(files["data"]) or size > 2**40, "a row of bytes that are not there"


def check_that_it_is_over(fs: RamFS, found: list[Message]) -> None:
    """Reported repairs are not reported again, all is as it was, and the stream works."""
    stream = Stream(ROOT, fs=fs)
    assert stream.repairs == (), "told again"
    assert read(fs)[0] == found
    key, timestamp, value = triple(99)
    position = stream.append(value, key, timestamp)
    last = Message(0, position.offset, timestamp, key, value)
    assert read(fs)[0] == [*found, last]
    stream.close()
    with Stream(ROOT, fs=fs) as stream:
        assert stream.repairs == ()
    assert read(fs)[0] == [*found, last]


# --- flips --------------------------------------------------------------------------------------


@pytest.mark.sampled
@every_flip
@every_patient
def test_a_rotten_byte_of_data_costs_its_block_or_its_message(whose, mask, step):
    it = PATIENTS[whose]()
    for at in sampled(range(0, it.records[-1][1], step), 100):
        fs = it.fs.kill()
        flip(fs, data(it.base), at, mask)
        # Where nothing vouches for it, it may be handed out, or be lost.
        examined(
            fs,
            it.sent,
            may_be_lost=it.block_at(at),
            may_be_altered=set() if at < it.covered else {it.at(at)},
        )


def test_a_rotten_byte_of_a_message_that_the_redo_log_has_costs_none():
    """It is appended again: other bytes in its place may be another producer's, and stay."""
    fs = RamFS({})
    stream = Stream(ROOT, fs=fs, options=opened(disk(), **ONE).options)
    sent = triples(6)
    for one in sent:
        stream.append_many(items([one]), durability="synced")
    after = fs.kill()
    content = after.files()[data(0)]
    flip(after, data(0), content.index(sent[-1][2]), 64)
    stream = Stream(ROOT, fs=after)
    assert [repair.records for repair in stream.repairs] == [0]
    stream.close()
    assert sorted(message.value for message in read(after)[0]) == sorted(value for _, _, value in sent)


@pytest.mark.sampled
@every_flip
@pytest.mark.parametrize("which", ["index", "timeindex"])
@every_patient
def test_a_rotten_byte_of_a_row_costs_nothing_and_is_mended(whose, which, mask, step):
    it = PATIENTS[whose]()
    path = index(it.base) if which == "index" else timeindex(it.base)
    for at in sampled(range(0, len(it.fs.read(path)), step), 70):
        fs = it.fs.kill()
        flip(fs, path, at, mask)
        repairs = examined(fs, it.sent)
        assert fs.read(path)[: len(it.fs.read(path))] == it.fs.read(path), at
        (repair,) = repairs
        assert (repair.path, repair.records) == (path, 0)
        assert repair.kept <= at
        assert repair.saved_as is not None
        assert fs.read(repair.saved_as)[at] == it.fs.read(path)[at] ^ mask


@every_flip
def test_a_rotten_byte_of_what_is_ours_alone_costs_nothing(mask, step):
    it = ours()
    for path in (sums(it.base), POINTS, LOCK, OWNER):
        start = HEAD_SIZE if path == POINTS else 0
        for at in range(start, min(start + 200, len(it.fs.read(path))), step):
            fs = it.fs.kill()
            flip(fs, path, at, mask)
            if path == OWNER:
                assert Stream(ROOT, fs=fs, take_over=True).next_offsets == (24,)
            else:
                examined(fs, it.sent)


@every_flip
def test_a_rotten_byte_of_the_state_costs_what_no_checksum_covers(mask, step):
    it = ours()
    for at in range(0, HEAD_SIZE, step):
        fs = it.fs.kill()
        flip(fs, POINTS, at, mask)
        # Another boot's, perhaps: then what no checksum vouches for may be cut.
        stream = Stream(ROOT, fs=fs)
        assert stream.next_offsets == (24,)
        check_messages(read(fs)[0], it.sent, set(range(20, 24)), set())


# --- cuts ---------------------------------------------------------------------------------------


@pytest.mark.sampled
@every_patient
def test_of_data_cut_anywhere_every_whole_record_is_kept_and_the_others_offsets_are_not_given_again(whose):
    it = PATIENTS[whose]()
    for cut in sampled(range(it.records[-1][1]), 150):
        fs = it.fs.kill()
        truncate(fs, data(it.base), cut)
        lost = {it.base + n for n, (_, end) in enumerate(it.records) if end > cut}
        repairs = examined(fs, it.sent, may_be_lost=lost)
        assert {m.offset for m in read(fs)[0]} == set(range(24)) - lost
        assert sum(repair.records or 0 for repair in repairs) == len(lost)
        torn = cut - max([end for _, end in it.records if end <= cut], default=0)
        (aside,) = [content for path, content in asides(fs).items() if ".data.bad" in path] or [b""]
        assert len(aside) == torn


@pytest.mark.sampled
@pytest.mark.parametrize("which", ["index", "timeindex"])
@every_patient
def test_of_rows_cut_anywhere_all_are_made_again(whose, which):
    it = PATIENTS[whose]()
    path = index(it.base) if which == "index" else timeindex(it.base)
    for cut in sampled(range(len(it.fs.read(path))), 100):
        fs = it.fs.kill()
        truncate(fs, path, cut)
        examined(fs, it.sent)
        assert fs.read(path) == it.fs.read(path)


@pytest.mark.sampled
def test_what_is_ours_alone_may_be_cut_anywhere():
    it = ours()
    for path, start in ((sums(it.base), 0), (POINTS, HEAD_SIZE)):
        for cut in sampled(range(start, min(start + 200, len(it.fs.read(path)))), 60):
            fs = it.fs.kill()
            truncate(fs, path, cut)
            examined(fs, it.sent)


# --- files that are missing, empty, or zeros ----------------------------------------------------


def take_away(fs: RamFS, it: Patient, what: str, how: str) -> None:
    paths = {
        "data": [data(it.base)],
        "index": [index(it.base)],
        "timeindex": [timeindex(it.base)],
        "sums": [sums(it.base)],
        "points": [POINTS],
        "sealed": [part().sealed],
        "rows": [index(it.base), timeindex(it.base)],
        "the sealed segment's rows": [index(0), timeindex(0)],
        "all that is ours": [path for path in fs.files() if "/.diskq/" in path],
    }[what]
    for path in paths:
        if path not in fs.files():
            continue
        if how == "missing":
            fs.unlink(path)
        else:
            fs.write_durably(path, b"" if how == "empty" else bytes(len(fs.read(path))))


@pytest.mark.parametrize("how", ["missing", "empty", "zeros"])
@pytest.mark.parametrize(
    "what", ["index", "timeindex", "rows", "sums", "points", "sealed", "all that is ours"]
)
@every_patient
def test_whatever_is_gone_beside_the_data_costs_nothing(whose, what, how):
    it = PATIENTS[whose]()
    fs = it.fs.kill()
    take_away(fs, it, what, how)
    if what == "all that is ours" and whose == "ours":
        fs.unlink(OWNER)  # it can no longer be distinguished from a peer's
    examined(fs, it.sent)
    for path in it.files():
        assert fs.read(path) == it.fs.read(path)


@pytest.mark.parametrize("how", ["empty", "zeros"])
@every_patient
def test_without_its_data_a_segment_is_lost_and_its_offsets_are_not_given_again(whose, how):
    it = PATIENTS[whose]()
    fs = it.fs.kill()
    take_away(fs, it, "data", how)
    repairs = examined(fs, it.sent, may_be_lost=set(range(13, 24)))
    assert repairs


def test_a_segment_that_is_gone_is_begun_again_behind_what_is_known_to_have_been_synced():
    fs = disk()
    with opened(fs, segment_size=700, **ONE) as stream:
        stream.append_many(items(triples(24, length=31)))
    fs.unlink(data(13))
    with opened(fs) as stream:
        assert stream.next_offsets == (24,)
        (repair,) = stream.repairs
        assert (repair.records, repair.reason) == (11, MISSING)
    assert held(fs, may_skip=True)[0] == triples(13, length=31)


def test_a_segment_that_is_gone_behind_one_that_is_empty_is_counted_from_the_beginning():
    fs = disk()
    with opened(fs, segment_size=700, **ONE) as stream:
        stream.append_many(items(triples(24, length=31)))
    for path in (data(13), sums(0)):
        fs.unlink(path)
    for path in (data(0), index(0), timeindex(0)):
        truncate(fs, path, 0)
    with opened(fs) as stream:
        assert stream.next_offsets == (24,)
        assert [(repair.records, repair.reason) for repair in stream.repairs] == [(24, MISSING)]


@pytest.mark.parametrize("how", ["missing", "empty"])
def test_the_rows_of_a_complete_segment_are_made_again_where_they_are_missing(how):
    it = ours()
    fs = it.fs.kill()
    take_away(fs, it, "the sealed segment's rows", how)
    stream = Stream(ROOT, fs=fs)
    assert stream.next_offsets == (24,)
    if how == "missing":
        assert (fs.read(index(0)), fs.read(timeindex(0))) == (it.fs.read(index(0)), it.fs.read(timeindex(0)))
    assert read(fs)[0] == as_messages(it.sent)


# --- points -------------------------------------------------------------------------------------


def test_points_of_an_older_day_only_make_recovery_look_at_more():
    fs = disk()
    with opened(fs, segment_size=300, **ONE) as stream:
        stream.append_many(items(triples(10)))
        stream.sync()
        old = fs.read(POINTS)
        stream.append_many(items(triples(30, start=10)))
    fs.write_durably(POINTS, old)
    for after in (fs.kill(), fs.crash()):
        with opened(after) as stream:
            assert stream.next_offsets == (40,)
            assert not stream.repairs
        assert held(after)[0] == triples(40)


def test_points_from_a_day_to_come_keep_their_offsets():
    """The files were put back from an older copy: who has read the newer ones has seen these offsets."""
    fs = disk()
    with opened(fs, **ONE) as stream:
        stream.append_many(items(triples(10)))
    old = {path: content for path, content in fs.files().items() if path.startswith(f"{ROOT}/parts/")}
    with opened(fs) as stream:
        stream.append_many(items(triples(5, start=10)))
    for path, content in old.items():
        fs.write_durably(path, content)
    with opened(fs) as stream:
        assert stream.next_offsets == (15,)
        (repair,) = stream.repairs
        assert (repair.records, repair.reason) == (5, MISSING)
        stream.append(b"next", "k", 1)
    assert [message.offset for message in stored(fs, may_skip=True)[0]] == [*range(10), 15]


@pytest.mark.parametrize("how", ["rotten", "empty"])
def test_without_readable_points_a_power_cut_is_judged_by_all_checksums(how):
    fs = disk()
    stream = opened(fs, segment_size=300, **ONE)
    stream.append_many(items(triples(40)), durability="synced")
    stream.append_many(items(triples(5, start=40)))
    after = fs.crash()
    after.write_durably(POINTS, b"" if how == "empty" else b"diskq points 1 open\n0 0 0 0\ncrc32c 00000000\n")
    with opened(after) as stream:
        assert stream.next_offsets == (40,)
    assert held(after)[0] == triples(40)


def test_what_a_peer_wrote_is_believed_by_whoever_comes_after_an_open_that_a_power_cut_ended():
    fs = disk()
    stream = opened(fs, **ONE)
    stream.append_many(items(triples(10)), durability="synced")
    left = fs.kill()
    left.unlink(OWNER)
    files = segments(left.files(), 0)[0]
    records, ends = [oracle.record(*one) for one in triples(5, start=10)], len(files["data"])
    for offset, (record, (_, timestamp, _)) in enumerate(zip(records, triples(5, start=10), strict=True), 10):
        files["data"] += record
        files["index"] += oracle.index_row(offset, ends, len(record))
        files["timeindex"] += oracle.timeindex_row(offset, timestamp)
        ends += len(record)
    for suffix, path in (("data", data()), ("index", index()), ("timeindex", timeindex())):
        left.write_durably(path, files[suffix])
    left.sync_directory(ROOT)
    cuts = 0
    for cut in itertools.count(1):
        trial = left.crash()  # the machine was restarted before, too
        trial.cut_at = cut
        with contextlib.suppress(PowerCut):
            opened(trial, **ONE)
        if not trial.is_cut:
            break
        cuts += 1
        for after in (trial.crash(), trial.crash(random.Random(cut))):
            after.clock += 5.0  # the process that was making the owner file is not making it any more
            with opened(after, **ONE) as again:
                assert again.next_offsets == (15,)
            assert held(after)[0] == triples(15)
    assert cuts > 10


# --- what go-diskq leaves -----------------------------------------------------------------------


def golden(name: str, tmp_path: Any, *, reopened: bool) -> tuple[RamFS, list[Triple]]:
    """A torn stream of the peer's, and all that was acknowledged in it."""
    stream = golden_stream(name, tmp_path)
    files = {
        f"{ROOT}/{path.relative_to(stream)}": path.read_bytes()
        for path in stream.rglob("*")
        if path.is_file()
    }
    fs = RamFS(files)
    told = case(name)
    whole = laid_records(files[data()])[: len(told.pushed)]
    if reopened:
        again = told.manifest["after_go_reopens_and_pushes_3"]["pushed"]
        pushed = [(b"k", one["ts_ns"], bytes.fromhex(one["hex"])) for one in again]
        peer = Peer(fs, 10**9)
        peer.reopen()
        peer.push_all(pushed)
        whole += pushed
    assert told_of((0, n, t, k, v) for n, (k, t, v) in enumerate(whole[: len(told.pushed)])) == told.pushed
    return fs, whole


def laid_records(content: bytes) -> list[Triple]:
    return oracle.records(content)[0]


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("name", ["torn_data", "torn_index"])
def test_torn_streams_of_go_diskq_are_mended(name, reopened, tmp_path):
    """D6: go-diskq never does, and continues after the damage."""
    fs, sent = golden(name, tmp_path, reopened=reopened)
    repairs = examined(fs, sent)
    assert repairs or (name, reopened) == ("torn_data", True)  # there all rows are right, only bytes too many
    assert all(not repair.records for repair in repairs)
    assert fs.read(index())[0::24] == bytes(offset for offset in range(len(sent)))
    if not reopened:
        assert stored(fs)[0][-1].offset == len(sent) - 1


def crashed_pushes() -> Iterator[tuple[str, RamFS, Peer]]:
    """A peer is killed inside a push, at every byte of its three writes."""
    doomed = triple(77, length=40)
    for step, path in enumerate((timeindex(), data(), index())):
        size = 0
        while True:
            fs, peer = pushing()
            peer.push_all(triples(5, length=40))
            acknowledged = list(peer.pushed)
            before = len(fs.read(path))
            steps = peer.push(doomed)
            for _ in range(step + 1):
                next(steps)
            if before + size > len(fs.read(path)) - (path == index()):
                break
            truncate(fs, path, before + size)
            yield f"{path[-9:]} cut at {size}", fs, Peer(fs, 10**6, pushed=acknowledged)
            size += 1


@pytest.mark.sampled
@pytest.mark.parametrize("after", first(1, [1, 0, 3]))
def test_after_a_crash_of_go_diskq_at_every_byte_all_it_acknowledged_is_there(after):
    for how, fs, peer in spread(list(crashed_pushes())):
        if after:
            peer.reopen()
            peer.push_all(triples(after, length=40, start=100))
        sent = list(peer.pushed)
        found = Stream(ROOT, fs=fs.kill()).next_offsets[0]
        whole = (
            found == len(sent) + 1 and not after
        )  # a whole record counts, though it was never acknowledged
        examined(fs, [*sent, triple(77, length=40)] if whole else sent)
        assert read(fs)[0][: len(sent)] == as_messages(sent), how


def test_orphan_rows_of_the_timeindex_are_taken_out():
    """go-diskq answers wrongly about time from there on."""
    fs, peer = pushing()
    for start in range(0, 9, 3):
        peer.push_all(triples(3, start=start))
        fs.now[timeindex()] += b"\7" * 16
    fs.now[timeindex()] += b"\7" * 5
    (repair,) = [repair for repair in examined(fs, triples(9)) if "disagree" in repair.reason]
    assert repair.path == timeindex()
    assert len(fs.read(timeindex())) == 9 * 16


def test_what_a_peer_wrote_behind_our_crash_is_kept_whatever_happened_to_the_machine():
    fs = disk()
    stream = opened(fs, **ONE)
    stream.append_many(items(triples(10)), durability="synced")
    stream.append_many(items(triples(2, start=10)))
    del stream
    fs = fs.kill()
    fs.unlink(OWNER)  # as go-diskq's users have to
    ram = RamFS(fs.files())
    peer = Peer(ram, 10**6)
    peer.reopen()
    peer.push_all(triples(30, start=12))
    for path, content in ram.files().items():
        fs.write_durably(path, content)  # time passes
    fs = fs.crash()
    with opened(fs) as stream:
        assert stream.next_offsets == (42,)
        assert stream.repairs == ()
    assert held(fs)[0] == triples(42)


@pytest.mark.parametrize("seed", range(20))
def test_unsynced_messages_that_a_power_cut_takes_are_one_repair_with_their_bytes(seed):
    fs = CrashFS()
    stream = opened(fs, sync_timeout=1000.0, sync_to="files", **ONE)
    stream.append_many(items(triples(5)), durability="synced")
    stream.append_many(items(triples(25, start=5)))
    after = fs.crash(random.Random(seed))
    size = len(after.read(data()))
    with opened(after) as stream:
        (end,) = stream.next_offsets
        repairs = [repair for repair in stream.repairs if repair.path == data()]
        stale = [repair for repair in stream.repairs if repair.kind is RepairKind.STALE]
    kept = len(after.read(data()))
    lost = end - len(held(after, may_skip=True)[0])  # of others there is no trace
    assert [repair.records for repair in repairs] == [lost] * (lost > 0 or kept < size)
    assert {repair.kind for repair in repairs} <= {RepairKind.UNSYNCED}
    if kept < size:
        assert [(repair.kept, repair.dropped) for repair in repairs] == [(kept, size - kept)]
        assert stale == []


@pytest.mark.parametrize("cut", [*range(1, 90, 3)])
def test_a_stream_of_go_diskqs_is_whole_however_our_first_open_ends(cut):
    theirs = {path: content for path, content in peers().fs.files().items() if "/.diskq/" not in path}
    fs = CrashFS(cut_at=cut)
    for path, content in theirs.items():
        fs.write_durably(path, content)
    try:
        Stream(ROOT, fs=fs)
    except BaseException:
        assert fs.is_cut
    for after in (fs.kill(), fs.crash()):
        after.clock += 5
        with opened(after) as stream:
            assert stream.next_offsets == (24,)
            assert stream.repairs == ()
        assert held(after)[0] == triples(24, length=31)


@pytest.mark.parametrize("count", [1, 2])
def test_a_partition_that_only_a_peer_wrote_to_is_not_cut_after_our_power_cut(count):
    fs = RamFS({})
    for partition in range(3):
        peer = Peer(fs, 10**6)
        list(peer.begin())
        peer.push_all(triples(5))
        for path in (data(), index(), timeindex()):
            fs.now[path.replace("000000", f"{partition:06}", 1)] = bytearray(fs.now[path])
    crashing = disk()
    for path, content in fs.files().items():
        crashing.write_durably(path, content)
    stream = opened(crashing, partition_count=count)
    stream.append(b"v", "k", durability="synced")
    del stream
    with opened(crashing.crash(), partition_count=3) as stream:
        assert sum(stream.next_offsets) == 16
        assert stream.repairs == ()


@pytest.mark.parametrize("power_fails", [False, True])
@pytest.mark.parametrize("count", [0, 5])
def test_a_partition_of_which_a_peer_has_left_the_last_segment_only_is_opened(count, power_fails):
    ram = RamFS({})
    peer = Peer(ram, 10**6, offset=7, base=7)
    list(peer.begin())
    peer.push_all(triples(count))
    fs = disk()
    for path, content in ram.files().items():
        fs.write_durably(path, content)
    for offset in (7 + count, 8 + count):
        with opened(fs, partition_count=1) as stream:
            assert stream.next_offsets == (offset,)
            assert stream.repairs == ()
            stream.append(b"v", "k", durability="synced")
        fs = fs.crash() if power_fails else fs.kill()


@pytest.mark.parametrize("power_fails", [False, True])
def test_so_is_one_of_ours_where_nobody_can_read_the_points(power_fails):
    fs = disk()
    with opened(fs, partition_count=1, segment_size=150, retention_max_bytes=1) as stream:
        stream.append_many(items(triples(8)))
        assert stream.vacuum().segments
    stream = opened(fs, partition_count=1)  # whose process ends without closing it
    fs = fs.crash() if power_fails else fs.kill()
    fs.write_durably(POINTS, b"")
    with opened(fs, partition_count=1) as stream:
        assert stream.next_offsets == (8,)
        assert stream.repairs == ()


# --- zeros --------------------------------------------------------------------------------------


@pytest.mark.parametrize("varuint", [False, True])
@pytest.mark.parametrize("zeros", [1, 10, 20, 4096])
def test_zeros_behind_the_last_record_are_no_messages(zeros, varuint):
    fs = disk()
    with opened(fs, encoding="varuint" if varuint else "fixed", **ONE) as stream:
        stream.append_many(items(triples(5)))
    fs.write_durably(data(), fs.read(data()) + bytes(zeros))
    with opened(fs) as stream:
        assert stream.next_offsets == (5,)
        (repair,) = stream.repairs
        assert (repair.path, repair.dropped, repair.records) == (data(), zeros, 0)
    assert held(fs, varuint=varuint)[0] == triples(5)
    assert asides(fs) == {repair.saved_as: bytes(zeros)}


# --- strict -------------------------------------------------------------------------------------


def test_a_strict_open_refuses_what_costs_a_message_and_nothing_that_a_crash_leaves():
    it = peers()
    fs = it.fs.kill()
    truncate(fs, data(it.base), 100)
    with pytest.raises(CorruptionError):
        opened(fs, strict=True)
    fs = it.fs.kill()
    fs.now[data(it.base)] += b"\5\0\0\0torn"
    fs.now[timeindex(it.base)] += b"torn"
    with opened(fs, strict=True) as stream:
        assert len(stream.repairs) == 2


def test_after_a_power_cut_a_strict_open_does_not_refuse():
    for seed in range(20):
        fs = disk()
        stream = opened(fs, segment_size=300, **ONE)
        stream.append_many(items(triples(8)), durability="synced")
        stream.append_many(items(triples(9, start=8)))
        after = fs.crash(random.Random(seed))
        with opened(after, strict=True) as stream:
            assert stream.next_offsets[0] >= 8


# --- where it is kept ---------------------------------------------------------------------------


def test_what_is_set_aside_lies_where_no_peer_lists_its_files():
    it = peers()
    fs = it.fs.kill()
    fs.now[data(it.base)] += b"torn"
    flip(fs, index(it.base), 9)
    with opened(fs) as stream:
        assert len(stream.repairs) == 2
    assert len(asides(fs)) == 2
    assert all(path.startswith(f"{ROOT}/.diskq/parts/000000/") for path in asides(fs))
    names = {name.split(".", 1)[1] for name in listed(fs, part().directory)}
    assert names == {"data", "index", "timeindex"}


# --- in turn ------------------------------------------------------------------------------------


def a_turn_of_ours(fs: RamFS, rng: random.Random, sent: dict[int, Triple], numbers: Iterator[int]) -> RamFS:
    """Append something, and end with a close or without a word; then our owner file is removed by hand."""
    stream = Stream(ROOT, fs=fs)
    for number in itertools.islice(numbers, rng.randrange(5)):
        one = key, timestamp, value = triple(number, rng.choice([40, 17]))
        position = stream.append(value, key, timestamp, durability=rng.choice(["written", "synced"]))
        assert position.offset not in sent
        sent[position.offset] = one
    if rng.random() < 0.5:
        stream.close()
        return fs
    fs = fs.kill()
    fs.unlink(OWNER)
    return fs


def a_turn_of_theirs(fs: RamFS, rng: random.Random, sent: dict[int, Triple], numbers: Iterator[int]) -> None:
    """Push something, and perhaps die in one of the three writes of the last push."""
    peer = Peer(fs, int(json.loads(fs.read(f"{ROOT}/settings.json"))["segment_size_bytes"]))
    peer.reopen()
    for number in itertools.islice(numbers, rng.randrange(4)):
        one = triple(number, rng.choice([40, 17]))
        assert peer.offset not in sent
        sent[peer.offset] = one
        peer.push_all([one])
    if rng.random() < 0.6:
        path = rng.choice([timeindex(peer.base), data(peer.base), index(peer.base)])
        before = len(fs.now[path])
        push = peer.push(triple(next(numbers), rng.choice([40, 17])))
        while len(fs.now[path]) == before:
            next(push)
        # A third of a row: with more, it may look whole together with the next one.
        most = before + 8 if path == index(peer.base) else len(fs.now[path]) + 1
        del fs.now[path][rng.randrange(before, most) :]


@pytest.mark.parametrize("seed", range(400))
def test_in_turn_with_a_peer_that_crashes_every_acknowledged_message_stays_where_it_was(seed):
    rng = random.Random(seed)
    fs, _ = pushing(rng.choice([300, 10**6]))
    sent: dict[int, Triple] = {}
    numbers = itertools.count()
    for _ in range(rng.randrange(2, 9)):
        if rng.random() < 0.5:
            fs = a_turn_of_ours(fs, rng, sent, numbers)
        else:
            a_turn_of_theirs(fs, rng, sent, numbers)
    Stream(ROOT, fs=fs)
    found = {m.offset: (m.key, m.timestamp_ns, m.value) for m in read(fs)[0]}
    assert {offset: found.get(offset) for offset in sent} == sent
    assert Stream(ROOT, fs=fs.kill()).repairs == ()


def test_what_a_partition_had_is_known_while_it_is_not_written_to():
    fs = disk()
    with opened(fs, partition_count=3) as stream:
        stream.append_many(items(triples(60)))
        before = stream.next_offsets
    with opened(fs, partition_count=1) as stream:
        stream.append(b"with one partition")
    files = StreamFiles(fs, ROOT).partition(2)
    base = files.bases()[-1]
    for path in (*files.segment(base), *files.private_files(base)):
        if fs.size_of(path) is not None:
            fs.unlink(path)
    with opened(fs, partition_count=3) as stream:
        assert [each.kind for each in stream.repairs] == [RepairKind.LOST]
        assert stream.next_offsets[1:] == before[1:]

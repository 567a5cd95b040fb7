# A log that was cut, or whose bits were flipped. Law: a torn end is cut, kept and reported; before it nothing
# is skipped: the store is as a beginning of its log says, or it is refused. Before a recovery point, damage
# costs the commands that it hit, and is reported.

from __future__ import annotations

import contextlib
import errno
import itertools
import random

import pytest

from diskq.engine.priority.files import StorePoint
from diskq.engine.priority.store import PriorityStore
from diskq.errors import CorruptionError, DamagedStoreError, DiskFullError, FullError, UnsupportedFormatError
from diskq.storage.repairs import RepairKind
from diskq.testing import CrashFS, FaultFS, PowerCut
from diskq.tools.findings import Verification
from diskq.tools.stores import Store
from diskq.tools.verify.verification import verify
from tests.engine.stores import (
    DATA,
    ROOT,
    disk,
    drain,
    failing_disk,
    files,
    kept,
    opened,
    segment,
    segments,
    state,
    stored,
    written,
)
from tests.reference import taskflux_oracle as oracle
from tests.sampling import spread

COMMANDS = [
    oracle.create("q", 2, 9, None, (-3, 3)),
    oracle.add("q", 1, b"one"),
    oracle.add("", -5, b"three"),
    oracle.remove("q", 1),
    oracle.add("q", 2, bytes(range(9))),
    oracle.delete("q"),
    oracle.add("", 7, b""),
]
LOG = oracle.segment(COMMANDS)
ENDS = [8]
for _command in COMMANDS:
    ENDS.append(ENDS[-1] + len(oracle.record(_command)))


def after(commands: list[bytes]) -> oracle.State:
    found = {"": oracle.Queue()}
    for command in commands:
        oracle.apply(found, command)
    return found


def with_log(data: bytes) -> CrashFS:
    fs = written(disk(), {0: []})
    fs.write_durably(segment(0), data)
    return fs


# --- the end of the log -----------------------------------------------------------------------------


def test_a_log_cut_anywhere_is_what_its_whole_records_say():
    for cut in range(len(LOG)):
        fs = with_log(LOG[:cut])
        with opened(fs) as store:
            count = store.next_lsn
            assert count == sum(end <= cut for end in ENDS[1:]), cut
            assert state(store) == after(COMMANDS[:count])
            is_whole = cut in ENDS or cut > ENDS[-1]
            assert ("tail_truncated" in store.warnings) == (cut > 8 and not is_whole), cut
            store.put(store.queue(), b"new")
        with opened(fs) as store:
            assert (store.warnings, store.repairs) == ({}, ())
            assert state(store) == after([*COMMANDS[:count], oracle.add("", 0, b"new")])


@pytest.mark.sampled
@pytest.mark.parametrize("filled", [0, 300])
def test_a_flipped_bit_in_the_last_segment_cuts_it_there_and_keeps_the_rest(filled):
    data = LOG + bytes(filled)
    for position in spread(range(8, len(LOG))):
        rotten = bytearray(data)
        rotten[position] ^= 1 << position % 8
        fs = with_log(bytes(rotten))
        with opened(fs) as store:
            count = store.next_lsn
            assert state(store) == after(COMMANDS[:count])
            hit = sum(end <= position for end in ENDS) - 1
            is_term = any(end + 4 <= position < end + 12 for end in ENDS[:-1])  # covered by nothing
            assert count >= hit if is_term else count == hit, position
            if count < len(COMMANDS):
                (copy,) = kept(fs).values()
                assert copy == bytes(rotten[ENDS[count] :]).rstrip(b"\0")
                assert ("valid_records_dropped" in store.warnings) == (count < len(COMMANDS) - 1)
        with opened(fs) as store:
            assert (store.next_lsn, store.repairs) == (count, ())


def test_flips_in_the_head_are_refused_and_nothing_is_touched():
    for position in range(64):
        rotten = bytearray(LOG)
        rotten[position // 8] ^= 1 << position % 8
        fs = with_log(bytes(rotten))
        with pytest.raises(UnsupportedFormatError if position >= 32 else DamagedStoreError):
            opened(fs)
        assert fs.read(segment(0)) == bytes(rotten)


def test_stale_records_behind_the_end_are_never_read_and_never_come_back():
    stale = oracle.segment([oracle.add("", 9, b"stale")])[8:]
    fs = with_log(LOG + stale)
    store = opened(fs)
    assert store.next_lsn == len(COMMANDS)
    assert kept(fs) == {"0000000000000000000.log.bad": bytes(4) + stale.rstrip(b"\0")}
    assert fs.read(segment(0)) == LOG


def test_strict_raises_at_a_torn_record():
    fs = with_log(LOG[:-9])
    with pytest.raises(CorruptionError, match=f"byte {ENDS[-2]}"):
        opened(fs, strict=True)
    assert fs.read(segment(0)) == LOG[:-9]


def test_a_full_disk_does_not_keep_a_torn_store_shut():
    fs = failing_disk()
    written(fs.inner, {0: []})
    fs.inner.write_durably(segment(0), LOG[:-9])
    fs.fail("pwrite", path="*.bad*", error=errno.ENOSPC, times=None)
    with opened(fs) as store:
        assert store.next_lsn == len(COMMANDS) - 1
        assert store.repairs[0].saved_as is None


# --- sealed segments ----------------------------------------------------------------------------------

LOGS = {0: COMMANDS[:2], 2: COMMANDS[2:5], 5: COMMANDS[5:]}


def test_damage_in_a_sealed_segment_is_refused_with_its_place():
    for base in (0, 2):
        data = oracle.segment(LOGS[base])
        for position in range(len(data) - 4):
            fs = written(disk(), LOGS)
            rotten = bytearray(data)
            rotten[position] ^= 0x10
            fs.write_durably(segment(base), bytes(rotten))
            before = files(fs)
            refusal = refused(fs)
            if isinstance(refusal, UnsupportedFormatError):
                assert 4 <= position < 8
            elif refusal is not None:
                assert refusal.path == segment(base)
                assert refusal.kind == "corrupt_log"
                assert refusal.lsn in range(base, base + len(LOGS[base]))
                assert "diskq repair" in str(refusal)
                assert files(fs) == before


def refused(fs: CrashFS) -> DamagedStoreError | UnsupportedFormatError | None:
    """Why it is not opened; where it is, all commands were carried out."""
    try:
        with opened(fs) as store:
            assert state(store) == after(COMMANDS)  # a record's term is covered by nothing
    except (DamagedStoreError, UnsupportedFormatError) as refusal:
        return refusal
    return None


@pytest.mark.parametrize("base", LOGS)
def test_a_missing_segment_is_refused(base):
    fs = written(disk(), {each: LOGS[each] for each in LOGS if each != base})
    if base == 5:
        with opened(fs) as store:
            assert store.next_lsn == 5, "nothing shows that there was one"
        return
    with pytest.raises(DamagedStoreError) as caught:
        opened(fs)
    assert caught.value.kind == ("missing_records" if base else "missing_snapshot")
    assert caught.value.lsn == base


def test_damage_under_a_snapshot_does_not_matter():
    fs = written(disk(), LOGS, snapshot=oracle.snapshot(4, 1, after(COMMANDS[:5])))
    fs.write_durably(segment(0), b"rotten")
    fs.write_durably(segment(2), b"")
    with opened(fs) as store:
        assert state(store) == after(COMMANDS)
        assert list(segments(fs)) == [5]


# --- damage that the point vouches against ------------------------------------------------------------

SENT = {number: b"message %d" % number * 2 for number in range(12)}


def rotten(data: bytes, position: int) -> bytes:
    return data[:position] + bytes((data[position] ^ 1 << position % 8,)) + data[position + 1 :]


def ours(*, closes: bool = True) -> tuple[CrashFS, dict[int, bytes]]:
    """A diskq store in several segments, some of its messages acknowledged; and its contents."""
    fs = disk()
    store = opened(fs, soft_limit=150, snapshot_segments=99)
    queue = store.queue()
    for number, payload in SENT.items():
        store.put(queue, payload, number)
    done = store.get_many(queue, 2)
    store.ack_many(queue, done)
    more = store.create_queue("more")
    store.put(more, b"of another queue")
    third = store.get(queue)
    assert third is not None
    store.ack(queue, third)
    store.sync()
    left = {record.id: record.body for record in store.peek(queue, 100)}
    if closes:
        store.close()
    else:
        fs = fs.kill()
    return fs, left


def payloads(store: PriorityStore) -> set[bytes]:
    return {record.body for info in store.queues() for record in store.peek(store.queue(info.name), 100)}


@pytest.mark.sampled
@pytest.mark.parametrize("closes", [True, False], ids=["closed", "killed"])
def test_rot_in_our_log_costs_the_command_that_it_hit_and_is_reported(closes):
    whole, left = ours(closes=closes)
    everything = {*SENT.values(), b"of another queue"}
    with opened(whole.copy()) as store:
        assert store.repairs == ()
    for base in segments(whole):
        data = whole.read(segment(base))
        if not closes and base == max(segments(whole)):
            continue
        for position in spread(range(base % 3, len(data) - 4, 3)):
            fs = whole.copy()
            fs.rot(segment(base), rotten(data, position))
            try:
                store = opened(fs)
            except UnsupportedFormatError:
                assert 4 <= position < 8, "the version may be a newer program's"
                continue
            there = payloads(store)
            assert there <= everything
            missing = {*left.values(), b"of another queue"} - there
            assert len(missing) <= 1, (base, position)
            if missing:
                assert store.repairs, (base, position)
            ids = {record.id for record in store.peek(store.queue(), 100)}
            store.close()
            if store.repairs:
                assert data[:position] in [copy[:position] for copy in kept(fs).values()], "kept aside"
            with opened(fs) as again:
                assert (again.repairs, payloads(again)) == ((), there)
                assert {record.id for record in again.peek(again.queue(), 100)} == ids
            taskflux = [queue.records.values() for queue in stored(fs).values()]
            assert {payload for records in taskflux for _, payload in records} == there


def test_an_acknowledgement_behind_lost_messages_takes_no_other_one():
    """Ids are not in the log: if an add may be lost, the id of the next one is unknown."""
    whole, _ = ours()
    fs = whole.copy()
    data = bytearray(whole.read(segment(0)))
    data[ENDS[0] + 12 + 20] ^= 1  # in the payload of a message
    fs.rot(segment(0), bytes(data))
    with opened(fs) as store:
        gone = {*SENT.values()} - payloads(store)
        assert len(gone) == 1
        assert store.warnings["remove_after_loss"] == 3, "they come again"
        assert sum(repair.records is None for repair in store.repairs) == 1


@pytest.mark.parametrize("size", [0, 3, 8, 30])
def test_a_log_that_is_shorter_than_at_its_close_is_reported(size):
    fs, left = ours()
    last = max(segments(fs))
    data = fs.read(segment(last))
    fs.rot(segment(last), data[:size])
    with opened(fs) as store:
        assert payloads(store) <= {*SENT.values(), b"of another queue"}
        assert {repair.path for repair in store.repairs} == {segment(last)}
        assert None in {repair.records for repair in store.repairs}
        new = store.put(store.queue(), b"new")
        assert new not in left
    with opened(fs) as store:
        assert store.repairs == ()
        assert b"new" in payloads(store)


def test_a_killed_store_whose_only_segment_was_emptied_begins_anew_and_says_so():
    fs = disk()
    store = opened(fs)
    store.put(store.queue(), b"gone")
    store.sync()
    fs = fs.kill()
    fs.rot(segment(0), b"")
    with opened(fs) as store:
        assert store.repairs
        store.put(store.queue(), b"new")
    with opened(fs) as store:
        assert (store.repairs, payloads(store)) == ((), {b"new"})


def test_zeros_in_a_log_that_was_closed_are_not_its_end():
    fs, _ = ours()
    last = max(segments(fs))
    data = fs.read(segment(last))
    fs.rot(segment(last), data[:8] + bytes(36) + data[44:])
    with opened(fs) as store:
        assert store.repairs
        assert b"of another queue" in payloads(store)


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "killed"])
def test_a_missing_last_segment_is_reported(closes):
    fs, _ = ours(closes=closes)
    last = max(segments(fs))
    fs.unlink(segment(last))
    with opened(fs) as store:
        assert [(repair.path, repair.records) for repair in store.repairs] == [(segment(last), None)]
        assert "is gone" in store.repairs[0].reason
    with opened(fs) as store:
        assert store.repairs == ()


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "killed"])
def test_a_missing_last_segment_that_a_snapshot_covers_in_part_is_reported(closes):
    fs = disk()
    store = opened(fs)
    queue = store.queue()
    store.put_many(queue, [b"in the snapshot"] * 3)
    assert store.snapshot()
    store.put_many(queue, [b"in the log alone"] * 3)
    if closes:
        store.close()
    else:
        fs = fs.kill()
    last = max(segments(fs))
    fs.unlink(segment(last))
    with opened(fs) as store:
        assert len(store.peek(store.queue(), 100)) == 3
        lost = 3 if closes else None  # at the close it was noted how many there were
        assert [(repair.path, repair.records) for repair in store.repairs] == [(segment(last), lost)]


@pytest.mark.parametrize("damage", ["gone", "emptied"])
def test_after_a_kill_a_segment_that_was_begun_since_the_last_barrier_is_missed(damage):
    fs, _ = ours()
    store = opened(fs, soft_limit=150, snapshot_segments=99)
    before = len(segments(fs))
    while len(segments(fs)) == before:
        store.put(store.queue(), b"." * 100, 0)
    fs = fs.kill()
    last = max(segments(fs))
    if damage == "gone":
        fs.unlink(segment(last))
    else:
        fs.write_durably(segment(last), b"")
    found = verified(fs)
    assert (found.verdict, segment(last) in [each.path for each in found.findings]) == ("damaged", True)
    with opened(fs) as store:
        assert (segment(last), None) in [(repair.path, repair.records) for repair in store.repairs]
    with opened(fs) as store:
        assert store.repairs == ()


def unsynced(*, is_restarted: bool) -> CrashFS:
    """A store with segments after the recovery point, all of which reached the disk before the crash."""
    fs, _ = ours()
    store = opened(fs, soft_limit=150, snapshot_segments=99, sync_timeout=1000.0)
    for _ in range(12):
        store.put(store.queue(), b"." * 100)
    after = fs.crash() if is_restarted else fs.kill()
    for base in segments(fs):
        after.write_durably(segment(base), fs.read(segment(base)))
    return after


def verified(fs: CrashFS) -> Verification:
    return verify(Store("jobs", ROOT, ""), fs=fs)


of_both_crashes = pytest.mark.parametrize(
    "is_restarted, kind",
    [(True, RepairKind.UNSYNCED), (False, RepairKind.LOST)],
    ids=["power cut", "killed"],
)


@of_both_crashes
def test_segments_after_a_gap_were_not_synced_or_are_a_loss(is_restarted, kind):
    fs = unsynced(is_restarted=is_restarted)
    *_, gone, before_last, last = segments(fs)
    fs.unlink(segment(gone))
    found = verified(fs)
    with opened(fs) as store:
        kinds = [(repair.path, repair.kind) for repair in store.repairs]
    assert kinds == [(segment(before_last), kind), (segment(last), kind)]
    assert found.verdict == ("torn" if is_restarted else "damaged")


@of_both_crashes
def test_commands_after_zeros_were_not_synced_or_are_damage(is_restarted, kind):
    fs = unsynced(is_restarted=is_restarted)
    last = max(segments(fs))
    content = fs.read(segment(last))
    record = content[8:]
    fs.write_durably(segment(last), content[:8] + bytes(len(record)) + record)
    found = verified(fs)
    with opened(fs) as store:
        (repair,) = store.repairs
    assert (repair.path, repair.kept, repair.records) == (segment(last), 8, None)
    assert repair.kind is (kind if is_restarted else RepairKind.CORRUPT)
    assert found.verdict == ("torn" if is_restarted else "damaged")


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "killed"])
def test_an_open_counts_what_is_lost_since_the_close_and_verify_says_the_same(closes):
    whole, _ = ours(closes=closes)
    for base in segments(whole):
        fs = whole.copy()
        fs.rot(segment(base), rotten(fs.read(segment(base)), 40))
        found = verified(fs)
        with opened(fs) as store:
            repairs, count = store.repairs, sum(info.stored for info in store.queues())
        assert [(each.path, each.kind) for each in found.findings] == [
            (repair.path, repair.kind) for repair in repairs
        ]
        assert (found.messages, found.lost) == (count, sum(repair.records or 0 for repair in repairs))


def test_verify_misses_the_segment_that_an_open_store_writes_to():
    fs, _ = ours()
    with opened(fs, soft_limit=150, snapshot_segments=99) as store:
        store.put(store.queue(), b"new")
        store.sync()
        last = max(segments(fs))
        fs.unlink(segment(last))
        found = verified(fs)
    assert [(each.kind, each.path) for each in found.findings] == [(RepairKind.LOST, segment(last))]


def test_what_was_passed_over_may_be_cut_anywhere():
    """The state is a snapshot before anything of the old log goes."""
    whole, _ = ours()
    data = whole.read(segment(0))
    whole.rot(segment(0), data[:-20])
    with opened(whole.copy()) as store:
        expected = payloads(store)
    cuts = 0
    for cut in range(1, 60):
        broken = whole.copy()
        broken.cut_at = broken.operations + cut
        with contextlib.suppress(PowerCut):
            opened(broken).close()
            break
        cuts += 1
        again = broken.crash(random.Random(cut))
        with opened(again) as store:
            assert payloads(store) == expected, cut
        with opened(again) as store:
            assert (payloads(store), store.repairs) == (expected, ())
    assert cuts > 10


def test_it_is_reported_before_a_snapshot_without_it_is_durable(caplog):
    whole, _ = ours()
    base = min(segments(whole))
    whole.rot(segment(base), rotten(whole.read(segment(base)), 40))
    for cut in itertools.count(1):
        fs = whole.copy()
        fs.cut_at = cut
        caplog.clear()
        with contextlib.suppress(PowerCut), opened(fs) as store:
            assert store.repairs
        logged = [record for record in caplog.records if getattr(record, "diskq_event", "") == "repair"]
        with opened(fs.crash()) as store:
            assert logged or store.repairs, cut
        if not fs.is_cut:
            break
    assert cut > 10
    assert len(logged) == 1, "each once"


def test_without_room_for_what_is_whole_the_damage_stays_and_the_open_says_why():
    inner, _ = ours()
    inner.rot(segment(0), inner.read(segment(0))[:-20])
    fs = FaultFS(inner)
    fs.fail("pwrite", path="*/temp/*", error=errno.ENOSPC, times=None)
    before = files(fs)
    with pytest.raises(DiskFullError, match="no room to write down what is whole"):
        opened(fs)
    assert {path: data for path, data in files(fs).items() if "temp" not in path} == before


def test_strict_raises_at_what_would_be_passed_over():
    fs, _ = ours()
    fs.rot(segment(0), fs.read(segment(0))[:-20])
    with pytest.raises(CorruptionError):
        opened(fs, strict=True)


def test_metadata_of_ours_that_rotted_is_begun_anew_and_kept():
    whole, left = ours()
    path = f"{DATA}/tflux.metadata"
    content = whole.read(path)
    for position in range(len(content)):
        fs = whole.copy()
        fs.rot(path, rotten(content, position))
        with opened(fs) as store:
            assert payloads(store) == {*left.values(), b"of another queue"}
            (repair,) = store.repairs
            assert (repair.path, repair.records) == (path, 0)
        assert rotten(content, position) in kept(fs).values()
        with opened(fs) as store:
            assert store.repairs == ()
        strict = whole.copy()
        strict.rot(path, rotten(content, position))
        with pytest.raises(CorruptionError):
            opened(strict, strict=True)


def test_a_point_that_rotted_is_no_point():
    fs = disk()
    with opened(fs) as store:
        files_of = store.files
        assert StorePoint.read(fs, files_of) == StorePoint(0)
    assert StorePoint.read(fs, files_of) == StorePoint(0, 8, 0, 0)
    content = fs.read(files_of.point)
    for position in range(len(content)):
        rotten = bytearray(content)
        rotten[position] ^= 4
        fs.rot(files_of.point, bytes(rotten))
        assert StorePoint.read(fs, files_of) is None
    with opened(fs) as store:
        assert store.repairs == ()


@pytest.mark.parametrize("at", range(1, len(COMMANDS)))
def test_a_repair_ends_the_log_at_the_damage_and_keeps_what_is_behind(at):
    base = max(base for base in LOGS if base <= at)
    data = bytearray(oracle.segment(LOGS[base]))
    data[ENDS[at] - ENDS[base] + 8 + 21] ^= 1
    fs = written(disk(), LOGS)
    fs.write_durably(segment(base), bytes(data))
    with opened(fs, repairs_damage=True) as store:
        assert state(store) == after(COMMANDS[:at])
        assert [repair.path for repair in store.repairs] == [segment(each) for each in LOGS if each >= base]
        store.put(store.queue(), b"new")
    assert list(segments(fs)) == [each for each in LOGS if each <= base]
    behind = {f"{each:019d}.log.bad": oracle.segment(LOGS[each]) for each in LOGS if each > base}
    cut = bytes(data[ENDS[at] - ENDS[base] + 8 :]).rstrip(b"\0")
    assert kept(fs) == {f"{base:019d}.log.bad": cut, **behind}
    with opened(fs) as store:
        assert store.repairs == ()
        assert state(store) == after([*COMMANDS[:at], oracle.add("", 0, b"new")])


def test_a_repair_may_be_cut_anywhere():
    fs = written(disk(), LOGS)
    fs.write_durably(segment(2), b"rotten")
    for cut in range(1, 60):
        broken = fs.copy()
        broken.cut_at = broken.operations + cut
        with contextlib.suppress(PowerCut):
            opened(broken, repairs_damage=True).close()
        again = broken.crash(random.Random(cut))
        with opened(again, repairs_damage=True) as store:
            assert state(store) == after(COMMANDS[:2])
        assert b"rotten" in kept(again).values()


# --- commands that cannot be carried out ----------------------------------------------------------------


@pytest.mark.parametrize("last", [b"X\0", b"", oracle.add("q", 1, b"is cut")[:-4], b"D\x01 "])
def test_a_command_that_is_none_is_refused_even_at_the_end(last):
    fs = written(disk(), {0: [*COMMANDS[:2], last]})
    with pytest.raises(DamagedStoreError) as caught:
        opened(fs)
    assert (caught.value.lsn, caught.value.position) == (2, ENDS[2])
    assert caught.value.kind == ("unknown_delta" if last == b"X\0" else "bad_delta")


def test_a_kind_of_queue_that_is_not_known_is_refused():
    fs = written(disk(), {0: [COMMANDS[0], oracle.create("new", 3)]})
    with pytest.raises(UnsupportedFormatError, match="implementation 3"):
        opened(fs)


def test_what_taskflux_itself_leaves_is_counted_and_no_reason_to_stop():
    commands = [
        *(oracle.remove("", 7), oracle.remove("no", 1), oracle.add("no", 4, b"x"), oracle.create("no")),
        *(oracle.delete("gone"), oracle.delete(""), oracle.create("zero", 0)),
    ]
    with opened(written(disk(), {0: commands})) as store:
        assert store.warnings == {
            "remove_unknown_record": 2,
            "add_to_unknown_queue": 1,
            "create_existing_queue": 1,
            "missing_default_queue": 1,
        }
        assert drain(store, "no") == [(4, 1, b"x")]
        assert store.info(store.queue("zero")).implementation == "H4"


@pytest.mark.parametrize(
    "content", [b"x", bytes(24), oracle.metadata()[:23], oracle.metadata(0), oracle.metadata(1, -2)]
)
def test_metadata_that_is_none_is_refused(content):
    fs = written(disk(), {0: []}, metadata=content)
    with pytest.raises(DamagedStoreError) as caught:
        opened(fs)
    assert (caught.value.kind, caught.value.path) == ("corrupt_metadata", f"{DATA}/tflux.metadata")
    with pytest.raises(DamagedStoreError):
        opened(fs)


# --- a disk that is full, or fails -----------------------------------------------------------------------


def test_a_full_disk_refuses_and_the_state_is_whole():
    for room in range(0, 700, 37):
        fs = failing_disk()
        with opened(fs, soft_limit=200, snapshot_segments=99) as store:
            queue = store.queue()
            store.put_many(queue, [b"%d" % n for n in range(4)])
            record = store.get(queue)
            assert record is not None
            fs.capacity(room)
            accepted = 4
            try:
                store.put_many(queue, [bytes(50)] * 12)
                accepted += 12
            except FullError as full:
                accepted += full.accepted
            assert store.info(queue).stored == accepted == store.next_lsn
            is_acked = True
            try:
                store.ack(queue, record)
            except FullError:
                is_acked = False
            assert record.is_settled == is_acked
            fs.capacity(None)
            oracle.read_files(files(fs))
            if not is_acked:
                store.ack(queue, record)
            assert store.put(queue, b"there is room again") == accepted + 1
        with opened(fs.inner.kill()) as store:
            assert len(state(store)[""].records) == accepted


def test_a_store_opens_on_the_disk_that_it_has_filled():
    fs, accepted = failing_disk(), 0
    with opened(fs) as store:
        fs.capacity(50_000)
        with pytest.raises(DiskFullError):  # noqa: PT012
            while True:
                accepted += len(store.put_many(store.queue(), [bytes(100)]))
    for _ in range(2):
        fs.capacity(0)  # another process was faster with the messages that the close gave back
        with opened(fs) as store:
            queue = store.queue()
            assert (store.repairs, store.info(queue).ready) == ((), accepted)
            records = store.get_many(queue, accepted)
            with pytest.raises(DiskFullError):
                store.ack(queue, records[0])
            store.nack_many(queue, records)
            assert store.info(queue).ready == accepted
    with opened(fs) as store:
        fs.capacity(None)
        store.ack_many(store.queue(), store.get_many(store.queue(), accepted))
        store.put(store.queue(), b"there is room again")
        assert store.info(store.queue()).stored == 1


def test_what_is_held_in_memory_is_written_when_there_is_room():
    fs = failing_disk()
    with opened(fs) as store:
        store.put_many(store.queue(), [b"one", b"two"], 0, durability="memory")
        fs.fail("pwrite", path="*.log", error=errno.ENOSPC, times=None)
        with pytest.raises(DiskFullError):
            store.sync()
        with pytest.raises(DiskFullError):
            store.put(store.queue(), b"three")
        assert store.unsynced_bytes
        fs.heal()
        store.sync()
        assert not store.unsynced_bytes
    assert [payload for _, _, payload in drain(opened(fs))] == [b"one", b"two"]


@pytest.mark.parametrize("verb", ["pwrite", "open", "truncate"])
def test_another_error_leaves_the_store_as_it_was(verb):
    for nth in range(1, 6):
        fs = failing_disk()
        with opened(fs, soft_limit=100, snapshot_segments=99) as store:
            fs.fail(verb, nth, path="*.log", error=errno.EIO)
            count = 0
            for _ in range(12):
                with contextlib.suppress(OSError):
                    store.put(store.queue(), bytes(10))
                    count += 1
            fs.heal()
            assert count >= 11
            assert store.info(store.queue()).stored == count
        with opened(fs) as store:
            assert len(state(store)[""].records) == count

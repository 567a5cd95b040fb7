# Snapshots: the state written down while it is used, what they cover, and what is read of them.

from __future__ import annotations

import errno
import random
import struct

import pytest

from diskq.engine.priority import snapshot as storesnapshot
from diskq.engine.priority.store import PriorityStore
from diskq.errors import DamagedStoreError, DiskFullError, StorageFailedError, UnsupportedFormatError
from diskq.options import PriorityOptions
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

SNAPSHOT = f"{DATA}/tflux.snapshot"


def some_state(rng: random.Random, queues: int, records: int) -> oracle.State:
    found = {"": oracle.Queue(last_id=424)}
    while len(found) <= queues:
        name = "".join(chr(rng.randint(33, 126)) for _ in range(rng.randint(1, 255)))
        ids = sorted(rng.sample(range(records * 3 + 1), records))
        rng.shuffle(ids)
        held = {
            n: (rng.choice((0, 1, -1, 2**63 - 1, -(2**63))), rng.randbytes(rng.randrange(9))) for n in ids
        }
        most, longest = (rng.choice((None, 0, 1, 2**31 - 1)) for _ in range(2))
        keys = rng.choice((None, (0, 3), (-10, 10), (-(2**63), 2**63 - 1), (0, 0)))
        found[name] = oracle.Queue(
            rng.choice((1, 2)), max(ids, default=0) + rng.randrange(3), most, longest, keys, held
        )
    return found


# --- read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("queues", [0, 1, 2, 20])
@pytest.mark.parametrize("records", [0, 1, 40])
@pytest.mark.parametrize("layout", ["aligned", "document"])
def test_any_state_is_read_and_written_again(queues, records, layout):
    before = some_state(random.Random(queues * 100 + records), queues, records)
    metadata = oracle.metadata(layout=layout)
    at = oracle.snapshot(9, 1, before, layout)
    fs = written(disk(), {10: []}, snapshot=at, metadata=metadata)
    with opened(fs) as store:
        assert state(store) == before
        store.put(store.queue(), b"more")
        assert store.snapshot()
        after = state(store)
    assert oracle.read_snapshot(files(fs)["tflux.snapshot"], layout) == (10, after)
    with opened(fs) as store:
        assert state(store) == after


def test_pieces_of_a_large_one_are_read_one_after_the_other(monkeypatch):
    monkeypatch.setattr(storesnapshot, "_PIECE", 100)
    monkeypatch.setattr(storesnapshot, "_AT_ONCE", 50)
    before = some_state(random.Random(1), 5, 30)
    before[""].records[424] = (0, bytes(3000))
    fs = written(disk(), {10: []}, snapshot=oracle.snapshot(9, 1, before))
    with opened(fs) as store:
        assert state(store) == before
        store.put(store.queue(), b"more")
        assert store.snapshot()
        after = state(store)
    assert oracle.read_snapshot(files(fs)["tflux.snapshot"]) == (10, after)


def test_the_log_goes_on_from_it_whatever_it_covers():
    commands = [oracle.add("", n, b"%d" % n) for n in range(20)]
    for lsn in range(20):
        covered: oracle.State = {"": oracle.Queue()}
        for command in commands[: lsn + 1]:
            oracle.apply(covered, command)
        logs = {0: commands[:5], 5: commands[5:12], 12: commands[12:]}
        with opened(written(disk(), logs, snapshot=oracle.snapshot(lsn, 1, covered))) as store:
            assert len(state(store)[""].records) == 20
            assert store.next_lsn == 20
            assert store.statistics().segments == 3 - (lsn >= 4) - (lsn >= 11)


def test_ids_go_on_behind_the_largest():
    told = {"": oracle.Queue(last_id=2, records={9: (1, b"nine")})}
    data = oracle.snapshot(9, 1, told)
    with opened(written(disk(), {10: []}, snapshot=data)) as store:
        assert store.put(store.queue(), b"") == 10


def test_every_flipped_bit_and_every_cut_is_found():
    data = oracle.snapshot(9, 1, some_state(random.Random(3), 2, 2))
    tail = [oracle.add("", 0, b"x")]
    fs = written(disk(), {10: tail}, snapshot=data)
    for position in range(len(data)):
        for change in (1, 0x80):
            rotten = bytearray(data)
            rotten[position] ^= change
            fs.write_durably(SNAPSHOT, bytes(rotten))
            if 4 <= position < 20 and _is_harmless(rotten):
                continue  # its number and its term are not covered by the checksum
            with pytest.raises(DamagedStoreError):
                opened(fs)
    for cut in range(1, len(data)):
        fs.write_durably(SNAPSHOT, data[:cut])
        with pytest.raises(DamagedStoreError) as caught:
            opened(fs)
        assert caught.value.kind == "corrupt_snapshot"


def _is_harmless(data: bytearray) -> bool:
    """True if record 10 and later ones continue the head: then nothing shows that it was another."""
    lsn, term = struct.unpack_from(">qq", data, 4)
    return bool(term >= 1 and lsn >= 9)


def test_a_damaged_one_is_kept_when_a_new_one_takes_its_place():
    fs = written(disk(), {0: [oracle.add("", 1, b"x")]}, snapshot=b"what is this?")
    with opened(fs) as store:
        assert store.warnings == {"snapshot_ignored": 1}
        assert store.snapshot()
        assert kept(fs) == {"tflux.snapshot.bad": b"what is this?"}
        store.put(store.queue(), b"y")
        assert store.snapshot()
    assert len(kept(fs)) == 1
    assert len(stored(fs)[""].records) == 2


# --- taken ----------------------------------------------------------------------------------------


def test_one_is_taken_when_so_many_segments_are_complete():
    fs = disk()
    with opened(fs, soft_limit=50, snapshot_segments=3) as store:
        for number in range(1, 9):
            store.put(store.queue(), bytes(10))
            expected = {1: 1, 2: 2, 3: 3, 4: 1, 5: 2, 6: 3, 7: 1, 8: 2}[number]
            assert len(segments(fs)) == expected
        assert store.statistics().snapshots == 2
    assert len(stored(fs)[""].records) == 8


def test_the_owner_takes_them_where_it_says_so():
    options = PriorityOptions(soft_limit=50, snapshot_segments=2)
    with PriorityStore(ROOT, options=options, fs=disk(), takes_snapshots=False) as store:
        assert not store.steps.wants_snapshot
        store.put_many(store.queue(), [bytes(10)] * 3)
        for _ in range(3):
            store.put(store.queue(), bytes(10))
        assert store.steps.wants_snapshot
        assert store.statistics().snapshots == 0
        snapshot = store.steps.begin_snapshot()
        assert snapshot is not None
        assert not store.steps.wants_snapshot, "one at a time"
        store.steps.drop_snapshot(snapshot)
        assert not store.steps.wants_snapshot, "not before another segment is complete"


def test_there_is_none_of_nothing_and_none_twice():
    with opened(disk()) as store:
        assert not store.snapshot()
        store.put(store.queue(), b"")
        assert store.snapshot()
        assert not store.snapshot()


def test_what_is_in_hand_and_what_is_hidden_is_in_it():
    fs = disk()
    with opened(fs) as store:
        queue = store.queue()
        store.put_many(queue, [b"in hand", b"ready"], [1, 2])
        store.get(queue)
        store.steps.add(queue, *store.steps.checked(queue, [b"hidden"], 3), "synced")
        assert store.snapshot()
        found = oracle.read_snapshot(files(fs)["tflux.snapshot"])[1][""]
        assert [payload for _, _, payload in found.ordered()] == [b"in hand", b"ready", b"hidden"]


def test_the_store_goes_on_while_one_is_written():
    fs = disk()
    with opened(fs, soft_limit=200) as store:
        queue = store.create_queue("q")
        store.put_many(queue, [b"%d" % n for n in range(30)], [n % 3 for n in range(30)])
        in_hand = store.get_many(queue, 5)
        snapshot = store.steps.begin_snapshot()
        assert snapshot is not None
        store.ack_many(queue, in_hand[:3])
        store.nack_many(queue, in_hand[3:])
        store.put(queue, b"later", -1)
        store.create_queue("new")
        store.delete_queue("q")
        snapshot.write()
        lsn, told = oracle.read_snapshot(fs.read(snapshot.path))
        assert (lsn, len(told["q"].records), set(told)) == (30, 30, {"", "q"})
        assert not store.steps.is_durable(snapshot.lsn)
        with pytest.raises(AssertionError, match="durable"):
            store.steps.finish_snapshot(snapshot)
        store.sync()
        store.steps.finish_snapshot(snapshot)
        assert set(state(store)) == {"", "new"}
    assert set(stored(fs)) == {"", "new"}


def test_covered_segments_go_and_the_others_stay():
    fs = disk()
    with opened(fs, soft_limit=50, snapshot_segments=99) as store:
        store.put_many(store.queue(), [bytes(10)] * 2)
        for _ in range(4):
            store.put(store.queue(), bytes(10))
        snapshot = store.steps.begin_snapshot()
        assert snapshot is not None
        for _ in range(3):
            store.put(store.queue(), bytes(10))
        before = list(segments(fs))
        snapshot.write()
        store.sync()
        store.steps.finish_snapshot(snapshot)
        assert list(segments(fs)) == [base for base in before if base > snapshot.lsn]
    assert len(stored(fs)[""].records) == 9


# --- when the disk will not have it -----------------------------------------------------------------


def test_a_full_disk_leaves_the_log_and_one_is_tried_again_later():
    fs = failing_disk()
    with opened(fs, soft_limit=300, snapshot_segments=2) as store:
        store.put_many(store.queue(), [bytes(50)] * 4)
        fs.fail("pwrite", path="*/temp/*", error=errno.ENOSPC, times=None)
        with pytest.raises(DiskFullError, match="snapshot"):
            store.snapshot()
        assert not [path for path in files(fs) if path.startswith("temp")]
        while len(segments(fs)) < 4:
            store.put(store.queue(), bytes(50))
        fs.heal()
        count = len(segments(fs))
        while len(segments(fs)) >= count:
            store.put(store.queue(), bytes(50))
        assert store.statistics().snapshots == 1
    assert store.statistics().stored == len(stored(fs)[""].records)


def test_an_error_while_writing_is_raised_and_leaves_no_file():
    fs = failing_disk()
    with opened(fs) as store:
        store.put(store.queue(), b"x")
        fs.fail("open", path="*/temp/*", error=errno.EMFILE)
        with pytest.raises(OSError, match="open files"):
            store.snapshot()
        assert store.snapshot()


def test_a_name_that_is_not_durable_is_the_end():
    fs = failing_disk()
    store = opened(fs)
    store.put(store.queue(), b"x", 0, durability="synced")
    fs.fail("sync_directory", path=DATA, error=errno.EIO)
    with pytest.raises(StorageFailedError):
        store.snapshot()
    with pytest.raises(StorageFailedError):
        store.put(store.queue(), b"y")
    store.close()
    with opened(fs.inner.kill()) as store:
        assert drain(store) == [(0, 1, b"x")]


def test_a_state_beyond_the_format_is_refused_before_it_is_written(monkeypatch):
    monkeypatch.setattr(storesnapshot, "_LARGEST_STATE", 1000)
    fs = disk()
    with opened(fs, soft_limit=100, snapshot_segments=1) as store:
        store.put_many(store.queue(), [bytes(500)] * 3)
        with pytest.raises(UnsupportedFormatError, match="state of"):
            store.snapshot()
        store.put(store.queue(), b"and it goes on")
        assert store.statistics().snapshots == 0
        queue = store.queue()
        store.ack_many(queue, store.get_many(queue, 3))
        assert store.snapshot()
    assert len(stored(fs)[""].records) == 1


def test_what_is_left_of_others_is_swept():
    fs = written(disk(), {0: []})
    for name in ("temp/left-over", "temporary/ab12cd34.ef5"):
        fs.write_durably(f"{DATA}/{name}", b"what")
    with opened(fs):
        assert not [path for path in files(fs) if path.startswith("temp")]


def test_a_log_that_ends_before_the_snapshot_begins_again_behind_it():
    told = {"": oracle.Queue(last_id=7, records={7: (0, b"x")})}
    fs = written(disk(), {0: [oracle.add("", 0, b"old")] * 3, 3: []}, snapshot=oracle.snapshot(20, 1, told))
    with opened(fs) as store:
        assert set(store.warnings) == {"log_behind_snapshot"}
        assert list(segments(fs)) == [21]
        assert (store.next_lsn, drain(store)) == (21, [(0, 7, b"x")])
    assert fs.size_of(segment(0)) is None

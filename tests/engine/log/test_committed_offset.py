# Committed offsets. Law: what was committed durably is not delivered again, what was not committed is never
# skipped, and a committed offset is believed unless its file rotted.

from __future__ import annotations

import errno
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq.engine.log.committed_offset import ShadowCopy, joint_barrier
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup
from diskq.errors import DiskFullError, StorageFailedError
from diskq.storage.fs import OsFileSystem
from diskq.storage.numbers import NO_NUMBER
from diskq.storage.repairs import RepairKind
from diskq.testing import CrashFS, FaultFS
from tests.engine.offsets import (
    GROUP,
    MARKER,
    ROOT,
    SHADOW,
    committed,
    disk,
    found,
    group,
    move_as_go_does,
    offset,
    open_offset,
    packed,
)


@pytest.fixture
def fs():
    return disk()


# --- the file is go-diskq's -------------------------------------------------------------------


def test_a_new_offset_file_is_empty_and_has_no_offset(fs):
    with open_offset(fs) as new:
        assert (new.committed, new.durable, new.next_offset) == (None, None, None)
        assert fs.read(MARKER) == b""
        new.sync()
    assert fs.read(MARKER) == b""
    assert offset(fs) is None


def test_it_holds_the_last_offset_that_was_processed_and_reading_goes_on_after_it(fs):
    committed(fs, 2)
    assert fs.read(MARKER) == packed(2)
    with open_offset(fs) as again:
        assert (again.committed, again.durable, again.next_offset) == (2, 2, 3)


def test_ten_commits_and_a_close_leave_the_last_of_them(fs):
    with open_offset(fs) as new:
        for each in range(10):
            new.commit(each)
        assert fs.read(MARKER) == b""
    assert fs.read(MARKER) == packed(9)


@pytest.mark.parametrize("value", [0, 1, 255, 2**32, NO_NUMBER - 1])
def test_what_is_committed_is_read_back(fs, value):
    committed(fs, value)
    assert fs.read(MARKER) == packed(value)
    assert offset(fs) == value
    assert open_offset(fs).next_offset == value + 1


def test_on_a_real_disk_too(tmp_path):
    fs = OsFileSystem()
    (tmp_path / "parts").mkdir()
    path = tmp_path / "groups" / GROUP / "000001"
    for value in (7, 8, 9):
        with ConsumerGroup(fs, StreamFiles(fs, str(tmp_path)), GROUP).committed_offset(1) as committed_offset:
            assert committed_offset.repairs == ()
            committed_offset.commit(value)
        assert path.read_bytes() == packed(value)
    assert [each.name for each in (tmp_path / ".diskq" / "groups" / GROUP).iterdir()] == ["000001.mark"]


# --- committing -------------------------------------------------------------------------------


def test_a_commit_goes_forward_only_unless_it_is_a_seek(fs):
    with open_offset(fs) as committed_offset:
        for each in (5, 3, 5):
            committed_offset.commit(each)
        assert committed_offset.committed == 5
        committed_offset.commit(3, seek=True)
        assert committed_offset.committed == 3
    assert offset(fs) == 3


def test_a_seek_may_go_back_to_where_nothing_was_processed(fs):
    committed(fs, 5)
    with open_offset(fs) as committed_offset:
        committed_offset.commit(None, seek=True)
    assert fs.read(MARKER) == b""
    assert found(fs) == found(fs.crash())
    with open_offset(fs) as committed_offset:
        assert (committed_offset.next_offset, committed_offset.repairs) == (None, ())
    committed(fs, 1)
    assert offset(fs) == 1


@pytest.mark.parametrize(
    "offset, error",
    [
        (-1, ValueError),
        (NO_NUMBER, ValueError),
        (2**63, ValueError),
        (None, ValueError),
        (True, TypeError),
        ("1", TypeError),
    ],
)
def test_what_is_no_offset_is_refused(fs, offset, error):
    with open_offset(fs) as committed_offset:
        with pytest.raises(error):
            committed_offset.commit(offset)
        assert committed_offset.committed is None


def test_a_sync_is_due_after_sync_every_commits(fs):
    with open_offset(fs, sync_every=3) as committed_offset:
        for each, on_disk in enumerate([b"", b"", packed(2), packed(2), packed(2), packed(5)]):
            committed_offset.commit(each)
            assert fs.read(MARKER) == on_disk


def test_a_sync_is_due_sync_timeout_seconds_after_the_first_commit(fs):
    with open_offset(fs, sync_timeout=2.0) as committed_offset:
        assert committed_offset.deadline() == math.inf
        committed_offset.commit(0)
        assert committed_offset.deadline() == 2.0
        fs.clock = 1.9
        committed_offset.commit(1)
        assert committed_offset.durable is None
        fs.clock = 2.0
        assert committed_offset.note()
        committed_offset.commit(2)
        assert committed_offset.deadline() == math.inf
    assert offset(fs) == 2


def test_repeating_a_commit_syncs_what_is_due_and_nothing_else(fs):
    with open_offset(fs, sync_every=2) as committed_offset:
        committed_offset.commit(0)
        committed_offset.commit(0)
        assert committed_offset.durable is None
        committed_offset.commit(1)
        assert committed_offset.durable == 1


def test_the_clock_may_be_another_one(fs):
    now = 100.0
    with open_offset(fs, sync_timeout=2.0, clock=lambda: now) as committed_offset:
        committed_offset.commit(0)
        assert committed_offset.deadline() == 102.0


def test_a_closed_one_can_only_be_closed_again(fs):
    committed_offset = open_offset(fs)
    committed_offset.commit(1)
    committed_offset.close()
    committed_offset.close()
    for call in (committed_offset.sync, committed_offset.prepare, lambda: committed_offset.commit(2)):
        with pytest.raises(ValueError, match=f"{MARKER} is closed"):
            call()
    assert fs.kill().read(MARKER) == packed(1)


def test_no_handle_is_kept_open(fs):
    committed(fs, 1, 2, 3)
    assert not fs._handles


# --- for a channel ----------------------------------------------------------------------------


def test_a_sync_is_of_what_was_committed_when_it_was_prepared(fs):
    committed_offset = open_offset(fs)
    assert committed_offset.prepare() is None
    committed_offset.move(4)
    sync = committed_offset.prepare()
    assert sync is not None
    committed_offset.move(7)
    assert sync.barrier.execute(fs)
    committed_offset.complete(sync, True)
    assert (committed_offset.durable, committed_offset.committed) == (4, 7)
    assert fs.read(MARKER) == packed(4)
    assert committed_offset.deadline() < math.inf
    committed_offset.sync()
    assert committed_offset.prepare() is None
    assert fs.read(MARKER) == packed(7)


def test_several_offsets_share_a_barrier(fs):
    committed_offsets = [open_offset(fs, partition) for partition in range(3)]
    for round_number in (1, 2):
        for each in committed_offsets:
            each.move(round_number * 10 + each.partition)
        syncs = [sync for each in committed_offsets if (sync := each.prepare()) is not None]
        assert joint_barrier(syncs).execute(fs)
        for each, sync in zip(committed_offsets, syncs, strict=True):
            each.complete(sync, True)
    after = fs.crash()
    assert [offset(after, partition) for partition in range(3)] == [20, 21, 22]
    assert [found(fs, partition).has_shadow for partition in range(3)] == [True] * 3


def test_a_barrier_syncs_three_times_and_the_first_one_the_names_of_the_group_too():
    fs = FaultFS(disk())
    with open_offset(fs) as committed_offset:
        syncs = []
        for each in range(3):
            fs.calls.clear()
            committed_offset.commit(each)
            committed_offset.sync()
            syncs.append([call.path for call in fs.calls if call.verb.startswith("sync")])
    temporaries = [f"{ROOT}/.diskq/groups/{GROUP}/000000.{number}.tmp" for number in (1, 2, 3)]
    directory = f"{ROOT}/groups/{GROUP}"
    private = [f"{ROOT}/.diskq", f"{ROOT}/.diskq/groups", f"{ROOT}/.diskq/groups/{GROUP}"]
    names = [ROOT, *private, f"{ROOT}/groups"]
    assert syncs == [
        [SHADOW, *names, temporaries[0], directory],
        [SHADOW, temporaries[1], directory],
        [SHADOW, temporaries[2], directory],
    ]


# --- a disk that fails, or is full ------------------------------------------------------------


@pytest.mark.parametrize("verb", ["sync_files", "sync_directory", "rename"])
def test_a_broken_promise_of_the_disk_is_final(verb):
    fs = FaultFS(disk())
    committed_offset = open_offset(fs)
    committed_offset.commit(1)
    fs.fail(verb)
    with pytest.raises(StorageFailedError, match=MARKER) as failed:
        committed_offset.sync()
    assert isinstance(failed.value.__cause__, OSError)
    for call in (committed_offset.sync, lambda: committed_offset.commit(2)):
        with pytest.raises(StorageFailedError):
            call()
    committed_offset.close()
    committed(fs, 3)
    assert offset(fs) == 3


def test_a_shadow_whose_sync_failed_is_written_again_before_it_is_synced():
    fs = FaultFS(disk())
    committed(fs, 1)
    committed_offset = open_offset(fs)
    committed_offset.commit(2)
    fs.fail("sync_files", path=SHADOW)
    with pytest.raises(StorageFailedError):
        committed_offset.sync()
    committed_offset.close()
    stamp = fs.stamp_of(MARKER)
    committed(fs, 3)
    assert stamp is not None
    assert fs.inner.crash().read(SHADOW)[:28] == ShadowCopy(1, stamp).pack()


def test_on_a_full_disk_a_commit_is_pending_until_there_is_space():
    fs = FaultFS(disk())
    committed_offset = open_offset(fs)
    committed_offset.commit(1)
    committed_offset.sync()
    committed_offset.commit(2)
    fs.fail("pwrite", path="*.tmp", error=errno.ENOSPC, times=None)
    with pytest.raises(DiskFullError, match="not durable"):
        committed_offset.sync()
    assert (committed_offset.durable, committed_offset.committed) == (1, 2)
    assert offset(fs) == 2  # it survives the process
    assert committed_offset.deadline() < math.inf
    with pytest.raises(DiskFullError):
        committed_offset.sync()
    fs.heal()
    committed_offset.close()
    assert offset(fs.inner.crash()) == 2
    assert [name for name in fs.list_directory(f"{ROOT}/.diskq/groups/{GROUP}") if "tmp" in name] == []


def test_an_existing_offset_can_be_opened_and_read_on_a_full_disk():
    fs = FaultFS(disk())
    committed(fs, 1)
    fs.capacity(0)
    assert open_offset(fs).next_offset == 2


def test_a_new_one_on_a_full_disk_raises():
    fs = FaultFS(disk())
    group(fs)
    fs.fail("open", path=MARKER, nth=2, error=errno.ENOSPC)
    with pytest.raises(DiskFullError, match=MARKER):
        open_offset(fs)


def test_without_space_for_a_shadow_copy_the_offset_is_believed():
    fs = FaultFS(disk())
    fs.fail("pwrite", path=SHADOW, error=errno.ENOSPC, nth=2, times=None)
    committed(fs, 1, 2)
    assert found(fs)[:4] == (2, fs.stamp_of(MARKER), False, None)


@pytest.mark.parametrize("verb", ["open", "pread", "stamp_of"])
def test_an_error_on_reading_is_no_rot(verb):
    fs = FaultFS(disk())
    committed(fs, 1)
    fs.fail(verb, path=MARKER, error=errno.EACCES)
    with pytest.raises(PermissionError):
        open_offset(fs)


# --- kills ------------------------------------------------------------------------------------


def test_a_commit_survives_the_process_without_a_sync(fs):
    committed(fs, 3)
    committed_offset = open_offset(fs)
    for value in (4, 5, 9):
        committed_offset.commit(value)
        assert found(fs)[::4] == (value, 3)
        assert offset(fs) == value
    with open_offset(fs.copy()) as after:
        assert (after.committed, after.durable, after.deadline() < math.inf) == (9, 3, True)


def test_the_first_commit_of_a_group_survives_the_process(fs):
    committed_offset = open_offset(fs)
    committed_offset.commit(0)
    assert offset(fs) == 0


def test_a_seek_back_survives_the_process_and_a_sync(fs):
    committed(fs, 30)
    committed_offset = open_offset(fs)
    committed_offset.commit(40)
    committed_offset.commit(7, seek=True)
    assert offset(fs) == 7
    committed_offset.sync()
    committed_offset.commit(None, seek=True)
    assert offset(fs) is None
    committed_offset.sync()
    assert (offset(fs), offset(fs.crash())) == (None, None)


@pytest.mark.parametrize("is_executed", [False, True])
def test_a_commit_during_a_sync_survives_the_process_at_each_moment(fs, is_executed):
    committed_offset = open_offset(fs)
    committed_offset.commit(3)
    sync = committed_offset.prepare()
    assert sync is not None
    committed_offset.commit(8)
    if is_executed:
        sync.barrier.execute(fs)
    assert offset(fs) == 8
    committed_offset.commit(9)
    assert offset(fs) == 9
    if is_executed:
        committed_offset.complete(sync, True)
        assert offset(fs) == 9


def test_a_commit_in_memory_waits_for_the_sync(fs):
    committed(fs, 3)
    committed_offset = open_offset(fs)
    committed_offset.move(5, is_written=False)
    assert (offset(fs), committed_offset.is_written) == (3, False)
    committed_offset.move(5)
    assert (offset(fs), committed_offset.is_written) == (5, True)


def test_a_peer_that_moves_it_after_a_kill_is_believed(fs):
    committed(fs, 3)
    open_offset(fs).commit(9)
    fs.clock += 1.0
    move_as_go_does(fs, 5)
    assert offset(fs) == 5
    with open_offset(fs) as committed_offset:
        assert committed_offset.committed == 5


def test_an_older_note_does_not_belong_to_a_newer_offset_file(fs):
    committed(fs, 20)
    committed_offset = open_offset(fs)
    committed_offset.commit(25)
    committed_offset.sync()
    committed_offset.commit(20, seek=True)
    committed_offset.sync()
    assert {offset(fs.crash(random.Random(seed))) for seed in range(50)} == {20}


def test_a_seek_in_memory_that_is_synced_is_not_undone_by_the_note_of_an_earlier_process(fs):
    committed_offset = open_offset(fs)
    committed_offset.commit(10)
    sync = committed_offset.prepare()
    assert sync is not None
    committed_offset.commit(12)
    sync.barrier.execute(fs)  # and the process is killed: the offset file has 10, and the note 12
    committed_offset = open_offset(fs)
    assert committed_offset.committed == 12
    committed_offset.move(10, seek=True, is_written=False)
    assert not committed_offset.is_written
    committed_offset.sync()
    assert offset(fs) == 10
    assert {offset(fs.crash(random.Random(seed))) for seed in range(50)} == {10}


def test_a_commit_that_cannot_be_written_needs_a_sync():
    fs = FaultFS(disk())
    committed(fs, 1)
    committed_offset = open_offset(fs)
    fs.fail("pwrite", path=SHADOW, error=errno.ENOSPC, times=None)
    committed_offset.commit(2)
    assert (committed_offset.durable, offset(fs)) == (2, 2)


# --- rot --------------------------------------------------------------------------------------

VALUE = 0x0123456789ABCDEF


@pytest.fixture
def written(fs):
    """A disk with the committed offset VALUE and its shadow copy."""
    committed(fs, 5, VALUE)
    assert found(fs)[:4] == (VALUE, fs.stamp_of(MARKER), True, None)
    return fs


def flipped(data: bytes, bit: int) -> bytes:
    return (int.from_bytes(data, "little") ^ 1 << bit).to_bytes(len(data), "little")


@pytest.mark.parametrize("bit", range(64))
def test_a_flipped_bit_in_an_offset_file_is_noticed_reported_and_repaired(written, bit):
    written.rot(MARKER, flipped(packed(VALUE), bit))
    mark = found(written)
    assert mark.offset == VALUE
    assert mark.repair is not None
    assert mark.repair.path == MARKER
    assert f"known is {VALUE}" in mark.repair.reason
    with open_offset(written) as committed_offset:
        assert (committed_offset.committed, committed_offset.repairs) == (VALUE, (mark.repair,))
        assert committed_offset.deadline() < math.inf
    assert written.read(MARKER) == packed(VALUE)
    assert found(written).repair is None


@pytest.mark.parametrize("at", range(8))
def test_any_rotten_byte_of_an_offset_file_is_noticed(written, at):
    for byte in range(256):
        rotten = bytearray(packed(VALUE))
        rotten[at] = byte
        written.rot(MARKER, bytes(rotten))
        mark = found(written)
        assert mark.offset == VALUE
        assert (mark.repair is None) == (rotten == packed(VALUE))


@pytest.mark.parametrize("size", range(8))
def test_an_offset_file_that_lost_its_end_is_read_from_its_shadow_copy(written, size):
    written.rot(MARKER, packed(VALUE)[:size])
    mark = found(written)
    assert (mark.offset, mark.repair is None) == (VALUE, False)
    with open_offset(written) as committed_offset:
        assert committed_offset.committed == VALUE
    assert written.read(MARKER) == packed(VALUE)


@pytest.mark.parametrize("bit", range(28 * 8))
def test_a_flipped_bit_in_a_shadow_costs_nothing(written, bit):
    shadow = written.read(SHADOW)
    assert len(shadow) == 28 + 36
    written.rot(SHADOW, flipped(shadow, bit))
    assert found(written)[:4] == (VALUE, written.stamp_of(MARKER), False, None)
    open_offset(written).close()
    assert found(written).has_shadow


@pytest.mark.parametrize("size", range(28))
def test_a_shadow_that_lost_its_end_costs_nothing(written, size):
    written.rot(SHADOW, written.read(SHADOW)[:size])
    assert found(written)[:4] == (VALUE, written.stamp_of(MARKER), False, None)
    open_offset(written).close()
    assert found(written).has_shadow


@given(st.binary(max_size=12), st.binary(max_size=32), st.booleans())
def test_any_content_of_the_two_files_can_be_read(content, shadow, has_rotted):
    fs = disk()
    committed(fs, 5)
    (fs.rot if has_rotted else fs.write_durably)(MARKER, content)
    fs.rot(SHADOW, shadow)
    mark = found(fs)
    if len(content) >= 8:
        assert mark.offset == int.from_bytes(content[:8], "little")
    else:
        assert mark.offset is None
        assert (mark.repair is not None) == bool(content)
    with open_offset(fs) as committed_offset:
        assert committed_offset.committed == mark.offset


def test_without_a_shadow_copy_rot_cannot_be_noticed_but_a_short_file_can(fs):
    move_first(fs, b"\x07\0\0")
    mark = found(fs)
    assert mark.offset is None
    assert mark.repair is not None
    assert mark.repair.kind is RepairKind.TORN
    assert "3 bytes instead of 8; the last offset that is known is none" in str(mark.repair)
    open_offset(fs).close()
    assert fs.read(MARKER) == b""
    assert found(fs).repair is None


def move_first(fs: CrashFS, content: bytes) -> None:
    """Another program made the offset file, and diskq has never opened it."""
    fs.write_durably(MARKER, content)


# --- a peer's ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 4, 6, 7, VALUE + 1, 2**64 - 1])
def test_an_offset_that_go_moved_since_is_believed_forward_and_back(fs, value):
    committed(fs, 5)
    move_as_go_does(fs, value)
    assert found(fs)[::3] == (value, None)
    with open_offset(fs) as committed_offset:
        assert (committed_offset.committed, committed_offset.repairs) == (value, ())
        if value < NO_NUMBER - 1:
            committed_offset.commit(value + 1)
            committed_offset.sync()
            assert offset(fs) == value + 1
        else:
            assert committed_offset.next_offset == NO_NUMBER, (
                "beyond any real offset: a reader that begins there raises an error"
            )


def test_a_peers_offset_gets_a_shadow_copy_when_it_is_opened(fs):
    move_first(fs, packed(7))
    assert not found(fs).has_shadow
    open_offset(fs).close()
    assert fs.read(MARKER) == packed(7)
    assert found(fs).has_shadow
    fs.rot(MARKER, packed(6))
    assert offset(fs) == 7


def test_a_peer_that_starts_the_group_anew_is_believed(fs):
    committed(fs, 1000)
    fs.unlink(MARKER)
    fs.clock += 1.0
    move_first(fs, b"")  # as go-diskq makes it
    assert found(fs)[::3] == (None, None)
    move_as_go_does(fs, 0)
    assert offset(fs) == 0


def test_a_group_whose_offset_file_was_removed_begins_anew(fs):
    committed(fs, 1000)
    fs.unlink(MARKER)
    open_offset(fs).close()
    with open_offset(fs) as committed_offset:
        assert (committed_offset.committed, committed_offset.repairs) == (None, ())
        committed_offset.commit(3)
    assert offset(fs) == 3


@pytest.mark.parametrize("size", range(1, 8))
def test_a_torn_offset_file_of_a_peer_is_read_from_the_shadow_copy(fs, size):
    committed(fs, 1000)
    fs.unlink(MARKER)
    fs.clock += 1.0
    move_first(fs, packed(2000)[:size])
    mark = found(fs)
    assert mark.offset == 1000
    assert mark.repair is not None


def test_of_a_too_long_offset_file_the_first_eight_bytes_count_as_for_go(fs):
    move_first(fs, packed(7) + b"more")
    assert found(fs)[::3] == (7, None)


def test_one_that_was_copied_with_its_shadow_copy_is_believed(fs):
    committed(fs, 5)
    copy = disk()
    copy.write_durably(SHADOW, fs.read(SHADOW))
    for name in ("/a", "/b"):
        copy.write_durably(name, b"")  # so that the next one is another file than there
    copy.write_durably(MARKER, packed(5))
    assert found(copy)[:4] == (5, copy.stamp_of(MARKER), False, None)


# --- while it is being written ----------------------------------------------------------------


class Moving(FaultFS[CrashFS]):
    """A disk on which the group replaces the offset file between any two looks at it."""

    moves = 0

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        if path == MARKER and self.moves:
            self.moves -= 1
            self.inner.clock += 1.0
            committed(self.inner, (offset(self.inner) or 0) + 1)
        return super().open(path, write=write, create=create, exclusive=exclusive)


@pytest.mark.parametrize("moves", range(6))
def test_a_read_during_commits_returns_an_offset_that_was_there(moves):
    fs = Moving(disk())
    committed(fs.inner, 10)
    fs.moves = moves
    mark = found(fs)
    assert mark.offset == 10 + min(moves, 3)
    assert mark.repair is None
    assert (mark.stamp is None) == (moves >= 3)


def test_a_peer_that_moves_it_while_the_shadow_copy_is_written_is_not_taken_for_rot(fs):
    committed_offset = open_offset(fs)
    committed_offset.move(5)
    sync = committed_offset.prepare()
    assert sync is not None
    assert sync.barrier.execute(fs)
    move_as_go_does(fs, 8)
    committed_offset.complete(sync, True)
    assert found(fs)[::3] == (8, None)


# --- crashes between two steps ----------------------------------------------------------------


def test_an_offset_that_is_durable_and_has_no_shadow_copy_yet_is_believed(fs):
    committed(fs, 5)
    committed_offset = open_offset(fs)
    committed_offset.move(6)
    sync = committed_offset.prepare()
    assert sync is not None
    assert sync.barrier.execute(fs)
    for after in (fs.kill(), fs.crash()):
        assert found(after)[::3] == (6, None)
        committed(after, 7)
        assert offset(after) == 7


def test_the_first_commit_is_there_after_a_power_cut_with_all_names_above_it(fs):
    with open_offset(fs) as committed_offset:
        committed_offset.commit(1)
        committed_offset.sync()
        for seed in range(50):
            assert offset(fs.crash(random.Random(seed))) == 1


def test_temporaries_that_a_crash_left_are_removed_with_the_next_commit(fs):
    committed(fs, 1)
    names = [f"{ROOT}/.diskq/groups/{GROUP}/{name}" for name in ("000000.7.tmp", "000001.8.tmp")]
    for name in names:
        fs.write_durably(name, b"x")
    committed(fs, 2)
    assert fs.size_of(names[0]) is None
    assert fs.size_of(names[1]) == 1, "another partition's, which another process may be using"


# --- any sequence of steps --------------------------------------------------------------------

VALUES = st.integers(0, NO_NUMBER - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), VALUES),
        st.tuples(st.just("seek"), VALUES),
        st.tuples(st.just("peer"), VALUES),
        st.tuples(st.just("rot"), st.integers(0, 63)),
        st.tuples(st.just("reopen"), st.just(0)),
        st.tuples(st.just("kill"), st.just(0)),
        st.tuples(st.just("power"), st.integers(0, 2**32)),
    ),
    max_size=12,
)


@given(STEPS)
def test_after_any_steps_an_offset_is_the_one_written_last(steps):
    """One group commits; a peer comes only when diskq has closed the offset."""
    fs = disk()
    truth = 0
    has_shadow = True  # so that rot is noticed
    committed(fs, truth)
    for verb, value in steps:
        match verb:
            case "commit" | "seek":
                with open_offset(fs) as committed_offset:
                    committed_offset.commit(value, seek=verb == "seek")
                truth, has_shadow = value if verb == "seek" else max(truth, value), True
            case "peer":
                move_as_go_does(fs, value)
                truth, has_shadow = value, False
            case "rot" if has_shadow:
                fs.rot(MARKER, flipped(packed(truth), value))
            case "reopen":
                open_offset(fs).close()
                has_shadow = True
            case "kill":
                fs = fs.kill()
            case "power":
                truth = (truth + 1) % NO_NUMBER
                with open_offset(fs) as committed_offset:
                    committed_offset.commit(truth, seek=True)
                fs, has_shadow = fs.crash(random.Random(value)), False
        assert offset(fs) == truth

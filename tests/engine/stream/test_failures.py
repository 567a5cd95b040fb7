# A stream on a disk that fails. Law: an error is true. After one about a message, the message is not in the
# stream; an error about a batch says which messages are; a failed roll neither repeats nor loses messages;
# after a failed sync their fate is unknown, and no call says otherwise until the stream was opened again.

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from diskq.engine.log.recovery import MISSING, UNSYNCED
from diskq.engine.stream.stream import Stream
from diskq.errors import DiskFullError, DiskqError, FullError, StorageFailedError
from diskq.options import Durability
from diskq.storage.log.format import ROWS_SIZE
from diskq.testing import CrashFS, FaultFS
from diskq.testing.fault_fs import VERBS
from tests.engine.streams import (
    OWNER,
    ROOT,
    SETTINGS,
    Triple,
    asides,
    disk,
    failing_disk,
    held,
    index,
    items,
    opened,
    parted,
    stored,
    triple,
    triples,
)
from tests.reference import triplet_oracle as oracle
from tests.sampling import first, sampled

ONE: dict[str, Any] = {"partition_count": 1}
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# By a stream that is opened, written, read and closed.
NEVER_CALLED = {
    *("share_memory", "has_name", "stamp_of", "remove_directory", "place_of", "open_watch"),
    "sync_file_system",
}


def append(stream: Stream, one: Triple, durability: Durability = "written") -> None:
    key, timestamp, value = one
    stream.append(value, key, timestamp, durability=durability)


def open_handles(fs: FaultFS[CrashFS]) -> int:
    return sum((call.verb == "open" and not call.error) - (call.verb == "close") for call in fs.calls)


# --- a write that fails -------------------------------------------------------------------------


@pytest.mark.parametrize("error", [*FULL, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("word", ["written", "synced"])
def test_a_message_whose_write_failed_is_not_in_and_the_stream_goes_on(error, word):
    fs = failing_disk()
    with opened(fs, **ONE) as stream:
        for one in triples(3):
            append(stream, one)
        before = fs.inner.files()
        for _ in range(3):
            fs.fail("pwrite", error=error, path="*.data")
            with pytest.raises(DiskFullError if error in FULL else OSError) as refused:
                append(stream, triple(3), word)
            assert ROOT in str(refused.value)
            assert fs.inner.files() == before
            assert stream.next_offsets == (3,)
        append(stream, triple(3), word)
    assert held(fs.inner)[0] == triples(4)


@pytest.mark.parametrize("room", range(0, 60, 7))
def test_nothing_partial_stays_of_a_message_for_which_there_was_not_enough_room(room):
    fs = failing_disk()
    with opened(fs, **ONE) as stream:
        append(stream, triple(0))
        before = fs.inner.files()
        fs.capacity(room)
        with pytest.raises(DiskFullError, match="/s: the disk is full") as full:
            append(stream, triple(1, length=1000))
        assert isinstance(full.value.__cause__, OSError)
        assert full.value.__cause__.errno == errno.ENOSPC
        assert fs.inner.files() == before
        fs.heal()
        append(stream, triple(1))
    assert held(fs.inner)[0] == triples(2)


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("error", [*FULL, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("taken", [None, 1, 15])
def test_a_message_whose_rows_find_no_room_is_in_and_the_next_one_is_refused(suffix, error, taken):
    """D21: a caller that gets the error sends the message again."""
    fs = failing_disk()
    with opened(fs, **ONE) as stream:
        append(stream, triple(0))
        if taken:
            fs.short_write(bytes_taken=taken, path=f"*.{suffix}")
            fs.fail("pwrite", nth=2, error=error, path=f"*.{suffix}", times=None)
        else:
            fs.fail("pwrite", error=error, path=f"*.{suffix}", times=None)
        append(stream, triple(1))
        assert stream.next_offsets == (2,)
        assert held(fs.inner, may_trail=True)[0] == triples(2)
        assert len(fs.inner.read(index())) == 24
        with pytest.raises(DiskFullError if error in FULL else OSError):
            append(stream, triple(2))
        assert stream.next_offsets == (2,)
        assert held(fs.inner.kill(), may_trail=True)[0] == triples(2)
        with opened(fs.inner.kill()) as after:
            assert after.next_offsets == (2,)
        fs.heal()
        append(stream, triple(2))
        assert held(fs.inner)[0] == triples(3)


def test_a_batch_whose_rows_find_no_room_is_in():
    fs = failing_disk()
    with opened(fs) as stream:
        fs.fail("pwrite", error=errno.ENOSPC, path="*.index", times=None)
        offsets = stream.append_many(items(triples(10)))
        assert sum(map(len, offsets.values())) == 10
        with pytest.raises(DiskFullError) as full:
            stream.append_many(items(triples(10, start=10)))
        assert full.value.accepted == 0
        assert full.value.rest == items(triples(10, start=10))
        fs.heal()
        stream.append_many(full.value.rest)
    assert held(fs.inner) == parted(triples(20), 3)


def test_the_rows_of_other_partitions_are_written_all_the_same():
    fs = failing_disk()
    with opened(fs) as stream:
        fs.fail("pwrite", error=errno.ENOSPC, path="*/000001/*.index", times=None)
        stream.append_many(items(triples(12)))
        for partition in (0, 2):
            its_own = parted(triples(12), 3)[partition]
            assert fs.inner.read(index(partition=partition)).count(b"") - 1 == 24 * len(its_own)
        fs.heal()


@pytest.mark.parametrize("in_batches_of", [1, 7, 400])
@pytest.mark.parametrize("segment_size", [200, 5000, 2**20])
@pytest.mark.parametrize("word", ["written", "synced"])
def test_a_full_disk_takes_no_part_of_a_message_and_goes_on_when_there_is_room(
    in_batches_of, segment_size, word
):
    for room in (1000, 4300, 9100, 27_000):
        fs = failing_disk()
        sent = triples(400)
        with opened(fs, segment_size=segment_size) as stream:
            fs.capacity(room)
            rest: list[Any] = items(sent)
            while rest:
                batch, rest = rest[:in_batches_of], rest[in_batches_of:]
                try:
                    stream.append_many(batch, durability=word)
                except FullError as full:
                    rest = full.rest + rest
                    break
            assert rest, "room for all"
            done = 400 - len(rest)
            assert sum(stream.next_offsets) == done
            kept = held(fs.inner, may_trail=True)
            assert sum(map(len, kept.values())) == done
            killed = fs.inner.kill()
            with opened(killed) as after:
                assert after.next_offsets == stream.next_offsets
            assert held(killed) == kept
            fs.heal()
            stream.append_many(rest)
            assert sum(stream.next_offsets) == 400
        found = held(fs.inner)
        assert {p: sorted(its) for p, its in found.items()} == {
            p: sorted(its) for p, its in parted(sent, 3).items()
        }
        if in_batches_of == 1:
            assert found == parted(sent, 3)
        assert not asides(fs.inner)


def test_what_is_left_of_a_batch_can_be_sent_again_without_loss_or_repetition():
    sent = triples(500)
    for room in range(300, 30_000, 2500):
        fs = failing_disk()
        with opened(fs, segment_size=4000) as stream:
            stream.append_many(items(sent[:6]))
            fs.capacity(room)
            with pytest.raises(DiskFullError) as full:
                stream.append_many(items(sent[6:]))
            assert full.value.accepted + len(full.value.rest) == 494
            fs.heal()
            stream.append_many(full.value.rest)
        assert held(fs.inner) == parted(sent, 3), room


def test_messages_without_a_key_that_are_left_of_a_batch_are_told_too():
    values = [b"%05d" % number for number in range(500)]
    fs = failing_disk()
    with opened(fs) as stream:
        fs.capacity(20_000)
        with pytest.raises(DiskFullError) as full:
            stream.append_many(values)
        fs.heal()
        stream.append_many(full.value.rest)
    assert sorted(m.value for found in stored(fs.inner).values() for m in found) == values


def test_an_error_midway_through_a_batch_tells_how_many_are_in():
    fs = failing_disk()
    with opened(fs, segment_size=100) as stream:
        fs.fail("open", nth=5, error=errno.EMFILE, path="*.data", times=None)
        with pytest.raises(OSError, match="Too many open files") as failed:
            stream.append_many(items(triples(50)))
        assert failed.value.__notes__ == [f"{sum(stream.next_offsets)} messages of the batch were accepted"]
        kept = held(fs.inner)
        fs.heal()
        assert sum(map(len, kept.values())) == sum(stream.next_offsets)
        append(stream, triple(50))


# --- a roll that fails --------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("suffix", ["data", "data.sums", "index", "timeindex"])
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_roll_that_fails_neither_repeats_nor_loses_a_message(error, suffix, is_batch):
    """D21: the peer's Push fails although the message is stored."""
    fs = failing_disk()
    with opened(fs, segment_size=100, **ONE) as stream:
        fs.fail("open", error=error, path=f"*{'2':0>20}.{suffix}", times=None)
        if is_batch:
            assert stream.append_many(items(triples(2))) == {0: range(2)}
        else:
            append(stream, triple(0))
            append(stream, triple(1))  # fills the segment
        for _ in range(3):
            with pytest.raises(DiskFullError if error == errno.ENOSPC else OSError):
                append(stream, triple(2))
        assert stream.next_offsets == (2,)
        assert {p: found[:2] for p, found in held(fs.inner.kill(), may_trail=True).items()} == {0: triples(2)}
        with opened(fs.inner.kill()) as after:
            assert after.next_offsets == (2,)
            assert not after.repairs
        stream.sync()
        handles = open_handles(fs)
        fs.heal()
        append(stream, triple(2))
        append(stream, triple(3))
        assert open_handles(fs) <= handles + 8
    assert held(fs.inner)[0] == triples(4)
    assert open_handles(fs) == 0


def test_a_reader_of_this_thread_is_told_that_a_full_segment_is_complete_while_the_next_one_cannot_be_made():
    fs = failing_disk()
    with opened(fs, segment_size=100, **ONE) as stream:
        fs.fail("open", error=errno.EMFILE, path=f"*{'2':0>20}.data", times=None)
        stream.append_many(items(triples(2)))
        live = stream.steps.live(0)
        assert live is not None
        assert (live.base, live.end, live.next_offset) == (2, 0, 2)
        fs.heal()


def test_rolls_wait_for_no_sync_and_many_of_them_keep_few_handles():
    fs = failing_disk()
    with opened(fs, segment_size=1, **ONE) as stream:
        most = 0
        for start in range(0, 1000, 250):
            stream.append_many(items(triples(250, start=start)))
            most = max(most, open_handles(fs))
        assert most < 400
    assert held(fs.inner)[0] == triples(1000)
    opens = 0
    for call in fs.calls:
        opens += (call.verb == "open") - (call.verb == "close")
        assert opens < 400


# --- messages in memory -------------------------------------------------------------------------


def test_what_is_held_in_memory_and_finds_no_room_waits_for_it():
    fs = failing_disk()
    with opened(fs, **ONE) as stream:
        append(stream, triple(0))
        append(stream, triple(1), "memory")
        fs.capacity(0)
        for call in (stream.flush, stream.sync, lambda: append(stream, triple(9))):
            with pytest.raises(DiskFullError):
                call()
        append(stream, triple(2), "memory")
        assert held(fs.inner)[0] == triples(1)
        fs.heal()
        stream.flush()
        assert held(fs.inner)[0] == triples(3)


def test_a_message_in_memory_is_in_although_the_sync_that_is_due_finds_no_room():
    fs = failing_disk()
    with opened(fs, sync_every=3, **ONE) as stream:
        append(stream, triple(0))
        fs.capacity(0)
        for one in triples(6, start=1):
            append(stream, one, "memory")
        assert stream.next_offsets == (7,)
        fs.heal()
    assert held(fs.inner)[0] == triples(7)


def test_a_close_that_finds_no_room_says_so_and_is_a_close_all_the_same():
    fs = failing_disk()
    stream = opened(fs, **ONE)
    append(stream, triple(0))
    stream.append(bytes(ROWS_SIZE), durability="memory")  # more room than the write-ahead log gives back
    fs.capacity(0)
    with pytest.raises(DiskFullError):
        stream.close()
    stream.close()
    assert open_handles(fs) == 0
    assert fs.inner.size_of(OWNER) is None
    fs.heal()
    with opened(fs) as stream:
        assert stream.next_offsets == (1,)
        assert not stream.repairs


def test_recovery_points_that_find_no_space_are_written_later_without_an_error():
    fs = failing_disk()
    with opened(fs, **ONE) as stream:
        append(stream, triple(0))
        fs.fail("pwrite", error=errno.ENOSPC, path="*.tmp", times=None)
        stream.sync()
        append(stream, triple(1), "synced")
        stream.sync()
        after = fs.inner.crash()
        with opened(after):
            pass
        assert held(after)[0] == triples(2)
    after = fs.inner.crash()
    with opened(after) as stream:
        assert not stream.repairs
    assert held(after)[0] == triples(2)


# --- a sync that fails --------------------------------------------------------------------------

PROMISES = [
    ("sync_files", "*.data"),
    ("sync_files", "*.sums"),
    ("sync_directory", f"{ROOT}/parts/000000"),
    ("sync_directory", f"{ROOT}/.diskq/parts/000000"),
]


@pytest.mark.parametrize("verb, path", PROMISES)
def test_a_broken_promise_is_final_and_every_call_raises_it(verb, path):
    fs = failing_disk()
    stream = opened(fs, segment_size=300, **ONE)
    append(stream, triple(0), "synced")
    fs.fail(verb, path=path)

    def begin_a_segment_and_sync() -> None:
        stream.append_many(items(triples(10, start=1)))
        stream.sync()

    with pytest.raises(StorageFailedError, match="close it and reopen to recover") as failed:
        begin_a_segment_and_sync()
    assert isinstance(failed.value.__cause__, OSError)
    fs.heal()
    for call in (
        lambda: append(stream, triple(11)),
        lambda: append(stream, triple(11), "memory"),
        lambda: stream.append_many([b"more"]),
        stream.sync,
        stream.flush,
        lambda: stream.steps.obstacle(1),
        lambda: stream.log.prepare(full=True),
    ):
        with pytest.raises(StorageFailedError) as again:
            call()
        assert again.value is failed.value
    before = fs.inner.files()
    stream.close()
    assert fs.inner.files() == before
    assert open_handles(fs) == 0
    with opened(fs) as stream:
        assert stream.next_offsets == (11,)
    assert held(fs.inner.crash()) == {0: triples(11)}


def test_after_a_failed_sync_a_reopen_writes_again_what_the_kernel_may_have_dropped():
    fs = failing_disk()
    stream = opened(fs)
    stream.append_many(items(triples(20)))
    fs.fail("sync_files", path="*.data", times=3)
    with pytest.raises(StorageFailedError):
        stream.sync()
    stream.close()
    fs.heal()
    with opened(fs) as stream:
        assert not stream.repairs
    assert held(fs.inner.crash()) == parted(triples(20), 3)


def test_a_failed_sync_while_closing_is_raised_and_the_stream_is_closed():
    fs = failing_disk()
    stream = opened(fs)
    stream.append_many(items(triples(20)))
    fs.fail("sync_files")
    with pytest.raises(StorageFailedError):
        stream.close()
    stream.close()
    with opened(fs):
        pass
    assert held(fs.inner) == parted(triples(20), 3)


# --- an open that fails -------------------------------------------------------------------------


def crashed() -> CrashFS:
    """A stream that was killed: recovery has something to do in each of its partitions."""
    fs = disk()
    stream = opened(fs, segment_size=500)
    stream.append_many(items(triples(60)), durability="synced")
    fs.fail_sync(0)
    stream.append_many(items(triples(20, start=60)))
    stream.append_many(items(triples(10, start=80)), durability="memory")
    stream.steps.router.flush()  # the data is written, rows are not
    return fs.kill()


@pytest.mark.sampled
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("verb", sorted(set(VERBS) - NEVER_CALLED - {"close"}))
@pytest.mark.parametrize("is_new", [False, True])
def test_an_open_that_fails_sets_nothing_aside_and_the_next_one_finds_everything(verb, error, is_new):
    failures: list[Exception] = []
    whole = FaultFS(disk() if is_new else crashed())
    opened(whole, segment_size=500).close()
    count = sum(call.verb == verb for call in whole.calls)
    for nth in sampled(range(1, count + 1), 8):
        fs = FaultFS(disk() if is_new else crashed())
        fault = fs.fail(verb, nth=nth, error=error)
        try:
            opened(fs, segment_size=500).close()
        except (OSError, DiskqError) as failure:
            failures.append(failure)
        assert open_handles(fs) == 0, f"{verb} {nth}"
        assert fault.hits
        fs.heal()
        for after in (fs.inner.kill(), fs.inner.crash()):
            with opened(after) as stream:
                lost = [repair.reason for repair in stream.repairs if repair.records]
            was_killed = after.identity().boot_id == "boot-1"
            assert set(lost) <= (set() if was_killed else {MISSING, UNSYNCED})
            expected = parted(triples(0 if is_new else 90 if was_killed else 60), 3)
            found = held(after, may_skip=True)
            assert {p: found[p][: len(its)] for p, its in expected.items()} == expected, f"{verb} {nth}"
    told = {failure.errno for failure in failures if isinstance(failure, OSError)}
    assert told <= ({error} if error != errno.ENOSPC else set())
    # Some are tried again later; what is not called at all cannot fail.
    assert failures or error != errno.EIO or not count or verb in ("unlink", "truncate", "link")


def test_an_open_for_which_there_is_no_room_says_so():
    for room in range(0, 4000, 100):
        fs = failing_disk()
        fs.capacity(room)
        try:
            opened(fs, encoding="varuint").close()
        except FullError:
            assert open_handles(fs) == 0
            fs.heal()
            opened(fs, encoding="varuint").close()
        assert b"varuint" in fs.inner.read(SETTINGS)
    assert fs.inner.size_of(OWNER) is None


# --- a call of any kind, in three partitions: each one in one is in tests/contract/test_each_call.py --


class PlaceSource:
    """A stream in use on a disk that fails, and what it has promised."""

    def __init__(self, fs: FaultFS[CrashFS]) -> None:
        self.fs = fs
        self.accepted: list[Triple] = []
        self.written: list[Triple] = []
        """Of those, what is there after a kill."""
        self.doubtful: list[Triple] = []
        """It is unknown whether they are in the stream: the storage failed."""
        self.synced = 0
        self.errors = 0
        self.number = 0

    def run(self) -> None:
        """Some of everything, going on after errors as a program would."""
        stream = self.attempt(lambda: opened(self.fs, segment_size=600, sync_every=11))
        if stream is None:
            return
        for act in "asAmSacMaAmScaA":
            if act == "c":
                self.attempt(self.sync, stream)
            else:
                batch = triples(12 if act in "ASM" else 1, length=self.number * 13 % 300, start=self.number)
                self.number += len(batch)
                word: Durability = "synced" if act in "sS" else "memory" if act in "mM" else "written"
                self.attempt(self.append, stream, batch, word)
        self.attempt(self.close, stream)

    def attempt(self, act: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return act(*arguments)
        except (OSError, DiskqError):
            self.errors += 1
            return None

    def append(self, stream: Stream, batch: list[Triple], word: Durability) -> None:
        before = stream.next_offsets
        try:
            if len(batch) == 1:
                append(stream, batch[0], word)
            else:
                stream.append_many(items(batch), durability=word)
        except StorageFailedError:
            self.doubtful += batch
            raise
        except FullError as full:
            left = [(key, timestamp, value) for key, value, timestamp in full.rest]
            self.note([one for one in batch if one not in left] if len(batch) > 1 else [], word)
            raise
        except OSError:
            # Of each partition's messages a beginning is in the stream.
            for partition, its_own in parted(batch, 3).items():
                taken = stream.next_offsets[partition] - before[partition]
                self.note(its_own[:taken], word)
                assert len(batch) > 1 or not taken
            raise
        self.note(batch, word)
        if word == "synced":
            self.synced = len(self.accepted)

    def note(self, accepted: list[Triple], word: Durability) -> None:
        self.accepted += accepted
        self.written += accepted if word != "memory" else []

    def sync(self, stream: Stream) -> None:
        stream.sync()
        self.synced = len(self.accepted)

    def close(self, stream: Stream) -> None:
        stream.close()
        if not self.doubtful:
            self.synced = len(self.accepted)

    def check(self) -> None:
        self.fs.heal()
        for after in (self.fs.inner.kill(), self.fs.inner.crash()):
            is_killed = after.identity().boot_id == "boot-1"
            with opened(after) as stream:
                assert not is_killed or not stream.repairs
                lost = [repair.reason for repair in stream.repairs if repair.records]
                assert set(lost) <= {MISSING, UNSYNCED}
            expected = parted(self.accepted[: self.synced], 3)
            doubtful = parted(self.accepted[self.synced :] + self.doubtful, 3)
            for partition, found in held(after, may_skip=True).items():
                sure = expected[partition]
                assert found[: len(sure)] == sure, "lost"
                if is_killed:
                    assert is_within(parted(self.written, 3)[partition], found), "lost"
                rest = found[len(sure) :]
                assert is_within(rest, doubtful[partition]), "altered, invented or out of order"


def is_within(some: list[Triple], more: list[Triple]) -> bool:
    """True if all of `some` are in `more`, in the same order."""
    rest = iter(more)
    return all(one in rest for one in some)


@pytest.mark.parametrize("taken", first(1, [3, 1, 11]))
def test_short_writes_tear_nothing(taken):
    for nth in range(1, 400, 2 * taken):
        source = PlaceSource(failing_disk())
        fault = source.fs.short_write(nth=nth, bytes_taken=taken)
        source.run()
        if not fault.hits:
            break
        assert source.errors == 0
        source.check()


def test_a_disk_that_is_full_for_good_can_be_closed_and_opened_when_there_is_room():
    fs = failing_disk()
    stream = opened(fs, segment_size=300)
    fs.capacity(5000)
    sent: list[Any] = []
    with suppress(FullError):
        for one in triples(1000):
            append(stream, one)
            sent.append(one)
    stream.close()
    assert held(fs.inner, may_trail=True) == parted(sent, 3)
    with suppress(FullError):
        opened(fs).close()
    fs.heal()
    with opened(fs) as stream:
        append(stream, triple(1000))
        assert not stream.repairs
    assert held(fs.inner) == parted([*sent, triple(1000)], 3)


def test_the_oracle_reads_what_is_written_while_it_is_open(tmp_path):
    with Stream(tmp_path / "s") as stream:
        stream.append_many(items(triples(50)))
        found = oracle.read_stream(tmp_path / "s")
    assert {p: len(messages) for p, messages in found.items()} == {
        p: len(its) for p, its in parted(triples(50), 3).items()
    }

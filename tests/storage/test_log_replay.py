# What becomes of records that a log holds, by what is in their place: one table for both logs. Law: bytes of
# another program stay; no record is lost; and a replay that is killed at any step is completed by the next.

from __future__ import annotations

import errno
from typing import NamedTuple

import pytest

from diskq._native.core.append_buffer import Mode
from diskq._native.core.gate import Admission, Gate
from diskq._native.queue.append_buffer import NsqBuffer
from diskq._native.queue.codec import NsqFraming, count
from diskq.storage.append_file import AppendFile
from diskq.storage.barrier import PendingSyncs
from diskq.storage.log.entries import DATA, Part, Staging
from diskq.storage.log.replay import FromLog, Redone, RedoSource, replay_redo, replay_wal
from diskq.storage.redo_log import LEAST_SIZE, RedoLog
from diskq.storage.repairs import RepairKind
from diskq.storage.write_ahead_log import RESERVE, WriteAheadLog
from diskq.testing import CrashFS, FaultFS, PowerCut
from tests.reference.nsq_oracle import frame

DATA_PATH, LOG = "/d/data-0", "/d/log"
EARLIER = frame(b"earlier")
RECORDS = frame(b"one") + frame(b"two")
ZEROS = bytes(len(RECORDS))


class Outcome(NamedTuple):
    """What a replay has returned, and left."""

    displaced: bytes
    """The records that are to be appended again."""
    reported: list[tuple[str, int]]
    """The repairs: what kind, and how many bytes are not in the file."""
    content: bytes | None
    """The file."""
    aside: bytes | None
    """The records that were kept aside."""


class AcceptedLog:
    """A write-ahead log in which the records wait."""

    which = "accepted"

    @staticmethod
    def leave(fs: CrashFS) -> None:
        gate = Gate()
        gate.left = 100
        append = AppendFile(fs, gate, lambda tell: NsqBuffer(fs, NsqFraming(0, 1000), gate, tell))
        append.begin(DATA_PATH, "/d/sums-0", PendingSyncs())
        append.make_room_for_rows()
        append.buffer.limit = 1000
        append.buffer.appender(Mode.WRITTEN, Admission.FORCED).append(b"earlier")
        WriteAheadLog(fs, LOG, append.buffer, RESERVE)
        for body in (b"one", b"two"):
            append.buffer.appender(Mode.STAGED, Admission.FORCED).append(body)

    @staticmethod
    def replay(fs: CrashFS | FaultFS[CrashFS], staging: Staging, in_place: bool) -> Outcome:
        done = replay_wal(fs, staging, was_restarted=False, was_staging=True, in_place=in_place)
        return outcome(fs, b"" if done.displaced is None else done.displaced.part.content, done.repairs)


class SyncedLog:
    """A redo log that was synced with them."""

    which = "synced"

    @staticmethod
    def leave(fs: CrashFS) -> None:
        log = RedoLog(fs, LOG, 7, LEAST_SIZE)
        assert log.add([Part(0, DATA, 0, len(EARLIER), RECORDS)])
        fs.sync_files((log.handle,))
        log.close()

    are_zeros_skipped = False

    @classmethod
    def replay(cls, fs: CrashFS | FaultFS[CrashFS], staging: Staging, in_place: bool) -> Outcome:
        done = cls.redone(fs, staging, in_place)
        return outcome(fs, b"".join(its.part.content for its in done.displaced), done.repairs)

    @classmethod
    def redone(cls, fs: CrashFS | FaultFS[CrashFS], staging: Staging, in_place: bool = True) -> Redone:
        source = RedoSource(
            {0: staging},
            in_place=in_place,
            is_covered=lambda *_: False,
            counted=lambda records: count(records).records,
            are_zeros_skipped=cls.are_zeros_skipped,
        )
        return replay_redo(fs, LOG, source, named=7, was_displaced=False)


class SyncedStreamsLog(SyncedLog):
    """A redo log of a stream, whose readers skip zeros: what is left of displaced records becomes zeros."""

    are_zeros_skipped = True


LOGS = [AcceptedLog, SyncedLog]
Log = type[AcceptedLog] | type[SyncedLog]


def outcome(fs, displaced, repairs) -> Outcome:
    files = (fs.inner if isinstance(fs, FaultFS) else fs).files()
    reported = [(its.kind, its.dropped) for its in repairs]
    aside = [files[its.saved_as] for its in repairs]
    return Outcome(displaced, reported, files.get(DATA_PATH), aside[0] if aside else None)


def disk(log: Log, content: bytes | None) -> CrashFS:
    """A disk with the log, of a process that was killed, and the data file as it is said to be."""
    fs = CrashFS()
    fs.make_directory_durably("/d")
    log.leave(fs)
    if content is not None:
        fs.write_durably(DATA_PATH, content)
    elif fs.size_of(DATA_PATH) is not None:
        fs.unlink(DATA_PATH)
    return fs.kill()


def run(log: Log, fs: CrashFS | FaultFS[CrashFS], *, in_place: bool = True, is_last: bool = True) -> Outcome:
    staging = Staging(LOG, "/d/data-{}".format, "/d/sums-{}".format, lambda _: is_last)
    return log.replay(fs, staging, in_place)


THERE = EARLIER + RECORDS
PLACES = {
    "they are there": THERE,
    "there, and more": THERE + b"more",
    "the end": EARLIER,
    "their beginning": EARLIER + RECORDS[:5],
    "other bytes": EARLIER + b"x" * 50,
    "a few other bytes": EARLIER + b"x",
    "gone": None,
    "the file ends before them": EARLIER[:4],
}
DONE = {
    "they are there": "there",
    "there, and more": "there",
    "the end": "written",
    "their beginning": "written",
    "other bytes": "displaced",
    "a few other bytes": "displaced",
    "gone": "aside",
    "the file ends before them": "aside",
}
# What a replay reports of a redo log: messages, and bytes, that were in it alone.
FOUND = {
    "they are there": [FromLog(DATA_PATH, 0, 0)],
    "there, and more": [FromLog(DATA_PATH, 0, 0)],
    "the end": [FromLog(DATA_PATH, 2, len(RECORDS))],
    "their beginning": [FromLog(DATA_PATH, 2, len(RECORDS) - 5)],
    "their first": [FromLog(DATA_PATH, 1, len(frame(b"two")))],
    "zeros": [FromLog(DATA_PATH, 2, len(RECORDS) - 3)],  # a size begins with three of them
    "other bytes": [FromLog(DATA_PATH, 2, len(RECORDS), is_displaced=True)],
    "a few other bytes": [FromLog(DATA_PATH, 2, len(RECORDS), is_displaced=True)],
    "gone": [],
    "the file ends before them": [],
}
# If another program may have written since.
DONE_BESIDE_A_PEER = {place: "there" if done == "there" else "displaced" for place, done in DONE.items()}


def expected(what: str, content: bytes | None) -> Outcome:
    if what == "displaced":
        return Outcome(RECORDS, [], content, None)
    if what == "aside":
        return Outcome(b"", [(RepairKind.DISPLACED, len(RECORDS))], content, RECORDS)
    return Outcome(b"", [], THERE if what == "written" else content, None)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.which)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_in_the_place_of_records_decides_what_becomes_of_them(log: Log, place: str) -> None:
    content = PLACES[place]
    assert run(log, disk(log, content)) == expected(DONE[place], content)


@pytest.mark.parametrize("place", FOUND)
def test_the_replay_of_a_redo_log_reports_what_was_in_the_log_alone(place: str) -> None:
    content = {**PLACES, "their first": EARLIER + frame(b"one"), "zeros": EARLIER + ZEROS}[place]
    staging = Staging(LOG, "/d/data-{}".format, "/d/sums-{}".format, lambda _: True)
    assert SyncedLog.redone(disk(SyncedLog, content), staging).found == FOUND[place]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.which)
@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_written_in_place_if_another_program_may_have_written(log: Log, place: str) -> None:
    content = PLACES[place]
    assert run(log, disk(log, content), in_place=False) == expected(DONE_BESIDE_A_PEER[place], content)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.which)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("in_place", [True, False])
def test_a_replay_may_be_killed_at_every_step_and_a_second_one_changes_nothing(
    log: Log, place: str, in_place: bool
) -> None:
    whole = run(log, disk(log, PLACES[place]), in_place=in_place)
    for cut_at in range(1, 100):
        fs = disk(log, PLACES[place])
        fs.cut_at = cut_at
        try:
            run(log, fs, in_place=in_place)
        except PowerCut:
            pass
        else:
            return
        fs = fs.kill()
        again = run(log, fs, in_place=in_place)
        assert again == whole == run(log, fs, in_place=in_place)


# --- what the records were promised ---------------------------------------------------------------


def test_zeros_are_a_free_place_for_synced_records_alone() -> None:
    """A power cut leaves zeros; after a kill they are another program's: empty messages, for example."""
    content = EARLIER + ZEROS
    assert run(SyncedLog, disk(SyncedLog, content)) == expected("written", content)
    assert run(AcceptedLog, disk(AcceptedLog, content)) == expected("displaced", content)


def test_what_is_left_of_a_streams_displaced_records_becomes_zeros() -> None:
    start = EARLIER + RECORDS[:5]
    found = run(SyncedStreamsLog, disk(SyncedStreamsLog, start), in_place=False)
    assert found == expected("displaced", EARLIER + bytes(5))


@pytest.mark.parametrize("place", ["gone", "the file ends before them"])
def test_nothing_is_made_zeros_where_nothing_is_left(place: str) -> None:
    content = PLACES[place]
    assert run(SyncedStreamsLog, disk(SyncedStreamsLog, content)) == expected("aside", content)
    beside_a_peer = run(SyncedStreamsLog, disk(SyncedStreamsLog, content), in_place=False)
    assert beside_a_peer == expected("displaced", content)


def test_a_later_file_is_another_programs_if_the_records_were_not_synced() -> None:
    assert run(SyncedLog, disk(SyncedLog, EARLIER), is_last=False) == expected("written", EARLIER)
    assert run(AcceptedLog, disk(AcceptedLog, EARLIER), is_last=False) == expected("displaced", EARLIER)


@pytest.mark.parametrize("place", ["they are there", "the end", "their beginning"])
def test_synced_records_are_durable_in_their_place_after_the_replay(place: str) -> None:
    fs = disk(SyncedLog, EARLIER)
    handle = fs.open(DATA_PATH, write=True)
    fs.pwrite(handle, PLACES[place] or b"", 0)  # it may be in the page cache alone
    assert run(SyncedLog, fs).content == THERE
    assert fs.crash().files()[DATA_PATH] == THERE


def test_accepted_records_are_written_into_the_reserve_of_a_full_disk() -> None:
    fs = FaultFS(disk(AcceptedLog, EARLIER))
    fs.fail("pwrite", error=errno.ENOSPC, path=DATA_PATH)
    before = fs.size_of(LOG) or 0
    assert run(AcceptedLog, fs) == expected("written", EARLIER)
    assert fs.size_of(LOG) == before - RESERVE

# Dead letters: listed in order and once each, removed from the middle, durable before anything else happens.

from __future__ import annotations

import errno
import json

import pytest

import diskq
from diskq.engine.spool.dead_letters import DeadLetter, DeadLetters
from diskq.testing import CrashFS, FaultFS
from diskq.tools.stores import Store
from diskq.tools.verify.verification import verify
from tests.channels.spools import PATH, spool_disk


def letter(number: int, **changes: object) -> DeadLetter:
    values: dict[str, object] = {
        "id": f"epoch:0:{number * 10}",
        "reason": "HTTP 400",
        "timestamp_ns": 1_000 + number,
        "attempts": 3,
        "body": b"message %d\nof two lines" % number,
    }
    return DeadLetter(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def disk() -> CrashFS:
    fs = spool_disk()
    fs.make_directory_durably(PATH)
    return fs


def opened(fs: CrashFS | FaultFS[CrashFS]) -> DeadLetters:
    return DeadLetters(PATH, fs=fs)


def spooled(fs: CrashFS) -> list[bytes]:
    with diskq.Queue(PATH, "spool", fs=fs.copy()) as queue:
        return queue.get_many(100)


@pytest.mark.parametrize("reason", ["HTTP 400", "", "two\nlines", 'quo"tes', "Zürich \U0001f600", "x" * 4000])
def test_a_dead_letter_is_read_as_it_was_written(disk, reason):
    written = letter(1, reason=reason)
    with opened(disk) as letters:
        letters._add([written])
    with opened(disk) as letters:
        assert letters.list() == [written]
        assert len(letters) == 1


def test_a_reason_is_cut_before_it_is_longer_than_a_message():
    assert len(DeadLetter._unpack(letter(1, reason="x" * 100_000)._pack(), "").reason) == 4000


def test_dead_letters_are_durable_when_they_were_added(disk):
    with opened(disk) as letters:
        letters._add([letter(1), letter(2)])
        after = disk.crash()
    with opened(after) as letters:
        assert letters.list() == [letter(1), letter(2)]


def test_a_dead_letter_that_was_written_twice_is_listed_once(disk):
    with opened(disk) as letters:
        letters._add([letter(1), letter(3)])
        letters._add([letter(1, timestamp_ns=5_000, attempts=4), letter(2)])
        assert letters.list() == [letter(1), letter(2), letter(3)]
        assert letters.purge([letter(3).id]) == 1
        assert letters.list() == [letter(1), letter(2)]
        assert letters.purge([letter(1).id]) == 1
        assert letters.list() == [letter(2)]


def test_dead_letters_are_removed_from_anywhere_and_the_others_stay_in_order(disk):
    with opened(disk) as letters:
        letters._add(map(letter, range(7)))
        assert letters.purge([letter(3).id, letter(0).id]) == 2
        assert letters.list() == list(map(letter, (1, 2, 4, 5, 6)))
        assert letters.purge([letter(6).id]) == 1
        assert letters.list() == list(map(letter, (1, 2, 4, 5)))
        after = disk.crash()
    with opened(after) as letters:
        assert letters.list() == list(map(letter, (1, 2, 4, 5)))
        assert letters.purge() == 4
        assert letters.list() == []


def test_more_dead_letters_than_one_read_returns(disk):
    with opened(disk) as letters:
        letters._add(map(letter, range(2_500)))
        assert [found.timestamp_ns for found in letters.list()] == list(range(1_000, 3_500))


def test_a_message_that_is_sent_again_is_at_the_tail_of_the_spool(disk):
    with diskq.Queue(PATH, "spool", fs=disk) as queue:
        queue.put(b"there already")
    with opened(disk) as letters:
        letters._add(map(letter, range(3)))
        assert letters.replay([letter(1).id]) == 1
        assert letters.list() == [letter(0), letter(2)]
        assert spooled(disk.crash()) == [b"there already", letter(1).body]
        assert letters.replay() == 2
        assert letters.list() == []
    assert spooled(disk) == [b"there already", letter(1).body, letter(0).body, letter(2).body]


def test_an_id_that_is_not_there_is_an_error_and_nothing_happens(disk):
    with opened(disk) as letters:
        letters._add([letter(1)])
        with pytest.raises(KeyError, match="no such dead letter: unknown"):
            letters.purge([letter(1).id, "unknown"])
        with pytest.raises(KeyError, match="unknown"):
            letters.replay("unknown")
        assert letters.list() == [letter(1)]
    assert spooled(disk) == []


def test_an_empty_list_of_ids_selects_none(disk):
    with opened(disk) as letters:
        letters._add([letter(1)])
        assert letters.purge([]) == letters.replay([]) == 0
        assert letters.list() == [letter(1)]


def test_what_no_spool_wrote_can_be_listed_and_removed(disk):
    later = json.dumps({"version": 2, "id": "x"}).encode() + b"\nbody"
    with diskq.Queue(PATH, "dead", fs=disk) as queue:
        queue.put_many([b"no letter", b'{"version": 1}\nbody', later])
    with opened(disk) as letters:
        letters._add([letter(1)])
        found = letters.list()
        assert [(one.body, one.attempts) for one in found[:3]] == [
            (b"no letter", 0),
            (b'{"version": 1}\nbody', 0),
            (later, 0),
        ]
        assert found[0].reason == "not written by a spool"
        assert "version 2" in found[2].reason
        assert letters.purge([one.id for one in found[:3]]) == 3
        assert letters.list() == [letter(1)]


def test_another_process_that_has_the_spool_is_named(disk):
    with opened(disk), pytest.raises(diskq.LockedError, match="in use by process"):
        opened(disk)


def test_a_spool_in_use_takes_nothing_back(disk):
    with opened(disk) as letters, diskq.Queue(PATH, "spool", fs=disk):
        letters._add([letter(1)])
        with pytest.raises(diskq.LockedError, match="in use by process"):
            letters.replay()
        assert letters.list() == [letter(1)]


def test_on_a_full_disk_dead_letters_stay_where_they_are(disk):
    fs = FaultFS(disk)
    with opened(fs) as letters:
        letters._add(map(letter, range(3)))
        fs.fail("pwrite", error=errno.ENOSPC, path="*/dead.diskqueue.*")
        with pytest.raises(diskq.DiskFullError):
            letters.purge([letter(1).id])
        assert letters.list() == list(map(letter, range(3)))
        assert letters.purge([letter(1).id]) == 1
        assert letters.list() == [letter(0), letter(2)]


def test_rot_among_the_dead_letters_is_reported_once(disk):
    with opened(disk) as letters:
        letters._add(map(letter, range(3)))
        assert letters.repairs == ()
    path = f"{PATH}/dead.diskqueue.000000.dat"
    handle = disk.open(path, write=True)
    disk.pwrite(handle, b"?", 100)
    disk.close(handle)
    with opened(disk) as letters:
        assert letters.list() == letters.list() == []
        (repair,) = letters.repairs
        assert (repair.path, repair.kept, repair.records) == (path, 0, 3)
        letters._remove(["none that is there"])
        assert [each.path for each in letters.repairs] == [path]


@pytest.mark.parametrize(
    "envelope",
    [
        b"[" * 100_000,
        b'{"version": 1, "id": "a", "reason": "", "time": Infinity, "attempts": 1}\nbody',
        b'{"version": 1, "id": "a", "reason": "", "time": 1}\nbody',
    ],
    ids=["nested-deeply", "time-infinite", "without-attempts"],
)
def test_what_a_spool_did_not_write_is_a_dead_letter_of_its_place_and_its_body(envelope: bytes) -> None:
    assert DeadLetter._unpack(envelope, "place") == DeadLetter(
        "place", "not written by a spool", 0, 0, envelope
    )


@pytest.mark.parametrize("size", [4, 5000])
def test_zeros_after_the_last_dead_letter_of_a_killed_spool_are_not_dead_letters(
    disk: CrashFS, size: int
) -> None:
    opened(disk)._add([letter(1), letter(2)])
    fs = disk.kill()
    path = f"{PATH}/dead.diskqueue.000000.dat"
    fs.write_durably(path, fs.files()[path] + bytes(size))
    found = verify(Store("queue", PATH, "dead"), fs=fs)
    assert (found.messages, found.verdict) == (2, "torn")
    with opened(fs) as letters:
        assert letters.list() == [letter(1), letter(2)]
        assert [(repair.path, repair.dropped) for repair in letters.repairs] == [(path, size)]

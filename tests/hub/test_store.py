# A hub's journals on disks that fail, and with many at once. Law: what was answered is on stable storage.

from __future__ import annotations

import errno
import random
import threading
from contextlib import closing
from typing import Any

import pytest

from diskq._native.hub import wire as hubwire
from diskq.engine.journal.journal import Journal
from diskq.errors import HubError
from diskq.hub.store import HubStore, Range
from diskq.messages import JournalMessage
from diskq.options import HubOptions, JournalOptions
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS, FaultFS
from tests.held_disks import HeldSyncs
from tests.hub.rig import (
    ROOT,
    SOON,
    anybody,
    get,
    message,
    messages,
    put,
    put_request,
    records,
    store,
)

DATA = f"{ROOT}/web1.log/jnl/0000000000000000.jnl"


@pytest.fixture
def disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably(ROOT)
    return fs


# --- put ----------------------------------------------------------------------------------------


def test_what_is_put_is_there_as_it_was(disk):
    hub = store(disk)
    assert put(hub, messages(0, 10)) == Range(0, 10)
    assert put(hub, messages(10, 12)) == Range(0, 12)
    assert disk.read(DATA) == records(messages(0, 12))
    assert get(hub, 3) == messages(3, 12)


def test_a_journal_of_an_older_version_is_read_and_moved(disk):
    """Its checksums are where sej would take our directory for a journal."""
    with closing(store(disk)) as hub:
        put(hub, messages(0, 3))
    private = f"{ROOT}/web1.log/.diskq"
    disk.rename(f"{private}/journal-data", f"{private}/jnl")
    hub = store(disk)
    assert get(hub) == messages(0, 3)
    assert put(hub, messages(3, 5)) == Range(0, 5)
    assert disk.size_of(f"{private}/jnl") is None


def test_each_answer_is_synced(disk):
    hub = store(disk)
    for first in range(0, 40, 4):
        put(hub, messages(first, first + 4))
        after = disk.crash(random.Random(first))
        assert get(store(after)) == messages(0, first + 4)


def test_what_comes_again_is_passed_over(disk):
    hub = store(disk)
    put(hub, messages(0, 3))
    assert put(hub, messages(0, 5)) == Range(0, 5)
    assert put(hub, messages(1, 2)) == Range(0, 5)
    assert disk.read(DATA) == records(messages(0, 5))
    assert hub.statistics().duplicates == 4


def test_a_gap_raises_with_the_expected_offset_and_messages_before_it_are_kept(disk):
    hub = store(disk)
    put(hub, messages(0, 3))
    with pytest.raises(HubError, match="message 9 does not follow: 3 is expected") as gap:
        put(hub, messages(9, 11))
    assert (gap.value.code, gap.value.expected, gap.value.is_temporary) == ("FAILED_PRECONDITION", 3, False)
    request = put_request(messages(3, 5)) + put_request(messages(7, 8))
    with pytest.raises(HubError, match="message 7 does not follow: 5 is expected"):
        hub.put(request, allows=anybody, timeout=SOON)
    assert get(store(disk.crash())) == messages(0, 5)
    assert hub.statistics().gaps == 2


def test_no_messages_make_no_journal_and_tell_where_one_is(disk):
    hub = store(disk)
    assert put(hub, []) == Range(0, 0)
    assert disk.files() == {}
    put(hub, messages(0, 3))
    assert put(hub, []) == Range(0, 3)


def test_a_journal_may_begin_later_once(disk):
    hub = store(disk)
    request = put_request(messages(70, 72))
    assert hub.put(request, allows=anybody, timeout=SOON, first=70) == Range(70, 72)
    assert hub.put(put_request(messages(72, 73)), allows=anybody, timeout=SOON, first=5) == Range(70, 73)
    assert get(store(disk.crash()), 70) == messages(70, 73)


def test_puts_for_one_journal_come_one_after_the_other(disk):
    hub = store(disk)
    failures = []

    def put_all(rng: random.Random) -> None:
        while True:
            there = put(hub, [])
            if there.next_offset >= 200:
                return
            first = max(0, there.next_offset - rng.randrange(3))
            try:
                put(hub, messages(first, first + rng.randrange(1, 9)))
            except Exception as failure:
                failures.append(failure)
                return

    threads = [threading.Thread(target=put_all, args=(random.Random(seed),)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    there = put(hub, [])
    assert failures == []
    assert disk.read(DATA) == records(messages(0, there.next_offset))


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, why",
    [
        ({"journal": JournalOptions(max_message_size=19)}, "a value of 20 bytes: 19 are allowed"),
        ({"max_batch_messages": 4}, "5 messages in one request: 4 are allowed"),
    ],
)
def test_what_is_too_large_is_refused_whole(disk, options, why):
    hub = store(disk, **options)
    with pytest.raises(HubError, match=why) as refusal:
        put(hub, messages(0, 5))
    assert refusal.value.code == "INVALID_ARGUMENT"
    assert DATA not in disk.files() or disk.read(DATA) == b""


def test_a_client_has_its_quota_which_room_that_is_made_gives_back(disk):
    size = len(records(messages(0, 10)))
    hub = store(disk, quota=2 * size, journal=JournalOptions(segment_size=size))
    put(hub, messages(0, 20))
    with pytest.raises(HubError, match=f"web1' has {2 * size} bytes of journals: {2 * size} are allowed"):
        put(hub, messages(20, 21))
    put(hub, messages(0, 5), client=b"web2")
    disk.unlink(DATA)
    assert put(hub, messages(20, 21)).next_offset == 21
    assert put(hub, []) == Range(10, 21)


def test_so_many_journals_are_open_and_no_more(disk):
    hub = store(disk, max_open_journals=2)
    for turn in range(3):
        for number in range(5):
            put(hub, messages(turn, turn + 1), journal=b"log-%d" % number)
    assert hub.statistics().open_journals == 2
    assert [each.next_offset for each in hub.journals(anybody)] == [3] * 5


def test_unused_journals_are_closed(disk, monkeypatch):
    hub = store(disk, idle_timeout=60)
    put(hub, messages(0, 1))
    hub.close_idle()
    assert hub.statistics().open_journals == 1
    later = disk.monotonic() + 60
    monkeypatch.setattr(CrashFS, "monotonic", lambda _: later)
    hub.close_idle()
    assert hub.statistics().open_journals == 0
    with Journal(f"{ROOT}/web1.log", fs=disk) as journal:  # it is not locked
        assert journal.next_offset == 1
    assert put(hub, messages(1, 2)) == Range(0, 2)


def test_a_journal_with_another_writer_is_tried_again_later(disk):
    hub = store(disk)
    with Journal(f"{ROOT}/web1.log", fs=disk), pytest.raises(HubError) as refusal:
        put(hub, messages(0, 1))
    assert (refusal.value.code, refusal.value.is_temporary) == ("UNAVAILABLE", True)
    assert put(hub, messages(0, 1)) == Range(0, 1)


def test_waiting_too_long_for_a_journal_raises():
    fs = HeldSyncs(CrashFS())
    hub = store(fs)
    put(hub, messages(0, 1))
    fs.hold()
    thread = threading.Thread(target=put, args=(hub, messages(1, 2)))
    thread.start()
    assert fs.has_begun.wait(SOON)
    with pytest.raises(HubError, match="this journal is busy"):
        hub.put(put_request(messages(2, 3)), allows=anybody, timeout=0.01)
    fs.let_go()
    thread.join()
    assert put(hub, messages(2, 3)) == Range(0, 3)


# --- get ----------------------------------------------------------------------------------------


def test_get_gives_ranges_and_nothing_at_the_end(disk):
    hub = store(disk, max_get_size=200)
    put(hub, messages(0, 30))
    found: list[JournalMessage] = []
    answers = 0
    while more := get(hub, len(found)):
        found += more
        answers += 1
    assert found == messages(0, 30)
    assert answers > 5
    assert get(hub, 30) == []


@pytest.mark.parametrize("offset", [31, 2**62, 2**63 - 1])
def test_get_beyond_the_end_tells_the_range(disk, offset):
    hub = store(disk)
    put(hub, messages(0, 30))
    with pytest.raises(HubError, match="the first is 0, the next is 30") as refusal:
        get(hub, offset)
    assert (refusal.value.code, refusal.value.first_offset, refusal.value.expected) == ("OUT_OF_RANGE", 0, 30)


def test_get_makes_nothing(disk):
    assert get(store(disk)) == []
    with pytest.raises(HubError, match="the next is 0"):
        get(store(disk), 1)
    assert disk.files() == {}


def test_what_is_larger_than_an_answer_comes_alone(disk):
    hub = store(disk, max_get_size=10)
    put(hub, [message(0, 500), message(1, 500)])
    assert get(hub) == [message(0, 500)]


# --- trouble ------------------------------------------------------------------------------------


def test_a_full_disk_raises_and_nothing_that_was_answered_is_lost():
    fs = FaultFS(CrashFS())
    hub = store(fs)
    put(hub, messages(0, 5))
    fs.capacity(1_000)
    with pytest.raises(HubError, match="no room") as full:
        put(hub, messages(5, 60, 100))
    assert (full.value.code, full.value.is_temporary) == ("RESOURCE_EXHAUSTED", True)
    assert full.value.expected is not None
    after = store(fs.inner.crash())
    assert get(after) == [*messages(0, 5), *messages(5, full.value.expected, 100)]
    fs.capacity(None)
    assert put(hub, messages(full.value.expected, 60, 100)) == Range(0, 60)


def test_a_failed_sync_is_no_answer_and_the_journal_is_opened_again():
    fs = FaultFS(CrashFS())
    hub = store(fs)
    put(hub, messages(0, 5))
    fs.fail("sync_files", error=errno.EIO)
    with pytest.raises(HubError, match="the disk failed") as failure:
        put(hub, messages(5, 9))
    assert failure.value.is_temporary
    fs.heal()
    assert put(hub, messages(5, 9)) == Range(0, 9)
    assert get(store(fs.inner.crash())) == messages(0, 9)


def test_an_unreadable_request_raises_without_its_bytes():
    hub = store(CrashFS())
    with pytest.raises(HubError) as refusal:
        hub.put(b"\xffsecret", allows=anybody, timeout=SOON)
    assert refusal.value.code == "INVALID_ARGUMENT"
    assert "secret" not in str(refusal.value)


def test_a_closed_hub_takes_nothing(disk):
    hub = store(disk)
    put(hub, messages(0, 1))
    hub.close()
    hub.close()
    with pytest.raises(HubError, match="closing"):
        put(hub, messages(1, 2))
    with Journal(f"{ROOT}/web1.log", fs=disk) as journal:
        assert journal.next_offset == 1


def test_a_client_without_permission_sees_and_changes_nothing(disk):
    hub: HubStore = store(disk)
    put(hub, messages(0, 1))
    with pytest.raises(HubError, match="not for client 'web1'") as refusal:
        hub.put(put_request(messages(1, 2)), allows=lambda client: client == "web2", timeout=SOON)
    assert refusal.value.code == "PERMISSION_DENIED"
    with pytest.raises(HubError, match="not for client"):
        hub.get(hubwire.get_request(b"web1", b"log", 0), allows=lambda _: False, timeout=SOON)
    assert hub.journals(lambda _: False) == []
    assert put(hub, []) == Range(0, 1)


# --- what is there already ------------------------------------------------------------------------


def as_another(of: JournalMessage, **changes: Any) -> JournalMessage:
    fields = ("partition", "offset", "timestamp_ns", "type", "key", "value")
    return JournalMessage(**{name: getattr(of, name) for name in fields} | changes)


@pytest.mark.parametrize(
    "change", [{"value": b"another"}, {"key": b"another"}, {"type": 77}, {"timestamp_ns": 5}], ids=str
)
@pytest.mark.parametrize("offset", [0, 3, 9])
def test_another_message_at_an_offset_that_is_there_is_a_conflict(disk, change, offset):
    hub = store(disk, journal=JournalOptions(segment_size=200))
    put(hub, messages(0, 10))
    batch = [each if each.offset != offset else as_another(each, **change) for each in messages(0, 12)]
    with pytest.raises(HubError, match=f"message {offset} is already there, and differs") as conflict:
        put(hub, batch)
    assert (conflict.value.code, conflict.value.expected) == ("ALREADY_EXISTS", 10)
    assert not conflict.value.is_temporary
    assert put(store(disk.crash()), []) == Range(0, 10), "none of the batch is in"
    assert put(hub, messages(0, 12)) == Range(0, 12)


def test_what_is_gone_is_not_compared(disk):
    hub = store(disk, journal=JournalOptions(segment_size=200))
    put(hub, messages(0, 20))
    hub.close()
    disk.unlink(DATA)
    hub = store(disk)
    first = put(hub, []).first_offset
    assert first > 0
    changed = [as_another(each, value=b"another") for each in messages(0, first)]
    assert put(hub, [*changed, *messages(first, 22)]) == Range(first, 22)
    with pytest.raises(HubError, match=f"message {first} is already there"):
        put(hub, [as_another(message(first), value=b"another")])


@pytest.mark.parametrize("begin", [2**62, 2**62 + 1, 2**63 - 1, -1])
def test_no_journal_begins_where_no_message_could_follow(disk, begin):
    hub = store(disk)
    with pytest.raises(HubError, match=r"an offset below 2\^62") as refusal:
        hub.put(put_request(messages(0, 1)), allows=anybody, timeout=SOON, first=begin)
    assert refusal.value.code == "INVALID_ARGUMENT"
    assert disk.files() == {}
    assert put(hub, messages(0, 1)) == Range(0, 1)


@pytest.mark.parametrize("link", ["web1.log", "web1.log/jnl", "web1.log/.diskq"])
def test_a_link_in_the_root_is_not_followed(tmp_path, link):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    with closing(HubStore(str(root), HubOptions(), OsFileSystem())) as hub:
        root.mkdir()
        put(hub, messages(0, 3))
    (root / link).rename(elsewhere)
    (root / link).symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    with closing(HubStore(str(root), HubOptions(quota=10**6), OsFileSystem())) as hub:
        for ask in (lambda: put(hub, messages(3, 4)), lambda: put(hub, []), lambda: get(hub)):
            with pytest.raises(HubError, match=f"{link} is a symbolic link") as refusal:
                ask()
            assert (refusal.value.code, refusal.value.is_temporary) == ("PERMISSION_DENIED", False)
        assert hub.journals(anybody) == []
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before

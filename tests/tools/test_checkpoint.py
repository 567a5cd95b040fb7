# A checkpoint: afterwards everything is in the files that peers read, and nothing is left for an open to do.

from __future__ import annotations

import pytest

from diskq.engine.stream.stream import Stream
from diskq.errors import LockedError, UnsupportedFormatError
from diskq.storage.lock import read_holder
from diskq.testing import CrashFS
from diskq.tools.checkpoint import checkpoint
from diskq.tools.info import info
from diskq.tools.stores import Store, stores_at
from diskq.tools.verify.verification import verify
from tests.contract.kinds import CHANNELS, ENGINES
from tests.contract.test_after_a_kill import killed
from tests.tools.power_cuts import KINDS, PATH, as_version_2, content, lock_of, log_of, lost


def peers_files(disk: CrashFS) -> bytes:
    """What other programs read, in one piece."""
    return b"".join(its for path, its in sorted(content(disk, "/").items()) if "/.diskq/" not in path)


each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize("seed", [None, *range(12)])
@each_kind
def test_everything_is_in_the_files_and_durable(kind, seed):
    cut = lost(kind, seed=seed)
    done = checkpoint(cut.store, fs=cut.disk)
    assert done.was_needed
    assert not sum(each.records or 0 for each in done.repairs)
    assert cut.disk.size_of(log_of(cut.store)) == 0
    after = cut.disk.crash()
    assert all(body in peers_files(after) for body in cut.synced)
    assert verify(cut.store, fs=after).messages == len(cut.synced)
    assert sorted(cut.kind.read(PATH, fs=after)) == sorted(cut.synced)


@each_kind
def test_it_reports_how_much_was_in_the_log_alone(kind):
    cut = lost(kind)
    (log,) = info(cut.store, fs=cut.disk).redo_logs
    assert checkpoint(cut.store, fs=cut.disk).restored == log.waiting > 0


@pytest.mark.parametrize("kind", [*KINDS, "priority"])
def test_a_killed_process_leaves_something_to_do_and_a_closed_one_does_not(kind):
    disk = CrashFS()
    disk.make_directory(PATH)
    opened = ENGINES[kind].open(PATH, fs=disk)
    for number in range(5):
        opened.put(b"%d" % number)
    after = disk.kill()
    (store,) = stores_at(PATH, fs=after)
    assert checkpoint(store, fs=after).was_needed
    before = content(after)
    assert not checkpoint(store, fs=after).was_needed
    assert content(after) == before
    assert ENGINES[kind].read(PATH, fs=after) == [b"%d" % number for number in range(5)]


@each_kind
def test_messages_that_waited_in_the_write_ahead_log_are_in_the_files(kind):
    disk, sent = killed(CHANNELS[kind])
    (store,) = stores_at("/x", fs=disk)
    assert not all(body in peers_files(disk) for body in sent)
    checkpoint(store, fs=disk)
    assert all(body in peers_files(disk) for body in sent)


def test_a_killed_producer_leaves_no_owner_file_for_go_diskq():
    disk = CrashFS()
    disk.make_directory(PATH)
    Stream(PATH, fs=disk).append(b"x")
    after = disk.kill()
    assert after.size_of(f"{PATH}/owner")
    checkpoint(Store("stream", PATH), fs=after)
    assert after.size_of(f"{PATH}/owner") is None


@each_kind
def test_a_store_that_a_process_has_open_is_refused(kind):
    cut = lost(kind)
    with cut.opened() as store:
        store.put(b"more", "synced")
        with pytest.raises(LockedError):
            checkpoint(cut.store, fs=cut.disk)
    assert not checkpoint(cut.store, fs=cut.disk).was_needed


@each_kind
def test_a_log_of_another_format_version_stays_as_it_is(kind):
    cut = lost(kind)
    as_version_2(cut.disk, log_of(cut.store))
    before = content(cut.disk)[log_of(cut.store)]
    holder = read_holder(cut.disk, lock_of(cut.store))
    with pytest.raises(UnsupportedFormatError):
        checkpoint(cut.store, fs=cut.disk)
    assert content(cut.disk)[log_of(cut.store)] == before
    assert read_holder(cut.disk, lock_of(cut.store)) == holder

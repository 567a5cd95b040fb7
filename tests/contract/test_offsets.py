# Committed offsets: of a group in a partition of a stream, and of a named reader of a journal. Law: what was
# committed durably is not read again, and what was not committed is never skipped, whichever call of the disk
# fails; and closing releases everything.

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from diskq import DiskqError, JournalReaderOffset, LockedError, StorageFailedError
from diskq.engine.stream.committed_offset import GroupOffset
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS, FaultFS
from tests.contract.kinds import ENGINES, bodies
from tests.contract.lives import PATH, crash_disk

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet_log")]


class GroupPlace:
    """A member of a group that has a partition: `done` messages are processed."""

    def __init__(self, fs: FileSystem, **options: Any) -> None:
        files = StreamFiles(fs, PATH)
        with ExitStack() as opened:
            claim = ConsumerGroup(fs, files, "bill").claim(0)
            if claim is None:
                raise LockedError(PATH, "another member")
            opened.callback(claim.release)
            self.committed_offset = opened.enter_context(GroupOffset(fs, files, "bill", 0, **options))
            self._all = opened.pop_all()
        self.done = self.committed_offset.next_offset or 0
        self.sync = self.committed_offset.sync

    def commit(self, done: int) -> None:
        self.committed_offset.commit(done - 1 if type(done) is int else done)

    def close(self) -> None:
        self._all.close()


class ReaderPlace:
    """A named reader of a journal: the same."""

    def __init__(self, fs: FileSystem, **options: Any) -> None:
        self.offset = JournalReaderOffset(PATH, "bill", fs=fs, **options)
        self.done = self.offset.offset
        self.commit = self.offset.commit
        self.sync = self.offset.sync
        self.close = self.offset.close


PLACES: dict[str, Any] = {"stream": GroupPlace, "journal": ReaderPlace}
each_place = pytest.mark.parametrize("name", PLACES)


def disk(name: str) -> CrashFS:
    """With 100 messages."""
    fs = crash_disk()
    with ENGINES[name].open(PATH, fs=fs) as store:
        store.put_many(bodies(100))
    return fs


class Account:
    """What was reported to a reader."""

    def __init__(self) -> None:
        self.durable = 0
        self.most = 0
        """Beyond this it has committed nothing."""
        self.is_broken = False

    def run(self, open_place: Callable[[], Any]) -> None:
        """From open to close: seven commits, of which every third syncs, and a sync; on after errors."""
        place = self._try(open_place)
        if place is None:
            return
        for done in range(10, 80, 10):
            self.most = done
            self._try(partial(place.commit, done))
            if done == 40 and self._try(lambda: [place.sync()]):
                self.durable = done
        if self._try(lambda: [place.close()]) and not self.is_broken:
            self.durable = self.most

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (OSError, DiskqError) as failure:
            self.is_broken = self.is_broken or isinstance(failure, StorageFailedError)
            return None


@each_place
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=lambda each: errno.errorcode[each])
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "taken up"])
def test_whatever_call_fails_nothing_is_skipped(name: str, error: int, is_new: bool) -> None:
    before = disk(name)
    if not is_new:
        Account().run(lambda: PLACES[name](before))
    start = 0 if is_new else 70
    whole = FaultFS(before.copy())
    account = Account()
    account.run(lambda: PLACES[name](whole, sync_every=30))
    assert account.durable == 70
    wrong = []
    census = Counter(call.verb for call in whole.calls)
    for verb, nth in [(verb, nth) for verb, many in census.items() for nth in range(1, many + 1)]:
        fs = FaultFS(before.copy())
        fs.fail(verb, nth, error)
        account = Account()
        account.run(partial(PLACES[name], fs, sync_every=30))
        fs.heal()
        if left := fs.inner.open_files():
            wrong.append(f"{verb} {nth}: left open: {left}")
        found = PLACES[name](fs)
        found.close()
        lost = PLACES[name](fs.inner.crash()).done
        least, most = max(start, account.durable), max(start, account.most)
        if not (least <= found.done <= most and least <= lost <= most):
            wrong.append(f"{verb} {nth}: {found.done}, {lost} is not in {least} to {most}")
    assert wrong == []


@each_place
def test_a_name_has_one_reader_at_a_time(name: str) -> None:
    fs = disk(name)
    first = PLACES[name](fs)
    first.commit(7)
    opened = fs.open_files()
    with pytest.raises(LockedError):
        PLACES[name](fs)
    assert fs.open_files() == opened
    first.close()
    first.close()
    second = PLACES[name](fs)
    assert second.done == 7
    second.close()


@each_place
@pytest.mark.parametrize("done", ["7", None, True, 7.0, -3], ids=repr)
def test_what_is_no_offset_moves_nothing(name: str, done: Any) -> None:
    fs = disk(name)
    place = PLACES[name](fs)
    place.commit(5)
    with pytest.raises((TypeError, ValueError)):
        place.commit(done)
    place.close()
    with pytest.raises(ValueError, match="closed"):
        place.commit(6)
    again = PLACES[name](fs)
    assert again.done == 5
    again.close()

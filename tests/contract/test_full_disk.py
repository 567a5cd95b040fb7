# A full disk, from any write on. Law: after an error the message is not in the store, now or later; without
# an error it is, at every durability; and the error is FullError, never the kernel's own. When space is
# free again, everything goes on.

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import count

import pytest

from diskq import FullError
from diskq.options import Durability
from diskq.testing import FaultFS
from tests.contract.kinds import DURABILITIES, Kind, body, engines
from tests.contract.lives import NEXT, PATH, Life, after, disk, killed
from tests.sampling import IS_EXHAUSTIVE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet_log")]

# Which of the writes is the first that fails.
STEP = 1 if IS_EXHAUSTIVE else 4

each_kind = pytest.mark.parametrize("kind", engines(), ids=str)
wals = pytest.mark.parametrize("wal", [False, True], ids=["plain", "wal"])


def batches(size: int) -> Iterator[list[bytes]]:
    return ([body(number, 60) for number in range(start, start + size)] for start in range(0, 8, size))


@pytest.mark.sampled
@each_kind
@wals
@pytest.mark.parametrize("word", DURABILITIES)
@pytest.mark.parametrize("size", [1, 4], ids=["single", "batch"])
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_what_was_refused_is_not_in_and_all_else_is(
    kind: Kind, wal: bool, word: Durability, size: int, for_good: bool
) -> None:
    for nth in count(1, STEP):
        fs = disk()
        accepted: list[bytes] = []
        refused = 0
        store = kind.open(PATH, fs=fs, wal=wal, sync_every=3, **kind.small)
        full = fs.fail("pwrite", nth, errno.ENOSPC, times=None if for_good else 1)
        for batch in batches(size):
            try:
                if size == 1:
                    store.put(batch[0], word)
                else:
                    store.put_many(batch, word)
            except FullError as failure:
                refused += 1
                batch = batch[: failure.accepted]
            accepted += batch
            assert store.accepted() == len(accepted), nth
        after_kill = fs.inner.kill()
        fs.heal()
        store.close()
        assert kind.read(PATH, fs=fs) == accepted, nth
        if word != "memory":
            assert kind.read(PATH, fs=after_kill) == accepted, nth
        if not full.hits:
            assert not refused
            break


@pytest.mark.sampled
@each_kind
@wals
def test_a_full_disk_is_called_so_by_every_call_of_a_life(kind: Kind, wal: bool) -> None:
    left = killed(kind, wal=wal)
    for begin, acts in ((lambda: Life(kind, disk(), wal=wal), "wmsbtyBwft"), (lambda: after(left), NEXT)):
        for nth in count(1, STEP):
            life = begin()
            full = life.fs.fail("pwrite", nth, errno.ENOSPC, times=None)
            life.run(acts)
            life.check_words()
            life.check()
            if not full.hits:
                break


@each_kind
@wals
@pytest.mark.parametrize("is_marked", [True, False], ids=["marked", "unmarked"])
def test_where_nothing_more_fits_what_a_killed_process_left_is_there(
    kind: Kind, wal: bool, is_marked: bool
) -> None:
    left, _ = killed(kind, wal=wal)
    accepted = kind.read(PATH, fs=left.copy())
    if not is_marked:
        for path in left.files():
            if path.endswith(("/owner", ".lck", ".lock")):
                left.unlink(path)
    fs = FaultFS(left)
    fs.capacity(0)
    try:
        kind.open(PATH, fs=fs, wal=wal, **kind.small).close()
    except FullError:
        assert not is_marked, "each file that an open needs is there"
    fs.heal()
    assert kind.read(PATH, fs=fs) == accepted

# No file descriptor is free (EMFILE, ENFILE) when a barrier needs one. Law: steps that need none are durable,
# steps that need one come later, and the store goes on; only a failed sync is final.

from __future__ import annotations

import errno

import pytest

from tests.contract.kinds import Kind, bodies, engines
from tests.contract.lives import PATH, disk

pytestmark = pytest.mark.usefixtures("quiet_log")

each_kind = pytest.mark.parametrize("kind", engines(), ids=str)
wals = pytest.mark.parametrize("wal", [False, True], ids=["plain", "wal"])
errors = pytest.mark.parametrize(
    "error", [errno.EMFILE, errno.ENFILE], ids=["of the process", "of the system"]
)


@each_kind
@wals
@errors
@pytest.mark.parametrize("count", [3, 40], ids=["one file", "rolls"])
def test_a_barrier_goes_on_without_descriptors(kind: Kind, wal: bool, error: int, count: int) -> None:
    fs = disk()
    sent = bodies(count + 5)
    store = kind.open(PATH, fs=fs, wal=wal, **kind.small)
    for each in sent[:count]:
        store.put(each, "written")
    for verb in ("open", "sync_directory"):
        fs.fail(verb, 1, error, times=None)
    store.sync()
    assert kind.read(PATH, fs=fs.inner.crash(None)) == sent[:count]
    fs.heal()
    for each in sent[count:]:
        store.put(each, "synced")
    store.close()
    assert kind.read(PATH, fs=fs.inner.crash(None)) == sent


@each_kind
@errors
def test_a_close_without_descriptors_loses_nothing(kind: Kind, error: int) -> None:
    fs = disk()
    store = kind.open(PATH, fs=fs, **kind.small)
    store.put_many(bodies(3))
    for verb in ("open", "sync_directory"):
        fs.fail(verb, 1, error, times=None)
    store.close()
    assert fs.inner.open_files() == []
    assert kind.read(PATH, fs=fs.inner.crash(None)) == bodies(3)

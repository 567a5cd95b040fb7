# A full disk whose file system writes in other places (btrfs, ZFS): even what is there cannot be written
# over, so the lock file cannot be signed. Law: a store opens all the same, what is in it is received, and
# what is received frees space. No message is written before the lock file is durable, with all that the next
# open judges by.

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from diskq import DiskFullError
from diskq.storage.state import HEAD_SIZE, LastWriter
from diskq.testing import CrashFS, FaultFS
from tests.contract.kinds import Kind, Opened, bodies, engines
from tests.contract.lives import PATH, disk

pytestmark = pytest.mark.usefixtures("quiet_log")

each_kind = pytest.mark.parametrize("kind", engines(), ids=str)
each_error = pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT], ids=["full", "quota"])
each_end = pytest.mark.parametrize("end", ["closed", "killed", "power cut"])

SENT = bodies(20, size=100)
MORE = bodies(6, start=100, size=300)
DRAINED = ("queue", "leases", "spool")
"""Those whose messages leave without a command in the log."""
LOCKS = ("*.lock", "*.lck", "*/lock", "*state*")


def left(kind: Kind, end: str) -> FaultFS[CrashFS]:
    """The disk of a store that ended, with messages in several files."""
    fs = disk()
    store = kind.open(PATH, fs=fs, **kind.small)
    for one in SENT:
        store.put(one, "synced")
    if end == "closed":
        store.close()
        return fs
    return FaultFS(fs.inner.kill() if end == "killed" else fs.inner.crash())


def lock_of(disk: CrashFS) -> str:
    (path,) = (
        path for path in disk.files() if path.endswith((".lock", ".lck", "/lock")) and "/dead." not in path
    )
    return path


def state_of(disk: CrashFS) -> str:
    (path,) = (
        path
        for path in disk.files()
        if path.endswith((".diskq/state", ".queue.state")) and "/dead." not in path
    )
    return path


def opened(kind: Kind, fs: FaultFS[CrashFS], error: int) -> Opened:
    """Open it while the lock file cannot be written."""
    for path in LOCKS:
        fs.fail("pwrite", 1, error, path=path, times=None)
    store = kind.open(PATH, fs=fs, **kind.small)
    assert store.repairs == ()
    return store


def drained(store: Opened) -> list[bytes]:
    return list(iter(store.take, None))


@each_kind
@each_end
@each_error
def test_a_store_whose_lock_cannot_be_signed_is_open_and_takes_no_message(
    kind: Kind, end: str, error: int
) -> None:
    fs = left(kind, end)
    store = opened(kind, fs, error)
    before = fs.inner.files()
    for word in ("written", "synced"):
        with pytest.raises(DiskFullError):
            store.put(b"refused", word)
    with pytest.raises(DiskFullError):
        store.put_many([b"refused", b"too"])
    assert [path for path, its in fs.inner.files().items() if b"refused" in its] == []
    assert fs.inner.files()[lock_of(fs.inner)] == before[lock_of(fs.inner)]
    # What the lock file speaks for is as it was, so the next open judges rightly.
    assert kind.read(PATH, fs=fs.inner.kill()) == kind.read(PATH, fs=fs.inner.crash()) == SENT
    fs.heal()
    for one in MORE:
        store.put(one, "synced")
    for after in (fs.inner.kill(), fs.inner.crash()):
        assert kind.read_with_repairs(PATH, fs=after) == ([*SENT, *MORE], ())
    store.close()


@pytest.mark.parametrize("kind", [each for each in engines() if each.name in DRAINED], ids=str)
@each_end
def test_what_is_in_it_is_received_and_stays_received(kind: Kind, end: str) -> None:
    fs = left(kind, end)
    store = opened(kind, fs, errno.ENOSPC)
    assert drained(store) == SENT
    store.sync()
    for after in (fs.inner.kill(), fs.inner.crash()):
        assert kind.read_with_repairs(PATH, fs=after) == ([], ())
    store.close()
    fs.heal()
    assert kind.read(PATH, fs=fs) == []


@each_kind
@each_end
def test_the_state_is_durable_before_the_first_message_is_written(kind: Kind, end: str) -> None:
    """After a power cut it would say that all which is in the files was closed, or is of another boot."""
    fs = left(kind, end)
    store = opened(kind, fs, errno.ENOSPC)
    fs.heal()
    store.put(MORE[0], "written")
    state = LastWriter.parse(fs.inner.crash().files()[state_of(fs.inner)][:HEAD_SIZE])
    assert state is not None
    assert state.is_of_this_boot(fs.inner)
    assert not state.is_closed
    for one in MORE[1:]:
        store.put(one, "written")
    for seed in range(12):
        found = kind.read(PATH, fs=fs.inner.crash(random.Random(seed)))
        assert found == [*SENT, *MORE][: len(found)], "altered, invented or out of order"
        assert len(found) >= len(SENT), "lost"


@each_kind
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_store_opens_where_nothing_at_all_can_be_written(kind: Kind, end: str) -> None:
    fs = left(kind, end)
    fs.fail("pwrite", 1, errno.ENOSPC, times=None)
    store = kind.open(PATH, fs=fs, **kind.small)
    assert store.repairs == ()
    if kind.name in ("queue", "spool"):
        assert drained(store) == SENT
        store.sync()
        data = [path for path in fs.inner.files() if path.endswith(".dat") and "meta" not in path]
        assert [path for path in data if "/dead." not in path] == [], "what is consumed frees its space"
    fs.heal()
    store.close()
    assert kind.read_with_repairs(PATH, fs=fs) == ([] if kind.name in ("queue", "spool") else SENT, ())


# --- a real one -----------------------------------------------------------------------------------


@contextlib.contextmanager
def btrfs(room: Path) -> Iterator[Path]:
    """A new file system on a loop device, mounted."""
    if os.geteuid() or not shutil.which("mkfs.btrfs"):
        pytest.skip("no btrfs can be made here: that needs root and mkfs.btrfs")
    image, mount = room / "image", room / "mount"
    with image.open("wb") as file:
        file.truncate(128 * 1024 * 1024)
    mount.mkdir()
    for command in (["mkfs.btrfs", "-q", str(image)], ["mount", "-o", "loop", str(image), str(mount)]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            pytest.skip(f"no btrfs can be mounted here: {done.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], capture_output=True, check=True, timeout=60)


def fill(mount: Path) -> None:
    for number, size in enumerate((1 << 20, 4096, 1500)):
        with contextlib.suppress(OSError), (mount / f"full {number}").open("wb", buffering=0) as file:
            while file.write(os.urandom(size)):
                pass
    os.sync()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_on_a_full_btrfs_a_queue_is_drained_and_then_everything_goes_on(tmp_path: Path) -> None:
    with btrfs(tmp_path) as mount:
        for kind in engines():
            path = mount / kind.name
            path.mkdir()
            with kind.open(path, **kind.small) as store:
                store.put_many(SENT)
        os.sync()
        fill(mount)
        for kind in sorted(engines(), key=lambda kind: kind.name == "queue"):  # it frees space
            with kind.open(mount / kind.name, **kind.small) as store:
                assert store.repairs == ()
                if kind.name == "queue":
                    with pytest.raises(DiskFullError):
                        store.put(b"refused")
                    assert drained(store) == SENT
        (mount / "full 0").unlink()
        os.sync()
        for kind in engines():
            with kind.open(mount / kind.name, **kind.small) as store:
                store.put_many(MORE, "synced")
            assert kind.read(mount / kind.name) == [*([] if kind.name == "queue" else SENT), *MORE]

# Failures on demand. Law: what was planned happens, on both disks, and what was not does not.

from __future__ import annotations

import errno
import time

import pytest

from diskq.storage.fs import FileSystem, Identity, OsFileSystem
from diskq.testing import Call, CrashFS, FaultFS
from diskq.testing import fault_fs as faultfs

# --- the vocabulary ---------------------------------------------------------------------------


@pytest.fixture(params=["memory", "real disk"])
def disk(request, tmp_path):
    """A FaultFS, and the directory to use on it."""
    if request.param == "memory":
        inner = CrashFS()
        inner.make_directory_durably("/q")
        return FaultFS(inner), "/q"
    return FaultFS(OsFileSystem()), str(tmp_path)


@pytest.fixture
def fs(disk):
    return disk[0]


@pytest.fixture
def at(disk):
    return disk[1]


def create(fs: FileSystem, path: str, data: bytes = b"") -> int:
    handle = fs.open(path, write=True, create=True)
    if data:
        fs.pwrite(handle, data, 0)
    return handle


def crash_disk() -> FaultFS[CrashFS]:
    inner = CrashFS()
    inner.make_directory_durably("/q")
    return FaultFS(inner)


def remove_new(fs: FaultFS[FileSystem], path: str) -> None:
    fs.inner.make_directory(path)
    try:
        fs.remove_directory(path)
    except OSError:
        fs.inner.remove_directory(path)  # it is there still
        raise


# --- failing ----------------------------------------------------------------------------------

VERBS = {
    "open": lambda fs, at, handle: fs.open(f"{at}/new", write=True, create=True),
    "pread": lambda fs, at, handle: fs.pread(handle, 1, 0),
    "pwrite": lambda fs, at, handle: fs.pwrite(handle, b"x", 0),
    "truncate": lambda fs, at, handle: fs.truncate(handle, 0),
    "size": lambda fs, at, handle: fs.size(handle),
    "place_of": lambda fs, at, handle: fs.place_of(at),
    "open_watch": lambda fs, at, handle: (watch := fs.open_watch()) and watch.close(),
    "has_name": lambda fs, at, handle: fs.has_name(handle),
    "sync_files": lambda fs, at, handle: fs.sync_files((handle,)),
    "sync_directory": lambda fs, at, handle: fs.sync_directory(at),
    "rename": lambda fs, at, handle: fs.rename(f"{at}/a", f"{at}/b"),
    "link": lambda fs, at, handle: fs.link(f"{at}/a", f"{at}/b"),
    "unlink": lambda fs, at, handle: fs.unlink(f"{at}/a"),
    "make_directory": lambda fs, at, handle: fs.make_directory(f"{at}/new"),
    "list_directory": lambda fs, at, handle: fs.list_directory(at),
    "stamp_of": lambda fs, at, handle: fs.stamp_of(f"{at}/a"),
    "size_of": lambda fs, at, handle: fs.size_of(f"{at}/a"),
    "try_lock": lambda fs, at, handle: fs.try_lock(handle),
    "remove_directory": lambda fs, at, handle: remove_new(fs, f"{at}/new"),
    "is_locked": lambda fs, at, handle: fs.is_locked(handle, Identity(1, "host", "boot")),
    "device_of": lambda fs, at, handle: fs.device_of(f"{at}/a"),
    "is_link": lambda fs, at, handle: fs.is_link(f"{at}/a"),
    "share_memory": lambda fs, at, handle: fs.share_memory(handle, 3),
    "sync_file_system": lambda fs, at, handle: fs.sync_file_system(handle),
}


def test_every_verb_can_fail():
    verbs = {name for name in vars(FileSystem) if not name.startswith("_")}
    verbs -= {"native", "identity", "monotonic", "wall_clock", "unique_number"}  # no calls on a disk
    assert set(faultfs.VERBS) == verbs
    assert set(VERBS) == verbs - {"close"}  # it has a test of its own


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "error", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EACCES, errno.EINTR]
)
def test_a_verb_fails_once_with_the_error_that_was_planned_and_does_nothing(fs, at, verb, error):
    handle = create(fs, f"{at}/a", b"abc")
    fault = fs.fail(verb, error=error)
    with pytest.raises(OSError) as raised:  # noqa: PT011  (its errno is looked at next)
        VERBS[verb](fs, at, handle)
    assert raised.value.errno == error
    assert fault.hits == 1
    assert fs.inner.list_directory(at) == ["a"]
    assert fs.inner.pread(handle, 9, 0) == b"abc"
    VERBS[verb](fs, at, handle)


def test_a_failed_close_has_closed(fs, at):
    handle = create(fs, f"{at}/a")
    assert fs.try_lock(handle)
    fs.fail("close")
    with pytest.raises(OSError, match="Input/output"):
        fs.close(handle)
    assert fs.try_lock(create(fs, f"{at}/a"))


def test_only_the_nth_call_fails(fs, at):
    handle = create(fs, f"{at}/a")
    fs.fail("pwrite", 3, errno.ENOSPC)
    fs.pwrite(handle, b"1", 0)
    fs.pwrite(handle, b"2", 1)
    with pytest.raises(OSError, match="No space"):
        fs.pwrite(handle, b"3", 2)
    fs.pwrite(handle, b"3", 2)


def test_only_calls_on_the_path_fail_and_only_they_are_counted(fs, at):
    data, other = create(fs, f"{at}/a.dat"), create(fs, f"{at}/a.sums")
    fs.fail("pwrite", nth=2, path="*.dat")
    fs.pwrite(other, b"x", 0)
    fs.pwrite(data, b"x", 0)
    fs.pwrite(other, b"x", 0)
    with pytest.raises(OSError, match=r"a\.dat"):
        fs.pwrite(data, b"x", 0)


def test_a_rename_is_found_by_either_of_its_paths(fs, at):
    create(fs, f"{at}/a.tmp")
    fs.fail("rename", path="*.meta")
    with pytest.raises(OSError, match="Input/output"):
        fs.rename(f"{at}/a.tmp", f"{at}/a.meta")


def test_a_handle_goes_by_the_name_its_file_has_now(fs, at):
    handle = create(fs, f"{at}/a.tmp")
    fs.rename(f"{at}/a.tmp", f"{at}/a.meta")
    fs.fail("pwrite", path="*.meta")
    with pytest.raises(OSError, match=r"a\.meta"):
        fs.pwrite(handle, b"x", 0)


def test_a_fault_lasts_for_as_many_calls_as_planned(fs, at):
    fs.fail("open", nth=2, error=errno.EMFILE, times=2)
    outcomes = []
    for _ in range(5):
        try:
            outcomes.append(fs.open(f"{at}/a", create=True) >= 0)
        except OSError:
            outcomes.append(False)
    assert outcomes == [True, False, False, True, True]


def test_a_fault_may_last_until_the_disk_is_healed(fs, at):
    handle = create(fs, f"{at}/a")
    fault = fs.fail("pwrite", times=None)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            fs.pwrite(handle, b"x", 0)
    fs.heal()
    assert fs.pwrite(handle, b"x", 0) == 1
    assert fault.hits == 3


def test_a_plan_for_a_verb_that_does_not_exist_is_refused(fs):
    with pytest.raises(ValueError, match="no such verb: 'fsync'; there are open"):
        fs.fail("fsync")


def test_files_are_synced_one_by_one_until_one_fails(fs, at):
    handles = [create(fs, f"{at}/{name}") for name in "abc"]
    fs.fail("sync_files", nth=2)
    fs.calls.clear()
    with pytest.raises(OSError, match="Input/output"):
        fs.sync_files(handles)
    assert fs.calls == [Call("sync_files", f"{at}/a"), Call("sync_files", f"{at}/b", error=errno.EIO)]


def test_bytes_whose_sync_failed_are_lost_to_every_later_sync():
    fs = crash_disk()
    handle = create(fs, "/q/a", b"lost")
    fs.sync_directory("/q")
    fs.fail("sync_files")
    with pytest.raises(OSError, match="Input/output"):
        fs.sync_files((handle,))
    fs.sync_files((handle,))
    assert fs.pread(handle, 9, 0) == b"lost"
    assert fs.inner.crash().files() == {"/q/a": bytes(4)}


# --- short writes, full disks -----------------------------------------------------------------


def test_a_short_write_takes_the_first_bytes_and_says_how_many(fs, at):
    handle = create(fs, f"{at}/a")
    fs.short_write(nth=2, bytes_taken=3)
    assert fs.pwrite(handle, b"whole", 0) == 5
    assert fs.pwrite(handle, b"short", 5) == 3
    assert fs.pwrite(handle, b"rt", 8) == 2
    assert fs.pread(handle, 99, 0) == b"wholeshort"


def test_no_kernel_takes_nothing_and_calls_it_a_write(fs):
    with pytest.raises(ValueError, match="one byte at least"):
        fs.short_write(bytes_taken=0)


def test_a_full_disk_takes_what_fits_and_then_fails(fs, at):
    handle = create(fs, f"{at}/a", b"there before")
    fs.capacity(4)
    assert fs.pwrite(handle, b"longer", 12) == 4
    with pytest.raises(OSError, match="No space"):
        fs.pwrite(handle, b"er", 16)
    assert fs.pread(handle, 99, 0) == b"there beforelong"


def test_a_full_disk_can_be_overwritten_in_place(fs, at):
    handle = create(fs, f"{at}/a", b"abc")
    fs.capacity(0)
    assert fs.pwrite(handle, b"xyz!", 0) == 3
    assert fs.pwrite(handle, b"", 99) == 0


def test_space_is_free_again_when_a_file_is_cut(fs, at):
    handle = create(fs, f"{at}/a", b"abcdef")
    fs.capacity(0)
    fs.truncate(handle, 2)
    assert fs.pwrite(handle, b"123456", 2) == 4
    with pytest.raises(OSError, match="No space"):
        fs.truncate(handle, 7)


def test_space_is_free_again_when_a_file_is_unlinked(fs, at):
    fs.close(create(fs, f"{at}/a", b"abc"))
    handle = create(fs, f"{at}/b")
    fs.capacity(0)
    fs.unlink(f"{at}/a")
    assert fs.pwrite(handle, b"12345", 0) == 3


def test_space_is_free_again_when_a_file_is_renamed_over(fs, at):
    fs.close(create(fs, f"{at}/old", b"abc"))
    handle = create(fs, f"{at}/new")
    fs.capacity(0)
    fs.rename(f"{at}/new", f"{at}/old")
    assert fs.pwrite(handle, b"12345", 0) == 3


def test_an_unlinked_file_takes_space_until_its_last_handle_is_closed(fs, at):
    first = create(fs, f"{at}/a", b"abc")
    second = fs.open(f"{at}/a")
    handle = create(fs, f"{at}/b")
    fs.capacity(0)
    fs.unlink(f"{at}/a")
    fs.close(first)
    with pytest.raises(OSError, match="No space"):
        fs.pwrite(handle, b"1", 0)
    fs.close(second)
    assert fs.pwrite(handle, b"12345", 0) == 3


def test_a_file_made_again_under_a_name_is_another_file(fs, at):
    old = create(fs, f"{at}/a", b"abc")
    fs.unlink(f"{at}/a")
    new = create(fs, f"{at}/a", b"12345")
    fs.capacity(0)
    fs.close(old)
    assert fs.pwrite(new, b"123456789", 5) == 3


def test_a_disk_can_grow(fs, at):
    handle = create(fs, f"{at}/a")
    fs.capacity(0)
    fs.capacity(2)
    assert fs.pwrite(handle, b"1234", 0) == 2
    fs.capacity(None)
    assert fs.pwrite(handle, b"34", 2) == 2


# --- slow disks -------------------------------------------------------------------------------


def test_a_slow_verb_returns_late_and_the_others_do_not(fs, at):
    handle = create(fs, f"{at}/a")
    fs.delay("sync_files", seconds=0.02)
    began = time.monotonic()
    fs.pwrite(handle, b"x", 0)
    fs.sync_files((handle,))
    assert time.monotonic() - began >= 0.02


def test_a_slow_call_may_fail_as_well(fs, at):
    slow, fault = fs.delay("open", seconds=0.0), fs.fail("open")
    with pytest.raises(OSError, match="Input/output"):
        create(fs, f"{at}/a")
    assert slow.hits == fault.hits == 1


# --- the record -------------------------------------------------------------------------------


def test_every_call_is_written_down_in_order(fs, at):
    handle = fs.open(f"{at}/a", write=True, create=True)
    fs.pwrite(handle, b"abc", 0)
    fs.pread(handle, 2, 1)
    fs.sync_files((handle,))
    fs.truncate(handle, 1)
    fs.rename(f"{at}/a", f"{at}/b")
    fs.close(handle)
    with pytest.raises(FileNotFoundError):
        fs.unlink(f"{at}/a")
    assert fs.calls == [
        Call("open", f"{at}/a"),
        Call("pwrite", f"{at}/a", size=3),
        Call("pread", f"{at}/a", size=2, offset=1),
        Call("sync_files", f"{at}/a"),
        Call("truncate", f"{at}/a", size=1),
        Call("rename", f"{at}/a", target=f"{at}/b"),
        Call("close", f"{at}/b"),
        Call("unlink", f"{at}/a", error=errno.ENOENT),
    ]


def test_compiled_code_comes_through_the_verbs_too(fs):
    assert fs.native is False
    assert CrashFS.native is False

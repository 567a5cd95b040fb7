# Barriers. Law: data, then names, then deletions; only on a full disk deletions come first.

from __future__ import annotations

import errno

import pytest

from diskq.storage.barrier import Barrier, PendingSyncs, Replacement, start_writeback, write_all
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS, FaultFS

POINTER = "/q/pointer"


def disk() -> FaultFS[CrashFS]:
    inner = CrashFS()
    inner.make_directory_durably("/q/.diskq")
    for name in ("data", "sums", "consumed", "damaged", "pointer"):
        inner.write_durably(f"/q/{name}", b"old " + name.encode())
    return FaultFS(inner)


@pytest.fixture
def fs():
    return disk()


def pointing(content: bytes, path: str = POINTER) -> Replacement:
    return Replacement(path, content, lambda number: f"{path}.{number}.tmp")


def everything(fs: FaultFS[CrashFS]) -> Barrier:
    """A barrier with an item of each kind; the data has unsynced bytes."""
    handles = tuple(fs.open(f"/q/{name}", write=True) for name in ("data", "sums"))
    for handle in handles:
        fs.pwrite(handle, b"new", 0)
    return Barrier(
        files=handles,
        directories=("/q", "/q/.diskq"),
        replacements=(pointing(b"new pointer"),),
        asides=(("/q/damaged", "/q/damaged.bad"),),
        removals=("/q/consumed",),
        closing=handles,
    )


def acts(fs: FaultFS[CrashFS]) -> list[str]:
    """Return the operations that changed something, one line each."""
    verbs = ("pwrite", "sync_files", "sync_directory", "rename", "unlink", "close")
    calls = [call for call in fs.calls if call.verb in verbs]
    names = {f"{POINTER}.1.tmp": "temporary"}
    return [f"{call.verb} {names.get(call.path, call.path)}" for call in calls]


def test_a_barrier_is_executed_in_order(fs):
    barrier = everything(fs)
    fs.calls.clear()
    assert barrier.execute(fs)
    assert acts(fs) == [
        "sync_files /q/data",
        "sync_files /q/sums",
        "close /q/data",
        "close /q/sums",
        "sync_directory /q",
        "sync_directory /q/.diskq",
        "pwrite temporary",
        "sync_files temporary",
        "close temporary",
        "rename temporary",
        "sync_directory /q",
        "rename /q/damaged",
        "unlink /q/consumed",
    ]
    assert sorted(fs.list_directory("/q")) == [".diskq", "damaged.bad", "data", "pointer", "sums"]
    assert fs.inner.read(POINTER) == b"new pointer"


def test_a_small_file_is_durable_before_one_in_another_directory_is_replaced(fs):
    state, pointer = pointing(b"new state", "/q/.diskq/state"), pointing(b"new pointer")
    assert Barrier(replacements=(state, pointer)).execute(fs)
    names = [(call.verb, call.path) for call in fs.calls if call.verb in ("rename", "sync_directory")]
    assert names == [
        ("rename", "/q/.diskq/state.1.tmp"),
        ("sync_directory", "/q/.diskq"),
        ("rename", "/q/pointer.2.tmp"),
        ("sync_directory", "/q"),
    ]


def test_what_a_barrier_made_durable_survives_a_power_cut(fs):
    everything(fs).execute(fs)
    after = fs.inner.crash()
    assert after.read("/q/data") == b"new data"
    assert after.read(POINTER) == b"new pointer"


def test_an_empty_barrier_does_nothing(fs):
    assert Barrier().execute(fs)
    assert not fs.calls


@pytest.mark.parametrize("failing", ["/q/data", "/q/sums"])
def test_a_failed_sync_ends_it_and_its_files_are_closed_all_the_same(fs, failing):
    barrier = everything(fs)
    fs.fail("sync_files", path=failing)
    fs.calls.clear()
    with pytest.raises(OSError, match="Input/output"):
        barrier.execute(fs)
    assert [act.split()[0] for act in acts(fs)][-3:] == ["sync_files", "close", "close"]
    assert fs.inner.read(POINTER) == b"old pointer"
    assert fs.size_of("/q/consumed") is not None


@pytest.mark.parametrize("verb", ["sync_directory", "rename", "open", "pwrite", "sync_files"])
def test_an_error_on_the_way_to_the_new_name_leaves_the_old_one_and_removes_nothing(fs, verb):
    barrier = Barrier(replacements=(pointing(b"new pointer"),), removals=("/q/consumed",))
    fs.fail(verb)
    with pytest.raises(OSError, match="Input/output"):
        barrier.execute(fs)
    fs.heal()
    assert fs.size_of("/q/consumed") is not None
    assert fs.inner.crash().read(POINTER) == b"old pointer"
    assert not [name for name in fs.list_directory("/q") if name.endswith(".tmp")]


# --- a full disk ------------------------------------------------------------------------------


def test_on_a_full_disk_consumed_files_go_first_and_the_rename_is_retried(fs):
    barrier = Barrier(replacements=(pointing(b"new"),), removals=("/q/consumed",))
    fs.capacity(0)
    assert barrier.execute(fs)
    assert fs.inner.read(POINTER) == b"new"
    assert fs.size_of("/q/consumed") is None
    assert acts(fs).index("unlink /q/consumed") < acts(fs).index("rename /q/pointer.2.tmp")


def test_if_nothing_frees_space_the_replacement_stays_pending_and_the_rest_holds(fs):
    barrier = everything(fs)
    fs.capacity(0)
    fs.fail("unlink", error=errno.ENOENT, path="/q/consumed")
    assert not barrier.execute(fs)
    assert fs.inner.read(POINTER) == b"old pointer"
    assert not [name for name in fs.list_directory("/q") if name.endswith(".tmp")]
    assert fs.inner.crash().read("/q/data") == b"new data"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("verb", ["open", "pwrite", "sync_files", "rename"])
def test_a_full_disk_has_several_errors(fs, verb, error):
    barrier = Barrier(replacements=(pointing(b"new"),))
    fs.fail(verb, error=error, times=2)
    assert not barrier.execute(fs)
    fs.heal()
    assert barrier.execute(fs)
    assert fs.inner.read(POINTER) == b"new"


def test_removing_a_missing_file_is_no_error(fs):
    barrier = Barrier(removals=("/q/never was", "/q/consumed"), asides=(("/q/nor this", "/q/x"),))
    assert barrier.execute(fs)
    assert fs.size_of("/q/consumed") is None


def test_write_all_continues_short_writes(fs):
    handle = fs.open("/q/new", write=True, create=True)
    fs.short_write(bytes_taken=3, times=None)
    write_all(fs, handle, b"0123456789", 0)
    assert fs.inner.read("/q/new") == b"0123456789"


# --- pending syncs ----------------------------------------------------------------------------


def test_pending_syncs_are_frozen_into_one_barrier_and_cleared():
    pending_syncs = PendingSyncs(
        files=[3], directories={"/q": None}, asides=[("a", "b")], removals=["c"], closing=[3]
    )
    assert pending_syncs
    barrier = pending_syncs.freeze((4, 5), (pointing(b""),))
    assert barrier.files == (3, 4, 5), "what is sealed before what is active"
    assert (barrier.directories, barrier.asides, barrier.removals) == (("/q",), (("a", "b"),), ("c",))
    assert barrier.closing == (3,)
    assert not pending_syncs
    pending_syncs.removals.append("later")
    assert barrier.removals == ("c",)


def test_an_early_start_of_the_writing_changes_no_byte_and_never_raises(tmp_path):
    fs = OsFileSystem()
    handle = fs.open(str(tmp_path / "data"), write=True, create=True)
    write_all(fs, handle, b"early", 0)
    start_writeback(fs, handle)
    assert fs.pread(handle, 10, 0) == b"early"
    fs.close(handle)
    start_writeback(fs, handle)


def test_an_early_start_of_the_writing_is_no_call_of_another_file_system(fs):
    handle = fs.open("/q/data", write=True)
    before = list(fs.calls)
    start_writeback(fs, handle)
    assert fs.calls == before

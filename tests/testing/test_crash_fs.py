# The model under all crash tests. Law: if it harms what was synced, they blame the wrong code;
# if it never harms the rest, they prove nothing. Both are tested here.

from __future__ import annotations

import errno
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.testing import CrashFS, PowerCut

SEEDS = range(200)

# --- the vocabulary ---------------------------------------------------------------------------


@pytest.fixture
def fs():
    return disk()


def disk(cut_at: int | None = None) -> CrashFS:
    fs = CrashFS(cut_at)
    fs.make_directory_durably("/q")
    return fs


def write(fs: FileSystem, path: str, data: bytes, at: int = 0, *, sync: bool = False) -> None:
    handle = fs.open(path, write=True, create=True)
    assert fs.pwrite(handle, data, at) == len(data)
    if sync:
        fs.sync_files((handle,))
    fs.close(handle)


def sync(fs: FileSystem, path: str) -> None:
    handle = fs.open(path)
    fs.sync_files((handle,))
    fs.close(handle)


def after_power_cuts(fs: CrashFS, path: str) -> set[bytes | None]:
    """Return all contents that a file was found with after many power cuts; None: it was not there."""
    return {fs.crash(random.Random(seed)).files().get(path) for seed in SEEDS}


# --- bytes --------------------------------------------------------------------------------------


def test_synced_bytes_under_a_synced_name_survive(fs):
    write(fs, "/q/a", b"kept", sync=True)
    fs.sync_directory("/q")
    assert after_power_cuts(fs, "/q/a") == {b"kept"}


def test_unsynced_bytes_may_survive_vanish_tear_or_read_as_zeros(fs):
    fs.write_durably("/q/a", b"old")
    write(fs, "/q/a", b"new", at=3)
    found = after_power_cuts(fs, "/q/a")
    assert found >= {b"old", b"oldnew", b"oldn", b"old\0\0\0"}
    assert all(data is not None and data.startswith(b"old") for data in found)


def test_a_later_write_may_survive_without_an_earlier_one(fs):
    fs.write_durably("/q/a", b"")
    write(fs, "/q/a", b"one")
    write(fs, "/q/a", b"two", at=3)
    assert after_power_cuts(fs, "/q/a") >= {b"one", b"onetwo", b"\0\0\0two"}


def test_a_power_cut_may_leave_holes_of_one_sector(fs):
    fs.write_durably("/q/a", b"")
    write(fs, "/q/a", b"x" * 2048)
    found = after_power_cuts(fs, "/q/a")
    assert any(bytes(512) + b"x" * 512 in (data or b"") for data in found)


def test_an_overwritten_sector_is_the_old_or_the_new_one(fs):
    fs.write_durably("/q/a", b"o" * 1024)
    write(fs, "/q/a", b"n" * 1024)
    found = after_power_cuts(fs, "/q/a")
    assert b"o" * 512 + b"n" * 512 in found
    assert all(data is not None and set(data) <= set(b"on") and len(data) == 1024 for data in found)


def test_an_unsynced_cut_may_be_undone(fs):
    fs.write_durably("/q/a", b"long")
    handle = fs.open("/q/a", write=True)
    fs.truncate(handle, 1)
    assert after_power_cuts(fs, "/q/a") == {b"long", b"l"}


def test_bytes_that_took_the_place_of_a_cut_tail_may_read_as_zeros(fs):
    fs.write_durably("/q/a", b"tail")
    handle = fs.open("/q/a", write=True)
    fs.truncate(handle, 2)
    fs.pwrite(handle, b"xy", 2)
    assert after_power_cuts(fs, "/q/a") >= {b"tail", b"ta", b"taxy", b"ta\0\0", b"tax"}


def test_a_file_may_be_extended_with_zeros(fs):
    handle = fs.open("/q/a", write=True, create=True)
    fs.truncate(handle, 4)
    fs.pwrite(handle, b"x", 6)
    assert fs.read("/q/a") == b"\0\0\0\0\0\0x"


SMALL = st.integers(0, 1500)
BYTE_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), SMALL, st.integers(1, 1500)),
        st.tuples(st.just("truncate"), SMALL, st.just(0)),
        st.tuples(st.just("sync"), st.just(0), st.just(0)),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(BYTE_STEPS, st.integers(0, 2**32))
def test_every_byte_after_a_power_cut_is_one_that_was_written_there(steps, seed):
    fs = disk()
    fs.write_durably("/q/a", b"")
    handle = fs.open("/q/a", write=True)
    durable, writes, sizes = b"", [], []
    for number, (verb, at, size) in enumerate(steps, 1):
        match verb:
            case "write":
                data = bytes([number]) * size
                fs.pwrite(handle, data, at)
                writes.append((at, data))
                sizes.append(at + size)
            case "truncate":
                fs.truncate(handle, at)
                sizes.append(at)
            case "sync":
                fs.sync_files((handle,))
                durable, writes, sizes = fs.read("/q/a"), [], []
    found = fs.crash(random.Random(seed)).read("/q/a")

    # Below this byte all bytes always had a place on stable storage.
    fresh = min([len(durable), *sizes])
    assert fresh <= len(found) <= max([len(durable), *sizes])
    for at, byte in enumerate(found):
        legal = {data[at - start] for start, data in writes if start <= at < start + len(data)}
        legal |= {durable[at]} if at < len(durable) else {0}
        legal |= {0} if at >= fresh else set()
        assert byte in legal, at
    assert sizes or found == durable


@settings(deadline=None)
@given(BYTE_STEPS, st.integers(0, 2**32))
def test_a_power_cut_takes_nothing_if_each_step_was_synced(steps, seed):
    fs = disk()
    for number, (verb, at, size) in enumerate(steps, 1):
        path = f"/q/{number % 3}"
        handle = fs.open(path, write=True, create=True)
        if verb == "write":
            fs.pwrite(handle, bytes([number]) * size, at)
        elif verb == "truncate":
            fs.truncate(handle, at)
        fs.sync_files((handle,))
        fs.sync_directory("/q")
        assert fs.crash(random.Random(seed)).files() == fs.crash().files() == fs.files()


# --- names ------------------------------------------------------------------------------------


def test_an_unsynced_name_may_vanish_though_its_file_was_synced(fs):
    write(fs, "/q/a", b"synced", sync=True)
    assert after_power_cuts(fs, "/q/a") == {None, b"synced"}


def test_a_name_may_survive_whose_file_is_empty(fs):
    write(fs, "/q/a", b"not synced")
    assert after_power_cuts(fs, "/q/a") >= {None, b"", b"not synced"}


def test_a_synced_name_does_not_make_bytes_durable(fs):
    write(fs, "/q/a", b"not synced")
    fs.sync_directory("/q")
    assert fs.crash().files() == {"/q/a": b""}


def test_a_rename_over_a_durable_file_leaves_the_old_one_or_the_new_one(fs):
    fs.write_durably("/q/pointer", b"old")
    write(fs, "/q/temporary", b"new", sync=True)
    fs.rename("/q/temporary", "/q/pointer")
    assert after_power_cuts(fs, "/q/pointer") == {b"old", b"new"}


def test_a_rename_of_an_unsynced_file_may_leave_it_empty(fs):
    fs.write_durably("/q/pointer", b"old")
    write(fs, "/q/temporary", b"new")
    fs.rename("/q/temporary", "/q/pointer")
    assert b"" in after_power_cuts(fs, "/q/pointer")


def test_a_second_name_may_vanish_and_never_has_less_than_the_file(fs):
    fs.write_durably("/q/a", b"whole")
    assert fs.link("/q/a", "/q/b")
    assert after_power_cuts(fs, "/q/b") == {None, b"whole"}
    assert after_power_cuts(fs, "/q/a") == {b"whole"}
    fs.sync_directory("/q")
    assert after_power_cuts(fs, "/q/b") == {b"whole"}


def test_a_file_under_two_names_is_one_file_also_after_a_power_cut(fs):
    fs.write_durably("/q/a", b"old")
    fs.link("/q/a", "/q/b")
    fs.sync_directory("/q")
    write(fs, "/q/a", b"new", at=3)
    assert fs.read("/q/b") == b"oldnew"
    for seed in range(50):
        after = fs.crash(random.Random(seed))
        assert after.read("/q/a") == after.read("/q/b")
        assert after.stamp_of("/q/a") == after.stamp_of("/q/b")
    fs.unlink("/q/a")
    assert fs.read("/q/b") == b"oldnew"


def test_an_unlinked_file_may_come_back(fs):
    fs.write_durably("/q/a", b"old")
    fs.unlink("/q/a")
    assert after_power_cuts(fs, "/q/a") == {None, b"old"}
    fs.sync_directory("/q")
    assert after_power_cuts(fs, "/q/a") == {None}


def test_a_removal_may_be_durable_before_an_earlier_creation(fs):
    fs.write_durably("/q/1", b"")
    write(fs, "/q/2", b"", sync=True)
    fs.unlink("/q/1")
    found = {tuple(fs.crash(random.Random(seed)).list_directory("/q")) for seed in SEEDS}
    assert found == {("1",), ("1", "2"), ("2",), ()}


def test_a_file_in_a_directory_whose_name_was_not_synced_may_vanish(fs):
    fs.make_directory("/q/deep")
    write(fs, "/q/deep/a", b"synced", sync=True)
    fs.sync_directory("/q/deep")
    assert after_power_cuts(fs, "/q/deep/a") == {None, b"synced"}
    fs.sync_directory("/q")
    assert after_power_cuts(fs, "/q/deep/a") == {b"synced"}


def test_syncing_one_end_of_a_rename_between_directories_keeps_the_file(fs):
    fs.write_durably("/q/here/a", b"moved")
    fs.make_directory_durably("/q/there")
    fs.rename("/q/here/a", "/q/there/b")
    fs.sync_directory("/q/here")
    assert fs.crash().files() == {"/q/there/b": b"moved"}


def test_a_file_renamed_away_survives_though_its_old_name_was_taken_again(fs):
    fs.write_durably("/q/a", b"moved")
    fs.rename("/q/a", "/q/b")
    write(fs, "/q/a", b"another", sync=True)
    for seed in SEEDS:
        assert b"moved" in fs.crash(random.Random(seed)).files().values()


def test_syncing_a_rename_between_directories_syncs_what_made_room_for_it(fs):
    fs.write_durably("/q/here/a", b"moved")
    fs.write_durably("/q/there/a", b"made room")
    fs.rename("/q/there/a", "/q/there/b")
    fs.rename("/q/here/a", "/q/there/a")
    fs.sync_directory("/q/here")
    assert fs.crash().files() == {"/q/there/a": b"moved", "/q/there/b": b"made room"}


NAMES = ["/q/a/x", "/q/a/y", "/q/b/x", "/q/b/y"]
NAME_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "rename", "rename", "unlink", "sync", "sync"]),
        st.integers(0, 3),
        st.sampled_from(NAMES),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(NAME_STEPS)
def test_a_durable_file_keeps_one_of_the_names_it_had(steps):
    fs = disk()
    fs.make_directory_durably("/q/a")
    fs.make_directory_durably("/q/b")
    now: dict[str, bytes] = {}  # path: the file's content, which no other file has
    names: dict[bytes, set[str]] = {}  # of files that must be there: where they may be
    touched: set[str] = set()  # paths whose meaning changed since they were synced
    for number, (verb, which, target) in enumerate(steps):
        path = sorted(now)[which % len(now)] if now else ""
        match verb:
            case "create" if target not in now:
                now[target] = b"file %d" % number
                write(fs, target, now[target], sync=True)
                touched.add(target)
            case "rename" if path not in ("", target):
                fs.rename(path, target)
                names.pop(now.get(target, b""), None)
                now[target] = now.pop(path)
                names.get(now[target], set()).add(target)
                touched |= {path, target}
            case "unlink" if path:
                fs.unlink(path)
                names.pop(now.pop(path), None)
                touched.add(path)
            case "sync":
                directory = target[:-2]
                fs.sync_directory(directory)
                names |= {content: {name} for name, content in now.items() if name.startswith(directory)}
                touched = {name for name in touched if not name.startswith(directory)}
    for seed in range(20):
        found = fs.crash(random.Random(seed)).files()
        assert len(set(found.values())) == len(found), "one file, two names"
        for content, possible in names.items():
            assert {path for path, data in found.items() if data == content} & possible, content
        for path in set(NAMES) - touched:
            assert found.get(path) == now.get(path)


# --- a sync that fails ------------------------------------------------------------------------


def test_a_failed_sync_leaves_bytes_readable_that_no_later_sync_makes_durable(fs):
    fs.write_durably("/q/a", b"old.")
    handle = fs.open("/q/a", write=True)
    fs.pwrite(handle, b"new", 4)
    fs.fail_sync()
    with pytest.raises(OSError, match="Input/output") as raised:
        fs.sync_files((handle,))
    assert raised.value.errno == errno.EIO
    fs.sync_files((handle,))  # the kernel pretends to have written
    assert fs.read("/q/a") == b"old.new"
    assert fs.kill().read("/q/a") == b"old.new"
    assert fs.kill().crash().read("/q/a") == b"old.\0\0\0"


def test_bytes_written_again_after_a_failed_sync_become_durable(fs):
    fs.write_durably("/q/a", b"")
    handle = fs.open("/q/a", write=True)
    fs.pwrite(handle, b"lost", 0)
    fs.mark_clean(handle)
    fs.pwrite(handle, b"st", 2)
    fs.sync_files((handle,))
    assert fs.crash().read("/q/a") == b"\0\0st"


def test_a_failed_sync_does_not_bring_a_cut_tail_back(fs):
    fs.write_durably("/q/a", b"tail")
    handle = fs.open("/q/a", write=True)
    fs.truncate(handle, 2)
    fs.mark_clean(handle)
    fs.sync_files((handle,))
    assert fs.crash().read("/q/a") == b"ta"


def test_a_failed_sync_harms_only_its_own_file_and_those_after_it(fs):
    handles = [fs.open(f"/q/{name}", write=True, create=True) for name in "abc"]
    fs.sync_directory("/q")
    for handle in handles:
        fs.pwrite(handle, b"x", 0)
    fs.fail_sync(nth=2)
    with pytest.raises(OSError, match="/q/b"):
        fs.sync_files(handles)
    assert fs.crash().files() == {"/q/a": b"x", "/q/b": b"", "/q/c": b""}


# --- the process dies -------------------------------------------------------------------------


def everything(fs: CrashFS) -> None:
    """One of each operation, two creations: ten."""
    fs.make_directory("/q/d")
    handle = fs.open("/q/d/a", write=True, create=True)
    fs.pwrite(handle, b"abc", 0)
    fs.truncate(handle, 2)
    other = fs.open("/q/d/b", create=True)
    fs.sync_files((handle, other))
    fs.sync_directory("/q/d")
    fs.rename("/q/d/a", "/q/d/b")
    fs.unlink("/q/d/b")


def test_only_what_changes_something_is_an_operation(fs):
    everything(fs)
    assert fs.operations == 10
    fs.make_directory("/q/d")
    write(fs, "/q/x", b"")
    fs.close(fs.open("/q/x"))
    fs.size_of("/q/x")
    fs.list_directory("/q")
    with pytest.raises(FileNotFoundError):
        fs.unlink("/q/nothing")
    assert fs.journal[10:] == ["11 create /q/x"]


@pytest.mark.parametrize("cut", range(1, 11))
def test_the_power_fails_instead_of_the_chosen_operation(cut):
    whole, fs = disk(), disk(cut_at=cut)
    everything(whole)
    with pytest.raises(PowerCut):
        everything(fs)
    assert fs.operations == cut
    assert fs.journal[:-1] == whole.journal[: cut - 1]
    assert fs.journal[-1].startswith(whole.journal[cut - 1])
    # What was not done is not there: the next operation would have been the same one.
    again = disk(cut_at=cut)
    with pytest.raises(PowerCut):
        everything(again)
    assert again.files() == fs.files()


def test_a_power_cut_beyond_the_last_operation_never_comes():
    fs = disk(cut_at=11)
    everything(fs)
    assert not fs.is_cut


def test_no_verb_works_after_the_power_cut(fs):
    handle = fs.open("/q/a", write=True, create=True)
    fs.cut_at = fs.operations + 1
    calls = [
        lambda: fs.pwrite(handle, b"x", 0),
        lambda: fs.pread(handle, 1, 0),
        lambda: fs.size(handle),
        lambda: fs.has_name(handle),
        lambda: fs.close(handle),
        lambda: fs.open("/q/a"),
        lambda: fs.size_of("/q/a"),
        lambda: fs.stamp_of("/q/a"),
        lambda: fs.list_directory("/q"),
        lambda: fs.sync_directory("/nowhere"),
        lambda: fs.try_lock(handle),
        fs.identity,
        fs.monotonic,
        fs.unique_number,
    ]
    for call in calls:
        with pytest.raises(PowerCut):
            call()
    assert fs.read("/q/a") == b""


def test_except_exception_does_not_survive_a_power_cut():
    assert not issubclass(PowerCut, Exception)


def test_a_killed_process_loses_its_locks_and_nothing_else(fs):
    write(fs, "/q/a", b"unsynced")
    assert fs.try_lock(fs.open("/q/a"))
    after = fs.kill()
    assert after.files() == fs.files()
    assert after.try_lock(after.open("/q/a"))
    assert after.identity().boot_id == fs.identity().boot_id
    assert after.identity().pid != fs.identity().pid


def test_what_was_unsynced_before_a_kill_is_unsynced_after_it(fs):
    write(fs, "/q/a", b"unsynced")
    after = fs.kill()
    assert after.crash().files() == {}
    sync(after, "/q/a")
    after.sync_directory("/q")
    assert after.crash().files() == {"/q/a": b"unsynced"}


def test_a_power_cut_changes_the_boot_id_and_leaves_everything_durable(fs):
    write(fs, "/q/a", b"unsynced")
    after = fs.crash(random.Random(0))
    assert after.identity().boot_id != fs.identity().boot_id
    assert after.crash().files() == after.files()


def test_the_same_seed_makes_the_same_power_cut(fs):
    write(fs, "/q/a", b"x" * 3000)
    write(fs, "/q/b", b"y" * 3000)
    outcomes = [fs.crash(random.Random(seed)).files() for seed in SEEDS]
    assert outcomes == [fs.crash(random.Random(seed)).files() for seed in SEEDS]


def test_what_happens_to_a_copy_does_not_touch_the_disk(fs):
    write(fs, "/q/a", b"x")
    shadow = fs.copy()
    write(shadow, "/q/a", b"y", sync=True)
    write(shadow, "/q/b", b"z")
    shadow.sync_directory("/q")
    assert fs.files() == {"/q/a": b"x"}
    assert fs.crash().files() == {}
    assert shadow.crash().files() == {"/q/a": b"y", "/q/b": b""}


def test_time_goes_on_over_a_power_cut_and_monotonic_time_starts_again(fs):
    fs.clock = 100.0
    now = fs.wall_clock()
    after = fs.crash()
    assert (after.monotonic(), after.wall_clock()) == (0.0, now)
    assert (fs.kill().monotonic(), fs.kill().wall_clock()) == (100.0, now)


def test_no_two_processes_draw_the_same_number(fs):
    first = fs.unique_number()
    assert len({first, fs.kill().unique_number()}) == 2


# --- handles and locks ------------------------------------------------------------------------


def test_a_second_handle_does_not_get_the_lock_until_the_first_is_closed(fs):
    first, second = (fs.open("/q/lock", create=True) for _ in range(2))
    assert fs.try_lock(first)
    assert fs.try_lock(first)
    assert not fs.try_lock(second)
    fs.close(first)
    assert fs.try_lock(second)


def test_a_file_made_again_under_a_locked_name_is_not_locked(fs):
    assert fs.try_lock(fs.open("/q/lock", create=True))
    fs.unlink("/q/lock")
    assert fs.try_lock(fs.open("/q/lock", create=True))


def test_an_open_file_outlives_its_name(fs):
    handle = fs.open("/q/a", write=True, create=True)
    fs.unlink("/q/a")
    fs.pwrite(handle, b"still here", 0)
    assert fs.pread(handle, 100, 6) == b"here"
    assert fs.size(handle) == 10


def test_threads_can_sync_while_another_writes(fs):
    handle = fs.open("/q/a", write=True, create=True)
    fs.sync_directory("/q")
    syncing = threading.Thread(target=lambda: [fs.sync_files((handle,)) for _ in range(300)])
    syncing.start()
    for number in range(300):
        fs.pwrite(handle, b"x", number)
    syncing.join()
    fs.sync_files((handle,))
    assert fs.crash().read("/q/a") == b"x" * 300


NOBODYS = 10**9  # a handle of neither disk
ERRORS = [
    (lambda fs: fs.open("/q/missing"), errno.ENOENT),
    (lambda fs: fs.open("/missing/a", create=True), errno.ENOENT),
    (lambda fs: fs.open("/q/file", create=True, exclusive=True), errno.EEXIST),
    (lambda fs: fs.open("/q/file/a", create=True), errno.ENOTDIR),
    (lambda fs: fs.open("/q/dir", write=True), errno.EISDIR),
    (lambda fs: fs.close(NOBODYS), errno.EBADF),
    (lambda fs: fs.pread(NOBODYS, 1, 0), errno.EBADF),
    (lambda fs: fs.pread(fs.open("/q/file"), 1, -1), errno.EINVAL),
    (lambda fs: fs.pwrite(fs.open("/q/file"), b"x", 0), errno.EBADF),
    (lambda fs: fs.pwrite(fs.open("/q/file", write=True), b"x", -1), errno.EINVAL),
    (lambda fs: fs.truncate(fs.open("/q/file"), 0), errno.EINVAL),
    (lambda fs: fs.sync_files((NOBODYS,)), errno.EBADF),
    (lambda fs: fs.sync_directory("/q/missing"), errno.ENOENT),
    (lambda fs: fs.sync_directory("/q/file"), errno.ENOTDIR),
    (lambda fs: fs.rename("/q/missing", "/q/a"), errno.ENOENT),
    (lambda fs: fs.rename("/q/file", "/missing/a"), errno.ENOENT),
    (lambda fs: fs.rename("/q/file", "/q/dir"), errno.EISDIR),
    (lambda fs: fs.rename("/q/dir", "/q/file"), errno.ENOTDIR),
    (lambda fs: fs.rename("/q/other", "/q/dir"), errno.ENOTEMPTY),
    (lambda fs: fs.link("/q/missing", "/q/a"), errno.ENOENT),
    (lambda fs: fs.link("/q/file", "/missing/a"), errno.ENOENT),
    (lambda fs: fs.link("/q/file", "/q/file"), errno.EEXIST),
    (lambda fs: fs.link("/q/file", "/q/dir"), errno.EEXIST),
    (lambda fs: fs.unlink("/q/missing"), errno.ENOENT),
    (lambda fs: fs.unlink("/q/dir"), errno.EISDIR),
    (lambda fs: fs.make_directory("/missing/dir"), errno.ENOENT),
    (lambda fs: fs.make_directory("/q/file"), errno.ENOTDIR),
    (lambda fs: fs.list_directory("/q/missing"), errno.ENOENT),
    (lambda fs: fs.list_directory("/q/file"), errno.ENOTDIR),
    (lambda fs: fs.size_of("/q/file/a"), errno.ENOTDIR),
    (lambda fs: fs.stamp_of("/q/file/a"), errno.ENOTDIR),
]


class Rooted(OsFileSystem):
    """The real disk, with `root` for its "/": so that both disks are asked the same questions."""

    def __init__(self, root: str) -> None:
        self.root = root

    def __getattribute__(self, name: str):
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found):
            return found
        return lambda *args, **options: found(
            *(self.root + arg if isinstance(arg, str) else arg for arg in args), **options
        )


@pytest.mark.parametrize("provoke, error", ERRORS)
def test_an_impossible_call_fails_as_a_kernel_fails_it(provoke, error, tmp_path):
    fs = disk()
    fs.write_durably("/q/file", b"")
    fs.write_durably("/q/dir/inside", b"")
    fs.make_directory_durably("/q/other")
    fs.to_directory(tmp_path / "q")
    before = fs.files()
    with pytest.raises(OSError) as raised:  # noqa: PT011  (its errno is looked at next)
        provoke(fs)
    assert raised.value.errno == error
    assert fs.files() == before
    with pytest.raises(OSError) as real:  # noqa: PT011
        provoke(Rooted(str(tmp_path)))
    assert real.value.errno == error


def test_sizes_and_lists_show_what_is_there(fs):
    write(fs, "/q/a", b"four")
    fs.make_directory("/q/d")
    assert fs.size_of("/q/a") == 4
    assert fs.size_of("/q/b") is None
    assert sorted(fs.list_directory("/q")) == ["a", "d"]
    assert not fs.make_directory("/q")


# --- stamps -----------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "real disk"])
def either(request, tmp_path):
    """A disk and the directory to use on it; both are asked the same questions."""
    return (disk(), "/q") if request.param == "memory" else (OsFileSystem(), str(tmp_path))


def test_a_stamp_stays_until_the_file_is_written_or_is_another(either):
    fs, at = either
    assert fs.stamp_of(f"{at}/a") is None
    write(fs, f"{at}/a", b"abc", sync=True)
    stamp = fs.stamp_of(f"{at}/a")
    fs.rename(f"{at}/a", f"{at}/b")
    assert fs.stamp_of(f"{at}/b") == stamp
    assert fs.stamp_of(f"{at}/a") is None
    write(fs, f"{at}/a", b"abc")
    fs.rename(f"{at}/a", f"{at}/b")
    replaced = fs.stamp_of(f"{at}/b")
    assert replaced is not None
    assert replaced.file != stamp.file


def test_a_stamp_shows_when_a_file_was_written(tmp_path):
    begun = OsFileSystem().wall_clock()
    write(OsFileSystem(), str(tmp_path / "a"), b"abc")
    stamp = OsFileSystem().stamp_of(str(tmp_path / "a"))
    assert stamp is not None
    assert abs(stamp.modified_ns / 1e9 - begun) < 5


def test_writing_and_cutting_move_the_stamp_as_far_as_the_clock_went(fs):
    handle = fs.open("/q/a", write=True, create=True)
    first = fs.stamp_of("/q/a")
    fs.pwrite(handle, b"abc", 0)
    assert fs.stamp_of("/q/a") == first
    fs.clock = 0.5
    assert fs.stamp_of("/q/a") == first
    fs.pwrite(handle, b"abc", 0)
    assert fs.stamp_of("/q/a") == first._replace(modified_ns=first.modified_ns + 500_000_000)
    fs.clock = 1.0
    fs.truncate(handle, 0)
    assert fs.stamp_of("/q/a").modified_ns == first.modified_ns + 1_000_000_000
    assert fs.kill().stamp_of("/q/a") == fs.stamp_of("/q/a")


def test_the_number_of_a_file_is_given_again_once_no_power_cut_can_bring_the_file_back(fs):
    write(fs, "/q/a", b"", sync=True)
    fs.sync_directory("/q")
    number = fs.stamp_of("/q/a").file
    fs.unlink("/q/a")
    write(fs, "/q/b", b"")
    assert fs.stamp_of("/q/b").file != number
    fs.sync_directory("/q")
    write(fs, "/q/c", b"")
    assert fs.stamp_of("/q/c").file == number


def test_a_file_that_is_open_keeps_its_number(fs):
    handle = fs.open("/q/a", write=True, create=True)
    number = fs.stamp_of("/q/a").file
    fs.unlink("/q/a")
    fs.sync_directory("/q")
    write(fs, "/q/b", b"")
    assert fs.stamp_of("/q/b").file != number
    fs.close(handle)
    write(fs, "/q/c", b"")
    assert fs.stamp_of("/q/c").file == number


def test_a_power_cut_may_set_a_files_time_back_to_its_last_sync_and_keeps_its_number(fs):
    handle = fs.open("/q/a", write=True, create=True)
    fs.sync_files((handle,))
    fs.sync_directory("/q")
    synced = fs.stamp_of("/q/a")
    fs.clock = 1.0
    fs.pwrite(handle, b"abc", 0)
    stamps = {fs.crash(random.Random(seed)).stamp_of("/q/a") for seed in SEEDS}
    assert stamps == {synced, fs.stamp_of("/q/a")}
    fs.sync_files((handle,))
    assert {fs.crash(random.Random(seed)).stamp_of("/q/a") for seed in SEEDS} == {fs.stamp_of("/q/a")}


def test_rot_is_no_operation_and_leaves_no_trace_but_the_bytes(fs):
    write(fs, "/q/a", b"abc")
    stamp, operations = fs.stamp_of("/q/a"), fs.operations
    fs.clock = 1.0
    fs.rot("/q/a", b"aBc")
    assert (fs.stamp_of("/q/a"), fs.operations) == (stamp, operations)
    fs.sync_directory("/q")
    assert fs.crash().read("/q/a") == b"aBc"


# --- to and from a real disk ------------------------------------------------------------------


def test_a_real_directory_comes_in_durable_and_goes_out_the_same(tmp_path):
    (tmp_path / "in" / "deep" / "empty").mkdir(parents=True)
    (tmp_path / "in" / "a").write_bytes(b"one")
    (tmp_path / "in" / "deep" / "b").write_bytes(b"two")
    fs = CrashFS.from_directory(tmp_path / "in", at="/srv/q")
    assert fs.crash().files() == {"/srv/q/a": b"one", "/srv/q/deep/b": b"two"}
    assert fs.operations == 0
    fs.to_directory(tmp_path / "out", at="/srv/q")
    assert (tmp_path / "out" / "deep" / "b").read_bytes() == b"two"
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["a", "b", "deep", "empty"]


def test_a_file_put_there_durably_is_seen_through_open_handles(fs):
    handle = fs.open("/q/a", write=True, create=True)
    fs.pwrite(handle, b"unsynced", 0)
    fs.write_durably("/q/a", b"planted")
    assert fs.pread(handle, 100, 0) == b"planted"
    assert after_power_cuts(fs, "/q/a") == {b"planted"}

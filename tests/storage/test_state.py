# The state that a store's last writer leaves. Law: a barrier replaces it, whole or not at all.

from __future__ import annotations

import contextlib
import itertools
import json
import random
from typing import NamedTuple

import pytest

from diskq.storage.barrier import Barrier, read_small
from diskq.storage.checksums import checksum
from diskq.storage.fs import FileSystem
from diskq.storage.state import HEAD_SIZE, LastWriter, StoreState, read_rest, read_state, redo_named_by
from diskq.storage.write_ahead_log import was_restarted
from diskq.testing import CrashFS
from diskq.testing.crash_fs import PowerCut


class Files(NamedTuple):
    state: str = "/q/state"
    lock: str = "/q/lock"
    old_points: str | None = "/q/points"

    def state_temporary(self, number: int) -> str:
        return f"/q/{number}.tmp"


FILES = Files()


def disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably("/q")
    return fs


def opened(fs: FileSystem) -> StoreState:
    return StoreState(fs, FILES, lock=read_small(fs, FILES.lock, HEAD_SIZE) or b"")


def replace(fs: FileSystem, state: StoreState, rest: bytes = b"") -> None:
    """Do what the first barrier of an open does."""
    state.sign()
    assert Barrier(replacements=(state.replacing(rest),)).execute(fs)
    state.is_pending = False


def put(fs: FileSystem, path: str, content: bytes) -> None:
    handle = fs.open(path, write=True, create=True)
    fs.pwrite(handle, content, 0)
    fs.sync_files((handle,))
    fs.close(handle)
    fs.sync_directory("/q")


def old_lock(**fields: object) -> bytes:
    """A lock file as earlier versions wrote it."""
    content = {"pid": 7, "host": "h", "since": "", "boot_id": "b", **fields}
    rest = json.dumps(content).encode()[1:]
    return (b'{"check": "%08x", %s' % (checksum(rest), rest)).ljust(511) + b"\n"


def notes() -> list[bytes]:
    """Contents of the file, one after the other, while a store is opened, used and closed twice."""
    fs, found = disk(), []
    for number in (9, 10):
        state = opened(fs)
        state.plan_redo(number, is_displaced=True)
        replace(fs, state, b"points")
        acts = (
            lambda state=state: state.note_recovering(has_restarted=True),
            lambda state=state: state.note_ready([0, 1]),
            lambda state=state, number=number: state.note_redo(number + 1),
            lambda state=state: state.note_redo(0),
            lambda state=state: state.note_closed(),
        )
        found.append(fs.files()[FILES.state])
        for act in acts:
            act()
            found.append(fs.files()[FILES.state])
    return found


def test_a_new_store_has_none():
    fs = disk()
    assert opened(fs).previous is None
    assert read_state(fs, FILES) is None
    assert read_rest(fs, FILES) is None


def test_what_a_barrier_has_written_is_found():
    fs = disk()
    state = opened(fs)
    state.plan_redo(5, is_displaced=True)
    replace(fs, state, b"points")
    after = fs.crash()
    found = opened(after)
    boot = fs.identity().boot_id
    assert found.previous == LastWriter(boot_id=boot, redo=5, is_displaced=True)
    assert read_rest(after, FILES) == b"points"


def test_what_is_planned_is_nowhere_before_the_barrier():
    fs = disk()
    replace(fs, opened(fs))
    before = fs.files()[FILES.state]
    state = opened(fs)
    state.plan_redo(5, is_displaced=False)
    state.sign()
    state.note_ready([0], can_wait=True)
    assert fs.files()[FILES.state] == before


def test_a_note_outlives_a_kill():
    fs = disk()
    state = opened(fs)
    replace(fs, state, b"points")
    state.note_ready([0, 3])
    killed = fs.kill()
    assert opened(killed).staged == (0, 3)
    assert read_rest(killed, FILES) == b"points"


@pytest.mark.parametrize("seed", range(20))
def test_a_note_that_a_power_cut_takes_costs_no_point(seed: int):
    fs = disk()
    state = opened(fs)
    replace(fs, state, b"points")
    state.note_ready([0, 3])
    after = fs.crash(random.Random(seed))
    assert read_rest(after, FILES) == b"points"
    assert opened(after).staged in ((), (0, 3))


@pytest.mark.parametrize("is_restart", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_a_replacement_that_is_cut_leaves_the_old_state_or_the_new_one(seed: int, is_restart: bool):
    """At each of its steps, and whether or not the boot id tells."""
    for step in itertools.count(1):
        fs = disk()
        state = opened(fs)
        replace(fs, state, b"old")
        state.plan_redo(8, is_displaced=False)
        fs.cut_at = fs.operations + step
        with contextlib.suppress(PowerCut):
            Barrier(replacements=(state.replacing(b"new"),)).execute(fs)
        for after in (fs.crash(random.Random(seed), is_restart=is_restart), fs.kill()):
            found = opened(after).redo, read_rest(after, FILES)
            assert found in ((0, b"old"), (8, b"new"))
            assert fs.is_cut or found == (8, b"new")
        if not fs.is_cut:
            return


def test_half_of_one_note_and_half_of_another_are_unreadable():
    """A redo log that such a sector does not name would be taken for one that is not needed."""
    found = notes()
    for before, after in itertools.pairwise(found):
        for cut in range(HEAD_SIZE + 1):
            torn = after[:cut] + before[cut:HEAD_SIZE]
            whole = (before[:HEAD_SIZE], after[:HEAD_SIZE])
            assert torn in whole or LastWriter.parse(torn) is None


def test_an_unreadable_one_names_nothing_for_certain():
    fs = disk()
    put(fs, FILES.state, b"rot")
    found = opened(fs).previous
    assert found == LastWriter(is_readable=False)
    assert redo_named_by(found) == -1
    assert was_restarted(fs, found) is True


def test_a_restart_of_the_machine_is_noticed():
    fs = disk()
    replace(fs, opened(fs))
    for after, expected in ((fs.kill(), False), (fs.crash(), True)):
        assert was_restarted(after, opened(after).previous) is expected


def test_a_store_that_diskq_never_wrote_to_says_nothing_about_a_restart():
    assert was_restarted(CrashFS(), None) is None


# --- what earlier versions left ---------------------------------------------------------------------------


def test_the_lock_file_of_an_earlier_version_is_read():
    fs = disk()
    put(fs, FILES.lock, old_lock(redo=3, staged=5, is_unlogged=1))
    put(fs, "/q/points", b"points")
    state = opened(fs)
    assert state.previous == LastWriter(boot_id="b", staged=(0, 2), redo=3, is_unlogged=True)
    assert state.is_old
    assert read_rest(fs, FILES) == b"points"


def test_the_oldest_lock_files_have_no_check():
    fs = disk()
    put(fs, FILES.lock, b'{"pid": 7, "host": "h", "since": "", "boot_id": "b", "redo": 3}'.ljust(511) + b"\n")
    assert opened(fs).redo == 3


def test_an_emptied_lock_file_says_nothing():
    fs = disk()
    put(fs, FILES.lock, b"")
    assert opened(fs).previous is None


def test_once_there_is_a_state_the_old_lock_file_does_not_count():
    fs = disk()
    put(fs, FILES.lock, old_lock(redo=3))
    put(fs, "/q/points", b"points")
    state = opened(fs)
    state.note_redo(0)
    replace(fs, state, b"new")
    after = fs.crash()
    assert opened(after).redo == 0
    assert read_rest(after, FILES) == b"new"


@pytest.mark.parametrize("seed", range(20))
def test_a_note_before_the_first_state_is_torn_and_the_old_files_count(seed: int):
    fs = disk()
    put(fs, FILES.lock, old_lock(redo=3, staged=1))
    put(fs, "/q/points", b"points")
    opened(fs).note_staged(())
    for after in (fs.crash(random.Random(seed)), fs.kill()):
        assert opened(after).redo == 3
        assert read_rest(after, FILES) == b"points"


def test_an_earlier_version_that_had_the_store_since_counts():
    fs = disk()
    put(fs, FILES.lock, old_lock(redo=3))
    put(fs, "/q/points", b"points")
    state = opened(fs)
    state.note_redo(0)
    replace(fs, state, b"new")
    put(fs, FILES.lock, old_lock(redo=9, since="later"))
    put(fs, "/q/points", b"later points")
    after = fs.crash()
    assert opened(after).redo == 9
    assert opened(after).is_old
    assert read_state(after, FILES) == opened(after).previous
    assert read_rest(after, FILES) == b"later points"


def test_a_torn_lock_file_does_not_hide_a_state():
    fs = disk()
    state = opened(fs)
    state.plan_redo(5, is_displaced=False)
    replace(fs, state, b"new")
    put(fs, FILES.lock, old_lock(redo=3)[:90] + bytes(422))
    assert opened(fs).redo == 5
    assert read_rest(fs, FILES) == b"new"

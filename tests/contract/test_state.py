# The state of a store (`.diskq/state`) goes, or the process ends while it is replaced. Law: it speaks for no
# message by itself: what was promised is found without it, too.

from __future__ import annotations

import contextlib
import random

import pytest

from diskq.storage.state import HAS_STATE, HEAD_SIZE, LastWriter
from diskq.testing.crash_fs import CrashFS, PowerCut
from tests.contract.kinds import ENGINES
from tests.sampling import sampled
from tests.storage.test_state import old_lock
from tests.tools import power_cuts
from tests.tools.power_cuts import PATH, Lost

pytestmark = pytest.mark.usefixtures("quiet_log")

each_kind = pytest.mark.parametrize("name", power_cuts.KINDS)
each_life = pytest.mark.parametrize("life", ["kill", "power cut", "same boot"])


def ended(name: str, life: str) -> Lost:
    """A store of which five messages are in the files for sure, and fifteen more in the redo log alone."""
    return power_cuts.lost(name, closed_after=5, is_killed=life == "kill", is_restart=life != "same boot")


def states(fs: CrashFS) -> list[str]:
    return [path for path in fs.files() if path.endswith((".diskq/state", ".queue.state"))]


def damage(fs: CrashFS, path: str, how: str) -> None:
    content = fs.files()[path]
    if how == "removed":
        fs.unlink(path)
    elif how == "emptied":
        fs.write_durably(path, b"")
    elif how == "cut":
        fs.write_durably(path, content[: HEAD_SIZE // 2])
    else:
        fs.write_durably(path, bytes([content[0] ^ 1]) + content[1:])


@each_kind
@each_life
@pytest.mark.parametrize("how", ["removed", "emptied", "cut", "rotten"])
def test_a_state_that_goes_takes_no_synced_message_with_it(name: str, life: str, how: str) -> None:
    cut = ended(name, life)
    for path in states(cut.disk):
        damage(cut.disk, path, how)
    found = cut.kind.read(PATH, fs=cut.disk)
    assert sorted(found) == sorted(cut.synced)


@pytest.mark.sampled
@each_kind
@each_life
@pytest.mark.parametrize("is_restart", [True, False])
def test_an_open_that_is_cut_at_any_step_leaves_all_to_the_next_one(
    name: str, life: str, is_restart: bool
) -> None:
    left = ended(name, life)

    def opened(disk: CrashFS) -> None:
        left.kind.open(PATH, fs=disk, **power_cuts.OPTIONS.get(name, {})).close()

    whole = left.disk.copy()
    opened(whole)
    for step in sampled(range(1, whole.operations + 1), 12):
        disk = left.disk.copy()
        disk.cut_at = step
        with contextlib.suppress(PowerCut):
            opened(disk)
        disk.cut_at, disk.is_cut = None, False
        cut, killed = disk.crash(random.Random(step), is_restart=is_restart), disk.kill()
        for path in states(killed):  # a power cut may tear the sector, which costs its notes
            sector = killed.files()[path][:HEAD_SIZE]
            assert LastWriter.parse(sector) is not None, "neither the old one nor the new one"
        for after in (cut, killed):
            assert sorted(left.kind.read(PATH, fs=after)) == sorted(left.synced)


@pytest.mark.parametrize("name", ["queue", "stream", "journal", "priority"])
def test_the_lock_file_of_an_earlier_version_does_not_return_after_a_sync(name: str) -> None:
    kind, fs = ENGINES[name], CrashFS()
    fs.make_directory_durably(PATH)
    kind.open(PATH, fs=fs).close()
    (state,) = states(fs)
    (lock,) = (path for path, content in fs.files().items() if HAS_STATE in content)
    before = fs.copy()
    before.unlink(state)
    before.write_durably(lock, old_lock(is_closed=1))
    fs = before.kill()
    store = kind.open(PATH, fs=fs)
    store.put(b"a message", "synced")
    after = fs.crash()
    assert HAS_STATE in after.files()[lock], "it would count again if a power cut tore the state"
    store.close()

# Something else is where the redo log should be, or the disk refuses it. Law: no message is lost that the log
# was not needed for; what may be lost is reported; what diskq cannot read it does not destroy; and a store
# that can have no log syncs its files.
#
# Each case is met after a kill, when the files have everything; after a power cut, when the log has; and when
# the disk came back without a restart, which the boot id does not tell from a kill.

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from diskq.errors import DiskFullError, DiskqError, NotAFileError, StorageFailedError, UnsupportedFormatError
from diskq.options import Durability
from diskq.storage.fs import OsFileSystem
from diskq.storage.log.format import read_redo
from diskq.testing import CrashFS, FaultFS
from diskq.tools.verify.verification import verify
from tests.contract.kinds import ENGINES, Kind, bodies, body
from tests.sampling import IS_EXHAUSTIVE
from tests.tools import power_cuts
from tests.tools.power_cuts import PATH, Lost, as_another, as_version_2, content, log_of, overwrite

pytestmark = pytest.mark.usefixtures("quiet_log")

each_kind = pytest.mark.parametrize("name", power_cuts.KINDS)
each_life = pytest.mark.parametrize("life", ["kill", "power cut", "same boot"])

MAY_BE_LOST = "messages that were synced just before the power failed may be lost"


def ended(name: str, life: str) -> Lost:
    """A store of which five messages are in the files for sure, and fifteen more in the redo log alone."""
    return power_cuts.lost(name, closed_after=5, is_killed=life == "kill", is_restart=life != "same boot")


def opened(cut: Lost, fs: Any, **options: Any) -> Any:
    return cut.kind.open(PATH, fs=fs, **power_cuts.OPTIONS.get(cut.kind.name, {}), **options)


def check_in_use(cut: Lost, before: int) -> None:
    """The store goes on: a log is made, used, and of use after a power cut."""
    more = [b"more %d" % number for number in range(6)]
    store = opened(cut, cut.disk)
    for one in more:
        store.put(one, "synced")
    after = cut.disk.crash()
    log = read_redo(after, log_of(cut.store))
    assert log is not None
    assert log.entries
    found = cut.kind.read(PATH, fs=after)
    assert sorted(found) == sorted([*cut.synced[:before], *more])


@each_kind
@pytest.mark.parametrize("boot", ["same", "none"])
def test_a_disk_that_comes_back_without_a_restart_has_what_was_synced(name: str, boot: str) -> None:
    """It was detached, or unmounted after an error: the boot id is the same, or the system has none."""
    cut = power_cuts.lost(name, is_restart=False, has_boot_id=boot == "same")
    for _ in range(2):
        assert cut.kind.read(PATH, fs=cut.disk) == cut.synced, "to those who only look, too"
        assert verify(cut.store, fs=cut.disk).messages == len(cut.synced)
        store = opened(cut, cut.disk)
        assert store.repairs == ()
        store.close()


# --- other content --------------------------------------------------------------------------------


def cut_to(size: int) -> Callable[[CrashFS, str], None]:
    def act(disk: CrashFS, path: str) -> None:
        handle = disk.open(path, write=True)
        disk.truncate(handle, size)
        disk.close(handle)

    return act


HARMS: dict[str, tuple[Callable[[CrashFS, str], None], str]] = {
    "gone": (lambda disk, path: disk.unlink(path), "it is gone"),
    "emptied": (cut_to(0), "it is empty"),
    "cut in its header": (cut_to(20), "its header is unreadable"),
    "cut before its entries": (cut_to(4096), "parts of it are unreadable"),
    "cut in its entries": (cut_to(5000), "parts of it are unreadable"),
    "without its end": (cut_to(65535), "parts of it are unreadable"),
    "zeroed": (lambda disk, path: overwrite(disk, path, bytes(65536)), "its header is unreadable"),
    "text": (
        lambda disk, path: overwrite(disk, path, b"diskq is a word\n" * 4096),
        "its header is unreadable",
    ),
    "damaged": (lambda disk, path: overwrite(disk, path, b"\xff" * 50, 4100), "parts of it are unreadable"),
    "another store's": (as_another, "it is another store's, or an older one"),
}


@each_kind
@each_life
@pytest.mark.parametrize("harm", HARMS)
def test_a_log_with_other_content_is_reported_and_kept(name: str, life: str, harm: str) -> None:
    cut = ended(name, life)
    path = log_of(cut.store)
    act, reason = HARMS[harm]
    act(cut.disk, path)
    there = content(cut.disk).get(path)
    store = opened(cut, cut.disk)
    (repair,) = (repair for repair in store.repairs if repair.path == path)
    is_killed = life == "kill"
    assert repair.reason == f"{reason}: {MAY_BE_LOST}", "a kill cannot be told from a disk that came back"
    assert repair.records is None
    store.close()
    found = cut.kind.read(PATH, fs=cut.disk)
    assert found == cut.synced[: len(found)]
    assert len(found) == len(cut.synced) if is_killed else len(found) >= 5
    if there:
        assert repair.saved_as is not None
        assert content(cut.disk)[repair.saved_as] == there
    assert opened(cut, cut.disk.copy()).repairs == (), "it is reported once"
    check_in_use(cut, len(found))


@each_kind
@each_life
def test_a_damaged_log_gives_what_can_be_read_of_it(name: str, life: str) -> None:
    cut = ended(name, life)
    path = log_of(cut.store)
    log = content(cut.disk)[path]
    entry = log.index(cut.synced[-3])
    overwrite(cut.disk, path, bytes([log[entry] ^ 1]), entry)
    found = cut.kind.read(PATH, fs=cut.disk)
    assert found == cut.synced if life == "kill" else found[:17] == cut.synced[:17]


@each_kind
@each_life
@pytest.mark.parametrize("rotten", ["message", "number", "all of it"])
def test_a_last_entry_that_is_not_whole_is_reported_once_and_kept(name: str, life: str, rotten: str) -> None:
    """The power cut may have torn it, as nobody was told that it is durable; or it is damaged."""
    cut = ended(name, life)
    path = log_of(cut.store)
    log = content(cut.disk)[path]
    number, message = log[16:24], log.index(cut.synced[-1])
    mark = log.rindex(number)
    at = {"message": message, "number": mark}.get(rotten, mark - 8)
    size = len(log[mark - 8 :].rstrip(b"\0")) if rotten == "all of it" else 1
    harmed = bytes(byte ^ 0x40 for byte in log[at : at + size])
    overwrite(cut.disk, path, harmed, at)
    seen = verify(cut.store, fs=cut.disk)
    assert seen.verdict == "clean", "it may have been torn"
    (note,) = (found for found in seen.findings if "not whole" in found.what)
    store = opened(cut, cut.disk)
    (repair,) = store.repairs
    assert (repair.path, repair.kept, repair.records) == (path, mark - 8, 0)
    assert repair.reason == note.what
    assert repair.reason.startswith("its last entry is not whole")
    assert repair.saved_as is not None
    assert harmed in content(cut.disk)[repair.saved_as]
    store.close()
    whole = len(cut.synced) if life == "kill" else len(cut.synced) - 1
    assert cut.kind.read(PATH, fs=cut.disk) == cut.synced[:whole]
    assert opened(cut, cut.disk.copy()).repairs == (), "it is reported once"
    check_in_use(cut, whole)


@each_kind
@each_life
def test_a_log_of_another_version_is_refused_and_stays_as_it_is(name: str, life: str) -> None:
    cut = ended(name, life)
    path = log_of(cut.store)
    before = content(cut.disk)
    as_version_2(cut.disk, path)
    log = content(cut.disk)[path]
    for _ in range(2):
        with pytest.raises(UnsupportedFormatError) as refused:
            opened(cut, cut.disk)
        assert str(refused.value) == f"{path}: found a log of format version 2, supported: version 1"
    assert content(cut.disk)[path] == log
    overwrite(cut.disk, path, before[path])
    assert cut.kind.read(PATH, fs=cut.disk) == cut.synced, "the version that knows it finds everything"


@each_kind
@each_life
def test_the_log_of_another_store_is_not_put_into_this_one(name: str, life: str) -> None:
    cut, other = ended(name, life), power_cuts.lost(name, count=9)
    handle = cut.disk.open(log_of(cut.store), write=True)
    cut.disk.truncate(handle, 0)
    log = content(other.disk)[log_of(other.store)]
    cut.disk.pwrite(handle, log, 0)
    cut.disk.close(handle)
    store = opened(cut, cut.disk)
    (repair,) = (repair for repair in store.repairs if repair.path == log_of(cut.store))
    assert repair.reason.startswith("it is another store's, or an older one")
    assert repair.saved_as is not None
    assert content(cut.disk)[repair.saved_as] == log
    store.close()
    found = cut.kind.read(PATH, fs=cut.disk)
    assert found == cut.synced[: len(found)]


@each_kind
@each_life
def test_a_log_that_no_lock_names_is_not_looked_at_but_for_its_version(name: str, life: str) -> None:
    """It was left by a version that does not know it; or somebody has put it there."""
    cut = ended(name, life)
    opened(cut, cut.disk).close()
    cut.disk.write_durably(log_of(cut.store), b"something of somebody" * 300)
    store = opened(cut, cut.disk)
    assert store.repairs == ()
    store.close()
    assert cut.kind.read(PATH, fs=cut.disk) == cut.synced
    check_in_use(cut, len(cut.synced))


# --- what is no file ------------------------------------------------------------------------------


def lay_pipe(path: Path) -> None:
    os.mkfifo(path)


def lay_link(path: Path) -> None:
    target = path.with_name("precious")
    target.write_bytes(b"precious" * 1000)
    path.symlink_to(target)


def lay_link_to_nothing(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


def lay_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def lay_directory(path: Path) -> None:
    path.mkdir()


OBJECTS = [lay_pipe, lay_link, lay_link_to_nothing, lay_link_to_a_device, lay_directory]
each_object = pytest.mark.parametrize("lay", OBJECTS, ids=lambda lay: lay.__name__.removeprefix("lay_"))
has_objects = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no such things")


def on_disk(cut: Lost, path: Path, life: str) -> Path:
    """The store on the real disk; returns the path of its redo log."""
    store = power_cuts.on_disk(cut, path)
    if life != "power cut":
        power_cuts.in_this_boot(store)
    return Path(log_of(store))


def check_links(path: Path) -> None:
    """Nothing was written where a link leads."""
    if (target := path.with_name("precious")).exists():
        assert target.read_bytes() == b"precious" * 1000
    assert not path.with_name("nothing").exists()


@has_objects
@each_kind
@each_life
@each_object
def test_what_is_no_file_in_place_of_the_log_is_refused_with_a_sentence(
    name: str, life: str, lay: Callable[[Path], None], tmp_path: Path
) -> None:
    cut = ended(name, life)
    log = on_disk(cut, tmp_path, life)
    saved = log.read_bytes()
    log.unlink()
    lay(log)
    for _ in range(2):
        with pytest.raises(NotAFileError, match="where a file should be; move it away") as refused:
            cut.kind.open(tmp_path, **power_cuts.OPTIONS.get(name, {}))
        assert str(log) in str(refused.value)
    check_links(log)
    (log.rmdir if log.is_dir() and not log.is_symlink() else log.unlink)()
    log.write_bytes(saved)
    assert cut.kind.read(tmp_path) == cut.synced


@has_objects
@each_kind
@each_life
@each_object
def test_what_is_no_file_where_a_log_is_made_costs_no_message(
    name: str, life: str, lay: Callable[[Path], None], tmp_path: Path
) -> None:
    cut = ended(name, life)
    log = on_disk(cut, tmp_path, life)
    new = log.with_name(f"{log.name}.new")
    lay(new)
    more = bodies(4, start=100)
    with cut.kind.open(tmp_path, **power_cuts.OPTIONS.get(name, {})) as store:
        assert store.repairs == ()
        for one in more:
            store.put(one, "synced")
        assert log.is_file() or new.is_dir()
    check_links(log)
    assert cut.kind.read(tmp_path) == [*cut.synced, *more]


@has_objects
@each_kind
@each_object
def test_what_comes_there_while_the_store_is_open_costs_no_message(
    name: str, lay: Callable[[Path], None], tmp_path: Path
) -> None:
    """The first synced message finds it."""
    kind = ENGINES[name]
    with kind.open(tmp_path, **power_cuts.OPTIONS.get(name, {})) as store:
        store.put(b"one")
        (private,) = tmp_path.glob(".diskq")
        log = private / {"queue": "events.redo", "spool": "spool.redo"}.get(name, "redo")
        lay(log.with_name(f"{log.name}.new"))
        for one in (b"two", b"three"):
            store.put(one, "synced")
    check_links(log)
    assert kind.read(tmp_path) == [b"one", b"two", b"three"]


# --- the disk refuses it --------------------------------------------------------------------------

REFUSALS = {
    "full disk": ("pwrite", errno.ENOSPC),
    "quota": ("pwrite", errno.EDQUOT),
    "file size limit": ("pwrite", errno.EFBIG),
    "read-only": ("open", errno.EROFS),
    "not permitted": ("open", errno.EACCES),
    "no descriptor": ("open", errno.EMFILE),
    "no descriptor of the system": ("open", errno.ENFILE),
    "a disk that fails": ("pwrite", errno.EIO),
}


def fresh(name: str) -> tuple[Kind, FaultFS[CrashFS], list[float]]:
    disk = CrashFS()
    disk.make_directory_durably(PATH)
    return ENGINES[name], FaultFS(disk), [0.0]


@each_kind
@pytest.mark.parametrize("refusal", REFUSALS)
def test_without_a_log_the_files_are_synced_and_it_is_tried_again(
    name: str, refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    kind, fs, now = fresh(name)
    verb, error = REFUSALS[refusal]
    logs = f"{PATH}/.diskq/*redo.new"
    fault = fs.fail(verb, 1, error, path=logs, times=None)
    sent = bodies(8)
    with caplog.at_level(logging.WARNING, logger="diskq"):
        store = kind.open(PATH, fs=fs, clock=lambda: now[0], sync_timeout=1000.0)
        for one in sent[:3]:
            store.put(one, "synced")
            assert kind.read(PATH, fs=fs.inner.crash()) == sent[: sent.index(one) + 1]
    events = [record for record in caplog.records if getattr(record, "diskq_event", "") == "no_redo_log"]
    assert len(events) == 1, "once for some time, not for every message"
    assert "the files are synced instead" in events[0].getMessage()
    assert fault.hits == 1
    assert not [path for path in fs.inner.files() if path.endswith("redo.new")], "nothing partial stays"
    fs.heal()
    store.put(sent[3], "synced")
    assert not [path for path in fs.inner.files() if path.endswith("redo")]
    now[0] += 11.0
    for one in sent[4:]:
        store.put(one, "synced")
        assert kind.read(PATH, fs=fs.inner.crash()) == sent[: sent.index(one) + 1]
    assert [path for path in fs.inner.files() if path.endswith("redo")]
    store.close()
    assert kind.read(PATH, fs=fs.inner.crash()) == sent


@each_kind
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_log_that_cannot_grow_is_used_as_it_is(name: str, refusal: str) -> None:
    kind, fs, _ = fresh(name)
    store = kind.open(PATH, fs=fs, sync_every=10**6, sync_timeout=10.0**6)
    sent = bodies(60, size=3000)
    for number, one in enumerate(sent):
        if number == 4:
            verb, error = REFUSALS[refusal]
            fs.fail(verb, 1, error, path=f"{PATH}/.diskq/*redo.new", times=None)
        store.put(one, "synced")
        if number % 6 == 0:
            assert kind.read(PATH, fs=fs.inner.crash()) == sent[: number + 1]
    assert {fs.inner.size_of(path) for path in fs.inner.files() if path.endswith("redo")} == {65536}
    store.close()
    assert kind.read(PATH, fs=fs.inner.crash()) == sent


@each_kind
@pytest.mark.parametrize("word", ["written", "synced"])
def test_after_a_message_that_passes_the_log_the_next_sync_is_one_of_the_files(
    name: str, word: Durability
) -> None:
    """Too large for an entry, it is in the files alone, and those after it mean nothing without it."""
    kind, fs, _ = fresh(name)
    store = kind.open(PATH, fs=fs, sync_every=10**6, sync_timeout=10.0**6)
    sent = [*bodies(3), body(3, size=200 * 1024), *bodies(3, start=4)]
    of_files = []
    for number, one in enumerate(sent):
        before = len(fs.calls)
        store.put(one, word if number == 3 else "synced")
        synced = [call.path for call in fs.calls[before:] if call.verb == "sync_files"]
        if any("/.diskq/" not in path for path in synced):
            of_files.append(number)
        if synced:
            assert kind.read(PATH, fs=fs.inner.crash()) == sent[: number + 1]
    assert [number for number in of_files if number > 1] == [3 if word == "synced" else 4]
    store.close()
    assert kind.read(PATH, fs=fs.inner.crash()) == sent


@each_kind
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_log_that_needs_space_to_be_written_over_costs_no_message(name: str, error: int) -> None:
    """Some file systems write in other places."""
    kind, fs, _ = fresh(name)
    store = kind.open(PATH, fs=fs, sync_every=10**6, sync_timeout=10.0**6)
    sent = bodies(12)
    for number, one in enumerate(sent):
        if number == 4:
            fs.fail("pwrite", 1, error, path=f"{PATH}/.diskq/*redo*", times=None)
        if number == 8:
            fs.heal()
        store.put(one, "synced")
        assert kind.read(PATH, fs=fs.inner.crash()) == sent[: number + 1]
    store.close()
    assert kind.read(PATH, fs=fs.inner.crash()) == sent


@each_kind
@pytest.mark.parametrize(
    "verb, error", [("sync_files", errno.EIO), ("pwrite", errno.EIO), ("pwrite", errno.EROFS)]
)
def test_a_log_that_fails_in_use_breaks_the_store_and_loses_nothing_that_was_promised(
    name: str, verb: str, error: int
) -> None:
    kind, fs, _ = fresh(name)
    store = kind.open(PATH, fs=fs, sync_every=10**6, sync_timeout=10.0**6)
    sent = bodies(9)
    for one in sent[:5]:
        store.put(one, "synced")
    fs.fail(verb, 1, error, path=f"{PATH}/.diskq/*redo*", times=None)
    with pytest.raises(StorageFailedError):
        store.put(sent[5], "synced")
    with pytest.raises(StorageFailedError):
        store.put(sent[6], "synced")
    store.close()
    for disk in (fs.inner.kill(), fs.inner.crash()):
        found, repairs = kind.read_with_repairs(PATH, fs=disk)
        assert found[:5] == sent[:5]
        assert found == sent[: len(found)]
        assert repairs == ()


# --- no space for the checksums that it holds --------------------------------------------------------


@each_kind
@each_life
def test_a_disk_too_full_for_checksums_of_the_log_is_refused_only_after_a_restart(
    name: str, life: str
) -> None:
    """The records are in their place. After a restart none of them is believed without its checksum."""
    cut, whole = ended(name, life), content(ended(name, "kill").disk)
    for path in content(cut.disk):
        if "/.diskq/" not in path:
            overwrite(cut.disk, path, whole[path])
    fs = FaultFS(cut.disk)
    fault = fs.fail("pwrite", 1, errno.ENOSPC, path="*.sums", times=None)
    if life == "power cut":
        with pytest.raises(DiskFullError):
            opened(cut, fs)
    else:
        store = opened(cut, fs)
        assert store.repairs == ()
        with suppress(DiskFullError):
            store.close()
    assert fault.hits
    fs.heal()
    for disk in (cut.disk.kill(), cut.disk.crash(), cut.disk.crash(is_restart=False)):
        store = opened(cut, disk)
        assert store.repairs == (), "nothing was set aside"
        store.close()
        assert cut.kind.read(PATH, fs=disk) == cut.synced


# --- no descriptor, a full or read-only disk, at the next open ---------------------------------------


@pytest.mark.sampled
@each_kind
@each_life
@pytest.mark.parametrize("verb", ["open", "pwrite", "truncate", "sync_files", "pread"])
@pytest.mark.parametrize(
    "error", [errno.EMFILE, errno.ENOSPC, errno.EROFS, errno.EIO], ids=errno.errorcode.get
)
def test_an_open_that_fails_at_the_log_can_be_repeated(name: str, life: str, verb: str, error: int) -> None:
    for nth in range(1, 6 if IS_EXHAUSTIVE else 2):
        cut = ended(name, life)
        fs = FaultFS(cut.disk)
        fault = fs.fail(verb, nth, error, path=f"{PATH}/.diskq/*redo*", times=None)
        try:
            store = opened(cut, fs)
        except (OSError, DiskqError):
            pass
        else:
            store.close()
        fs.heal()
        for disk in (cut.disk.copy(), cut.disk.crash()):
            assert cut.kind.read(PATH, fs=disk) == cut.synced
        if not fault.hits:
            break


def test_the_identity_of_this_boot_is_known() -> None:
    """Or the tests after a kill, on the real disk, would be of a power cut."""
    assert OsFileSystem().identity().boot_id

# The owner file. Law: a diskq producer recognises its own file after any crash, and takes another's only with
# `take_over`.

from __future__ import annotations

import contextlib
import errno
import itertools
import random
from pathlib import Path

import pytest

from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.owner import OwnerFile, owner_state
from diskq.errors import DiskFullError, LockedError
from diskq.storage.barrier import Barrier
from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.testing import CrashFS, FaultFS, PowerCut
from tests.crash.harness import PromiseBroken, run_cuts
from tests.crash.mutations import Mutation

GOLDEN = Path(__file__).parents[2] / "golden" / "diskq" / "live_owner" / "data"
OWNER = "/s/owner"
PEER = bytes.fromhex("55dac51aeae74b8381ac5ee49a98ca54")


def disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably("/s/.diskq")
    return fs


@pytest.fixture
def fs():
    return disk()


class OneName(CrashFS):
    """A disk on which a file has one name, as on FAT."""

    def link(self, source: str, target: str) -> bool:
        return False


@pytest.fixture
def one_name():
    fs = OneName()
    fs.make_directory_durably("/s/.diskq")
    return fs


def owner(fs: FileSystem, *, take_over: bool = False) -> OwnerFile:
    return OwnerFile(fs, StreamFiles(fs, "/s"), take_over=take_over)


def state(fs: FileSystem) -> str:
    return owner_state(fs, StreamFiles(fs, "/s"))


def release(fs: FileSystem, file: OwnerFile) -> None:
    Barrier(removals=file.removals()).execute(fs)


# --- ours -------------------------------------------------------------------------------------


def test_an_owner_file_is_sixteen_raw_bytes_of_a_random_uuid(tmp_path):
    fs = OsFileSystem()
    (tmp_path / ".diskq").mkdir()
    file = OwnerFile(fs, StreamFiles(fs, str(tmp_path)))
    content = (tmp_path / "owner").read_bytes()
    assert content == file.id
    assert len(content) == 16
    assert (content[6] >> 4, content[8] >> 6) == (4, 2)
    assert list((tmp_path / ".diskq").iterdir()) == [tmp_path / ".diskq" / "owner"]


def test_it_is_the_file_with_the_streams_id_under_a_second_name(tmp_path):
    (tmp_path / ".diskq").mkdir()
    file = OwnerFile(OsFileSystem(), StreamFiles(OsFileSystem(), str(tmp_path)))
    assert (tmp_path / "owner").samefile(tmp_path / ".diskq" / "owner")
    Barrier(removals=file.removals()).execute(OsFileSystem())
    assert (tmp_path / ".diskq" / "owner").read_bytes() == file.id


def test_where_files_have_one_name_it_is_a_file_of_its_own(one_name):
    file = owner(one_name)
    assert one_name.read(OWNER) == one_name.read("/s/.diskq/owner") == file.id
    assert one_name.stamp_of(OWNER) != one_name.stamp_of("/s/.diskq/owner")
    release(one_name, file)
    assert owner(one_name).id == file.id


def test_two_streams_have_two_ids():
    fs = CrashFS()
    for name in ("/s", "/t"):
        fs.make_directory_durably(f"{name}/.diskq")
    ids = {OwnerFile(fs, StreamFiles(fs, name)).id for name in ("/s", "/t")}
    assert len(ids) == 2


def test_the_owner_file_is_there_until_its_removal_is_executed_once(fs):
    assert state(fs) == "none"
    file = owner(fs)
    assert state(fs) == "ours"
    assert file.removals() == (OWNER,)
    release(fs, file)
    assert state(fs) == "none"
    assert file.removals() == ()
    release(fs, file)


def test_a_stream_keeps_its_id_from_one_producer_to_the_next(fs):
    first = owner(fs)
    release(fs, first)
    assert owner(fs).id == first.id


def test_the_file_that_a_killed_producer_left_is_kept_on(fs):
    first = owner(fs)
    after = fs.kill()
    assert state(after) == "ours"
    second = owner(after)
    assert second.id == first.id == after.read(OWNER)
    assert second.repairs == []
    release(after, second)
    assert state(after) == "none"


@pytest.mark.parametrize("size", range(17))
@pytest.mark.parametrize("zeros", [False, True])
def test_what_a_power_cut_left_of_a_file_of_its_own_is_written_again(one_name, size, zeros):
    first = owner(one_name)
    torn = first.id[:size]
    one_name.write_durably(OWNER, torn.ljust(16, b"\0") if zeros else torn)
    one_name.clock += 10
    second = owner(one_name)
    assert second.repairs == []
    assert one_name.read(OWNER) == first.id == second.id


def test_only_our_own_file_is_removed(fs):
    file = owner(fs)
    fs.unlink(OWNER)  # it is removed by hand, and another program starts
    fs.write_durably(OWNER, PEER)
    assert file.removals() == ()


# --- a peer's ---------------------------------------------------------------------------------


def test_a_peers_file_is_refused_and_the_error_says_what_to_do(fs):
    fs.write_durably(OWNER, PEER)
    assert state(fs) == "peer"
    with pytest.raises(LockedError) as refused:
        owner(fs)
    for words in ("/s is in use by a go-diskq producer", PEER.hex(), "fuser -v /s/parts", "take_over=True"):
        assert words in str(refused.value)
    assert refused.value.path == "/s"
    assert fs.read(OWNER) == PEER


def test_so_is_one_in_a_stream_that_was_ours_before(fs):
    release(fs, owner(fs))
    fs.write_durably(OWNER, PEER)
    with pytest.raises(LockedError):
        owner(fs)


def test_it_is_taken_over_when_asked_and_does_not_come_back(fs):
    fs.write_durably(OWNER, PEER)
    file = owner(fs, take_over=True)
    assert fs.read(OWNER) == file.id != PEER
    assert file.repairs == []
    for seed in range(50):
        after = fs.crash(random.Random(seed))
        after.clock += 10  # a machine takes its time to start
        assert owner(after).id == file.id


def test_go_diskqs_own_is_known_as_a_peers():
    fs = CrashFS.from_directory(GOLDEN, at="/s")
    fs.make_directory_durably("/s/.diskq")
    assert fs.read(OWNER) == PEER
    with pytest.raises(LockedError, match=PEER.hex()):
        owner(fs)
    assert owner(fs, take_over=True).id == fs.read(OWNER)


class Racing(FaultFS[CrashFS]):
    """A disk on which a go-diskq producer makes its file just before ours is made, and then writes it."""

    content = PEER

    def link(self, source: str, target: str) -> bool:
        self.inner.write_durably(OWNER, self.content)
        return super().link(source, target)

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        if path == OWNER and exclusive and self.inner.size_of(OWNER) is None:
            self.inner.write_durably(OWNER, self.content)
        return super().open(path, write=write, create=create, exclusive=exclusive)


@pytest.mark.parametrize("kind", ["fs", "one_name"])
def test_a_peer_that_is_faster_has_the_stream(kind, request):
    racing = Racing(request.getfixturevalue(kind))
    with pytest.raises(LockedError, match=PEER.hex()):
        owner(racing)
    assert racing.inner.read(OWNER) == PEER


def test_so_does_one_that_has_made_its_file_and_not_yet_written_it(fs):
    racing = Racing(fs)
    racing.content = b""
    with pytest.raises(LockedError, match="just opening"):
        owner(racing)
    assert fs.read(OWNER) == b""


def test_a_file_made_this_moment_and_still_empty_is_a_peers_that_is_opening(fs):
    fs.write_durably(OWNER, b"")
    assert state(fs) == "opening"
    with pytest.raises(LockedError, match="just opening"):
        owner(fs)
    fs.clock += 1.0
    assert state(fs) == "garbage"
    assert owner(fs).repairs == []


def test_a_clock_that_stepped_back_locks_nobody_out(fs):
    fs.write_durably(OWNER, b"")
    fs.epoch -= 3600.0
    assert owner(fs).id == fs.read(OWNER)


# --- garbage ----------------------------------------------------------------------------------

GARBAGE = [b"x", b"55dac51a-eae7-4b83-81ac-5ee49a98ca54\n", bytes(15) + b"\x01", PEER + b"\0", PEER[:15]]


@pytest.mark.parametrize("content", GARBAGE)
def test_what_is_no_id_is_set_aside_and_reported(fs, content):
    fs.write_durably(OWNER, content)
    file = owner(fs)
    (repair,) = file.repairs
    assert (repair.path, repair.kept, repair.dropped) == (OWNER, 0, len(content))
    assert repair.saved_as == "/s/.diskq/owner.bad"
    assert fs.read(repair.saved_as) == content
    assert fs.read(OWNER) == file.id


@pytest.mark.parametrize("content", [b"", b"\0", bytes(16), bytes(40)])
def test_a_file_with_nothing_in_it_is_no_loss(fs, content):
    fs.write_durably(OWNER, content)
    fs.clock += 10
    assert owner(fs).repairs == []
    assert "owner.bad" not in fs.list_directory("/s/.diskq")


@pytest.mark.parametrize("at", range(16))
@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_our_own_file_makes_it_nobody_elses(fs, at, bit):
    flipped = bytearray(owner(fs).id)
    flipped[at] ^= 1 << bit
    fs.rot(OWNER, bytes(flipped))
    assert state(fs) in ("ours", "garbage")
    assert owner(fs).id == fs.read(OWNER) == fs.read("/s/.diskq/owner")


@pytest.mark.parametrize("at", range(16))
def test_a_flipped_bit_in_a_file_of_its_own_never_makes_it_anothers_for_good(one_name, at):
    first = owner(one_name)
    flipped = bytearray(first.id)
    flipped[at] ^= 1
    one_name.rot(OWNER, bytes(flipped))
    assert state(one_name) != "none"
    assert owner(one_name, take_over=True).id == first.id == one_name.read(OWNER)


# --- a full disk ------------------------------------------------------------------------------


TEMPORARY = "/s/.diskq/owner.*.tmp"


@pytest.mark.parametrize(
    "kind, verb, path",
    [
        ("fs", "open", TEMPORARY),
        ("fs", "pwrite", TEMPORARY),
        ("fs", "link", OWNER),
        ("one_name", "open", OWNER),
        ("one_name", "pwrite", OWNER),
    ],
)
def test_where_there_is_no_room_it_says_so_and_leaves_nothing(kind, verb, path, request):
    fs = FaultFS(request.getfixturevalue(kind))
    fs.fail("open", path="/s/.diskq/owner", error=errno.ENOENT)  # nothing to read yet
    fs.fail(verb, path=path, error=errno.ENOSPC, times=None, nth=2 if (verb, path) == ("open", OWNER) else 1)
    with pytest.raises(DiskFullError, match="disk is full"):
        owner(fs)
    fs.heal()
    assert fs.size_of(OWNER) is None
    assert [name for name in fs.list_directory("/s/.diskq") if name.endswith(".tmp")] == []
    assert owner(fs).id == fs.inner.read(OWNER)


# --- crashes ----------------------------------------------------------------------------------


def two_producers(fs: CrashFS, seen: object) -> None:
    fs.make_directory_durably("/s/.diskq")
    for _ in range(2):
        release(fs, owner(fs))


def opens(outcome: str, fs: CrashFS, seen: object) -> None:
    """At once, with no time to grow old in."""
    assert owner(fs).id == fs.read(OWNER)


def test_no_crash_of_ours_locks_us_out():
    report = run_cuts(two_producers, opens, seeds=20, again=3)
    assert report.crashes > 300


def killed_then_powerless(seeds: int = 20) -> int:
    """Killed at each step of making the file; then another makes it, and the power fails. How many steps."""
    for cut in itertools.count(1):
        fs = disk()
        fs.cut_at = cut
        with contextlib.suppress(PowerCut):
            release(fs, owner(fs))
        killed = fs.kill()
        assert owner(killed).id == killed.read(OWNER)
        for seed in range(seeds):
            after = killed.crash(random.Random(seed))
            assert owner(after).id == after.read(OWNER)
        if not fs.is_cut:
            return cut - 1
    raise AssertionError


def test_neither_does_a_kill_with_a_power_cut_behind_it():
    assert killed_then_powerless() >= 6


BARRIER = "diskq.storage.barrier"
OWNERS = "diskq.engine.stream.owner"


@pytest.mark.parametrize(
    "mutation",
    [
        Mutation(BARRIER, "fs.sync_files((handle,))\n        finally", "pass\n        finally"),
        Mutation(BARRIER, "self._sync_directory(fs, directory)", "pass"),
    ],
    ids=str,
)
def test_an_id_that_is_not_durable_before_its_file_is_caught(mutation):
    with mutation.installed(), pytest.raises(PromiseBroken):
        run_cuts(two_producers, opens, seeds=60)


def left_of_a_file_of_its_own() -> set[bool | None]:
    """After power cuts: is it the id? None: it is not there."""
    fs = OneName()
    fs.make_directory_durably("/s/.diskq")
    made = owner(fs)
    found = {fs.crash(random.Random(seed)).files().get(OWNER) for seed in range(60)}
    return {None if content is None else content == made.id for content in found}


def test_a_file_of_its_own_has_the_id_wherever_it_survives():
    assert left_of_a_file_of_its_own() == {None, True}


def test_a_file_of_its_own_that_is_not_synced_is_caught():
    with Mutation(OWNERS, "Barrier(files=(handle,)).execute(fs)", "pass").installed():
        assert False in left_of_a_file_of_its_own()


def test_a_file_that_is_made_empty_first_is_caught():
    """As go-diskq makes its own: after a kill before the write the next producer is refused."""
    name = "if not self._fs.link(self._files.owner_id, self._files.owner):"
    with Mutation(OWNERS, name, "if True:").installed(), pytest.raises(PromiseBroken, match="just opening"):
        run_cuts(two_producers, opens)


def test_an_id_that_another_drew_and_did_not_make_durable_is_caught():
    mutation = Mutation(OWNERS, "Barrier(directories=(files.private,)).execute(fs)", "pass")
    with mutation.installed(), pytest.raises(LockedError):
        killed_then_powerless(seeds=60)

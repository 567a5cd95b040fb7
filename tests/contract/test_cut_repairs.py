# An open that repairs, and is cut short. Law: what only the last traces of lost messages show, that they were
# there and which offsets they had, is in the files or in the log before these traces go. So wherever the open
# ends, a later one assigns none of these offsets again, and the loss has been reported.
#
# The store was killed, and its newest file has lost bytes since. Its messages were synced to the files, so
# that no log has them. After a restart of the machine nothing tells them from messages that were never
# synced: those of queues are not reported then, and a journal assigns their offsets again.

from __future__ import annotations

import random
from pathlib import Path

import pytest

from diskq.engine.log import segment_recovery
from diskq.engine.queue import steps as queue_steps
from diskq.storage.repairs import RepairKind
from diskq.testing import CrashFS, PowerCut
from tests.contract.kinds import ENGINES, Kind, bodies, body, engines
from tests.crash.harness import ANOTHER, KILL, SAME
from tests.crash.mutations import Mutation
from tests.crash.test_disk_deaths import logged_repairs
from tests.sampling import sampled, spread

pytestmark = pytest.mark.sampled

PATH = "/x"
COUNT, SIZE = 20, 100
BLOCK = 4
"""Messages that share a checksum."""
DAMAGES = ("cut at a message", "cut in a message", "emptied", "removed")
DEATHS = (KILL, SAME, ANOTHER)
WITH_OFFSETS = ("stream", "journal")
SEGMENTS, QUEUE = segment_recovery.__name__, queue_steps.__name__


def damaged(kind: Kind, damage: str, files: str) -> tuple[CrashFS, int]:
    """Return the disk before the open, and how many messages are left."""
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    store = kind.open(PATH, fs=fs, sync_to="files", **(kind.small if files == "several" else {}))
    for first in range(0, COUNT, BLOCK):
        store.put_many(bodies(BLOCK, first, SIZE), "synced")
    fs = fs.kill()
    newest = [path for path in sorted(fs.files()) if Path(path).match(kind.names(PATH).data)][-1]
    content = fs.read(newest)
    there = [number for number in range(COUNT) if body(number, SIZE) in content]
    of_each, rest = divmod(len(content), len(there))
    assert not rest
    left = len(there) // 2 - 1 if damage.startswith("cut") else 0
    fs.write_durably(newest, content[: left * of_each + (7 if damage == "cut in a message" else 0)])
    if damage == "emptied, without checksums":
        for path in [path for path in fs.files() if path.endswith(".sums")]:
            fs.write_durably(path, b"")
    if damage == "removed":
        fs.unlink(newest)
        fs.sync_directory(str(Path(newest).parent))
    return fs, there[left]


def opened(kind: Kind, fs: CrashFS, cut_at: int | None = None) -> tuple[int, list[int | None]]:
    """Open and close it. Returns the next offset, and the numbers of messages in the repairs it logged."""
    fs.cut_at = cut_at
    accepted = 0
    with logged_repairs() as reported:
        try:
            with kind.open(PATH, fs=fs, sync_to="files") as store:
                accepted = store.accepted() if kind.name in WITH_OFFSETS else 0
        except PowerCut:
            pass
    return accepted, reported


def after(fs: CrashFS, death: str) -> CrashFS:
    """The disk as the next process finds it."""
    if death == KILL:
        return fs.kill()
    return fs.crash(random.Random(f"{fs.operations} {death}"), is_restart=death == ANOTHER)


def judge(kind: Kind, fs: CrashFS, death: str, kept: int, before: list[int | None]) -> None:
    """Open what cut opens have left, which have reported `before`, and insist."""
    next_offset, reported = opened(kind, fs)
    counts = [*before, *reported]
    found = kind.read(PATH, fs=fs)
    assert found == bodies(len(found), size=SIZE), "altered"
    # After a power cut, messages of a block that is not whole have no checksum that could be believed.
    assert kept - len(found) in range(1 if death == KILL else BLOCK), "lost"
    if kind.name in WITH_OFFSETS:
        least = len(found) if (kind.name, death) == ("journal", ANOTHER) else COUNT
        assert next_offset >= least, "assigned again"
    if death == KILL or (death == SAME and kind.name in WITH_OFFSETS):
        assert None in counts or sum(count or 0 for count in counts) >= COUNT - len(found), "silent"


def try_each_cut(kind: Kind, damage: str, files: str, death: str) -> int:
    """Cut the open before its operations, and the next one once for each. Returns the number of states."""
    found, kept = damaged(kind, damage, files)
    whole = found.copy()
    opened(kind, whole)
    states = 0
    cuts = range(1, whole.operations + 1)
    for cut in spread(cuts) if death == KILL else sampled(cuts, 16):
        first = found.copy()
        _, reported = opened(kind, first, cut)
        second = after(first, death)
        again = second.copy()
        judge(kind, second, death, kept, reported)
        _, reported_again = opened(kind, again, random.Random(f"{cut} {death}").randint(1, cut + 5))
        judge(kind, after(again, death), death, kept, [*reported, *reported_again])
        states += 2
    return states


@pytest.mark.parametrize("kind", engines("priority", "leases", "threaded spool"), ids=str)
@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("files", ["one", "several"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_no_offset_is_assigned_again_and_the_loss_is_reported(
    kind: Kind, damage: str, files: str, death: str
) -> None:
    assert try_each_cut(kind, damage, files, death) > 0


def test_offsets_of_which_only_entries_are_left_are_not_assigned_again() -> None:
    assert try_each_cut(ENGINES["stream"], "emptied, without checksums", "several", KILL) > 0


@pytest.mark.parametrize("kind", engines("priority", "leases", "threaded spool"), ids=str)
@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("files", ["one", "several"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_messages_that_are_gone_are_one_repair_with_their_number(
    kind: Kind, damage: str, files: str, death: str
) -> None:
    fs, _ = damaged(kind, damage, files)
    fs = after(fs, death)
    with kind.open(PATH, fs=fs, sync_to="files") as store:
        repairs = store.repairs
    found = kind.read(PATH, fs=fs)
    if kind.name == "stream":
        kinds = [repair.kind for repair in repairs]
        assert kinds == [RepairKind.UNSYNCED if death == ANOTHER else RepairKind.LOST]
    if death == ANOTHER:  # a loss that only checksums show is not reported by each kind
        assert len(repairs) <= 1
        return
    assert [repair.records for repair in repairs] == [COUNT - len(found)]


@pytest.mark.parametrize("kind", [ENGINES[name] for name in WITH_OFFSETS], ids=str)
@pytest.mark.parametrize("death", DEATHS)
def test_a_first_segment_that_was_never_synced_is_reported_where_it_is_gone(kind: Kind, death: str) -> None:
    """After a restart as what it is: it was not promised to be there."""
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    store = kind.open(PATH, fs=fs, sync_every=10**6, sync_timeout=3600.0, **kind.small)
    early = {path: content for path, content in fs.files().items() if path.endswith("/state")}
    for each in bodies(COUNT, size=SIZE):
        store.put(each, "written")
    files = {**fs.files(), **early}
    first, second, *_ = sorted(path for path in files if Path(path).match(kind.names(PATH).data))
    left = CrashFS()
    for path in [path for path in files if Path(path).stem not in (Path(first).stem, Path(first).name)]:
        left.make_directory_durably(str(Path(path).parent))
        left.write_durably(path, files[path])
    with kind.open(PATH, fs=after(left, death), **kind.small) as again:
        missing = [repair for repair in again.repairs if repair.path == first]
    kept = int(Path(second).stem, 16 if kind.name == "journal" else 10)
    expected = RepairKind.UNSYNCED if death == ANOTHER else RepairKind.LOST
    assert [(repair.kind, repair.records) for repair in missing] == [(expected, kept)]


WEAKER = [
    (
        Mutation(SEGMENTS, "self._repairs.begin(self._files.data(offset))", "pass"),
        "journal",
        "cut at a message",
    ),
    (
        Mutation(SEGMENTS, "is_complete and not self._is_begun_after(base)", "is_complete"),
        "journal",
        "emptied",
    ),
    (Mutation(SEGMENTS, "if not self._is_begun_after(base):\n", "if True:\n"), "journal", "cut in a message"),
    # The last traces go before there is the segment, or before the report.
    (
        Mutation(
            SEGMENTS,
            "orphans = files.orphans(found.bases)\n",
            "orphans = []; Barrier(removals=tuple(files.orphans(found.bases))).execute(self._fs)\n",
        ),
        "journal",
        "removed",
    ),
    (
        Mutation(SEGMENTS, "        is_begun = found.next", "        judge.settle(); is_begun = found.next"),
        "stream",
        "emptied, without checksums",
    ),
    (
        Mutation(QUEUE, "return found.reported", "recovery.settle(found); return found.reported"),
        "queue",
        "cut at a message",
    ),
]


@pytest.mark.parametrize("mutation, name, damage", WEAKER, ids=str)
def test_a_weaker_order_is_caught(mutation: Mutation, name: str, damage: str) -> None:
    def try_all() -> None:
        for files in ("several", "one"):
            for death in (KILL, SAME):
                try_each_cut(ENGINES[name], damage, files, death)

    with mutation.installed(), pytest.raises(AssertionError):
        try_all()

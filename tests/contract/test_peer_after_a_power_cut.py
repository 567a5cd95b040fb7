# Another program opens the files first after a power cut. Law: what it wrote is delivered, whatever checksums
# outlived the data that they were of; and what diskq has synced is there.
#
# A checksum file is written over zeros, and a data file grows: so a power cut often leaves rows whose data is
# gone, and the other program writes where that was.

from __future__ import annotations

from typing import Any

import pytest

from diskq.storage.checksums import rows_after
from diskq.testing import CrashFS
from tests.crash.redo_logs import KINDS, METADATA, QUEUE_PLACE, Kind

pytestmark = pytest.mark.usefixtures("quiet_log")

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
each_boot = pytest.mark.parametrize("boot", ["another", "the same", "none"])

EARLY, LATE = 5, 40
THEIRS = [b"peer %d" % number for number in range(30)]


def cut(kind: Kind, boot: str, *, word: str, size: int) -> tuple[CrashFS, list[bytes]]:
    """A disk that has all rows, and of the data what was synced in its files; and what was sent."""
    disk = CrashFS()
    disk.has_boot_id = boot != "none"
    disk.make_directory_durably("/q")
    engine: Any = kind.open(disk, file_size=10**7)
    sent = [b"%06d" % number + b"." * size for number in range(EARLY + LATE)]
    for number, one in enumerate(sent[:EARLY]):
        kind.put(engine, [number], [one], "synced")
    engine.sync()
    for number, one in enumerate(sent[EARLY:], EARLY):
        kind.put(engine, [number], [one], word)
    after = disk.copy().crash(is_restart=boot == "another")
    for path, content in disk.files().items():
        if path.endswith(".sums"):
            after.write_durably(path, content)
    return after, sent


def data_of(sums: str) -> str:
    """The data file of a checksum file."""
    return sums.replace("/.diskq", "").replace("journal-data", "jnl").removesuffix(".sums")


@each_kind
@each_boot
@pytest.mark.parametrize("word, size", [("synced", 80), ("written", 9000)], ids=["in the log", "unsynced"])
def test_what_it_wrote_is_delivered_whatever_checksums_outlived_their_data(
    kind: Kind, boot: str, word: str, size: int
) -> None:
    disk, sent = cut(kind, boot, word=word, size=size)
    sums = [path for path in disk.files() if path.endswith(".sums")]
    assert any(rows_after(disk, path, disk.size_of(data_of(path)) or 0) for path in sums)
    kind.let_peer_write(disk, THEIRS)
    _, found = kind.values(disk)
    assert sorted(one for one in found if one in THEIRS) == sorted(THEIRS)
    assert set(sent if word == "synced" else sent[:EARLY]) <= set(found)
    assert set(found) <= {*sent, *THEIRS}
    again = disk.crash()
    assert sorted(kind.values(again)[1]) == sorted(found), "durable, without the rows"


@pytest.mark.parametrize("boot", ["the same", "none"])
def test_a_go_diskqueue_that_dies_before_its_metadata_is_delivered_from_where_the_redo_log_was(
    boot: str,
) -> None:
    """Nothing but the bytes themselves tells them from what belongs there."""
    disk, sent = cut(KINDS["queue"], boot, word="synced", size=80)
    metadata = disk.files()[METADATA]
    KINDS["queue"].let_peer_write(disk, THEIRS, dies=True)
    assert disk.files()[METADATA] == metadata
    repairs, found = KINDS["queue"].values(disk)
    assert sorted(found) == sorted([*sent, *THEIRS])
    assert not any(repair.records for repair in repairs)


def test_a_go_diskqueue_that_dies_before_its_metadata_is_kept_aside_after_a_restart() -> None:
    disk, sent = cut(KINDS["queue"], "another", word="synced", size=80)
    KINDS["queue"].let_peer_write(disk, THEIRS, dies=True)
    repairs, found = KINDS["queue"].values(disk)
    assert found == sent
    (aside,) = [repair for repair in repairs if repair.records is None]
    assert aside.saved_as is not None
    assert b"".join(len(one).to_bytes(4, "big") + one for one in THEIRS) in disk.files()[aside.saved_as]


@pytest.mark.parametrize("later", [0, 3])
def test_damage_where_the_redo_log_was_is_not_taken_for_another_program(later: int) -> None:
    """With and without messages after it that are not synced."""
    disk = CrashFS()
    disk.make_directory_durably("/q")
    engine: Any = KINDS["queue"].open(disk, file_size=10**7)
    sent = [b"%06d" % number + b"." * 80 for number in range(EARLY + later)]
    engine.put(sent[0], durability="synced")
    engine.sync()
    for number, one in enumerate(sent[1:], 1):
        KINDS["queue"].put(engine, [number], [one], "synced" if number < EARLY else "written")
        engine.log.flush()
    killed = disk.kill()
    path = f"{QUEUE_PLACE}/events.diskqueue.000000.dat"
    content = bytearray(killed.files()[path])
    content[(EARLY - 1) * 90 + 50] ^= 1
    killed.write_durably(path, bytes(content))
    _, found = KINDS["queue"].values(killed)
    assert sorted(found) == sent


@each_boot
def test_a_go_diskqueue_that_begins_a_file_of_ours_anew_is_reported_with_what_it_overwrote(boot: str) -> None:
    """The metadata was not durable: it names a file that diskq had left. The next one is begun at byte 0."""
    disk = CrashFS()
    disk.has_boot_id = boot != "none"
    disk.make_directory_durably("/q")
    kind = KINDS["queue"]
    engine: Any = kind.open(disk, file_size=1000, sync_to="files")
    sent = [b"%06d" % number + b"." * 300 for number in range(5)]
    for number, one in enumerate(sent[:2]):
        kind.put(engine, [number], [one], "synced")
    engine.sync()
    early = disk.files()[METADATA]
    for number, one in enumerate(sent[2:], 2):
        kind.put(engine, [number], [one], "synced")
    left = disk.crash(is_restart=boot == "another")
    left.write_durably(METADATA, early)
    theirs = [one + b"." * 100 for one in THEIRS]
    kind.let_peer_write(left, theirs)
    repairs, found = kind.values(left)
    lost = [one for one in sent if one not in found]
    assert lost
    assert [one for one in found if one in theirs] == theirs
    assert [repair.records for repair in repairs if repair.records] == [len(lost)]

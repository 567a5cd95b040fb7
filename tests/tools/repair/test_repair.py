# Repairs. Law: afterwards verify finds no damage, no message is lost that could be read, and a second run
# finds nothing to do; a dry run changes nothing.

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import diskq
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader_offset import JournalCommittedOffset
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.queue.work import QueueWork
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.stream import Stream
from diskq.errors import DiskFullError, DiskqError, LockedError, UnsupportedFormatError
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS, FaultFS
from diskq.tools.gaps import known_gaps
from diskq.tools.repair.repair import repair
from diskq.tools.stores import Kind, Store, stores_at
from diskq.tools.verify.verification import verify
from tests.crash.harness import Witness, run_cuts
from tests.reference import nsq_oracle, sej_oracle, triplet_oracle
from tests.sampling import IS_EXHAUSTIVE, first
from tests.tools.damaged import COUNT, KINDS, body, digest, flip, made, messages_in

GOLDEN = Path(__file__).parents[2] / "golden"
DIRECTORIES = sorted(
    f"{peer}/{case.name}"
    for peer in ("nsq", "diskq", "sej")
    for case in (GOLDEN / peer).iterdir()
    if case.is_dir()
)
CASES = json.loads((GOLDEN / "taskflux" / "manifest.json").read_text())["cases"]

of_each_kind = pytest.mark.parametrize("kind", KINDS)

# The first file that is not written to any more, of each kind.
IN_THE_MIDDLE = {
    "queue": "events.diskqueue.000000.dat",
    "spool": "spool.diskqueue.000000.dat",
    "stream": "parts/000000/00000000000000000025.data",
    "journal": "jnl/0000000000000018.jnl",
    "jobs": "data/log/0000000000000000000.log",
}


def golden(name: str, tmp_path: Path) -> list[Store]:
    path = tmp_path / "copy"
    shutil.copytree(GOLDEN / name / "data", path)
    return stores_at(path)


def damaged(kind: Kind, tmp_path: Path, at: int = 1500) -> Store:
    store = made(kind, str(tmp_path))
    if kind == "jobs":
        name = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.log"))[0]
    else:
        name = IN_THE_MIDDLE[kind]
    flip(tmp_path / name, at)
    return store


def parsed(path: Path) -> Iterator[object]:
    """What stands in the files below `path`, set aside or not, by `struct` alone."""
    for file in sorted(path.rglob("*")):
        if not file.is_file():
            continue
        name, content = file.name.partition(".bad")[0], file.read_bytes()
        if ".diskqueue." in name and "meta" not in name and name.endswith(".dat"):
            yield from nsq_oracle.frames(content, may_be_torn=True)
        elif name.endswith(".data"):
            yield from triplet_oracle.records(content)[0]
        elif name.endswith(".jnl"):
            yield from sej_oracle.records(content)[0]


# --- what peers left ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIRECTORIES)
def test_what_peers_left_is_whole_afterwards(name, tmp_path):
    for store in golden(name, tmp_path):
        repair(store, apply=True, take_over=True)
        assert verify(store).verdict == "clean"


@pytest.mark.parametrize("name", DIRECTORIES)
def test_nothing_that_parses_is_lost(name, tmp_path):
    stores = golden(name, tmp_path)
    before = set(parsed(tmp_path))
    for store in stores:
        repair(store, apply=True, take_over=True)
    assert set(parsed(tmp_path)) >= before


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_second_run_has_nothing_to_do(name, tmp_path):
    for store in golden(name, tmp_path):
        repair(store, apply=True, take_over=True)
        before = digest(tmp_path)
        assert repair(store, apply=True, take_over=True).repairs == ()
        assert digest(tmp_path) == before


@pytest.mark.parametrize("name", DIRECTORIES)
def test_dry_it_changes_no_byte(name, tmp_path):
    for store in golden(name, tmp_path):
        before = digest(tmp_path)
        repair(store, take_over=True)
        assert digest(tmp_path) == before


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_store_that_was_damaged_is_whole_afterwards(case, tmp_path):
    root = tmp_path / "store"
    (root / "data").mkdir(parents=True)
    if case["files"]:
        shutil.copytree(GOLDEN / "taskflux" / "cases" / case["id"], root, dirs_exist_ok=True)
    for store in stores_at(root):
        try:
            repair(store, apply=True)
        except UnsupportedFormatError:
            continue  # a newer program may know what it is
        assert verify(store).verdict == "clean"
        assert repair(store).repairs == ()


# --- bits that rot --------------------------------------------------------------------------------


@pytest.mark.exhaustive
@of_each_kind
def test_wherever_a_bit_rots_it_is_whole_afterwards(kind, tmp_path):
    (tmp_path / "whole").mkdir()
    made(kind, str(tmp_path / "whole"))
    number = 0
    for file in sorted((tmp_path / "whole").rglob("*")):
        if not file.is_file():
            continue
        name = file.relative_to(tmp_path / "whole")
        size = file.stat().st_size
        for at in range(number % 97, size, max(503, size // 6)):
            number += 1
            copy = tmp_path / f"copy{number}"
            shutil.copytree(tmp_path / "whole", copy)
            flip(copy / name, at)
            store = stores_at(copy)[0]
            try:
                repair(store, apply=True, take_over=True)
            except UnsupportedFormatError:
                # The version of a log of TaskFlux's has no checksum: a newer program may know what it is.
                assert (kind, name.suffix) == ("jobs", ".log")
                assert at < 8
                continue
            assert verify(store).verdict == "clean", (name, at)
            assert repair(store, take_over=True).repairs == (), (name, at)
            assert set(messages_in(store)) <= {body(number) for number in range(COUNT)}, (name, at)
            shutil.rmtree(copy)


@of_each_kind
def test_messages_in_other_blocks_are_all_there(kind, tmp_path):
    store = damaged(kind, tmp_path)
    lost = verify(store).lost
    done = repair(store, apply=True)
    left = messages_in(store)
    if kind != "jobs":  # its log ends there
        assert len(left) == COUNT - lost
        assert done.lost == lost
    assert left == sorted(left)


# --- how it is done -------------------------------------------------------------------------------


@of_each_kind
def test_the_plan_is_what_is_done(kind, tmp_path):
    store = damaged(kind, tmp_path)
    would = repair(store)
    done = repair(store, apply=True)
    assert would.repairs == done.repairs != ()


@of_each_kind
def test_what_is_left_out_is_kept(kind, tmp_path):
    store = damaged(kind, tmp_path)
    for each in repair(store, apply=True).repairs:
        size = None if each.saved_as is None else Path(each.saved_as).stat().st_size
        # Of a store's log the whole segment is kept.
        assert size is None or size == each.dropped or (kind == "jobs" and size > each.dropped)


@of_each_kind
def test_a_store_in_use_is_left_alone(kind, tmp_path):
    store = made(kind, str(tmp_path))
    opened = {
        "queue": lambda: Queue(store.path, "events"),
        "spool": lambda: Queue(store.path, "spool"),
        "stream": lambda: Stream(store.path),
        "journal": lambda: Journal(store.path),
        "jobs": lambda: PriorityStore(store.path),
    }[kind]
    with opened():
        for apply in (False, True):
            with pytest.raises(LockedError, match=r"process [0-9]+"):
                repair(store, apply=apply)


@pytest.mark.parametrize("kind", ["stream", "journal"])
def test_messages_keep_their_offsets(kind, tmp_path):
    store = damaged(kind, tmp_path)
    repair(store, apply=True)
    found = {}
    if kind == "journal":
        with diskq.JournalReader(store.path) as reader:
            found = {message.offset: message.value for message in reader.read_many(99)}
    else:
        fs = OsFileSystem()
        with PartitionReader(fs, StreamFiles(fs, store.path).partition(0)) as partition:
            found = {message.offset: message.value for message in partition.read_many(99)}
    assert found
    assert all(value == body(offset) for offset, value in found.items())


@pytest.mark.parametrize("kind", ["stream", "journal"])
def test_an_offset_is_not_given_again(kind, tmp_path):
    store = made(kind, str(tmp_path))
    file = sorted(tmp_path.rglob("*.data" if kind == "stream" else "*.jnl"))[-1]
    flip(file, file.stat().st_size // 2)
    repair(store, apply=True)
    if kind == "stream":
        with Stream(store.path) as stream:
            assert stream.append(b"new", key="a").offset == COUNT
    else:
        with Journal(store.path) as journal:
            assert journal.append(b"new") == COUNT


def test_gaps_are_noted(tmp_path):
    store = damaged("stream", tmp_path)
    repair(store, apply=True)
    fs = OsFileSystem()
    assert [gap[:2] for gap in known_gaps(fs, StreamFiles(fs, store.path))] == [(0, 25)]


def test_a_gap_that_is_not_noted_is_damage(tmp_path):
    store = damaged("stream", tmp_path)
    repair(store, apply=True)
    Path(StreamFiles(OsFileSystem(), store.path).gaps).unlink()
    assert verify(store).verdict == "damaged"


# --- what points into files -----------------------------------------------------------------------


def test_acknowledgements_move_along(tmp_path):
    with Queue(tmp_path, "events", options=diskq.QueueOptions(segment_size=100_000)) as queue:
        queue.put_many([body(number) for number in range(400)])
        with QueueWork(queue, options=diskq.QueueWorkOptions(max_in_flight=500, max_ahead=500)) as work:
            leases = work.get_many(400)
            work.ack([lease for number, lease in enumerate(leases) if number % 2])
    flip(tmp_path / "events.diskqueue.000000.dat", 6000)
    repair(Store("queue", str(tmp_path), "events"), apply=True)
    options = diskq.QueueWorkOptions(max_in_flight=500, max_ahead=500)
    with Queue(tmp_path, "events") as queue, QueueWork(queue, options=options) as work:
        left = [lease.body for lease in work.get_many(400)]
    assert left
    assert set(left) <= {body(number) for number in range(0, 400, 2)}


def test_a_reader_beyond_the_end_is_set_back(tmp_path):
    store = made("journal", str(tmp_path))
    with JournalCommittedOffset(tmp_path, "mails"):
        pass
    (tmp_path / "ofs" / "mails.ofs").write_bytes((9999).to_bytes(8, "big"))
    assert repair(store, apply=True).repairs
    assert (tmp_path / "ofs" / "mails.ofs").read_bytes() == COUNT.to_bytes(8, "big")


def test_a_group_beyond_the_end_is_set_back(tmp_path):
    store = made("stream", str(tmp_path))
    fs = OsFileSystem()
    member = ConsumerGroup(fs, StreamFiles(fs, store.path), "bills")
    with member.committed_offset(0) as committed_offset:
        committed_offset.commit(9999)
    assert repair(store, apply=True).repairs
    assert member.offsets().offsets == {0: COUNT - 1}


def test_the_missing_end_of_a_file_counts_as_verify_counts_it(tmp_path):
    store = made("queue", str(tmp_path))
    path = tmp_path / IN_THE_MIDDLE["queue"]
    os.truncate(path, path.stat().st_size - 300)
    (found,) = verify(store).findings
    (repaired,) = repair(store).repairs
    assert (repaired.kept, repaired.dropped, repaired.records) == (found.at, found.size, found.lost)
    assert repaired.dropped > 300


def test_a_file_that_is_missing_is_no_longer_asked_for(tmp_path):
    store = made("queue", str(tmp_path))
    names = sorted(path.name for path in tmp_path.glob("*.0*.dat"))
    assert len(names) > 2
    (tmp_path / names[1]).unlink()
    repair(store, apply=True)
    assert verify(store).verdict == "clean"
    assert repair(store).repairs == ()


def test_settings_that_are_no_json_are_made_again(tmp_path):
    store = made("stream", str(tmp_path))
    settings = tmp_path / "settings.json"
    flip(settings, 0)
    repair(store, apply=True)
    assert json.loads(settings.read_text())["partition_count"] == 1
    assert messages_in(store) == [body(number) for number in range(COUNT)]


@pytest.mark.parametrize(
    "content", ['{"encoding": "tomorrow"}', "[" * 5000 + "]" * 5000], ids=["newer", "nested-deeply"]
)
def test_settings_of_a_newer_program_are_left_alone(tmp_path, content):
    store = made("stream", str(tmp_path))
    (tmp_path / "settings.json").write_text(content)
    before = digest(tmp_path)
    with pytest.raises(UnsupportedFormatError):
        repair(store, apply=True)
    assert digest(tmp_path) == before


def test_what_a_go_producer_left_is_taken_over_only_with_take_over(tmp_path):
    (store,) = golden("diskq/live_owner", tmp_path)
    with pytest.raises(LockedError, match="take_over"):
        repair(store, apply=True)
    assert repair(store, apply=True, take_over=True).is_applied


# --- when it goes wrong on the way ----------------------------------------------------------------

CRASHING: tuple[Kind, ...] = ("queue", "stream", "journal", "jobs")


def rotten(kind: Kind, fs: CrashFS) -> Store:
    """A thing on that disk, of which a bit has rotted."""
    fs.make_directory_durably("/q")
    store = made(kind, "/q", fs)
    if kind == "queue":  # a file of several blocks, of which the first one rots
        with Queue("/q", "events", options=diskq.QueueOptions(segment_size=9000), fs=fs) as queue:
            queue.put_many([body(number) for number in range(COUNT, 4 * COUNT)])
    endings = ("2.dat", "25.data", "18.jnl", ".log")
    path = next(path for path in sorted(fs.files()) if path.endswith(endings))
    content = bytearray(fs.read(path))
    content[len(content) // 3] ^= 0x10
    fs.rot(path, bytes(content))
    return store


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("kind", first(1, CRASHING))
def test_killed_at_any_step_it_is_as_before_or_repaired(kind):
    before = CrashFS()
    store = rotten(kind, before)
    try:
        readable = set(messages_in(store, before.copy()))
    except DiskqError:
        readable = set()  # such a store does not open

    def workload(fs: CrashFS, witness: Witness) -> None:
        rotten(kind, fs)
        witness.attempted.append(kind)
        repair(store, apply=True, fs=fs)
        witness.synced.append(kind)

    def check(_: str, fs: CrashFS, witness: Witness) -> None:
        if not witness.attempted:
            return
        if witness.synced:
            assert repair(store, fs=fs).repairs == ()
        try:
            assert set(messages_in(store, fs)) >= readable
        except diskq.DamagedStoreError:
            assert not witness.synced
        # Who is killed while it makes the owner file leaves one that may be a peer's, for a second.
        repair(store, apply=True, take_over=True, fs=fs)
        assert verify(store, fs=fs).verdict == "clean"
        assert set(messages_in(store, fs)) >= readable

    run_cuts(workload, check, seeds=1, every=1 if IS_EXHAUSTIVE else 3)


@pytest.mark.parametrize("kind", CRASHING)
def test_where_the_disk_is_full_it_is_as_it_was(kind):
    for free in (0, 600, 2000, 4000, 8000):
        inner = CrashFS()
        store = rotten(kind, inner)
        before = verify(store, fs=inner)
        fs = FaultFS(inner)
        fs.capacity(free)
        try:
            repair(store, apply=True, fs=fs)
        except (DiskFullError, OSError):
            fs.capacity(None)
            assert verify(store, fs=inner).lost <= before.lost
        repair(store, apply=True, fs=inner)
        assert verify(store, fs=inner).verdict == "clean"

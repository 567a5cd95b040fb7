# What looks at a store sees what is in its redo log alone as part of the store. A tool changes nothing; a
# reader puts into the files what they lack (tests/contract/test_reader_first.py).

from __future__ import annotations

import base64
import json
from itertools import pairwise

import pytest

from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.reader import JournalReader
from diskq.engine.queue.snapshot import QueueSnapshot, SnapshotReader
from diskq.engine.stream.audit import audit_segment, audit_tasks
from diskq.engine.stream.reader import ReadableStream
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.errors import DiskFullError, UnsupportedFormatError
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS
from diskq.tools.convert.sources import entries
from diskq.tools.info import info
from diskq.tools.redo_logs import check_log_empty
from diskq.tools.repair.repair import repair
from diskq.tools.salvage.salvage import salvage
from diskq.tools.stores import Store
from diskq.tools.verify.verification import verify
from diskq.tools.watch.gauge import gauge_of
from tests.tools.power_cuts import KINDS, PATH, as_another, as_version_2, content, log_of, lost, overwrite

SEEDS = [None, *range(12)]

each_kind = pytest.mark.parametrize("kind", KINDS)
each_cut = pytest.mark.parametrize("seed", SEEDS)


def read(store: Store, fs: FileSystem) -> list[bytes]:
    """All messages by the readers that take no lock."""
    if store.kind == "journal":
        with JournalReader(store.path, fs=fs) as reader:
            reader.seek_oldest()
            return [message.value for message in reader.read_many(1000)]
    if store.kind == "stream":
        stream = ReadableStream(store.path, fs=fs)
        found = []
        for partition in stream.partitions():
            with stream.open(partition) as of_it:
                of_it.seek_oldest()
                found += [message.value for message in of_it.read_many(1000)]
        return found
    name = store.name or "spool"
    ranges = [each for part in QueueSnapshot(store.path, name, fs=fs).plan(3) for each in part]
    found = []
    # Each range on its own, as other processes read them.
    for each in ranges:
        with SnapshotReader(store.path, name, [each], fs=fs) as snapshot:
            while (columns := snapshot.columns()) is not None:
                ends = memoryview(columns[1].value_offsets).cast("i").tolist()
                values = columns[1].values
                found += [values[start:end] for start, end in pairwise(ends)]
    return found


@each_cut
@each_kind
def test_a_reader_gets_what_an_open_finds(kind, seed):
    cut = lost(kind, seed=seed, unsynced=3)
    expected = cut.after_an_open()
    assert set(cut.synced) <= set(expected)
    found = read(cut.store, cut.disk)
    assert found[: len(expected)] == expected


@each_kind
def test_what_was_durable_in_the_log_alone_is_read(kind):
    cut = lost(kind)
    assert sorted(read(cut.store, cut.disk)) == sorted(cut.synced)


@each_kind
def test_without_the_view_messages_would_be_missing(kind):
    """So these tests show something: the files alone do not have all of them."""
    cut = lost(kind)
    overwrite(cut.disk, log_of(cut.store), bytes(65536))
    assert len(read(cut.store, cut.disk)) < len(cut.synced)


@each_cut
@each_kind
def test_a_conversion_reads_them(kind, seed):
    cut = lost(kind, seed=seed)
    before = content(cut.disk)
    assert [each.value for each in entries(cut.store, fs=cut.disk)] == cut.after_an_open()
    assert content(cut.disk) == before


@each_cut
@each_kind
def test_verify_counts_them_and_reports_them_as_a_note(kind, seed):
    cut = lost(kind, seed=seed)
    before = content(cut.disk)
    found = verify(cut.store, fs=cut.disk)
    assert (found.verdict, found.messages, found.lost) == ("clean", len(cut.synced), 0), found.findings
    assert content(cut.disk) == before
    if seed is None:
        notes = [each for each in found.findings if each.path == log_of(cut.store)]
        assert notes
        assert all(each.severity == "note" and "not yet in" in each.what for each in notes)


@each_kind
def test_info_shows_the_log_and_how_much_waits_in_it(kind):
    cut = lost(kind)
    before = content(cut.disk)
    found = info(cut.store, fs=cut.disk)
    (log,) = found.redo_logs
    assert (log.path, log.size) == (log_of(cut.store), 65536)
    assert 0 < len(b"".join(cut.synced[1:])) < log.waiting
    assert "in the redo log, not yet in the files" in str(log)
    assert (found.messages, found.is_exact) == (len(cut.synced), True)
    assert content(cut.disk) == before


@each_kind
def test_info_after_an_open_shows_that_nothing_waits(kind):
    cut = lost(kind)
    with cut.opened():
        assert all(log.waiting == 0 for log in info(cut.store, fs=cut.disk).redo_logs)
    assert info(cut.store, fs=cut.disk).redo_logs == []


@each_kind
def test_a_killed_process_leaves_a_log_in_which_nothing_waits(kind):
    cut = lost(kind)
    with cut.opened() as store:
        store.put(b"one more", "synced")
        killed = cut.disk.kill()
    found = info(cut.store, fs=killed)
    assert [log.waiting for log in found.redo_logs] == [0]
    assert verify(cut.store, fs=killed).messages == len(cut.synced) + 1


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("rot", [bytes(8), b"\xee"])
def test_verify_reports_a_rotten_entry_of_a_message_in_the_log(suffix, rot):
    cut = lost("stream")
    with cut.opened() as store:
        before = content(cut.disk)
        for _ in range(2):  # the first one makes the log
            store.put(b"one more", "synced")
        killed = cut.disk.kill()
    after = content(killed)
    path = next(path for path in after if path.endswith(suffix) and len(after[path]) > len(before[path]))
    overwrite(killed, path, rot, len(after[path]) - 8)
    found = verify(cut.store, fs=killed)
    assert (found.messages, found.lost) == (len(cut.synced) + 2, 0)
    assert path in [finding.path for finding in found.findings]
    with cut.kind.open(cut.store.path, fs=killed) as store:
        assert path in [repair.path for repair in store.repairs]


@each_cut
@each_kind
def test_watch_counts_them(kind, seed):
    cut = lost(kind, seed=seed)
    before = content(cut.disk)
    assert gauge_of(cut.store, fs=cut.disk).sample().depth == len(cut.synced)
    assert content(cut.disk) == before


@each_cut
@each_kind
def test_salvage_writes_them(kind, seed):
    cut = lost(kind, seed=seed)
    before = content(cut.disk)
    lines: list[bytes] = []
    found = salvage(cut.store, lines.append, fs=cut.disk)
    assert found.messages == len(cut.synced)
    values = [base64.b64decode(json.loads(line)["value"]) for line in b"".join(lines).splitlines()]
    assert sorted(values) == sorted(cut.synced)
    assert content(cut.disk) == before


@each_cut
@each_kind
def test_the_plan_of_a_repair_loses_none_of_them(kind, seed):
    cut = lost(kind, seed=seed)
    before = content(cut.disk)
    assert repair(cut.store, fs=cut.disk).lost == 0
    assert content(cut.disk) == before


@each_cut
@each_kind
def test_a_repair_puts_them_into_the_files_and_empties_the_log(kind, seed):
    cut = lost(kind, seed=seed)
    if not repair(cut.store, apply=True, fs=cut.disk).repairs:
        with cut.opened():
            pass  # nothing was to be repaired, so nothing was touched
    assert cut.disk.size_of(log_of(cut.store)) == 0
    after = cut.disk.crash()
    assert sorted(cut.kind.read("/store", fs=after)) == sorted(cut.synced)


@each_kind
def test_a_repair_of_damage_before_them_keeps_them(kind):
    cut = lost(kind, closed_after=5)
    files = content(cut.disk)
    data = next(path for path, its in files.items() if cut.synced[0] in its and not path.endswith("redo"))
    overwrite(cut.disk, data, b"\xff", 12)
    repair(cut.store, apply=True, fs=cut.disk)
    assert verify(cut.store, fs=cut.disk).verdict == "clean"
    # Nothing is left that a later open would write over the repaired files.
    for after in (cut.disk.crash(), cut.disk.kill()):
        found = cut.kind.read(cut.store.path, fs=after)
        assert sorted(found) == sorted(cut.synced[-len(found) :])
        assert len(found) >= 15
        assert verify(cut.store, fs=after).verdict == "clean"


def test_no_file_is_replaced_while_a_log_could_be_replayed_over_it():
    cut = lost("journal")
    with pytest.raises(DiskFullError, match="could not be emptied"):
        check_log_empty(cut.disk, JournalFiles(cut.disk, cut.store.path))
    cut.opened().close()
    check_log_empty(cut.disk, JournalFiles(cut.disk, cut.store.path))


def test_a_message_is_found_by_its_time():
    cut = lost("stream")
    stream = ReadableStream(cut.store.path, fs=cut.disk)
    for partition in stream.partitions():
        with stream.open(partition) as reader, TimeLookup(stream.fs, stream.files.partition(partition)) as by:
            reader.seek_oldest()
            messages = reader.read_many(100)
            assert [by.offset_at_or_after(its.timestamp_ns) for its in messages] == [
                next(other.offset for other in messages if other.timestamp_ns >= its.timestamp_ns)
                for its in messages
            ]


def test_the_audit_of_a_stream_counts_them():
    cut = lost("stream")
    tasks = audit_tasks(cut.store.path, cut.disk)
    audits = [audit_segment(cut.store.path, task, cut.disk) for task in tasks]
    assert sum(audit.records for audit in audits if audit is not None) == len(cut.synced)
    assert all(audit is None or audit.problem is None for audit in audits)


# --- another program was faster ---------------------------------------------------------------------------


def go_wrote_metadata(disk: CrashFS) -> None:
    """go-diskqueue has opened the queue, and closed it."""
    size = disk.size_of(f"{PATH}/events.diskqueue.000000.dat") or 0
    disk.unlink(f"{PATH}/events.diskqueue.meta.dat")
    disk.write_durably(f"{PATH}/events.diskqueue.meta.dat", b"1\n0,0\n0,%d\n" % size)


FASTER = {
    "queue": go_wrote_metadata,
    "stream": lambda disk: disk.unlink(f"{PATH}/owner"),  # as go-diskq needs it
    "journal": lambda disk: disk.write_durably(f"{PATH}/jnl.lck", b""),  # as sej's writer leaves it
}


@pytest.mark.parametrize("kind, came", FASTER.items(), ids=FASTER)
def test_messages_that_the_next_open_appends_are_counted(kind, came):
    cut = lost(kind)
    came(cut.disk)
    before = content(cut.disk)
    found = verify(cut.store, fs=cut.disk)
    assert found.messages == len(cut.synced) == len(cut.after_an_open())
    assert found.verdict != "damaged"
    assert any("another program may have written" in each.what for each in found.findings)
    assert info(cut.store, fs=cut.disk).redo_logs[0].waiting > 0
    assert content(cut.disk) == before
    assert sorted(cut.after_an_open()) == sorted(cut.synced)


# --- a log that cannot be used ----------------------------------------------------------------------------


def cut_to(size: int):
    def act(disk: CrashFS, path: str) -> None:
        handle = disk.open(path, write=True)
        disk.truncate(handle, size)
        disk.close(handle)

    return act


HARMED = {
    "gone": (lambda disk, path: disk.unlink(path), "it is gone"),
    "emptied": (cut_to(0), "it is empty"),
    "cut in its header": (cut_to(20), "its header is unreadable"),
    "cut before its entries": (cut_to(4096), "parts of it are unreadable"),
    "cut in its entries": (cut_to(5000), "parts of it are unreadable"),
    "zeroed": (lambda disk, path: overwrite(disk, path, bytes(65536)), "its header is unreadable"),
    "another store's": (as_another, "it is another store's, or an older one"),
}


@pytest.mark.parametrize("harm, reason", HARMED.values(), ids=HARMED)
@each_kind
def test_a_log_that_was_harmed_is_damage_and_costs_nothing_else(kind, harm, reason):
    cut = lost(kind, closed_after=5)
    harm(cut.disk, log_of(cut.store))
    before = content(cut.disk)
    found = verify(cut.store, fs=cut.disk)
    assert found.verdict == "damaged"
    (finding,) = [each for each in found.findings if each.severity == "damage"]
    assert finding.path == log_of(cut.store)
    assert finding.what == f"{reason}: messages that were synced just before the power failed may be lost"
    assert any(finding.what in line for line in info(cut.store, fs=cut.disk).next_open)
    assert content(cut.disk) == before
    expected = cut.after_an_open()
    assert len(expected) >= 6
    assert read(cut.store, cut.disk) == expected == cut.synced[: len(expected)]
    assert found.messages == len(expected)


@each_kind
def test_a_log_of_another_format_version_is_refused_by_all(kind):
    cut = lost(kind)
    as_version_2(cut.disk, log_of(cut.store))
    before = content(cut.disk)
    for look in (verify, info, repair, gauge_of, lambda store, fs: read(store, fs)):
        with pytest.raises(UnsupportedFormatError, match="a log of format version 2"):
            look(cut.store, fs=cut.disk)
    with pytest.raises(UnsupportedFormatError):
        cut.opened()
    # An open makes the directories of its own files before it looks.
    assert content(cut.disk).keys() >= before.keys()

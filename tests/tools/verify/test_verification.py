# Verification of diskq's own stores. Law: a whole store is clean, open or closed; a change of any byte that a
# checksum covers is found; a torn end is torn, and nothing else is.

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from diskq.engine.journal.journal import Journal
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.ack_log import acked_row
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.stream.stream import Stream
from diskq.errors import ForeignFilesError
from diskq.options import JournalOptions, PriorityOptions, QueueOptions, StreamOptions
from diskq.storage.checksums import checked, checksum
from diskq.storage.repairs import RepairKind
from diskq.storage.state import HEAD_SIZE, LastWriter
from diskq.tools import report
from diskq.tools.findings import StateKind, Verification
from diskq.tools.gaps import Gap, gaps_as
from diskq.tools.info import info
from diskq.tools.repair.repair import repair
from diskq.tools.stores import Store, stores_at
from diskq.tools.verify.verification import verify
from tests.reference.nsq_oracle import frame
from tests.tools.damaged import COUNT as FEW
from tests.tools.damaged import body, digest, made, messages_in

GOLDEN = Path(__file__).parents[2] / "golden"
COUNT = 300
BODIES = [b"%06d" % number + b"x" * 94 for number in range(COUNT)]


def a_queue(path: Path) -> Path:
    with Queue(path, "q", options=QueueOptions(segment_size=16_000)) as queue:
        queue.put_many(BODIES)
    return path / "q.diskqueue.000000.dat"


def a_stream(path: Path) -> Path:
    with Stream(path, options=StreamOptions(partition_count=1, segment_size=16_000)) as stream:
        stream.append_many([(b"key", body, 1 + number) for number, body in enumerate(BODIES)])
    return min((path / "parts" / "000000").glob("*.data"))


def a_journal(path: Path) -> Path:
    with Journal(path, options=JournalOptions(segment_size=16_000)) as journal:
        journal.append_many([(b"key", body) for body in BODIES])
    return min((path / "jnl").glob("*.jnl"))


def a_store(path: Path) -> Path:
    options = PriorityOptions(preallocate=False, soft_limit=16_000, hard_limit=32_000)
    with PriorityStore(path, options=options, takes_snapshots=False) as store:
        for start in range(0, COUNT, 50):
            store.put_many(store.queue(), BODIES[start : start + 50])
    return min((path / "data" / "log").glob("*.log"))


MAKERS = {"queue": a_queue, "stream": a_stream, "journal": a_journal, "jobs": a_store}
of_each = pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
of_the_last = pytest.mark.parametrize("cut", [1, 50, 99])


def looked_at(path: Path) -> Verification:
    (store,) = stores_at(path)
    return verify(store)


def last_of(file: Path) -> Path:
    return max(file.parent.glob(f"*{file.suffix}"), key=lambda path: (len(path.name), path.name))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x01
    path.write_bytes(content)


# --- what is whole --------------------------------------------------------------------------------


@of_each
def test_what_was_closed_in_order_is_clean(make, tmp_path):
    make(tmp_path)
    found = looked_at(tmp_path)
    assert (found.verdict, found.messages, found.findings) == ("clean", COUNT, ())
    assert found.checksummed >= found.size > COUNT * 100


@of_each
def test_progress_counts_every_byte_that_was_looked_at(make, tmp_path):
    make(tmp_path)
    (store,) = stores_at(tmp_path)
    told: list[int] = []
    assert verify(store, progress=told.append).size == sum(told)


@of_each
def test_looking_changes_nothing(make, tmp_path):
    make(tmp_path)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files_below(tmp_path)}
    looked_at(tmp_path)
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files_below(tmp_path)}


def files_below(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file())


# --- a byte that is another one -------------------------------------------------------------------


@of_each
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_byte_that_changed_in_a_complete_file_is_damage(make, share, tmp_path):
    file = make(tmp_path)
    flip(file, int(file.stat().st_size * share))
    found = looked_at(tmp_path)
    assert found.verdict == "damaged"
    assert str(file) in {finding.path for finding in found.findings}


@of_each
def test_a_byte_that_changed_in_the_last_message_is_damage(make, tmp_path):
    file = last_of(make(tmp_path))
    content = file.read_bytes()
    flip(file, content.rindex(b"xxx"))
    assert looked_at(tmp_path).verdict == "damaged"


@pytest.mark.parametrize("make", [a_queue, a_stream, a_journal], ids=["queue", "stream", "journal"])
def test_a_changed_byte_is_of_the_kind_of_what_is_corrupt(make, tmp_path):
    file = make(tmp_path)
    flip(file, file.stat().st_size // 2)
    (finding,) = [each for each in looked_at(tmp_path).findings if each.path == str(file)][:1]
    assert finding.kind is RepairKind.CORRUPT
    assert finding.size is not None
    assert finding.at is not None
    assert finding.at <= file.stat().st_size // 2 < finding.at + finding.size


@pytest.mark.parametrize("make", [a_queue, a_stream, a_journal], ids=["queue", "stream", "journal"])
def test_what_is_lost_is_counted(make, tmp_path):
    file = make(tmp_path)
    flip(file, file.stat().st_size // 2)
    found = looked_at(tmp_path)
    assert found.lost > 0
    assert found.messages + found.lost == COUNT


def test_what_a_queue_has_lost_without_checksums_is_counted_beside_damage_that_is_not_in_its_depth(tmp_path):
    flip(a_queue(tmp_path), 500)
    (tmp_path / "q.diskqueue.meta.dat").unlink()
    with Queue(tmp_path, "q", options=QueueOptions(segment_size=16_000)) as queue:
        readable = queue.depth
        queue.put_many(BODIES)
    file = tmp_path / "q.diskqueue.000003.dat"
    (tmp_path / ".diskq" / f"{file.name}.sums").unlink()
    content = file.read_bytes()
    file.write_bytes(content[: 104 * 40] + b"\xff" * 4 + content[104 * 40 + 4 :])
    found = looked_at(tmp_path)
    assert found.messages + found.lost == 2 * COUNT
    assert [finding.lost for finding in found.findings] == [COUNT - readable, len(content) // 104 - 40]


def test_a_row_of_an_index_that_is_not_that_of_its_record_is_damage(tmp_path):
    index = a_stream(tmp_path).with_suffix(".index")
    flip(index, 24 * 7 + 3)
    found = looked_at(tmp_path)
    assert [(finding.path, finding.at) for finding in found.findings] == [(str(index), 24 * 7)]
    assert (found.messages, found.lost) == (COUNT, 0)


def test_a_time_that_is_not_that_of_its_record_is_damage(tmp_path):
    timeindex = a_stream(tmp_path).with_suffix(".timeindex")
    flip(timeindex, 16 * 7 + 9)
    found = looked_at(tmp_path)
    assert [(finding.path, finding.at) for finding in found.findings] == [(str(timeindex), 16 * 7)]


def test_a_digit_that_changed_in_a_queue_s_metadata_is_damage(tmp_path):
    a_queue(tmp_path)
    flip(tmp_path / "q.diskqueue.meta.dat", 0)
    assert looked_at(tmp_path).verdict == "damaged"


def test_metadata_that_a_power_cut_left_empty_is_torn(tmp_path):
    a_queue(tmp_path)
    (tmp_path / "q.diskqueue.meta.dat").write_bytes(bytes(20))
    assert looked_at(tmp_path).verdict == "torn"


def test_a_byte_of_a_snapshot_is_damage_where_the_log_does_not_begin_before_it(tmp_path):
    a_store(tmp_path)
    with PriorityStore(tmp_path, options=PriorityOptions(preallocate=False)) as store:
        assert store.snapshot()
    assert (looked_at(tmp_path).messages, looked_at(tmp_path).verdict) == (COUNT, "clean")
    flip(tmp_path / "data" / "tflux.snapshot", 9_000)
    assert looked_at(tmp_path).verdict == "damaged"


def test_a_byte_of_a_snapshot_is_a_note_where_the_log_has_it_all(tmp_path):
    with PriorityStore(tmp_path, options=PriorityOptions(preallocate=False)) as store:
        store.put_many(store.queue(), BODIES)
        assert store.snapshot()
    flip(tmp_path / "data" / "tflux.snapshot", 9_000)
    found = looked_at(tmp_path)
    assert (found.verdict, found.messages) == ("clean", COUNT)
    assert [finding.path for finding in found.findings] == [str(tmp_path / "data" / "tflux.snapshot")]


def test_a_log_whose_last_segment_is_gone_is_damage(tmp_path):
    last_of(a_store(tmp_path)).unlink()
    assert looked_at(tmp_path).verdict == "damaged"


def test_a_queue_whose_name_resembles_that_of_set_aside_bytes_is_clean(tmp_path):
    with Queue(tmp_path, "jobs.bad") as queue:
        queue.put_many(BODIES)
    (store,) = stores_at(tmp_path)
    assert (verify(store).findings, info(store).leftovers) == ((), [])


# --- ends -----------------------------------------------------------------------------------------


@of_each
@of_the_last
def test_a_complete_file_that_was_cut_is_damage(make, cut, tmp_path):
    file = make(tmp_path)
    with file.open("r+b") as opened:
        opened.truncate(len(file.read_bytes().rstrip(b"\0")) - cut)
    assert looked_at(tmp_path).verdict == "damaged"


@of_each
@of_the_last
def test_a_cut_at_the_end_of_what_was_promised_is_damage(make, cut, tmp_path):
    file = last_of(make(tmp_path))
    with file.open("r+b") as opened:
        opened.truncate(len(file.read_bytes().rstrip(b"\0")) - cut)
    assert looked_at(tmp_path).verdict == "damaged"


HALVES = {
    "queue": (100).to_bytes(4, "big") + b"half",
    "stream": (3).to_bytes(4, "little") + b"key" + bytes(3),
    "journal": COUNT.to_bytes(8, "big") + b"half",
    "jobs": bytes.fromhex("aaf534c4") + (1).to_bytes(8, "big") + b"half",
}


@pytest.mark.parametrize("kind", MAKERS)
def test_the_beginning_of_a_message_at_the_end_is_torn(kind, tmp_path):
    file = last_of(MAKERS[kind](tmp_path))
    content = file.read_bytes()
    file.write_bytes((content[:-4] if kind == "jobs" else content) + HALVES[kind])
    found = looked_at(tmp_path)
    assert (found.verdict, found.messages) == ("torn", COUNT)
    assert [finding.at for finding in found.findings] == [len(content) - (4 if kind == "jobs" else 0)]
    assert [finding.kind for finding in found.findings] == [RepairKind.TORN]


@pytest.mark.parametrize("make", [a_queue, a_stream, a_journal, a_store], ids=list(MAKERS))
def test_a_file_that_is_gone_between_two_others_is_damage(make, tmp_path):
    make(tmp_path)
    files = sorted(path for path in files_below(tmp_path) if path.suffix in (".jnl", ".log", ".dat", ".data"))
    middle = [path for path in files if "meta" not in path.name][1]
    middle.unlink()
    found = looked_at(tmp_path)
    assert found.verdict == "damaged"
    if make is not a_store:
        assert found.messages + found.lost == COUNT


# --- what belongs to it ---------------------------------------------------------------------------


def test_an_acknowledged_message_is_not_counted(tmp_path):
    a_queue(tmp_path)
    (tmp_path / ".diskq" / "q.000001.acks").write_bytes(acked_row(0, 104, 312))
    assert looked_at(tmp_path).messages == COUNT - 2


def test_what_a_peer_has_left_of_a_file_that_it_began_anew_is_counted_where_the_next_open_moves_it(tmp_path):
    with Queue(tmp_path, "q", options=QueueOptions(segment_size=9_000)) as queue:
        queue.put_many([body(number) * 10 for number in range(300)])
    theirs = frame(b"theirs")
    file = tmp_path / "q.diskqueue.000001.dat"
    file.write_bytes(theirs + file.read_bytes()[len(theirs) :])
    (tmp_path / "q.diskqueue.meta.dat").write_bytes(b"96\n0,0\n1,%d\n" % len(theirs))
    found = looked_at(tmp_path)
    assert found.verdict == "damaged"
    with Queue(tmp_path, "q") as queue:
        assert found.messages == len(queue.get_many(10_000)) == 300 + 1 - queue.statistics().lost
        assert queue.statistics().lost > 0


def test_an_acknowledgement_of_no_message_is_damage(tmp_path):
    a_queue(tmp_path)
    (tmp_path / ".diskq" / "q.000001.acks").write_bytes(acked_row(0, 100, 312))
    assert looked_at(tmp_path).verdict == "damaged"


def test_a_row_of_acknowledgements_that_rotted_is_noted(tmp_path):
    a_queue(tmp_path)
    acks = tmp_path / ".diskq" / "q.000001.acks"
    acks.write_bytes(acked_row(0, 104, 312))
    flip(acks, 5)
    found = looked_at(tmp_path)
    assert (found.verdict, found.messages) == ("clean", COUNT)
    assert [finding.path for finding in found.findings] == [str(acks)]


def test_a_group_that_is_ahead_of_its_stream_is_damage(tmp_path):
    a_stream(tmp_path)
    committed_offset = tmp_path / "groups" / "billing" / "000000"
    committed_offset.parent.mkdir(parents=True)
    committed_offset.write_bytes((COUNT).to_bytes(8, "little"))
    assert looked_at(tmp_path).verdict == "damaged"
    committed_offset.write_bytes((COUNT - 1).to_bytes(8, "little"))
    assert looked_at(tmp_path).verdict == "clean"


def test_a_reader_that_is_ahead_of_its_journal_is_damage(tmp_path):
    a_journal(tmp_path)
    (tmp_path / "ofs").mkdir(exist_ok=True)
    (tmp_path / "ofs" / "billing.ofs").write_bytes((COUNT + 1).to_bytes(8, "big"))
    assert looked_at(tmp_path).verdict == "damaged"


def test_settings_that_cannot_be_read_are_damage(tmp_path):
    a_stream(tmp_path)
    (tmp_path / "settings.json").write_text("{not json")
    assert looked_at(tmp_path).verdict == "damaged"


@pytest.mark.parametrize("is_there", [True, False], ids=["empty", "gone"])
def test_without_settings_records_show_how_they_are_encoded(tmp_path, is_there):
    with Stream(tmp_path, options=StreamOptions(partition_count=1, encoding="varuint")) as stream:
        stream.append_many([b"%d" % number for number in range(COUNT)])
    settings = tmp_path / "settings.json"
    settings.unlink()
    if is_there:
        settings.touch()
    found = looked_at(tmp_path)
    assert (found.verdict, found.messages, found.lost) == ("damaged", COUNT, 0)
    assert [Path(each.path) for each in found.findings if each.severity == "damage"] == [settings]


@pytest.mark.parametrize("make", [a_stream, a_journal], ids=["stream", "journal"])
def test_a_gap_that_a_repair_has_noted_is_no_news(make, tmp_path):
    files = sorted(make(tmp_path).parent.glob("*" + ("data" if make is a_stream else "jnl")))
    first, behind = (int(path.stem, 10 if make is a_stream else 16) for path in files[1:3])
    files[1].unlink()
    if make is a_stream:
        files[1].with_suffix(".index").unlink()
        files[1].with_suffix(".timeindex").unlink()
    assert looked_at(tmp_path).verdict == "damaged"
    (tmp_path / ".diskq" / "gaps").write_bytes(gaps_as([Gap(0, first, behind)]))
    found = looked_at(tmp_path)
    assert (found.verdict, found.lost) == ("clean", 0)


@pytest.mark.parametrize("make, name", [(a_queue, "q.repair"), (a_stream, "repair"), (a_journal, "repair")])
def test_a_repair_that_was_cut_short_is_noted(make, name, tmp_path):
    make(tmp_path)
    (tmp_path / ".diskq" / name).mkdir()
    (tmp_path / ".diskq" / name / "plan").write_bytes(b"")
    found = looked_at(tmp_path)
    assert found.verdict == "clean"
    assert ["repair that was cut short" in finding.what for finding in found.findings] == [True]
    assert [finding.kind for finding in found.findings] == [StateKind.PENDING]


def test_what_was_kept_aside_is_noted(tmp_path):
    a_queue(tmp_path)
    (tmp_path / "q.diskqueue.000000.dat.bad").write_bytes(b"half a message")
    found = looked_at(tmp_path)
    assert found.verdict == "clean"
    assert ["14 bytes" in finding.what for finding in found.findings] == [True]
    assert [finding.kind for finding in found.findings] == [RepairKind.KEPT_ASIDE]


@pytest.mark.parametrize("make", [a_queue, a_stream, a_journal], ids=["queue", "stream", "journal"])
def test_a_row_of_checksums_that_rotted_is_noted(make, tmp_path):
    make(tmp_path)
    sums = min(tmp_path.rglob("*.sums"))
    flip(sums, 27)
    found = looked_at(tmp_path)
    assert (found.verdict, found.messages) == ("clean", COUNT)
    assert [(finding.path, finding.at) for finding in found.findings] == [(str(sums), 24)]


# --- after a power cut ----------------------------------------------------------------------------


@contextmanager
def a_queue_in_use(path: Path) -> Iterator[Path]:
    with Queue(path, "q", options=QueueOptions(sync_timeout=1000.0)) as queue:
        queue.put_many(BODIES[:100])
        queue.sync()
        queue.put_many(BODIES[100:])
        queue.flush()
        yield path / "q.diskqueue.000000.dat"


@contextmanager
def a_stream_in_use(path: Path) -> Iterator[Path]:
    options = StreamOptions(partition_count=1, sync_timeout=1000.0)
    with Stream(path, options=options) as stream:
        stream.append_many([(b"key", body, 1 + number) for number, body in enumerate(BODIES[:100])])
    with Stream(path, options=options) as stream:
        stream.append_many([(b"key", body, 1 + number) for number, body in enumerate(BODIES[100:])])
        stream.flush()
        yield min((path / "parts" / "000000").glob("*.data"))


@contextmanager
def a_journal_in_use(path: Path) -> Iterator[Path]:
    options = JournalOptions(sync_timeout=1000.0)
    with Journal(path, options=options) as journal:
        journal.append_many([(b"key", body) for body in BODIES[:100]])
    with Journal(path, options=options) as journal:
        journal.append_many([(b"key", body) for body in BODIES[100:]])
        journal.flush()
        yield min((path / "jnl").glob("*.jnl"))


IN_USE = {"queue": a_queue_in_use, "stream": a_stream_in_use, "journal": a_journal_in_use}


@pytest.mark.parametrize("make", IN_USE.values(), ids=list(IN_USE))
@pytest.mark.parametrize("share, verdict", [(0.2, "damaged"), (0.9, "torn")])
@pytest.mark.parametrize("is_readable", [True, False], ids=["signed", "rotten"])
def test_what_was_not_synced_when_the_machine_stopped_is_torn_and_what_was_is_damage(
    make, share, verdict, is_readable, tmp_path
):
    (tmp_path / "before").mkdir()
    with make(tmp_path / "before") as file:
        shutil.copytree(tmp_path / "before", tmp_path / "after")
    left = tmp_path / "after" / file.relative_to(tmp_path / "before")
    content = bytearray(left.read_bytes())
    at = int(len(content) * share)
    content[at : at + 200] = bytes(200)
    left.write_bytes(content)
    for state in tmp_path.glob("after/**/*state"):
        content = state.read_bytes()
        sector = LastWriter.parse(content[:HEAD_SIZE])
        assert sector is not None
        another = replace(sector, boot_id="another").render() if is_readable else bytes(HEAD_SIZE)
        state.write_bytes(another + content[HEAD_SIZE:])
    for wal in tmp_path.glob("after/**/*wal"):
        wal.write_bytes(b"")  # it is never synced
    for lock in tmp_path.glob("after/**/*l*ck"):
        # It says which boot it was, if the state does not.
        content = lock.read_bytes()
        rest = re.sub(rb'"boot_id": "[^"]*"', b'"boot_id": "another"', content.rstrip())[22:]
        signed = b'{"check": "%08x", %s' % (checksum(rest), rest)
        lock.write_bytes(signed.ljust(len(content) - 1) + b"\n")
    assert looked_at(tmp_path / "after").verdict == verdict


@pytest.mark.parametrize("make", IN_USE.values(), ids=list(IN_USE))
def test_a_rotten_state_is_no_restart_of_the_machine_where_a_wal_is_of_this_run(make, tmp_path):
    (tmp_path / "before").mkdir()
    with make(tmp_path / "before") as file:
        shutil.copytree(tmp_path / "before", tmp_path / "after")
    left = tmp_path / "after" / file.relative_to(tmp_path / "before")
    content = left.read_bytes()
    left.write_bytes(content[: int(len(content) * 0.9)])
    for state in tmp_path.glob("after/**/*state"):
        flip(state, state.read_bytes().index(b"boot_id") + 12)
    found = looked_at(tmp_path / "after")
    assert (found.verdict, found.lost > 0) == ("damaged", True)


# --- beside who is at work ------------------------------------------------------------------------

WRITERS = {
    "queue": """
from diskq.engine.queue.fifo_queue import Queue
from diskq.options import QueueOptions
with Queue(path, "q", options=QueueOptions(segment_size=200_000)) as thing:
    while not done():
        thing.put_many([body] * 50)
        thing.get_many(40)
        thing.flush()
""",
    "stream": """
from diskq.engine.stream.stream import Stream
from diskq.options import StreamOptions
options = StreamOptions(partition_count=2, segment_size=200_000, retention_max_bytes=2_000_000)
with Stream(path, options=options) as thing:
    while not done():
        thing.append_many([(b"a", body, None), (b"b", body, None)] * 25)
        thing.flush()
        thing.vacuum()
""",
    "journal": """
from diskq.engine.journal.journal import Journal
from diskq.options import JournalOptions
with Journal(path, options=JournalOptions(segment_size=200_000)) as thing:
    while not done():
        thing.append_many([(b"k", body)] * 50)
        thing.flush()
""",
    "jobs": """
from diskq.engine.priority.store import PriorityStore
from diskq.options import PriorityOptions
options = PriorityOptions(soft_limit=200_000, hard_limit=400_000, snapshot_segments=2)
with PriorityStore(path, options=options) as thing:
    queue = thing.queue()
    while not done():
        thing.put_many(queue, [body] * 50)
        thing.ack_many(queue, thing.get_many(queue, 40))
""",
}
# A peer has no lock that anybody can see. This one always has half a message in the file.
PEERS = {
    "queue": """
half, rest = (100).to_bytes(4, "big") + body[:50], body[50:]
open(path + "/q.diskqueue.meta.dat", "wb").write(b"0\\n0,0\\n0,0\\n")
with open(path + "/q.diskqueue.000000.dat", "wb", buffering=0) as file:
    file.write(half)
    while not done():
        file.write(rest + half)
""",
    "journal": """
from diskq._native.journal import codec as journal_codec
os.makedirs(path + "/jnl")
record = [journal_codec.encode([(b"k", 0, 0, body)], number) for number in range(100_000)]
with open(path + "/jnl/0000000000000000.jnl", "wb", buffering=0) as file:
    file.write(record[0][:50])
    for before, behind in zip(record, record[1:]):
        if done():
            break
        file.write(before[50:] + behind[:50])
""",
}
PROLOGUE = """
import sys, os, select, time
path, body = sys.argv[1], b"x" * 100
def done():
    if not done.began:
        done.began = True
        print("ready", flush=True)
    time.sleep(0.0005)
    return bool(select.select([sys.stdin], [], [], 0)[0])
done.began = False
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
def test_another_process_that_writes_raises_no_alarm(kind, tmp_path, monkeypatch):
    watch(WRITERS[kind], tmp_path, monkeypatch)
    assert looked_at(tmp_path).verdict == "clean"


@pytest.mark.slow
@pytest.mark.parametrize("kind", PEERS)
def test_a_peer_that_is_in_the_middle_of_a_message_raises_no_alarm_until_it_is_gone(
    kind, tmp_path, monkeypatch
):
    watch(PEERS[kind], tmp_path, monkeypatch)
    assert looked_at(tmp_path).verdict == "torn"


def watch(program: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify what is at `path` again and again, while that program is at work.

    It does write between two looks of `verify`: on a busy machine it may not run for longer than they are
    apart, and then nothing tells it from one that is gone.
    """

    def size() -> int:
        total = 0
        for each in path.rglob("*"):
            with suppress(FileNotFoundError):
                total += each.stat().st_size
        return total

    def pause(seconds: float) -> None:
        before, end = size(), time.monotonic() + 30
        time.sleep(seconds)
        while size() == before and time.monotonic() < end:
            time.sleep(0.001)

    process = subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with monkeypatch.context() as patched:
            patched.setattr(report, "time", SimpleNamespace(sleep=pause))
            for _ in range(30):
                for store in stores_at(path):
                    found = verify(store)
                    troubles = [finding for finding in found.findings if finding.severity != "note"]
                    assert troubles == []
    finally:
        process.communicate(b"enough")
    assert process.returncode == 0


# --- what an open gives is not lost, and what it does not give is ---------------------------------


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize(
    "size, how", [(None, "removed"), (None, "cut"), (None, "emptied"), (3000, "removed")]
)  # of complete segments an open makes what is missing, no more
def test_rows_that_an_open_makes_again_are_torn_and_nothing_is_lost(size, how, suffix, tmp_path):
    with Stream(str(tmp_path), options=StreamOptions(partition_count=1, segment_size=size)) as stream:
        for number in range(FEW):
            stream.append(body(number))
    files = sorted((tmp_path / "parts" / "000000").glob(f"*.{suffix}"))
    file = [each for each in files if each.stat().st_size][-1]
    file.unlink() if how == "removed" else os.truncate(file, 0 if how == "emptied" else 100)
    before = digest(tmp_path)
    (store,) = stores_at(tmp_path)
    found = verify(store)
    assert (found.verdict, found.messages, found.lost) == ("torn", FEW, 0)
    assert RepairKind.LOST not in {finding.kind for finding in found.findings}
    assert digest(tmp_path) == before
    with Stream(str(tmp_path)) as stream:
        repairs = {(repair.path, repair.kept, repair.kind) for repair in stream.repairs}
        assert repairs >= {
            (each.path, each.at, each.kind) for each in found.findings if each.severity == "torn"
        }
    assert len(messages_in(store)) == FEW
    assert verify(store).verdict == "clean"


def test_index_entries_after_the_last_message_are_not_lost_messages(tmp_path):
    store = made("stream", str(tmp_path))
    file = sorted((tmp_path / "parts" / "000000").glob("*.index"))[-1]
    file.write_bytes(file.read_bytes() + bytes(5 * 24))
    found = verify(store)
    assert (found.verdict, found.messages, found.lost) == ("torn", FEW, 0)


def test_messages_whose_index_is_gone_are_not_called_gone(tmp_path):
    with Stream(str(tmp_path), options=StreamOptions(partition_count=1)) as stream:
        stream.append_many([b"%d" % number for number in range(300)])
    store = Store("stream", str(tmp_path))
    next(tmp_path.rglob("*.index")).unlink()
    found = verify(store)
    assert (found.verdict, found.messages, found.lost) == ("torn", 300, 0)
    assert not any("gone" in each.what for each in found.findings)
    assert "messages 0 to 299 have no entries in the index: the next open repairs it" in [
        each.what for each in found.findings
    ]
    assert info(store).messages == 300


@pytest.mark.parametrize("kind", ["stream", "journal"])
def test_a_log_whose_oldest_segment_is_gone_is_damage_and_the_open_says_it_once(kind, tmp_path):
    store = made(kind, str(tmp_path))
    data = sorted(tmp_path.rglob("*.data" if kind == "stream" else "*.jnl"))
    gone, following = data[0], data[1]
    first = int(following.stem, 10 if kind == "stream" else 16)
    for file in (gone, gone.with_suffix(".index"), gone.with_suffix(".timeindex")):
        file.unlink(missing_ok=True)
    found = verify(store)
    assert (found.verdict, found.messages, found.lost) == ("damaged", FEW - first, first)
    assert RepairKind.LOST in {finding.kind for finding in found.findings if finding.severity == "damage"}
    opened = Stream if kind == "stream" else Journal
    with opened(store.path) as log:
        assert [(repair.path, repair.records) for repair in log.repairs] == [(str(gone), first)]
        assert f"it begins with message {first}, but began with 0" in log.repairs[0].reason
    with opened(store.path) as log:
        assert log.repairs == ()
    assert verify(store).verdict == "clean"


def without_the_oldest(store: Store) -> int:
    """Remove its oldest segment with all that is beside it; the first message that is left."""
    pattern, number_base = ("*.data", 10) if store.kind == "stream" else ("*.jnl", 16)
    gone, following = sorted(Path(store.path).rglob(pattern))[:2]
    removed = [file for file in Path(store.path).rglob(f"{gone.stem}.*") if file.suffix != ".bad"]
    assert any(file.suffix == ".sums" for file in removed)
    for file in removed:
        file.unlink()
    return int(following.stem, number_base)


def killed(store: Store, copy: Path) -> Store:
    """A copy of it while it is open, with more messages, of which no barrier knows."""
    log = (
        Stream(store.path, options=StreamOptions(partition_count=1, segment_size=3000))
        if store.kind == "stream"
        else Journal(store.path, options=JournalOptions(segment_size=3000))
    )
    with log:
        for number in range(FEW):
            log.append(body(number))
        log.flush()
        shutil.copytree(store.path, copy)
    return Store(store.kind, str(copy))


@pytest.mark.parametrize("was_killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("was_empty", [False, True], ids=["was there", "new"])
@pytest.mark.parametrize("kind", ["stream", "journal"])
def test_the_oldest_segment_is_missed_without_its_checksums(kind, was_empty, was_killed, tmp_path):
    path = tmp_path / "log"
    path.mkdir()
    store = Store(kind, str(path)) if was_empty and was_killed else made(kind, str(path))
    if was_killed:
        store = killed(store, tmp_path / "after")
    count = verify(store).messages
    first = without_the_oldest(store)
    found = verify(store)
    assert (found.verdict, found.messages, found.lost) == ("damaged", count - first, first)
    opened = Stream if kind == "stream" else Journal
    with opened(store.path) as log:
        assert [repair.records for repair in log.repairs] == [first]
        assert f"it begins with message {first}, but began with 0" in log.repairs[0].reason
    assert verify(store).verdict == "clean"
    with opened(store.path) as log:
        assert log.repairs == ()


def test_a_start_is_missed_also_in_a_partition_that_is_not_written_to_any_more(tmp_path):
    with Stream(str(tmp_path), options=StreamOptions(partition_count=2, segment_size=300)) as stream:
        stream.append_many([(b"key-%d" % number, b"x" * 100, None) for number in range(40)])
    store = Store("stream", str(tmp_path))
    with Stream(store.path, options=StreamOptions(partition_count=1)) as stream:
        assert stream.partition_count == 1
    gone = sorted((tmp_path / "parts/000001").glob("*.data"))[0]
    for file in [*tmp_path.rglob(f"000001/{gone.stem}.*")]:
        file.unlink()
    assert verify(store).verdict == "damaged"
    with Stream(store.path) as stream:
        assert [repair.path for repair in stream.repairs] == [str(gone)]
    with Stream(store.path) as stream:
        assert stream.repairs == ()
    assert verify(store).verdict == "clean"


@pytest.mark.parametrize("kind", ["stream", "journal"])
def test_a_log_whose_points_are_of_an_earlier_version_opens(kind, tmp_path):
    store = made(kind, str(tmp_path))
    state = tmp_path / ".diskq/state"
    sector, points = state.read_bytes()[:HEAD_SIZE], state.read_bytes()[HEAD_SIZE:]
    head, line, _ = points.splitlines(keepends=True)
    state.write_bytes(sector + checked(head + b" ".join(line.split()[:4]) + b"\n"))
    without_the_oldest(store)
    opened = Stream if kind == "stream" else Journal
    with opened(store.path) as log:
        assert log.repairs == ()  # a segment without checksums is not reported
    assert state.read_bytes()[HEAD_SIZE:].splitlines()[1].split()[:4] == line.split()[:4]
    without_the_oldest(store)
    assert verify(store).verdict == "damaged"


@pytest.mark.parametrize("kind", ["stream", "journal"])
def test_a_repair_that_leaves_out_the_first_message_does_not_make_it_missing(kind, tmp_path):
    store = made(kind, str(tmp_path))
    data = sorted(tmp_path.rglob("*.data" if kind == "stream" else "*.jnl"))[0]
    data.write_bytes(bytes(40) + data.read_bytes()[40:])
    done = repair(store, apply=True)
    assert not data.exists()
    assert not any("removed those" in each.reason for each in done.repairs)  # it opens it again
    opened = Stream if kind == "stream" else Journal
    with opened(store.path) as log:
        assert log.repairs == ()
    assert verify(store).lost == 0


def test_a_stream_whose_retention_removed_the_oldest_is_clean(tmp_path):
    store = made("stream", str(tmp_path))
    with Stream(store.path, options=StreamOptions(retention_max_bytes=4000)) as stream:
        assert stream.vacuum().segments
        assert stream.repairs == ()
    with Stream(store.path) as stream:
        assert stream.repairs == ()
    assert verify(store).verdict == "clean"


def test_a_segment_that_went_after_retention_is_missed(tmp_path):
    store = made("stream", str(tmp_path))
    with Stream(store.path, options=StreamOptions(retention_max_bytes=4000)) as stream:
        assert stream.vacuum().segments
    start = min(int(file.stem) for file in tmp_path.rglob("*.data"))
    first = without_the_oldest(store)
    found = verify(store)
    assert (found.verdict, found.lost) == ("damaged", first - start)
    with Stream(store.path) as stream:
        assert [repair.records for repair in stream.repairs] == [first - start]
    assert verify(store).verdict == "clean"


@contextmanager
def at_work(kind: str, path: Path) -> Iterator[list[list[Path]]]:
    """A log of 60 messages that this process has open: the files of each of its segments with messages."""
    log = (
        Stream(path, options=StreamOptions(partition_count=1, segment_size=1000))
        if kind == "stream"
        else Journal(path, options=JournalOptions(segment_size=1000))
    )
    with log:
        for _ in range(FEW):
            log.append(b"x" * 50)
        log.sync()
        data = sorted(path.rglob("*.data" if kind == "stream" else "*.jnl"))
        stems = [file.stem for file in data if file.stat().st_size]
        yield [sorted(path.rglob(f"{stem}.*")) for stem in stems]


@pytest.mark.parametrize("kind", ["stream", "journal"])
@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.parametrize("which", [slice(0, 1), slice(1, 2), slice(-1, None), slice(None)], ids=str)
def test_segments_that_go_while_their_owner_is_at_work_are_missed(kind, which, has_checksums, tmp_path):
    with at_work(kind, tmp_path) as segments:
        for file in [file for segment in segments[which] for file in segment]:
            if file.suffix != ".sums" or not has_checksums:
                file.unlink()
        found = verify(Store(kind, str(tmp_path)))
        assert (found.verdict, found.messages + found.lost) == ("damaged", FEW)
        assert RepairKind.LOST in {each.kind for each in found.findings if each.severity == "damage"}


@pytest.mark.parametrize("kind", ["queue", "stream", "journal"])
def test_checksums_that_an_open_adds_to_a_peer_s_bytes_are_not_counted(kind, tmp_path):
    case = {"queue": "nsq/basic", "stream": "diskq/three_parts", "journal": "sej/segments"}[kind]
    shutil.copytree(GOLDEN / case / "data", tmp_path / "data")
    for store in stores_at(tmp_path / "data"):
        assert (verify(store).checksummed, verify(store).verdict) == (0, "clean")


def test_a_store_that_the_next_open_refuses_is_damage(tmp_path):
    a_stream(tmp_path)
    (tmp_path / "parts" / "000000" / "notes.txt").touch()
    found = looked_at(tmp_path)
    assert found.verdict == "damaged"
    assert StateKind.REFUSED in {each.kind for each in found.findings}
    with pytest.raises(ForeignFilesError):
        Stream(tmp_path)


def test_a_journal_without_any_segment_has_lost_what_it_had(tmp_path):
    store = made("journal", str(tmp_path))
    for file in tmp_path.glob("jnl/*"):
        file.unlink()
    found = verify(store)
    assert (found.verdict, found.messages, found.lost) == ("damaged", 0, FEW)
    with Journal(tmp_path) as journal:
        assert [repair.records for repair in journal.repairs] == [FEW]


@pytest.mark.parametrize("kind", ["stream", "journal"])
def test_checksums_in_another_segment_s_place_make_no_more_lost_than_there_ever_were(kind, tmp_path):
    store = made(kind, str(tmp_path))
    first, second = sorted(tmp_path.rglob("*.sums"))[:2]
    second.write_bytes(first.read_bytes())
    found = verify(store)
    assert found.messages == len(messages_in(store))
    assert found.messages + found.lost == FEW

# The active file, and the compiled path through it. Law: a record is accepted whole or not at all; the
# bytes of a failed write are cut off; and the compiled calls leave the same files as calls through a Python
# disk.

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskq._native.core.append_buffer import BLOCK_SIZE, WAL_RECORDS, WAL_ROWS, Mode
from diskq._native.core.gate import Admission, Gate
from diskq._native.core.read_ahead import ReadAhead
from diskq._native.queue.append_buffer import NsqBuffer
from diskq._native.queue.codec import NsqFraming
from diskq.storage.append_file import AppendFile
from diskq.storage.barrier import PendingSyncs
from diskq.storage.block_reader import BlockReader
from diskq.storage.checksums import Rows
from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.testing import CrashFS, FaultFS
from tests.reference.nsq_oracle import frame
from tests.sampling import examples

FRAMING = NsqFraming(0, 1 << 20)
WIDE = 1 << 40


class File:
    """An `AppendFile` in use, and its two files."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self.fs = fs
        self.path = f"{directory}/data"
        self.sums = f"{directory}/sums"
        self.gate = Gate()
        self.gate.left = WIDE
        self.append = AppendFile(fs, self.gate, lambda tell: NsqBuffer(fs, FRAMING, self.gate, tell))
        self.pending_syncs = PendingSyncs()
        self.append.begin(self.path, self.sums, self.pending_syncs)
        self.append.make_room_for_rows()
        self.buffer = self.append.buffer
        self.buffer.limit = WIDE
        self.write = self.buffer.appender(Mode.WRITTEN, Admission.FORCED).append
        self.hold = self.buffer.appender(Mode.HELD, Admission.FORCED).append

    @property
    def data(self) -> bytes:
        handle = self.fs.open(self.path)
        content = self.fs.pread(handle, self.fs.size(handle), 0)
        self.fs.close(handle)
        return content


def in_memory() -> File:
    fs = CrashFS()
    fs.make_directory_durably("/q")
    return File(FaultFS(fs), "/q")


def faults(file: File) -> FaultFS[Any]:
    assert isinstance(file.fs, FaultFS)
    return file.fs


def read_back(file: File) -> Iterator[bytes]:
    """Read the file as a reader does: verified where there are checksums."""
    ahead = ReadAhead(file.fs, FRAMING, Gate())
    reader = BlockReader(file.fs, ahead, file.path, file.sums, 0)
    end = len(file.data)
    while ahead.position < end:
        assert reader.fill(end) is None
        yield from ahead.take_many(10_000, WIDE)
    reader.close()


# --- compiled calls and a Python disk ---------------------------------------------------------

acts = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5000)),
        st.tuples(st.just("hold"), st.integers(0, 5000)),
        st.tuples(st.just("put_many"), st.lists(st.integers(0, 300), max_size=200)),
        st.tuples(st.just("hold_many"), st.lists(st.integers(0, 3000), max_size=100)),
        st.tuples(st.sampled_from(["flush", "settle"]), st.none()),
    ),
    max_size=20,
)


def act_out(file: File, acts: list[tuple[str, Any]]) -> list[bytes]:
    """Carry out the steps, and return all bodies. Each is made from its number, so that no two are equal."""
    bodies: list[bytes] = []

    def body(size: int) -> bytes:
        bodies.append((b"%d," % len(bodies) * size)[:size])
        return bodies[-1]

    for act, size in acts:
        if act == "put":
            assert file.write(body(size))
        elif act == "hold":
            assert file.hold(body(size))
        elif act in ("put_many", "hold_many"):
            batch = [body(each) for each in size]
            mode = Mode.WRITTEN if act == "put_many" else Mode.HELD
            assert file.buffer.append_many(batch, 0, mode) == len(batch)
        elif act == "flush":
            file.buffer.flush()
        else:
            file.append.settle()
        assert file.buffer.end == sum(4 + len(one) for one in bodies)
        assert file.data == b"".join(map(frame, bodies))[: file.buffer.flushed]
    file.buffer.flush()
    file.append.settle()
    return bodies


@given(acts)
@settings(max_examples=examples(40), deadline=None)
def test_the_compiled_calls_and_a_python_disk_make_the_same_files(tmp_path_factory, acts):
    files = []
    for fs in (OsFileSystem(), FaultFS(OsFileSystem())):
        file = File(fs, str(tmp_path_factory.mktemp("door")))
        bodies = act_out(file, acts)
        files.append((Path(file.path).read_bytes(), Path(file.sums).read_bytes()))
        assert list(read_back(file)) == bodies
        file.append.abandon()
    assert files[0] == files[1]
    assert files[0][0] == b"".join(map(frame, bodies))


@given(acts)
@settings(deadline=None)
def test_checksums_cover_everything_in_blocks_of_whole_records(acts):
    file = in_memory()
    bodies = act_out(file, acts)
    rows = Rows(file.fs, file.sums)
    at = records = 0
    boundaries = {0}
    for body in bodies:
        boundaries.add(max(boundaries) + 4 + len(body))
    while group := rows.covering(at, 1):
        (row,) = group
        assert row.start == at
        assert row.end in boundaries
        assert row.matches(file.data[row.start : row.end])
        largest = max((4 + len(body) for body in bodies), default=0)
        assert row.end - row.start < BLOCK_SIZE + largest
        at = row.end
        records += row.records
    assert (at, records) == (len(file.data), len(bodies))


# --- failing writes -----------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [1, 3, 4, 5, 50, 103])
def test_the_bytes_of_a_failed_write_are_cut_off(taken):
    file = in_memory()
    file.write(b"whole")
    faults(file).short_write(bytes_taken=taken, path=file.path)
    faults(file).fail("pwrite", nth=2, error=errno.ENOSPC, path=file.path)
    with pytest.raises(OSError, match="No space"):
        file.write(b"x" * 100)
    assert len(file.data) == 9 + taken
    assert (file.buffer.end, file.buffer.records) == (9, 1)
    file.append.cut_back()
    assert file.data == frame(b"whole")
    file.write(b"next")
    assert file.data == frame(b"whole") + frame(b"next")


def test_short_writes_are_continued_until_all_is_written():
    file = in_memory()
    faults(file).short_write(bytes_taken=7, path=file.path, times=None)
    bodies = [b"%d" % number * number for number in range(50)]
    assert file.buffer.append_many(bodies, 0, Mode.WRITTEN) == 50
    assert file.data == b"".join(map(frame, bodies))


def test_a_batch_that_fails_midway_reports_how_many_were_accepted():
    for nth in range(1, 5):
        file = in_memory()
        bodies = [bytes([65 + number % 26]) * 3000 for number in range(300)]
        faults(file).fail("pwrite", nth=nth, error=errno.ENOSPC, path=file.path)
        with pytest.raises(OSError, match="No space"):
            file.buffer.append_many(bodies, 0, Mode.WRITTEN)
        file.append.cut_back()
        done = file.buffer.records
        assert file.data == b"".join(map(frame, bodies[:done])), nth
        assert file.buffer.end == len(file.data)
        assert file.gate.left == (0 if file.append.needs_room else WIDE - done), "it counts what is in"
        file.buffer.append_many(bodies, done, Mode.WRITTEN)
        file.append.settle()
        assert list(read_back(file)) == bodies


def test_held_records_go_on_waiting_on_a_full_disk():
    file = in_memory()
    file.hold(b"waits")
    faults(file).fail("pwrite", error=errno.ENOSPC, path=file.path)
    with pytest.raises(OSError, match="No space"):
        file.buffer.flush()
    file.append.cut_back()
    assert (file.data, file.buffer.records) == (b"", 1)
    file.buffer.flush()
    assert file.data == frame(b"waits")


def test_a_failed_write_keeps_records_held_before_it():
    file = in_memory()
    file.hold(b"waits")
    faults(file).fail("pwrite", error=errno.ENOSPC, path=file.path)
    with pytest.raises(OSError, match="No space"):
        file.write(b"goes through")
    file.append.cut_back()
    file.write(b"later")
    assert file.data == frame(b"waits") + frame(b"later")


def test_a_row_that_cannot_be_written_closes_the_gate_and_fails_the_next_barrier():
    file = in_memory()
    faults(file).fail("pwrite", error=errno.EIO, path=file.sums)
    for _ in range(20):
        assert file.write(b"x" * BLOCK_SIZE), "the message itself is in"
    assert file.append.failure is not None
    assert not file.append.is_ready
    assert file.gate.left == 0
    with pytest.raises(OSError, match="Input/output"):
        file.append.settle()


def test_without_a_wal_the_row_of_a_block_is_written_when_it_ends():
    file = in_memory()
    for number in range(3):
        assert file.write(b"x" * BLOCK_SIZE)
        rows = Rows(file.fs, file.sums)
        rows.seek(2**62)
        assert (rows.last_end, file.buffer.flushed) == ((number + 1) * (BLOCK_SIZE + 4),) * 2
        rows.close()


def test_with_a_wal_the_row_waits_for_others():
    file = in_memory()
    page = bytearray(WAL_RECORDS)
    file.buffer.attach_wal(memoryview(page), 1)
    assert file.write(b"x" * BLOCK_SIZE)
    rows = Rows(file.fs, file.sums)
    assert rows.first_after(0) is None
    rows.close()
    assert any(page[WAL_ROWS:])
    file.buffer.detach_wal()


def test_a_failed_begin_leaves_no_file_open():
    fs = CrashFS()
    fs.make_directory_durably("/q")
    faulty = FaultFS(fs)
    append = AppendFile(faulty, gate := Gate(), lambda tell: NsqBuffer(faulty, FRAMING, gate, tell))
    faulty.fail("open", error=errno.EMFILE, path="/q/sums")
    with pytest.raises(OSError, match="Too many"):
        append.begin("/q/data", "/q/sums", PendingSyncs())
    assert not append.is_open
    assert [call.verb for call in faulty.calls].count("close") == 1


# --- the gate, the limit, the size ----------------------------------------------------------------


@pytest.mark.parametrize("admission", [Admission.TIMED, Admission.COUNTED])
def test_a_closed_gate_stops_the_fast_paths(admission):
    file = in_memory()
    file.gate.left = 2
    path = file.buffer.appender(Mode.WRITTEN, admission)
    assert path.append(b"1")
    assert not path.append_all([b"2", b"3"]), "all of them or none"
    assert path.append(b"2")
    assert not path.append(b"3")
    assert not path.append_all([b"3"])
    assert file.buffer.records == 2


def test_the_first_waiting_record_is_refused_if_the_gate_is_checked():
    file = in_memory()
    path = file.buffer.appender(Mode.HELD, Admission.TIMED)
    assert not path.append(b"1"), "no task would write it"
    assert file.hold(b"1")
    assert path.append(b"2")
    file.buffer.flush()
    assert file.data == frame(b"1") + frame(b"2")


@pytest.mark.parametrize("admission", [Admission.TIMED, Admission.COUNTED])
def test_the_first_staged_record_of_a_slice_is_written_and_the_next_one_refused(admission):
    file = in_memory()
    memory = bytearray(1 << 16)
    path = file.buffer.appender(Mode.STAGED, admission)
    assert path.append(b"1")
    assert path.append(b"2"), "without a write-ahead log each one is written"
    file.buffer.attach_wal(memory, 1)
    assert path.append(b"3")
    assert file.data == b"".join(map(frame, [b"1", b"2", b"3"]))
    assert not path.append(b"4"), "no task would write it"
    assert file.buffer.appender(Mode.STAGED, Admission.FORCED).append(b"4")
    assert path.append(b"5")
    assert len(file.data) == 15
    assert frame(b"4") + frame(b"5") in memory
    file.gate.restart()
    assert path.append(b"6"), "it waits with those before it"
    assert len(file.data) == 15
    file.buffer.flush()
    assert path.append(b"7")
    assert len(file.data) == 35


def test_a_record_that_could_not_be_written_does_not_count_as_the_first_of_its_slice():
    file = in_memory()
    file.buffer.attach_wal(bytearray(1 << 16), 1)
    path = file.buffer.appender(Mode.STAGED, Admission.TIMED)
    faults(file).fail("pwrite", error=errno.ENOSPC, path=file.path)
    with pytest.raises(OSError, match="No space"):
        path.append(b"1")
    assert path.append(b"2")
    assert file.data == frame(b"2")


def test_a_record_that_does_not_fit_into_the_wal_is_written_with_the_staged_ones():
    file = in_memory()
    file.buffer.attach_wal(bytearray(5000), 1)
    stage = file.buffer.appender(Mode.STAGED, Admission.FORCED).append
    large = b"x" * 3000
    assert stage(b"waits")
    assert stage(large)
    assert not file.data
    assert stage(large)
    assert file.data == frame(b"waits") + 2 * frame(large)
    assert stage(large)
    assert file.buffer.flushed < file.buffer.end, "the write-ahead log is used again"


def test_held_records_that_must_be_written_and_cannot_be_are_not_accepted():
    file = in_memory()
    half = b"x" * (140 * 1024)
    assert file.hold(half)
    faults(file).fail("pwrite", error=errno.ENOSPC, path=file.path)
    with pytest.raises(OSError, match="No space"):
        file.hold(half)
    file.append.cut_back()
    assert file.buffer.records == 1
    file.buffer.flush()
    assert file.data == frame(half)


def test_a_time_slice_that_is_over_refuses_callers_that_can_yield():
    file = in_memory()
    gate = Gate(1e-9)
    gate.left = WIDE
    buffer = NsqBuffer(file.fs, FRAMING, gate, lambda *_: None)
    buffer.retarget(file.append.handle, 0, WIDE)
    assert not buffer.appender(Mode.WRITTEN, Admission.TIMED).append(b"1")
    assert buffer.appender(Mode.WRITTEN, Admission.COUNTED).append(b"1")
    gate.left = 0
    assert not buffer.appender(Mode.WRITTEN, Admission.COUNTED).append(b"2")
    assert buffer.appender(Mode.WRITTEN, Admission.FORCED).append(b"2")
    assert file.data == frame(b"1") + frame(b"2")


def test_the_end_of_a_time_slice_closes_the_gate_until_a_restart():
    gate = Gate(1e-9)
    gate.left = WIDE
    assert gate.is_slice_over
    assert Gate(0.0).is_slice_over is False
    gate = Gate(1000.0)
    gate.restart()
    assert not gate.is_slice_over


def test_gates_with_one_clock_have_one_slice_each_of_its_own_length():
    short, long = Gate(1e-9), Gate(1000.0)
    short.left = long.left = WIDE
    short.follow(long.clock)
    assert short.is_slice_over
    assert long.is_slice_over
    short.restart()
    assert short.is_slice_over
    assert not long.is_slice_over
    assert short.clock.slices == 1


def test_nothing_passes_the_limit():
    file = in_memory()
    file.buffer.limit = 20
    assert file.write(b"x" * 10)
    assert not file.write(b"123")
    assert file.write(b"12"), "exactly full is allowed"
    assert file.buffer.append_many([b""], 0, Mode.WRITTEN) == 0


@pytest.mark.parametrize("body", ["text", bytearray(b"x"), memoryview(b"x"), 7, b"x" * ((1 << 20) + 1)])
def test_bodies_that_need_checking_are_left_to_the_owner(body):
    file = in_memory()
    path = file.buffer.appender(Mode.WRITTEN, Admission.TIMED)
    assert not path.append(body)
    assert not path.append_all([b"good", body])
    assert file.data == b""


def test_a_file_descriptor_is_not_inherited_and_no_link_is_followed(tmp_path):
    fs = OsFileSystem()
    handle = fs.open(str(tmp_path / "file"), write=True, create=True)
    assert not os.get_inheritable(handle)
    fs.close(handle)
    os.symlink(tmp_path / "file", tmp_path / "link")
    with pytest.raises(OSError, match="symbolic"):
        fs.open(str(tmp_path / "link"), write=True)


# --- a buffer that was not closed ---------------------------------------------------------------------


def test_a_collected_buffer_detaches_its_wal_first(monkeypatch):
    class Box:
        def hear(self, *_: object) -> None:
            pass

    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    box: Any = Box()
    buffer = NsqBuffer(CrashFS(), FRAMING, Gate(), box.hear)
    buffer.attach_wal(memoryview(bytearray(4096)), 1)
    # The collector reaches the buffer before the objects that refer to it.
    kept: list[Any] = []
    box.kept = kept
    kept += [kept, buffer]
    del box, buffer, kept
    gc.collect()
    assert errors == []

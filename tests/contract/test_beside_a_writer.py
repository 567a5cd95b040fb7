# Readers in another process, while a writer is at work or after it was killed. Law: no byte comes back
# altered, however recent it is, and nothing is called rotten that is not.
#
# The checksums of the last blocks are only in the write-ahead log. The other program is played with its
# format's layout in `struct`.

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from diskq.engine.journal.reader import JournalReader
from diskq.engine.log.reader import SkippedBytes
from diskq.engine.queue.snapshot import QueueSnapshot, SnapshotReader, values_of
from diskq.engine.spool.files import SPOOL
from diskq.engine.stream.reader import ReadableStream
from diskq.storage.checksums import checksum
from diskq.storage.fs import OsFileSystem
from diskq.storage.log.format import rows_on
from diskq.testing import CrashFS
from diskq.tools.convert.sources import entries
from diskq.tools.stores import Store
from tests.contract.kinds import ENGINES, NAME, ChannelKind, Kind, Opened, body, channels, engines
from tests.contract.test_after_a_kill import APPENDERS, ON_WAL, PATH, files, killed

kinds = pytest.mark.parametrize("kind", channels("priority"), ids=str)  # that one has no write-ahead log


def store(name: str, path: str) -> Store:
    return Store("queue" if name == "leases" else name, path, NAME if name in ("queue", "leases") else None)  # type: ignore[arg-type]


def looked(name: str, fs: CrashFS) -> tuple[list[bytes], list[SkippedBytes]]:
    """What a reader finds, and what is reported to it as lost."""
    if name in ("stream", "journal"):
        with (
            ReadableStream(PATH, fs=fs).open(0) if name == "stream" else JournalReader(PATH, fs=fs) as reader
        ):
            reader.seek_oldest()
            return [bytes(message.value) for message in reader.read_many(1000)], [*reader.losses]
    queue = SPOOL if name == "spool" else NAME
    snapshot = QueueSnapshot(PATH, queue, fs=fs)
    losses = [
        SkippedBytes(
            path=its.path,
            start=its.kept,
            end=its.kept + its.dropped,
            offset=0,
            count=its.records or 0,
            reason=its.reason,
        )
        for its in snapshot.repairs
        if its.records != 0
    ]
    found: list[bytes] = []
    with SnapshotReader(PATH, queue, [*chain.from_iterable(snapshot.plan())], fs=fs) as ranges:
        while (columns := ranges.columns()) is not None:
            found += values_of(columns[1])
        return found, losses + ranges.losses


def seen_by_readers(kind: ChannelKind, sent: list[bytes]) -> list[bytes]:
    """Records that wait on the write-ahead log are looked at with a queue's, and not with a log's."""
    return sent[:-ON_WAL] if kind.name in ("stream", "journal") else sent


def flipped(fs: CrashFS, path: str, at: int) -> CrashFS:
    after = fs.copy()
    content = fs.files()[path]
    after.write_durably(path, content[:at] + bytes([content[at] ^ 0x01]) + content[at + 1 :])
    return after


@kinds
@pytest.mark.parametrize("size", [30, 700])
def test_after_a_kill_every_flipped_byte_is_found_before_anything_was_opened(
    kind: ChannelKind, size: int
) -> None:
    fs, sent = killed(kind, size=size)
    path = files(kind, fs)["data"]
    expected = seen_by_readers(kind, sent)
    assert looked(kind.name, fs) == (expected, [])
    length = len(fs.files()[path])
    for at in range(length % 37, length, 37 if size < 100 else 1777):
        found, losses = looked(kind.name, flipped(fs, path, at))
        assert set(found) < set(expected), at
        assert len(found) + sum(loss.count for loss in losses) == len(expected), at
        assert {loss.reason for loss in losses} == {"checksum mismatch"}, at
        assert found[-ON_WAL:] == expected[-ON_WAL:] or kind.name in ("stream", "journal"), at


@kinds
def test_before_the_open_the_same_is_missing_as_after_it(kind: ChannelKind) -> None:
    fs, sent = killed(kind, size=700)
    after = flipped(fs, files(kind, fs)["data"], 5000)
    found, _ = looked(kind.name, after)
    assert [each for each in kind.read(PATH, fs=after) if each in seen_by_readers(kind, sent)] == found


@kinds
@pytest.mark.parametrize("count", [1, 20])
def test_what_another_program_appended_is_not_rotten(kind: ChannelKind, count: int) -> None:
    fs, sent = killed(kind, size=700)
    path = files(kind, fs)["data"]
    ours = len(fs.files()[path])
    theirs = [b"theirs %d" % number for number in range(count)]
    APPENDERS[kind.name](fs, path, theirs)
    assert looked(kind.name, fs) == (sent[:-ON_WAL] + theirs, [])
    # Rot in diskq's files is found, and does no harm to the peer's.
    found, losses = looked(kind.name, flipped(fs, path, ours - 50))
    assert found[-count:] == theirs
    assert set(found) < {*sent, *theirs}
    assert len(found) + sum(loss.count for loss in losses) == len(sent) - ON_WAL + count


def test_a_file_that_go_diskqueue_began_anew_is_not_rotten() -> None:
    """Its metadata is a peer's, and the checksums that are on the write-ahead log alone are of what it wrote
    over.
    """
    kind = next(kind for kind in channels() if kind.name == "queue")
    fs, _ = killed(kind)
    path = files(kind, fs)["data"]
    there = fs.files()[path]
    theirs = [b"theirs %d" % number for number in range(3)]
    frames = b"".join(len(each).to_bytes(4, "big") + each for each in theirs)
    fs.write_durably(path, frames + there[len(frames) :])
    fs.write_durably(f"{PATH}/{NAME}.diskqueue.meta.dat", b"3\n0,0\n0,%d\n" % len(frames))
    found, _ = looked("queue", fs)
    assert found[:3] == theirs
    assert ENGINES["queue"].read_with_repairs(PATH, fs=fs)[0][:3] == theirs


@kinds
def test_a_wal_of_another_run_of_the_machine_says_nothing(kind: ChannelKind) -> None:
    fs, _ = killed(kind)
    wal = files(kind, fs)["wal"]
    assert any(rows_on(fs, wal, file) for file in (0, 1))
    head = fs.files()[wal][:124]
    other = head[:24] + b"another" + head[31:]
    header = other + checksum(other).to_bytes(4, "little")
    fs.write_durably(wal, header + fs.files()[wal][128:])
    assert not any(rows_on(fs, wal, file) for file in (0, 1))


def test_a_message_whose_row_in_the_index_is_not_written_is_left_for_later_though_its_checksum_is_there() -> (
    None
):
    """A go-diskq producer would give its offset to another message."""
    kind = next(kind for kind in channels() if kind.name == "stream")
    fs, sent = killed(kind, size=700)
    path = files(kind, fs)["data"]
    index = path.removesuffix("data") + "index"
    fs.write_durably(index, fs.files()[index][:-48])
    expected = sent[: -ON_WAL - 2]
    assert looked("stream", fs) == (expected, [])
    found, losses = looked("stream", flipped(fs, path, len(fs.files()[path]) - 2200))
    assert set(found) < set(expected)
    assert len(found) + sum(loss.count for loss in losses) == len(expected)
    APPENDERS["stream"](fs, path, [b"theirs"])
    assert looked("stream", fs)[0] == [*expected, b"theirs"]


def test_a_reader_in_the_midst_of_a_block_goes_on_there() -> None:
    kind = next(kind for kind in channels() if kind.name == "stream")
    fs, sent = killed(kind, size=700)
    path = files(kind, fs)["data"]
    for start in range(len(sent) - ON_WAL):
        with ReadableStream(PATH, fs=fs).open(0) as reader:
            reader.seek(start)
            assert [bytes(each.value) for each in reader.read_many(100)] == sent[start:-ON_WAL]
        after = flipped(fs, path, len(fs.files()[path]) - 1)
        with ReadableStream(PATH, fs=after).open(0) as reader:
            reader.seek(start)
            found = [bytes(each.value) for each in reader.read_many(100)]
            assert found == sent[start : start + len(found)]
            assert len(found) + sum(loss.count for loss in reader.losses) == len(sent) - ON_WAL - start


# --- while another process writes -----------------------------------------------------------------------


class _Busy(OsFileSystem):
    """A disk on which another process does something before each read."""

    native = False

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self._act()
        return super().pread(handle, size, offset)

    def size(self, handle: int) -> int:
        self._act()
        return super().size(handle)


class _Writer:
    """Puts messages, written through, some at each turn; now and then it makes them durable."""

    def __init__(self, store: Opened) -> None:
        self.store = store
        self.sent: list[bytes] = []
        self.turns = 0

    def act(self) -> None:
        self.turns += 1
        if len(self.sent) >= 3000:
            return
        for _ in range(self.turns % 3):
            self.sent.append(body(len(self.sent), (30, 700, 1500, 5000)[self.turns // 20 % 4]))
            self.store.put(self.sent[-1])
        self.store.flush()
        if self.turns % 17 == 0:
            self.store.sync()


@pytest.mark.parametrize("kind", engines("priority", "leases", "threaded spool"), ids=str)
def test_nothing_is_rotten_while_another_process_writes(kind: Kind, tmp_path: Path) -> None:
    with kind.open(tmp_path, wal=True) as engine:
        writer = _Writer(engine)
        for number in range(16):
            for _ in range(1 + number % 5):
                writer.act()
            before = len(writer.sent)
            losses: list[SkippedBytes] = []
            found = entries(store(kind.name, str(tmp_path)), fs=_Busy(writer.act), losses=losses)
            values = [each.value for each in found]
            assert values == writer.sent[: len(values)]
            assert len(values) >= before
            assert losses == []
    assert kind.read(tmp_path) == writer.sent

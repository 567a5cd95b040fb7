# Between a kill and the next open. Law: acknowledged messages are found or reported; what another program
# wrote meanwhile stays; no byte comes back altered. No file but the write-ahead log is needed for that.
#
# The killed process is a channel in the middle of its time slice: some messages are in the data file, the
# last ones only in the write-ahead log; or a synchronous engine, whose messages are all written. The other
# program is played with its format's layout in `struct`.

from __future__ import annotations

import contextlib
import random
import struct
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import diskq
from diskq._native.core.append_buffer import WAL_ENTRY, WAL_RECORDS, WAL_ROW_COUNT, WAL_ROWS
from diskq.engine.log.reader import SkippedBytes
from diskq.errors import LockedError
from diskq.storage.log.format import ROWS_SIZE, read_wal
from diskq.storage.repairs import Repair
from diskq.testing import CrashFS, PowerCut
from diskq.tools.convert.sources import entries
from diskq.tools.findings import Verification
from diskq.tools.info import Info, info
from diskq.tools.stores import Store, stores_at
from diskq.tools.verify.verification import verify
from tests.contract.kinds import CHANNELS, NAME, ChannelKind, Kind, bodies, channels, engines
from tests.loops import LOOPS, blocked, run_on
from tests.reference import nsq_oracle, sej_oracle, triplet_oracle

PATH = "/x"
STAGED = ("priority",)  # has no write-ahead log
WRITTEN, ON_WAL = 20, 5

kinds = pytest.mark.parametrize("kind", channels(*STAGED), ids=str)
loops = pytest.mark.parametrize("loop", LOOPS)
# The files of a spool with a thread are those of the other.
plain = pytest.mark.parametrize("kind", engines(*STAGED, "threaded spool"), ids=str)


def named(*names: str) -> list[ChannelKind]:
    return [CHANNELS[name] for name in names]


def killed(kind: ChannelKind, *, size: int = 30, loop: str = "trio") -> tuple[CrashFS, list[bytes]]:
    """A disk after the kill, and what was acknowledged, oldest first."""
    fs = CrashFS()
    fs.make_directory_durably(PATH)

    async def run() -> CrashFS:
        async with kind.open(PATH, fs=fs, checkpoint_slice=60.0) as channel:
            for body in sent[:-ON_WAL]:
                await channel.send(body)
            await blocked()
            for body in sent[-ON_WAL:]:
                await channel.send(body)
            return fs.kill()

    sent = bodies(WRITTEN + ON_WAL, size=size)
    return run_on(loop, run), sent


def killed_engine(kind: Kind, *, size: int = 30) -> tuple[CrashFS, list[bytes]]:
    """The same of a synchronous engine; several blocks, none of which a barrier has closed."""
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    store = kind.open(PATH, fs=fs)
    sent = bodies(600 if size < 100 else 60, size=size)
    for body in sent:
        store.put(body, "written")
    return fs.kill(), sent


def verified_engine(kind: Kind, fs: CrashFS) -> Verification:
    what = "queue" if kind.name == "leases" else kind.name
    return verify(Store(what, PATH, NAME if what == "queue" else None), fs=fs)  # type: ignore[arg-type]


def files(kind: ChannelKind, fs: CrashFS) -> dict[str, str]:
    """The paths of what is there: the data, its checksums, the write-ahead log, the lock, the state."""
    names = kind.engine.names(PATH)
    wal = names.wals[0]
    data = next(path for path in sorted(fs.files()) if Path(path).match(names.data))
    sums = next(path for path in sorted(fs.files()) if path.endswith(f"{Path(data).name}.sums"))
    ends = (".diskq/state", ".queue.state")
    (state,) = (path for path in fs.files() if path.endswith(ends) and "/dead." not in path)
    return {"data": data, "sums": sums, "wal": wal, "lock": names.lock, "state": state}


def verified(kind: ChannelKind, fs: CrashFS) -> Verification:
    name = NAME if kind.name == "queue" else None
    return verify(Store(kind.name, PATH, name), fs=fs)  # type: ignore[arg-type]


def seen(kind: ChannelKind, fs: CrashFS) -> Info:
    return info(Store(kind.name, PATH, NAME if kind.name == "queue" else ""), fs=fs)  # type: ignore[arg-type]


# --- what a look shows ----------------------------------------------------------------------------------


@kinds
@loops
def test_info_counts_what_the_next_open_finds(kind: ChannelKind, loop: str) -> None:
    fs, sent = killed(kind, loop=loop)
    before = fs.files()
    found = seen(kind, fs)
    assert (found.messages, found.is_exact) == (len(sent), True)
    assert fs.files() == before
    assert kind.read(PATH, fs=fs) == sent


@kinds
@loops
@pytest.mark.parametrize("boot", ["another", "the same"])
def test_info_counts_what_the_next_open_finds_after_a_power_cut(
    kind: ChannelKind, loop: str, boot: str
) -> None:
    fs, _ = killed(kind, loop=loop)
    fs = fs.crash(random.Random(3), is_restart=boot == "another")
    found = seen(kind, fs)
    assert (found.messages, found.is_exact) == (len(kind.read(PATH, fs=fs)), True)


@kinds
def test_info_counts_what_another_program_wrote_and_what_is_appended_after_it(kind: ChannelKind) -> None:
    fs, sent = killed(kind)
    APPENDERS[kind.name](fs, files(kind, fs)["data"], [b"theirs"] * 3)
    found = seen(kind, fs)
    assert (found.messages, found.is_exact) == (len(sent) + 3, True)


@kinds
@loops
def test_a_conversion_has_what_the_next_open_finds(kind: ChannelKind, loop: str) -> None:
    fs, sent = killed(kind, loop=loop)
    before, losses = fs.files(), list[SkippedBytes]()
    (store,) = stores_at(PATH, fs=fs)
    assert [entry.value for entry in entries(store, fs=fs, losses=losses)] == sent
    assert losses == []
    assert fs.files() == before


@kinds
def test_a_conversion_has_what_another_program_wrote_and_ours_after_it(kind: ChannelKind) -> None:
    fs, _ = killed(kind)
    APPENDERS[kind.name](fs, files(kind, fs)["data"], [b"theirs"] * 3)
    (store,) = stores_at(PATH, fs=fs)
    assert [entry.value for entry in entries(store, fs=fs)] == kind.read(PATH, fs=fs)


@kinds
def test_a_conversion_reports_a_write_ahead_log_that_cannot_be_read(kind: ChannelKind) -> None:
    fs, sent = killed(kind)
    wal = files(kind, fs)["wal"]
    content = bytearray(fs.files()[wal])
    content[WAL_RECORDS + 5] ^= 1
    fs.write_durably(wal, bytes(content))
    losses: list[SkippedBytes] = []
    (store,) = stores_at(PATH, fs=fs)
    assert [entry.value for entry in entries(store, fs=fs, losses=losses)] == sent[:-ON_WAL]
    assert losses


@kinds
@pytest.mark.parametrize("size", [30, 3000])
def test_a_conversion_reports_damage_once(kind: ChannelKind, size: int) -> None:
    fs, sent = killed(kind, size=size)
    data = files(kind, fs)["data"]
    content = bytearray(fs.files()[data])
    at = content.index(sent[3])
    content[at - 10 : at + 10] = b"\xff" * 20
    fs.write_durably(data, bytes(content))
    losses: list[SkippedBytes] = []
    (store,) = stores_at(PATH, fs=fs)
    found = [entry.value for entry in entries(store, fs=fs, losses=losses)]
    assert found == kind.read(PATH, fs=fs.copy())
    assert len(losses) == 1


@pytest.mark.parametrize("kind", named("queue", "spool", "stream"), ids=str)
@pytest.mark.parametrize("size", [0, 500])
def test_info_does_not_count_what_is_gone(kind: ChannelKind, size: int) -> None:
    """Of a journal it counts the offsets, those of lost messages among them."""
    fs, _ = killed(kind)
    path = files(kind, fs)["data"]
    fs.write_durably(path, fs.files()[path][:size])
    found = seen(kind, fs)
    assert (found.messages, found.is_exact) == (len(kind.read(PATH, fs=fs)), True)


# --- another program writes -----------------------------------------------------------------------------


def append_frames(fs: CrashFS, data: str, values: list[bytes]) -> None:
    fs.write_durably(data, fs.files()[data] + b"".join(map(nsq_oracle.frame, values)))


def append_records(fs: CrashFS, data: str, values: list[bytes]) -> None:
    there = fs.files()[data]
    first = len(sej_oracle.records(there)[0])
    records = (sej_oracle.record(first + n, b"", 7, 0, value) for n, value in enumerate(values))
    fs.write_durably(data, there + b"".join(records))


def append_triplets(fs: CrashFS, data: str, values: list[bytes]) -> None:
    """As go-diskq: it goes on where the index ends and where the data ends."""
    index, times = (data.removesuffix("data") + suffix for suffix in ("index", "timeindex"))
    for value in values:
        offset, position = len(fs.files()[index]) // 24, len(fs.files()[data])
        record = triplet_oracle.record(b"peer", 7, value)
        fs.write_durably(times, fs.files()[times] + struct.pack("<Qq", offset, 7))
        fs.write_durably(data, fs.files()[data] + record)
        fs.write_durably(index, fs.files()[index] + struct.pack("<QQQ", offset, position, len(record)))


APPENDERS: dict[str, Callable[[CrashFS, str, list[bytes]], None]] = {
    "queue": append_frames,
    "spool": append_frames,
    "stream": append_triplets,
    "journal": append_records,
}


@kinds
@pytest.mark.parametrize("count", [1, 2, ON_WAL, 20])
@pytest.mark.parametrize("lock", ["as it was", "emptied"])
def test_what_another_program_wrote_meanwhile_stays_and_ours_comes_after_it(
    kind: ChannelKind, count: int, lock: str
) -> None:
    fs, sent = killed(kind)
    theirs = [b"theirs %d" % number for number in range(count)]
    APPENDERS[kind.name](fs, files(kind, fs)["data"], theirs)
    assert (verified(kind, fs).messages, verified(kind, fs).lost) == (len(sent) + count, 0)
    if lock == "emptied":
        fs.write_durably(files(kind, fs)["lock"], b"")
    found, repairs = kind.engine.read_with_repairs(PATH, fs=fs)
    assert found == sent[:-ON_WAL] + theirs + sent[-ON_WAL:]
    assert any("again" in repair.reason and not repair.records for repair in repairs)
    assert kind.read(PATH, fs=fs) == found


@kinds
def test_a_kill_in_the_middle_of_that_loses_nothing(kind: ChannelKind) -> None:
    fs, sent = killed(kind)
    APPENDERS[kind.name](fs, files(kind, fs)["data"], [b"theirs"])
    cut = 0
    while True:
        cut += 1
        first = fs.copy()
        first.cut_at = cut
        with contextlib.suppress(PowerCut):
            kind.read(PATH, fs=first)
        found = kind.read(PATH, fs=first.kill())
        assert set(found) == {*sent, b"theirs"}
        if not first.is_cut:
            break


@pytest.mark.parametrize("kind", named("queue"), ids=str)
def test_a_kill_in_the_middle_leaves_a_file_that_another_program_has_begun_anew_its_messages(
    kind: ChannelKind, caplog: pytest.LogCaptureFixture
) -> None:
    """go-diskqueue does so with file 0 where it finds no metadata, and with the next one at a roll."""
    fs, sent = killed(kind)
    theirs = [b"theirs %d " % number + b"." * 100 for number in range(40)]
    content = b"".join(map(nsq_oracle.frame, theirs))
    fs.write_durably(files(kind, fs)["data"], content)
    metadata = next(path for path in fs.files() if path.endswith("meta.dat"))
    fs.write_durably(metadata, b"40\n0,0\n0,%d\n" % len(content))
    cut = 0
    while True:
        cut += 1
        first = fs.copy()
        first.cut_at = cut
        caplog.clear()
        with contextlib.suppress(PowerCut):
            kind.read(PATH, fs=first)
        told = [getattr(record, "diskq_event", "") for record in caplog.records]
        second = first.kill()
        found, repairs = kind.engine.read_with_repairs(PATH, fs=second)
        assert found[: len(theirs)] == theirs, cut
        assert set(found[len(theirs) :]) <= set(sent), cut
        assert "repair" in told or any(repair.records != 0 for repair in repairs), cut
        if not first.is_cut:
            break


@pytest.mark.parametrize("kind", named("journal"), ids=str)
@pytest.mark.parametrize("is_another_s", [False, True])
def test_zeros_at_the_end_are_no_message_that_is_lost(kind: ChannelKind, is_another_s: bool) -> None:
    """A queue's are its own subject: its framing takes them for messages."""
    fs, sent = killed(kind)
    data = files(kind, fs)["data"]
    if is_another_s:
        APPENDERS[kind.name](fs, data, [b"theirs"])
    fs.write_durably(data, fs.files()[data] + bytes(4096))
    assert verified(kind, fs).verdict == "torn"
    found, repairs = kind.engine.read_with_repairs(PATH, fs=fs)
    assert set(found) - {b"theirs"} == set(sent)
    assert not any(repair.records != 0 for repair in repairs)


@kinds
@pytest.mark.parametrize("damage", ["cut", "wal"])
def test_an_open_that_is_killed_has_reported_its_findings_or_the_next_one_does(
    kind: ChannelKind, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    fs, sent = killed(kind)
    its = files(kind, fs)
    path = its["wal"] if damage == "wal" else its["data"]
    content = bytearray(fs.files()[path])
    if damage == "cut":
        del content[-len(content) // 3 :]
    else:
        content[content.index(sent[-1])] ^= 1
    fs.write_durably(path, bytes(content))
    cut = 0
    while True:
        cut += 1
        first = fs.copy()
        first.cut_at = cut
        caplog.clear()
        with contextlib.suppress(PowerCut):
            kind.engine.read_with_repairs(PATH, fs=first)
        told = [getattr(record, "diskq_event", "") for record in caplog.records]
        second = first.kill()
        is_damaged = verified(kind, second).verdict == "damaged"
        found, repairs = kind.engine.read_with_repairs(PATH, fs=second)
        assert set(found) < set(sent), cut
        has_told = any(repair.records != 0 for repair in repairs)
        assert has_told or "repair" in told, cut
        assert is_damaged or not has_told, cut
        if not first.is_cut:
            break


# --- one file is touched --------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("damage", ["removed", "emptied"])
@pytest.mark.parametrize("which", ["lock", "state", "sums"])
def test_a_small_file_that_goes_takes_no_message_with_it(kind: ChannelKind, which: str, damage: str) -> None:
    fs, sent = killed(kind)
    path = files(kind, fs)[which]
    if damage == "removed":
        fs.unlink(path)
    else:
        fs.write_durably(path, b"")
    assert kind.engine.read_with_repairs(PATH, fs=fs)[0] == sent


@kinds
@loops
@pytest.mark.parametrize("damage", ["removed", "emptied", "cut"])
def test_a_wal_that_goes_is_reported(kind: ChannelKind, loop: str, damage: str) -> None:
    fs, sent = killed(kind, loop=loop)
    path = files(kind, fs)["wal"]
    if damage == "removed":
        fs.unlink(path)
    else:
        fs.write_durably(path, fs.files()[path][: 1000 if damage == "cut" else 0])
    assert path in [finding.path for finding in verified(kind, fs).findings if finding.severity == "damage"]
    found, repairs = kind.engine.read_with_repairs(PATH, fs=fs)
    assert found == sent[:-ON_WAL]
    assert [(repair.path, repair.records) for repair in repairs] == [(path, None)]


@kinds
@pytest.mark.parametrize("damage", ["removed", "emptied", "cut"])
def test_messages_whose_file_goes_are_reported(kind: ChannelKind, damage: str) -> None:
    fs, sent = killed(kind)
    path = files(kind, fs)["data"]
    if damage == "removed":
        fs.unlink(path)
    else:
        fs.write_durably(path, fs.files()[path][: 500 if damage == "cut" else 0])
    told = verified(kind, fs).verdict, verified(kind, fs).lost
    found, repairs = kind.engine.read_with_repairs(PATH, fs=fs)
    assert set(found) < set(sent)
    gone = len(sent) - ON_WAL - len(found)
    assert sum(repair.records or 0 for repair in repairs) == gone
    assert any(repair.records is None for repair in repairs)  # what is on the write-ahead log is kept aside
    assert told == ("damaged", gone)


@pytest.mark.parametrize("kind", named("stream", "journal"), ids=str)
@pytest.mark.parametrize("damage", ["removed", "emptied", "cut"])
def test_messages_that_waited_for_a_file_that_a_peer_has_removed_are_appended(
    kind: ChannelKind, damage: str
) -> None:
    fs, sent = killed(kind)
    its = files(kind, fs)
    if damage == "removed":
        fs.unlink(its["data"])
    else:
        fs.write_durably(its["data"], fs.files()[its["data"]][: 500 if damage == "cut" else 0])
    if kind.name == "stream":
        fs.unlink(f"{PATH}/owner")
    else:
        fs.write_durably(its["lock"], b"")
    found, repairs = kind.engine.read_with_repairs(PATH, fs=fs)
    assert found[-ON_WAL:] == sent[-ON_WAL:]
    assert any("again" in repair.reason and not repair.records for repair in repairs)
    assert kind.read(PATH, fs=fs) == found


@kinds
@pytest.mark.parametrize("damage", ["removed", "emptied"])
def test_a_wal_that_goes_is_reported_also_where_another_program_has_written(
    kind: ChannelKind, damage: str
) -> None:
    fs, _ = killed(kind)
    its = files(kind, fs)
    APPENDERS[kind.name](fs, its["data"], [b"theirs"])
    if kind.name == "stream":
        fs.unlink(f"{PATH}/owner")  # or go-diskq refuses to write
    if damage == "removed":
        fs.unlink(its["wal"])
    else:
        fs.write_durably(its["wal"], b"")
    assert its["wal"] in [each.path for each in verified(kind, fs).findings if each.severity == "damage"]
    found, repairs = kind.engine.read_with_repairs(PATH, fs=fs)
    assert b"theirs" in found
    assert (its["wal"], None) in [(repair.path, repair.records) for repair in repairs]


@pytest.mark.parametrize("kind", named("stream", "journal"), ids=str)
@pytest.mark.parametrize("damage", ["removed", "emptied"])
def test_a_wal_that_goes_is_reported_also_where_a_peer_has_emptied_the_lock(
    kind: ChannelKind, damage: str
) -> None:
    """A peer of a stream or a journal does so, also one that only tries to lock it; the points tell, too."""
    fs, sent = killed(kind)
    its = files(kind, fs)
    fs.write_durably(its["lock"], b"")
    if damage == "removed":
        fs.unlink(its["wal"])
    else:
        fs.write_durably(its["wal"], b"")
    assert its["wal"] in [each.path for each in verified(kind, fs).findings if each.severity == "damage"]
    found, repairs = kind.engine.read_with_repairs(PATH, fs=fs)
    assert set(found) <= set(sent)
    assert (its["wal"], None) in [(repair.path, repair.records) for repair in repairs]


@kinds
def test_every_flipped_byte_of_the_wal_is_harmless_or_reported(kind: ChannelKind) -> None:
    fs, sent = killed(kind)
    path = files(kind, fs)["wal"]
    content = fs.files()[path]
    used = 1024 + len(read_wal(fs, path).content)  # type: ignore[union-attr]
    for at in [*range(0, 180, 3), *range(1024, used, 7)]:
        after = fs.copy()
        after.write_durably(path, content[:at] + bytes([content[at] ^ 0x20]) + content[at + 1 :])
        found, repairs = kind.engine.read_with_repairs(PATH, fs=after)
        assert found == sent or (found == sent[:-ON_WAL] and repairs[0].path == path), at


@pytest.mark.exhaustive
@kinds
@pytest.mark.parametrize("lock", ["emptied", "removed"])
def test_so_is_each_of_its_header_if_no_lock_file_shows_a_restart(kind: ChannelKind, lock: str) -> None:
    fs, sent = killed(kind)
    its = files(kind, fs)
    content = fs.files()[its["wal"]]
    for at in range(76):
        after = fs.copy()
        after.write_durably(its["wal"], content[:at] + bytes([content[at] ^ 0x01]) + content[at + 1 :])
        if lock == "emptied":
            after.write_durably(its["lock"], b"")
        else:
            after.unlink(its["lock"])
        assert kind.read(PATH, fs=after) == sent, at


@pytest.mark.exhaustive
@kinds
@pytest.mark.parametrize("size", [30, 700])
def test_every_flipped_byte_of_the_tail_is_found(kind: ChannelKind, size: int) -> None:
    fs, sent = killed(kind, size=size)
    path = files(kind, fs)["data"]
    content = fs.files()[path]
    for at in range(len(content) % 37, len(content), 37 if size < 100 else 1777):
        after = fs.copy()
        after.write_durably(path, content[:at] + bytes([content[at] ^ 0x01]) + content[at + 1 :])
        assert any(finding.severity == "damage" for finding in verified(kind, after).findings), at
        found = kind.read(PATH, fs=after)
        assert set(found) < set(sent), at
        assert set(found) >= set(sent[-ON_WAL:]), at


@plain
@pytest.mark.parametrize("size", [30, 700])
def test_every_flipped_byte_that_a_synchronous_engine_wrote_is_found(kind: Kind, size: int) -> None:
    fs, sent = killed_engine(kind, size=size)
    names = kind.names(PATH)
    path = next(path for path in sorted(fs.files()) if Path(path).match(names.data))
    content = fs.files()[path]
    for at in range(len(content) % 17, len(content), len(content) // 17):
        after = fs.copy()
        after.write_durably(path, content[:at] + bytes([content[at] ^ 0x01]) + content[at + 1 :])
        told = verified_engine(kind, after)
        found = kind.read(PATH, fs=after)
        assert set(found) < set(sent), at
        assert (told.verdict, told.lost) == ("damaged", len(sent) - len(found)), at


@plain
@pytest.mark.parametrize("zeros", [4, 20, 60])
@pytest.mark.parametrize("size", [30, 700])
def test_verify_counts_what_an_open_saves_of_a_block_whose_end_is_damaged(
    kind: Kind, size: int, zeros: int
) -> None:
    fs, sent = killed_engine(kind, size=size)
    path = next(path for path in sorted(fs.files()) if Path(path).match(kind.names(PATH).data))
    fs.write_durably(path, fs.files()[path][:-zeros] + bytes(zeros))
    told = verified_engine(kind, fs)
    found = kind.read(PATH, fs=fs)
    assert set(found) < set(sent)
    assert (told.verdict, told.messages, told.lost) == ("damaged", len(found), len(sent) - len(found))


@plain
@pytest.mark.parametrize("zeros", [20, 200])
def test_each_message_that_an_open_cuts_with_a_block_is_counted_once(kind: Kind, zeros: int) -> None:
    fs, sent = killed_engine(kind)
    path = next(path for path in sorted(fs.files()) if Path(path).match(kind.names(PATH).data))
    fs.write_durably(path, fs.files()[path][:-zeros] + bytes(zeros))
    found, repairs = kind.read_with_repairs(PATH, fs=fs)
    assert set(found) < set(sent)
    assert sum(repair.records or 0 for repair in repairs) == len(sent) - len(found)


@plain
def test_zeros_after_what_a_synchronous_engine_wrote_are_no_messages(kind: Kind) -> None:
    fs, sent = killed_engine(kind)
    path = next(path for path in sorted(fs.files()) if Path(path).match(kind.names(PATH).data))
    fs.write_durably(path, fs.files()[path] + bytes(512))
    found = verified_engine(kind, fs)
    assert (found.verdict, found.messages, found.lost) == ("torn", len(sent), 0)
    got, repairs = kind.read_with_repairs(PATH, fs=fs)
    assert got == sent
    assert [(repair.path, repair.dropped, repair.records) for repair in repairs] == [(path, 512, 0)]


@plain
def test_zeros_are_none_either_where_the_engine_was_only_opened(kind: Kind) -> None:
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    sent = bodies(40)
    with kind.open(PATH, fs=fs) as store:
        store.put_many(sent, "written")
    kind.open(PATH, fs=fs)
    fs = fs.kill()
    path = next(path for path in sorted(fs.files()) if Path(path).match(kind.names(PATH).data))
    fs.write_durably(path, fs.files()[path] + bytes(512))
    assert verified_engine(kind, fs).messages == len(sent)
    assert kind.read(PATH, fs=fs) == sent


@plain
@pytest.mark.parametrize("damage", ["removed", "emptied", "cut", "flipped"])
def test_the_wal_of_a_synchronous_engine_takes_no_message_with_it(kind: Kind, damage: str) -> None:
    fs, sent = killed_engine(kind)
    path = kind.names(PATH).wals[0]
    content = fs.files()[path]
    assert len(content) == ROWS_SIZE
    for at in range(0, 1100, 17) if damage == "flipped" else (0,):
        after = fs.copy()
        if damage == "removed":
            after.unlink(path)
        elif damage == "flipped":
            after.write_durably(path, content[:at] + bytes([content[at] ^ 0x20]) + content[at + 1 :])
        else:
            after.write_durably(path, content[: 2000 if damage == "cut" else 0])
        assert verified_engine(kind, after).lost == 0
        assert kind.read_with_repairs(PATH, fs=after) == (sent, ())


@plain
def test_after_a_clean_close_of_a_synchronous_engine_the_wal_is_empty(kind: Kind) -> None:
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    with kind.open(PATH, fs=fs) as store:
        store.put_many(bodies(5), "written")
    assert fs.files()[kind.names(PATH).wals[0]] == b""


@kinds
@loops
def test_after_a_clean_close_the_wal_is_ignored(kind: ChannelKind, loop: str) -> None:
    fs = CrashFS()
    fs.make_directory_durably(PATH)

    async def run() -> None:
        async with kind.open(PATH, fs=fs) as channel:
            await channel.send_many(bodies(5))
            await channel.send(b"last")

    run_on(loop, run)
    wal = fs.files()[files(kind, fs)["wal"]]
    assert not any(wal[WAL_ROWS : WAL_ROWS + 32 * WAL_ROW_COUNT])
    assert not any(wal[WAL_ENTRY:WAL_RECORDS])  # there is no entry, whatever records one had
    fs.unlink(files(kind, fs)["wal"])
    found, repairs = kind.engine.read_with_repairs(PATH, fs=fs)
    assert (len(found), repairs) == (6, ())


@pytest.mark.parametrize("kind", named("stream"), ids=str)
def test_verify_reports_an_owner_file_of_another_producer_as_the_open_refuses_it(
    kind: ChannelKind,
) -> None:
    fs, _ = killed(kind)
    fs.unlink(f"{PATH}/owner")  # it is a link to ours
    fs.write_durably(f"{PATH}/owner", uuid.UUID(int=7, version=4).bytes)
    found = verified(kind, fs)
    assert (found.verdict, found.lost) == ("damaged", 0)
    assert [each.path for each in found.findings if each.severity == "damage"] == [f"{PATH}/owner"]
    with pytest.raises(LockedError, match="take_over"):
        kind.engine.read_with_repairs(PATH, fs=fs)


@pytest.mark.parametrize("kind", named("stream"), ids=str)
@pytest.mark.parametrize("name", ["owner", ".diskq/owner"])
@pytest.mark.parametrize("damage", ["removed", "emptied", "made anew"])
@pytest.mark.parametrize("has_peer", [False, True], ids=["alone", "beside a peer"])
def test_an_owner_file_that_goes_takes_no_message_with_it(
    kind: ChannelKind, name: str, damage: str, has_peer: bool
) -> None:
    """It is one file with two names. Where only one is as it was, a go-diskq producer may have the stream."""
    fs, sent = killed(kind)
    theirs = [b"theirs"] * has_peer
    APPENDERS["stream"](fs, files(kind, fs)["data"], theirs)
    if damage != "emptied":
        fs.unlink(f"{PATH}/{name}")
    if damage != "removed":
        fs.write_durably(f"{PATH}/{name}", b"")
    repairs: tuple[Repair, ...] = ()
    if (name, damage) != ("owner", "removed"):
        assert (verified(kind, fs).verdict, verified(kind, fs).lost) == ("damaged", 0)
        with pytest.raises(LockedError, match="take_over"):
            kind.engine.read_with_repairs(PATH, fs=fs)
        with diskq.Stream(PATH, take_over=True, fs=fs) as stream:
            repairs = stream.repairs
    found, more = kind.engine.read_with_repairs(PATH, fs=fs)
    assert found == sent[:-ON_WAL] + theirs + sent[-ON_WAL:]
    assert [repair.records for repair in repairs + more] == [0] * has_peer

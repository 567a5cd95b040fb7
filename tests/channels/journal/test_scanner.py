# The reading side of a journal as a Trio channel: what each call does, what it promises; and what the bugs of
# sej's scanner, S1 to S13 of its description, would have done.

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import assert_checkpoints

from diskq.channels.core.merging import merge
from diskq.channels.journal.scanner import JournalScanner, open_scanner
from diskq.engine.journal.reader_offset import read_journal_offset
from diskq.errors import LockedError, NotFoundError, OffsetOutOfRangeError, ReaderNameError
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS, FaultFS
from tests.channels.journal_rig import (
    JOURNAL,
    drain,
    elsewhere,
    filled,
    rest,
    scanning,
    stored,
    values,
    writing,
)
from tests.channels.rig import Tasks, blocked, crash_disk, interrupt, numbered, until

Scan = Callable[..., open_scanner]

LAST = 2**64


async def come(tasks: Tasks, *names: str) -> None:
    """Wait for the kernel's report."""
    while not all(name in tasks for name in names):  # noqa: ASYNC110 (there is no event for it)
        await trio.sleep(0.001)


def segment(base: int = 0) -> str:
    return f"{JOURNAL}/jnl/{base:016x}.jnl"


# --- from where to where ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [40, 10**6], ids=["many segments", "one segment"])
async def test_it_begins_at_start_and_ends_at_end(disk, size):
    filled(disk, 20, segment_size=size)
    for start, end, expected in [
        ("oldest", "close", range(20)),
        (0, "close", range(20)),
        (7, "close", range(7, 20)),
        (20, "close", range(0)),
        ("newest", "close", range(0)),
        ("oldest", 4, range(5)),
        (7, 7, range(7, 8)),
    ]:
        async with scanning(disk, start=start, end=end) as scanner:
            assert isinstance(scanner, JournalScanner)
            assert [message.offset for message in await rest(scanner)] == list(expected)
            with pytest.raises(trio.EndOfChannel):
                await scanner.receive()
            with pytest.raises(trio.EndOfChannel):
                scanner.receive_nowait()


async def test_a_moment_is_the_first_message_that_is_not_earlier(disk):
    began = datetime(2013, 7, 4, 10, tzinfo=UTC)
    with elsewhere(disk, segment_size=100) as journal:
        for number in range(20):
            journal.append(b"%d" % number, timestamp=began + timedelta(seconds=number))
    for seconds, expected in [(-1, 0), (0, 0), (0.5, 1), (7, 7), (18.9, 19)]:
        async with scanning(disk, start=began + timedelta(seconds=seconds)) as scanner:
            assert (await scanner.receive()).offset == expected


async def test_newest_is_what_comes_from_now_on(disk):
    async with writing(disk) as journal:
        await journal.send(b"before")
        async with journal.open_scanner(start="newest") as scanner:
            assert drain(scanner) == []
            await journal.send(b"after")
            assert values(drain(scanner)) == [b"after"]


async def test_what_cannot_be_asked_for_is_refused(disk):
    filled(disk, 3)
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"start": "active"}, ValueError),
        ({"start": -1}, ValueError),
        ({"start": 1.5}, TypeError),
        ({"start": datetime(2024, 1, 1)}, ValueError),
        ({"end": "never"}, ValueError),
        ({"end": -1}, ValueError),
        ({"autocommit": True}, ValueError),
        ({"reader": "r", "start": 2}, ValueError),
        ({"sync_every": 0}, ValueError),
    ]
    for how, error in wrong:
        with pytest.raises(error):
            scanning(disk, **how)
    with pytest.raises(ReaderNameError):
        await scanning(disk, reader="../x").__aenter__()
    async with scanning(disk) as scanner:
        with pytest.raises(ValueError, match="has no name"):
            await scanner.commit()
        with pytest.raises(ValueError, match="has no name"):
            await scanner.sync()


async def test_seek_goes_elsewhere_and_back(disk):
    filled(disk, 10, segment_size=60)
    async with scanning(disk) as scanner:
        assert len(drain(scanner)) == 10
        await scanner.seek(4)
        assert (await scanner.receive()).offset == 4
        with pytest.raises(OffsetOutOfRangeError):
            await scanner.seek(11)
        assert scanner.position == 5
        await scanner.seek("oldest")
        assert scanner.look().lag == 10
        await scanner.seek("newest")
        assert scanner.position == 10


# --- each way to receive ----------------------------------------------------------------------


async def test_messages_come_in_each_way(disk):
    filled(disk, 12)
    async with scanning(disk) as scanner:
        assert (await scanner.receive()).value == b"0"
        assert scanner.receive_nowait().value == b"1"
        assert (await scanner.peek()).value == b"2"
        assert values(await scanner.receive_many(3)) == [b"2", b"3", b"4"]
        assert values(await scanner.receive_many(9, max_bytes=2)) == [b"5", b"6"]
        async with scanner.receiving(2) as batch:
            assert values(batch) == [b"7", b"8"]
        with pytest.raises(KeyError):
            async with scanner.receiving(2):
                raise KeyError
        assert values(drain(scanner)) == [b"9", b"10", b"11"]


@pytest.mark.parametrize("where", ["in this run", "elsewhere"])
async def test_waiting_tasks_are_woken_in_order_of_arrival(tmp_path, where):
    fs = OsFileSystem()
    filled(fs, 1, tmp_path / "j")
    async with scanning(fs, tmp_path / "j", start="newest") as scanner, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        for name in "abc":
            await tasks.start(name, scanner.receive)
        tasks.scopes["b"].cancel()
        if where == "in this run":
            async with writing(fs, tmp_path / "j") as journal:
                await journal.send_many([b"1", b"2"])
                await blocked()
        else:
            with elsewhere(fs, tmp_path / "j") as other:
                other.append_many([b"1", b"2"])
                with trio.fail_after(60):
                    await come(tasks, "a", "c")
        assert tasks["a"].value == b"1"
        assert tasks["c"].value == b"2"


async def test_a_timeout_is_a_cancel_scope_and_takes_nothing(disk, autojump_clock):
    filled(disk, 1)
    async with scanning(disk) as scanner:
        assert (await scanner.receive()).value == b"0"
        began = trio.current_time()
        with trio.move_on_after(3) as scope:
            await scanner.receive()
        assert scope.cancelled_caught
        assert trio.current_time() == began + 3
        with elsewhere(disk) as other:
            other.append(b"1")
        assert (await scanner.receive()).value == b"1"


async def test_several_are_merged_in_turn(disk):
    filled(disk, 50)
    filled(disk, 50, path=f"{JOURNAL}2")
    async with scanning(disk, end="close") as one, scanning(disk, f"{JOURNAL}2", end="close") as two:
        found = [receiver async for receiver, _ in merge(one, two, with_source=True)]
    assert found.count(one) == found.count(two) == 50
    assert {one, two} == set(found[:32])


async def test_strict_mode_has_a_checkpoint_in_each_call(disk):
    filled(disk, 3)
    async with scanning(disk, checkpoint_slice=0) as scanner:
        with assert_checkpoints():
            await scanner.receive()
        with assert_checkpoints():
            await scanner.receive_many(1)


def test_an_interrupt_in_a_block_leaves_it_as_it_is(disk):
    filled(disk, 3)

    async def run():
        async with scanning(disk, reader="r") as scanner:
            await scanner.commit(await scanner.receive())
            interrupt()
            await trio.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        trio.run(run)
    found = read_journal_offset(JOURNAL, "r", fs=disk)
    assert found is not None
    assert found.offset == 1


# --- a named reader ---------------------------------------------------------------------------


async def test_a_named_reader_goes_on_where_it_has_committed(disk):
    filled(disk, 10)
    async with scanning(disk, reader="billing") as scanner:
        messages = [await scanner.receive() for _ in range(5)]
        await scanner.commit(messages[2])
        assert scanner.statistics().committed == 3
        await scanner.commit(messages[1])  # it goes forward only
        assert scanner.statistics().committed == 3
    async with scanning(disk, reader="billing") as scanner:
        assert scanner.position == 3
        drain(scanner)
        await scanner.commit()
        await scanner.sync()
        assert disk.crash().read(f"{JOURNAL}/ofs/billing.ofs") == struct.pack(">Q", 10)
    async with scanning(disk, reader="other", end="close") as scanner:
        assert len(await rest(scanner)) == 10


async def test_autocommit_commits_what_was_received_before(disk):
    filled(disk, 5)
    async with scanning(disk, reader="r", autocommit=True) as scanner:
        await scanner.receive()
        await scanner.receive()
        assert scanner.statistics().committed == 1
    async with scanning(disk, reader="r", autocommit=True) as scanner:
        assert scanner.position == 2
        with pytest.raises(KeyError):
            async with scanner.receiving(2):
                raise KeyError
        assert scanner.position == 2
    with trio.CancelScope() as scope:
        async with scanning(disk, reader="r", autocommit=True) as scanner:
            await scanner.receive()
            scope.cancel()  # it was not processed
            await trio.lowlevel.checkpoint()
    async with scanning(disk, reader="r") as scanner:
        assert scanner.position == 2


async def test_a_block_is_committed_as_a_whole(disk):
    filled(disk, 5)
    async with scanning(disk, reader="r") as scanner:
        async with scanner.receiving(3):
            pass
        assert scanner.statistics().committed == 3


async def test_commits_are_durable_in_time_or_each_or_with_sync(disk, autojump_clock):
    filled(disk, 20)

    def durable() -> int | None:
        found = read_journal_offset(JOURNAL, "r", fs=disk.crash())
        return found.offset if found else None

    async with scanning(disk, reader="r", sync_timeout=2.0) as scanner:
        await scanner.commit(await scanner.receive())
        assert durable() is None
        await trio.sleep(2.1)
        await until(lambda: durable() == 1)
    async with scanning(disk, reader="r", sync_every=1) as scanner:
        await scanner.commit(await scanner.receive())
        await until(lambda: durable() == 2)


async def test_one_reads_under_a_name_at_a_time(disk):
    filled(disk, 5)
    async with scanning(disk, reader="r"):
        with pytest.raises(LockedError):
            await scanning(disk, reader="r").__aenter__()
    async with scanning(disk, reader="r"):
        pass


async def test_a_seek_moves_the_place_of_a_named_reader(disk):
    filled(disk, 5)
    async with scanning(disk, reader="r") as scanner:
        drain(scanner)
        await scanner.commit()
        await scanner.seek(1)
    async with scanning(disk, reader="r") as scanner:
        assert scanner.position == 1


# --- what the peer's scanner gets wrong -------------------------------------------------------


async def test_s1_a_lock_is_never_had_by_two(disk):
    async with writing(disk):
        with pytest.raises(LockedError):
            await writing(disk).__aenter__()
    before = disk.files()[f"{JOURNAL}/jnl.lck"]
    async with writing(disk):
        pass
    assert disk.files()[f"{JOURNAL}/jnl.lck"] == before  # it stays: no process may lock another one


async def test_s2_no_message_has_the_key_of_another(disk):
    with elsewhere(disk) as journal:
        journal.append_many([("key", b"0"), b"1", ("", b"2"), ("other", b"3"), b"4"])
    async with scanning(disk, end="close") as scanner:
        assert [message.key for message in await rest(scanner)] == [b"key", b"", b"", b"other", b""]


@pytest.mark.parametrize("act", ["a stray file comes and goes", "an old segment is removed", "it rolls"])
async def test_s3_a_tailing_reader_keeps_its_position(tmp_path, act):
    fs, path = OsFileSystem(), tmp_path / "j"
    with elsewhere(fs, path, segment_size=100) as other:
        other.append_many(numbered(20))
        async with scanning(fs, path) as scanner:
            received = len(drain(scanner))
            for turn in range(20):
                if act == "a stray file comes and goes":
                    (path / "jnl" / "stray").touch()
                    (path / "jnl" / "stray").unlink()
                elif act == "an old segment is removed" and turn < 3:
                    min((path / "jnl").iterdir()).unlink()
                other.append_many(numbered(5 if act == "it rolls" else 1))
                with trio.fail_after(60):
                    while received < other.next_offset:
                        assert (await scanner.receive()).offset == received
                        received += 1


@pytest.mark.parametrize("kind", ["empty", "torn"])
async def test_s4_a_middle_segment_that_is_empty_or_torn_is_passed(disk, kind):
    filled(disk, 20, segment_size=100)
    names = sorted(path for path in disk.files() if path.endswith(".jnl"))
    content = disk.read(names[1])
    disk.write_durably(names[1], b"" if kind == "empty" else content[:-3])
    disk.unlink(f"{JOURNAL}/.diskq/journal-data/{names[1].rsplit('/', 1)[1]}.sums")
    async with scanning(disk, end="close") as scanner:
        with trio.fail_after(60):
            found = [message.offset for message in await rest(scanner)]
        lost = [gap.offset + number for gap in scanner.losses for number in range(gap.count)]
    assert lost
    assert sorted(found + lost) == list(range(20))


@pytest.mark.parametrize("at", [0, 25, 40, 54])
async def test_s5_a_rotten_message_is_not_delivered_and_stalls_no_reader(disk, at):
    with elsewhere(disk) as journal:
        journal.append_many([b"%06d" % number * 20 for number in range(2000)])
    content = bytearray(disk.read(segment()))
    content[100_000 + at] ^= 0x40
    disk.rot(segment(), bytes(content))
    async with scanning(disk, end="close") as scanner:
        with trio.fail_after(60):
            found = await rest(scanner)
        assert scanner.statistics().lost == 2000 - len(found) > 0
    assert all(message.value == b"%06d" % message.offset * 20 for message in found)
    assert found[-1].offset == 1999


async def test_s6_good_messages_after_a_bad_one_are_kept(disk):
    with elsewhere(disk) as journal:
        journal.append_many(numbered(5))
    content = bytearray(disk.read(segment()))
    content[2 * 27 + 7] ^= 0x80  # the offset of the third
    disk.write_durably(segment(), bytes(content) + b"\x00\x00")
    disk.unlink(f"{JOURNAL}/.diskq/journal-data/{0:016x}.jnl.sums")
    async with writing(disk) as writer, writer.open_scanner() as scanner:
        assert writer.repairs
        assert await writer.send(b"5") == 5
        assert [message.offset for message in drain(scanner)] == [0, 1, 3, 4, 5]


async def test_s7_a_torn_message_is_not_taken_for_the_one_inside(disk):
    inner = struct.pack(">QqBbi3si", 1000, 5, 0, 0, 3, b"abc", 29)
    torn = struct.pack(">QqBbi", 1, 5, 0, 0, 500) + inner
    with elsewhere(disk) as journal:
        journal.append(b"0")
    disk.write_durably(segment(), disk.read(segment()) + torn)
    async with writing(disk) as journal:
        assert journal.next_offset == 1
    assert values(stored(disk)) == [b"0"]


async def test_s8_the_first_open_after_a_crash_succeeds(disk):
    with elsewhere(disk) as journal:
        journal.append_many(numbered(3))
        left = disk.kill()
    left.write_durably(segment(), left.read(segment()) + b"\x00" * 9)
    async with writing(left) as opened:
        assert [repair.dropped for repair in opened.repairs] == [9]


async def test_s9_what_was_sent_is_in_the_page_cache(disk):
    async with writing(disk) as journal:
        for number in range(100):
            await journal.send(b"x" * 10)
            assert len(stored(disk.kill())) == number + 1


async def test_s10_a_missing_offset_raises_at_once(disk):
    filled(disk, 20, segment_size=100)
    disk.unlink(segment())
    for start in (0, 21, 1000, 2**62, 2**63, 2**64):
        with pytest.raises(OffsetOutOfRangeError) as told:
            await scanning(disk, start=start).__aenter__()
        assert told.value.next_offset == 20
    async with scanning(disk, start=datetime(2999, 1, 1, tzinfo=UTC)) as scanner:
        assert scanner.position == 20


async def test_s11_a_readers_offset_is_written_and_its_lock_let_go(disk):
    filled(disk, 4)
    async with scanning(disk, reader="new", start="newest") as scanner:
        assert scanner.position == 4
    with elsewhere(disk) as journal:
        journal.append(b"4")
    async with scanning(disk, reader="new", start="newest") as scanner:
        assert scanner.position == 4  # what came meanwhile is not passed over
    disk.write_durably(f"{JOURNAL}/ofs/new.ofs", b"\x00\x00\x00")
    async with scanning(disk, reader="new") as scanner:
        assert scanner.repairs
    async with scanning(disk, reader="new"):
        pass


async def test_s12_an_idle_scanner_asks_nothing():
    disk = FaultFS(crash_disk())
    async with writing(disk) as journal, journal.open_scanner() as scanner, trio.open_nursery() as nursery:
        await journal.send(b"x")
        drain(scanner)
        tasks = Tasks(nursery)
        await tasks.start("waits", scanner.receive)
        before = len(disk.calls)
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        assert len(disk.calls) == before
        tasks.scopes["waits"].cancel()


@pytest.mark.usefixtures("no_collections")
async def test_s12_an_idle_scanner_of_another_process_takes_no_time(tmp_path):
    filled(OsFileSystem(), 3, tmp_path / "j")
    async with scanning(OsFileSystem(), tmp_path / "j", start="newest") as scanner:
        with trio.move_on_after(0.05):
            await scanner.receive()
        began = time.process_time()
        with trio.move_on_after(0.5):
            await scanner.receive()
        assert time.process_time() - began < 0.05


async def test_s13_a_reader_makes_no_file(tmp_path):
    with pytest.raises(NotFoundError):
        await open_scanner(tmp_path / "none").__aenter__()
    with pytest.raises(NotFoundError):
        await open_scanner(tmp_path / "none", reader="r").__aenter__()
    assert list(tmp_path.iterdir()) == []
    filled(OsFileSystem(), 3, tmp_path / "j")
    before = sorted(tmp_path.rglob("*"))
    async with open_scanner(tmp_path / "j", end="close") as scanner:
        assert len(await rest(scanner)) == 3
    assert sorted(tmp_path.rglob("*")) == before


# --- at the end -------------------------------------------------------------------------------


async def test_a_message_that_is_not_all_there_is_waited_for(tmp_path):
    path = tmp_path / "j"
    filled(OsFileSystem(), 2, path)
    file = path / "jnl" / f"{0:016x}.jnl"
    record = struct.pack(">QqBbi7si", 2, 5, 0, 0, 7, b"seventh", 33)
    async with open_scanner(path) as scanner, trio.open_nursery() as nursery:
        assert len(drain(scanner)) == 2
        tasks = Tasks(nursery)
        await tasks.start("waits", scanner.receive)
        for at in range(len(record)):
            assert "waits" not in tasks, (at, tasks["waits"])
            with file.open("ab") as out:
                out.write(record[at : at + 1])
            await trio.sleep(0.001)
        with trio.fail_after(60):
            await come(tasks, "waits")
        assert tasks["waits"].value == b"seventh"
        assert scanner.losses == ()


async def test_a_file_that_was_cut_is_reported(tmp_path):
    path = tmp_path / "j"
    filled(OsFileSystem(), 5, path)
    async with open_scanner(path) as scanner:
        assert len(drain(scanner)) == 5
        os.truncate(path / "jnl" / f"{0:016x}.jnl", 27)
        with trio.fail_after(60), pytest.raises(OffsetOutOfRangeError) as told:
            await scanner.receive()
        assert (told.value.offset, told.value.next_offset) == (5, 1)
        await scanner.seek("newest")
        assert scanner.position == 1


async def test_an_overtaken_reader_gets_an_error_and_can_continue(disk):
    filled(disk, 20, segment_size=100)
    async with scanning(disk) as scanner:
        await scanner.receive()
        for path in sorted(path for path in disk.files() if path.endswith(".jnl"))[:3]:
            disk.unlink(path)
        with pytest.raises(OffsetOutOfRangeError):
            drain(scanner)
        await scanner.seek("oldest")
        assert drain(scanner)[-1].offset == 19


WRITER = """
import sys
from diskq import Journal, JournalOptions
with Journal(sys.argv[1], options=JournalOptions(segment_size=200)) as journal:
    for number in range(300):
        journal.append(b"%d" % number)
"""


async def test_another_process_is_followed_from_file_to_file(tmp_path: Path):
    filled(OsFileSystem(), 0, tmp_path / "j")
    async with open_scanner(tmp_path / "j") as scanner:
        command = [sys.executable, "-c", WRITER, str(tmp_path / "j")]
        with subprocess.Popen(command):  # noqa: ASYNC220 (it is waited for when it has ended)
            with trio.fail_after(30):
                for number in range(300):
                    message = await scanner.receive()
                    assert (message.offset, message.value) == (number, b"%d" % number)


async def test_a_journal_on_a_disk_without_watches_is_polled(autojump_clock):
    disk: CrashFS = crash_disk()
    filled(disk, 1)
    async with scanning(disk, start="newest") as scanner, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", scanner.receive)
        with elsewhere(disk, segment_size=10) as other:
            other.append_many(numbered(3, start=1))
        await trio.sleep(1)
        assert tasks["waits"].value == b"1"
        assert values(drain(scanner)) == [b"2", b"3"]

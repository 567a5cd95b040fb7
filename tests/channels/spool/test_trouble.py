# A spool in trouble: full disks, failed syncs, files that rotted, messages that were dropped.

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable
from typing import Any

import pytest
import trio

import diskq
from diskq.engine.spool.files import Note, SpoolFiles, SpoolState, Trace, read_note, read_state
from diskq.testing import CrashFS, FaultFS
from tests.channels.rig import PatientDisk, blocked, numbered, until
from tests.channels.spools import (
    PATH,
    Destination,
    Hanging,
    dead_letters_in,
    down,
    opened,
    spool_disk,
    waiting_in,
)

NOTE, STATE = SpoolFiles(PATH).note, SpoolFiles(PATH).state


def repr_of(reason: object) -> str:
    return type(reason).__name__


@pytest.fixture
def disk() -> CrashFS:
    return spool_disk()


@pytest.fixture
def fs(disk: CrashFS) -> FaultFS[CrashFS]:
    return FaultFS(disk)


# --- a full disk ----------------------------------------------------------------------------------


async def test_on_a_full_disk_deliveries_go_on_and_messages_are_taken_again(disk, fs, autojump_clock):
    far_end = Destination()
    async with opened(fs, far_end) as spool:
        spool.pause()
        await spool.send_many([b"x" * 1000] * 50)
        fs.capacity(100)
        with pytest.raises(diskq.FullError):
            await spool.send(b"y" * 5000)
        spool.resume()
        await spool.drained()
        assert len(far_end.got) == 50
        fs.capacity(None)
        await spool.send(b"after")
        await spool.drained()
        assert far_end.got[50:] == [b"after"]
    assert waiting_in(disk) == []


async def is_taken(spool: diskq.SpoolChannel, body: bytes) -> bool:
    try:
        await spool.send(body)
    except diskq.FullError:
        return False
    return True


@pytest.mark.parametrize("policy", ["reject", "wait", "drop_oldest"])
async def test_a_full_spool_does_what_its_policy_says(disk, autojump_clock, policy):
    bound = diskq.QueueOptions(max_bytes=64 * 1024, on_full=policy, segment_size=4096)
    far_end = Destination(*down(20))
    async with opened(disk, far_end, queue=bound) as spool:
        sent = [b"%04d" % number + b"x" * 996 for number in range(100)]
        if policy == "reject":
            sent = [body for body in sent if await is_taken(spool, body)]
        else:
            await spool.send_many(sent[:30])
            await blocked()
            async with trio.open_nursery() as nursery:
                for body in sent[30:]:
                    nursery.start_soon(spool.send, body)
                    await blocked()
                if policy == "wait":
                    assert len(nursery.child_tasks) > 0
        await spool.drained()
    if policy == "drop_oldest":
        # What a try has in hand is delivered, also if it is among the oldest meanwhile.
        assert far_end.got == [body for body in sent if body in far_end.got]
        assert far_end.got[-1] == sent[-1]
        assert 20 < len(far_end.got) < 100
    else:
        assert far_end.got == sent
        assert len(sent) > 30


async def test_what_cannot_become_a_dead_letter_stays_and_is_tried_again(disk, fs, autojump_clock, caplog):
    far_end = Destination(*[diskq.Permanent("no", [0]) for _ in range(4)])
    fault = fs.fail("pwrite", error=errno.ENOSPC, path="*/dead.diskqueue.*.dat", times=3)
    async with opened(fs, far_end) as spool:
        await spool.send_many(numbered(2))
        await blocked()
        await spool.drained()
        assert fault.hits == 3
        assert spool.statistics().buried == 1
    assert far_end.got == [b"1"]
    assert [letter.body for letter in dead_letters_in(disk)] == [b"0"]
    assert sum("cannot deliver: DiskFullError" in message for message in caplog.messages) == 1


async def test_a_spool_opens_on_a_full_disk_and_delivers(disk, autojump_clock):
    async with opened(disk, Hanging()) as spool:
        await spool.send_many(numbered(5))
    full = FaultFS(disk)
    full.capacity(0)
    far_end = Destination()
    async with opened(full, far_end) as spool:
        await spool.drained()
    assert far_end.got == numbered(5)


# --- what is durable before what ------------------------------------------------------------------


async def test_a_message_stays_until_its_letter_is_on_stable_storage(autojump_clock):
    disk = PatientDisk()
    far_end = Destination(diskq.Permanent("no"))
    async with diskq.open_spool("/q/spool", far_end, fs=disk) as spool:
        spool.pause()
        await spool.send(b"1", durability="synced")
        disk.hold()
        spool.resume()
        await until(lambda: disk.waiting > 0)
        assert spool.statistics().depth == 1
        disk.let_go()
        await spool.drained()
        with diskq.DeadLetters("/q/spool", fs=disk.inner.crash()) as letters:
            assert [letter.body for letter in letters.list()] == [b"1"]


async def test_a_letter_stays_until_its_message_is_on_stable_storage_again(autojump_clock):
    disk = PatientDisk()
    far_end = Destination(diskq.Permanent("no"))
    async with diskq.open_spool("/q/spool", far_end, fs=disk) as spool, trio.open_nursery() as nursery:
        await spool.send(b"1", durability="synced")
        await spool.drained()
        spool.pause()
        disk.hold()
        nursery.start_soon(spool.dead_letters.replay)
        await until(lambda: disk.waiting > 0 and spool.statistics().depth == 1)
        crashed = disk.inner.crash()
        disk.let_go()
        with diskq.DeadLetters("/q/spool", fs=crashed) as letters:
            assert [letter.body for letter in letters.list()] == [b"1"]
        await until(lambda: len(spool.dead_letters) == 0)
        with diskq.Queue("/q/spool", "spool", fs=disk.inner.crash()) as queue:
            assert queue.get_many(10)[-1:] == [b"1"]


# --- a disk that fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["*/spool.diskqueue.*", "*/.diskq/spool.state*", "*/dead.diskqueue.*"])
async def test_a_failed_sync_ends_the_block(disk, fs, autojump_clock, path):
    far_end = Destination(*[diskq.Permanent("no", [0]) for _ in range(1000)])

    async def block() -> None:
        async with opened(fs, far_end, queue=diskq.QueueOptions(sync_every=3)) as spool:
            fs.fail("sync_files", path=path)
            while True:
                await spool.send_many(numbered(10))
                await trio.sleep(1)

    with pytest.raises(trio.BrokenResourceError) as broken:
        await block()
    assert isinstance(broken.value.__cause__, diskq.StorageFailedError)
    async with opened(disk, Destination()) as spool:
        await spool.drained()


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_storage_that_fails_while_nothing_is_to_be_delivered_raises_one_error(fs, autojump_clock, nth):
    """The task that writes the status meets it; the one that waits for messages gets the error as well."""
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        async with opened(fs, Destination()) as spool:
            fs.fail("rename", nth, path="*/.diskq/spool.state*")
            while True:  # how often the state is written meanwhile, the threads decide
                await spool.send(b"1")
                await spool.drained()
                await trio.sleep(1.5)


async def test_what_cannot_be_read_now_is_delivered_later(disk, fs, autojump_clock, caplog):
    async with opened(disk, Hanging()) as spool:
        await spool.send_many(numbered(5))
    far_end = Destination()
    async with opened(fs, far_end) as spool:
        spool.pause()
        fs.fail("open", error=errno.EMFILE, path="*/spool.diskqueue.*.dat", times=3)
        fs.fail("pread", error=errno.EMFILE, path="*/spool.diskqueue.*.dat", times=3)
        spool.resume()
        await spool.drained()
    assert far_end.got == numbered(5)


async def test_a_permanent_failure_of_no_message_is_a_failure(disk, autojump_clock):
    far_end = Destination(diskq.Permanent("what?", []))
    async with opened(disk, far_end, backoff_initial=3.0, backoff_jitter=0.0) as spool:
        await spool.send(b"1")
        await spool.drained()
    assert far_end.waits == pytest.approx([3])


async def test_what_a_nursery_in_deliver_wraps_is_understood(disk, autojump_clock):
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [diskq.Permanent("no", [1])])])
    far_end = Destination(group)
    async with opened(disk, far_end) as spool:
        await spool.send_many(numbered(3))
        await spool.drained()
        assert spool.statistics().buried == 1
    assert far_end.got == [b"0", b"2"]


async def test_what_failed_because_of_others_is_not_held_against_a_message(disk, autojump_clock):
    answers: list[Any] = [diskq.Permanent("no", [0]) for _ in range(6)]
    far_end = Destination(*answers, *down(2))
    async with opened(disk, far_end, max_attempts=3) as spool:
        await spool.send_many(numbered(8))
        await spool.drained()
    assert far_end.got == [b"6", b"7"]
    assert far_end.attempts == [1, 2, 3, 4, 5, 6, 7, 8, 9]


# --- a process that its messages kill -------------------------------------------------------------


async def test_a_batch_that_kills_the_process_is_given_up_in_the_end(disk, autojump_clock):
    """Each time the process dies in the middle of the try."""
    for attempt in range(1, 4):
        killed: list[CrashFS] = []

        async def deliver(batch: diskq.Batch) -> None:
            assert batch.attempts == attempt  # noqa: B023
            killed.append(disk.kill())  # noqa: B023

        async with opened(disk, deliver, max_attempts=3, max_messages=2) as spool:
            if attempt == 1:
                await spool.send_many(numbered(3))
            while not killed:
                await blocked()
        disk = killed[0]
    far_end = Destination()
    async with opened(disk, far_end, max_attempts=3, max_messages=2) as spool:
        await spool.drained()
    assert far_end.got == [b"2"]
    assert [letter.body for letter in dead_letters_in(disk)] == [b"0", b"1"]
    assert "the process ended while it was being delivered" in dead_letters_in(disk)[0].reason


async def test_a_delivered_batch_may_be_made_durable_before_the_next_one(disk, autojump_clock):
    found: list[list[bytes]] = []

    async def deliver(batch: diskq.Batch) -> None:
        found.append(waiting_in(disk.crash()))

    async with opened(disk, deliver, commit="synced", max_messages=2) as spool:
        spool.pause()
        await spool.send_many(numbered(6), durability="synced")
        spool.resume()
        await spool.drained()
    assert found == [numbered(6), numbered(4, 2), numbered(2, 4)]


# --- rot ------------------------------------------------------------------------------------------


async def used(disk: CrashFS) -> None:
    """A spool that has been used, with one batch delivered, one letter, a batch that failed, and more."""
    far_end = Destination(None, diskq.Permanent("no", [1]), *down(1000))
    async with opened(disk, far_end, max_messages=3) as spool:
        await spool.send_many(numbered(9))
        await until(lambda: len(far_end.batches) > 2)  # a letter is written in a thread
        spool.resume()
        await trio.sleep(10)
        assert len(far_end.batches) > 3


@pytest.mark.parametrize("path", [NOTE, STATE])
async def test_no_flipped_byte_of_a_private_file_loses_a_message(disk, autojump_clock, path):
    await used(disk)
    content = disk.read(path)
    wanted = waiting_in(disk)
    assert wanted == numbered(6, 3)
    for at in range(0, len(content), 1 if path == NOTE else 7):
        rotten = disk.copy()
        flipped = bytearray(content)
        flipped[at] ^= 0x11
        rotten.write_durably(path, bytes(flipped))
        assert waiting_in(rotten)[-6:] == wanted, at


@pytest.mark.parametrize("path", [NOTE, STATE])
@pytest.mark.parametrize("content", [None, b"", b"\0" * 80, b"{}\n", b"\xff" * 5000])
async def test_private_files_may_be_lost_or_hold_anything(disk, autojump_clock, path, content):
    await used(disk)
    if content is None:
        disk.unlink(path)
    else:
        disk.write_durably(path, content)
    far_end = Destination()
    async with opened(disk, far_end) as spool:
        await spool.drained()
    assert set(numbered(6, 3)) - {b"4"} <= set(far_end.got)
    assert b"4" in [letter.body for letter in dead_letters_in(disk)]


async def test_a_note_of_other_files_is_not_believed(disk, autojump_clock):
    """The queue's files were replaced, by others with messages at the same places."""
    far_end = Destination()
    async with opened(disk, far_end) as spool:
        await spool.send_many(numbered(5))
        await spool.drained()
    for path in [path for path in disk.files() if "/spool.diskqueue" in path or path.endswith("spool.lock")]:
        disk.unlink(path)
    with diskq.Queue(PATH, "spool", fs=disk) as queue:
        queue.put_many([b"a", b"b", b"c", b"d", b"e", b"f"])
    assert waiting_in(disk) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_a_note_is_read_as_it_was_written():
    from diskq.engine.queue.files import QueuePosition

    note = Note(QueuePosition(1, 2), Trace(3, 4), QueuePosition(5, 6), 7, 8, 2)
    assert Note.unpack(note.pack()) == note
    assert Note.unpack(note.pack()[:-1]) is None
    assert struct.calcsize("<8sqqqqqqqqII") == len(note.pack()) == 80


async def test_a_state_of_a_later_version_is_not_understood(disk, autojump_clock):
    await used(disk)
    state = read_state(disk, SpoolFiles(PATH))
    assert state is not None
    assert not state.is_open
    assert SpoolState.parse(state.render()) == state
    assert SpoolState.parse(state.render().replace(b'"version": 1', b'"version": 2')) is None
    assert read_note(disk, SpoolFiles(PATH)) is not None


async def test_what_is_dropped_while_it_is_tried_is_not_tried_again(disk, autojump_clock, caplog):
    caplog.set_level(logging.ERROR)
    bound = diskq.QueueOptions(max_bytes=64 * 1024, on_full="drop_oldest", segment_size=4096)
    far_end = Destination(*down(1))
    async with opened(disk, far_end, queue=bound, max_messages=2) as spool:
        sent = [b"%04d" % number + b"x" * 996 for number in range(100)]
        for body in sent:
            await spool.send(body)
            await blocked()
        await spool.drained()
        assert far_end.batches[1] != far_end.batches[0]
        assert far_end.got == sent[-len(far_end.got) :]


async def test_all_that_is_there_may_be_given_up_before_it_is_tried(disk, autojump_clock):
    """As others of a disk budget may have it."""
    far_end = Destination()
    async with opened(disk, far_end, linger=5.0) as spool:
        await spool.send(b"1")
        await blocked()
        await spool._loop.clear()
        await trio.sleep(10)
        assert far_end.batches == []
        await spool.send(b"2")
        await spool.drained()
    assert far_end.batches == [[b"2"]]


# --- what `deliver` may raise, and whom it may wait for ----------------------------------------------


class Mute(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ZeroDivisionError("no text")


@pytest.mark.parametrize("reason", [None, Mute(), ValueError("x"), 7, "\udc80"], ids=repr_of)
async def test_a_permanent_failure_may_have_any_reason(disk, reason, autojump_clock):
    far_end = Destination(diskq.Permanent(reason))
    async with opened(disk, far_end, retry_on=Exception) as spool:
        await spool.send(b"1")
        await spool.drained()
        await spool.send(b"2")
        await spool.drained()
    assert far_end.got == [b"2"]
    (letter,) = dead_letters_in(disk)
    assert letter.reason == ("no reason was given" if reason is None else diskq.Permanent(reason).reason)


@pytest.mark.parametrize("kind", [Mute, lambda: ValueError("\udc80"), lambda: ValueError(Mute())])
async def test_a_failure_without_a_text_is_tried_again(disk, kind, autojump_clock, caplog):
    far_end = Destination(kind(), kind(), diskq.Permanent("so it is"))
    async with opened(disk, far_end, max_attempts=5) as spool:
        await spool.send(b"1")
        await spool.drained()
        assert spool.statistics().failed_tries == 2
    assert len(dead_letters_in(disk)) == 1


@pytest.mark.parametrize("in_child", [False, True])
async def test_deliver_cannot_wait_for_its_own_end(disk, in_child, autojump_clock):
    async def deliver(batch: diskq.Batch) -> None:
        if not in_child:
            await spool.drained()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spool.drained)  # the same in a task of its own, which it waits for

    with pytest.raises(RuntimeError, match=r"called drained\(\), which waits until deliver has returned"):  # noqa: PT012
        async with opened(disk, deliver, retry_on=Exception) as spool:
            await spool.send(b"1")
            await trio.sleep(100)
    assert waiting_in(disk) == [b"1"]


async def test_a_task_that_deliver_has_started_elsewhere_may_wait_for_the_end(disk, autojump_clock):
    async with trio.open_nursery() as nursery:

        async def deliver(batch: diskq.Batch) -> None:
            nursery.start_soon(spool.drained)
            await trio.sleep(1)

        async with opened(disk, deliver) as spool:
            await spool.send(b"1")
            await spool.drained()
    assert waiting_in(disk) == []


# --- rot ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3, 9])
async def test_drained_returns_where_rot_takes_the_rest(disk, at, autojump_clock):
    async with opened(disk, Hanging()) as spool:
        await spool.send_many(numbered(10))
    name = f"{PATH}/spool.diskqueue.000000.dat"
    content = bytearray(disk.read(name))
    content[5 * at + 4] ^= 1
    disk.rot(name, bytes(content))
    far_end = Destination()
    async with opened(disk, far_end) as spool:
        with trio.fail_after(60):
            await spool.drained()
        assert spool.statistics().depth == 0
        assert spool.repairs
    assert far_end.got == []


@pytest.mark.parametrize("when", ["before the open", "before an open that counts", "while it is open"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:4000] + b"?" + content[4001:],
        lambda content: content[:-1] + b"?",
        lambda content: content[: len(content) // 2],
        lambda content: b"",
    ],
    ids=["rot in the middle", "rot at the end", "cut", "emptied"],
)
async def test_drained_returns_after_the_messages_that_damage_has_left(
    disk: CrashFS, damage: Callable[[bytes], bytes], when: str, autojump_clock: object
) -> None:
    sent = [b"%03d" % number + b"." * 100 for number in range(300)]
    files = diskq.QueueOptions(segment_size=10_000)
    async with opened(disk, Hanging(), queue=files) as spool:
        await spool.send_many(sent)
    name = f"{PATH}/spool.diskqueue.000001.dat"
    damaged = damage(disk.read(name))
    if when != "while it is open":
        disk.rot(name, damaged)
    if when == "before an open that counts":
        disk.unlink(f"{PATH}/spool.diskqueue.meta.dat")
    far_end = Destination()
    async with opened(disk, far_end, queue=files, max_messages=10) as spool:
        disk.rot(name, damaged)
        with trio.fail_after(60):
            await spool.drained()
        assert spool.statistics().depth == 0
        got = list(far_end.got)
        lost = sum(repair.records or 0 for repair in spool.repairs)
    assert got == [body for body in sent if body in got]
    assert lost == len(sent) - len(got) > 0
    assert waiting_in(disk) == []

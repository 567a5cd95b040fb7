# Between a kill and the next open, for stores that are not one log with a write-ahead log: leases, whose
# acknowledgements have a log of their own; shards, each a journal; and priority stores, which have no
# write-ahead log. Law: as in test_after_a_kill.py: whichever file is removed or rots, acknowledged messages
# are found or reported.

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

import diskq
from diskq.errors import DamagedStoreError
from diskq.testing import CrashFS
from diskq.tools.stores import Store
from diskq.tools.verify.verification import verify
from tests.contract.kinds import ENGINES, NAME, bodies
from tests.loops import LOOPS, blocked, run_on
from tests.sampling import sampled

PATH = "/x"
SHARDS = (f"{PATH}/p.1.000", f"{PATH}/p.1.001")
SENT = bodies(30, size=30)

Check = Callable[[str, CrashFS, str], None]


@dataclass(frozen=True)
class Killed:
    """A disk as a killed process left it."""

    fs: CrashFS
    sure: frozenset[bytes]
    """What was accepted, and not taken out."""


async def leases(fs: CrashFS) -> Killed:
    opened = diskq.open_queue(PATH, NAME, fs=fs, checkpoint_slice=60.0)
    async with opened as queue, queue.working(max_in_flight=20) as work:
        await queue.send_many(SENT[:20], durability="synced")
        taken = [await work.receive() for _ in range(12)]
        work.ack(taken[:3] + taken[5:9])
        for body in SENT[20:]:
            await queue.send(body)
        work.ack(taken[10])
        gone = {bytes(lease.body) for lease in [*taken[:3], *taken[5:9], taken[10]]}
        return Killed(fs.kill(), frozenset(SENT) - gone)


async def shards(fs: CrashFS) -> Killed:
    async with diskq.open_shards(PATH, "p", 1, fs=fs, checkpoint_slice=60.0) as writer:
        for number, body in enumerate(SENT):
            await writer.send(body, b"%d" % number)
            if number == 15:
                await blocked()
        return Killed(fs.kill(), frozenset(SENT))


async def priority(fs: CrashFS) -> Killed:
    async with diskq.open_priority_store(PATH, fs=fs, soft_limit=1000, hard_limit=2000) as store:
        queue = store.queue()
        await queue.send_many(SENT[:15], durability="synced")
        taken = [await queue.receive() for _ in range(4)]
        await queue.ack(taken[:2])
        for body in SENT[15:]:
            await queue.send(body)
        return Killed(fs.kill(), frozenset(SENT[2:]))


KINDS: dict[str, Callable[[CrashFS], Any]] = {"leases": leases, "shards": shards, "priority": priority}


@cache
def killed(name: str, loop: str = "trio") -> Killed:
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    left: Killed = run_on(loop, KINDS[name], fs)
    return left


def stores(name: str) -> Iterator[Store]:
    if name == "shards":
        yield from (Store("journal", path) for path in SHARDS)
    else:
        yield Store("queue", PATH, NAME) if name == "leases" else Store("jobs", PATH)


def found_in(name: str, fs: CrashFS) -> tuple[list[bytes], bool]:
    """What is delivered; and was anything reported: by the reader, or by an open that is refused?

    What the open itself, or a queue, reports is in the log.
    """
    if name != "shards":
        (store,) = stores(name)
        try:
            return ENGINES[name].read(store.path, fs=fs), False
        except DamagedStoreError:
            return [], True
    found: list[bytes] = []
    losses = 0
    for path in SHARDS:
        diskq.Journal(path, fs=fs).close()
        with diskq.JournalReader(path, fs=fs) as reader:
            reader.seek_oldest()
            found += [message.value for message in reader.read_many(1000)]
            losses += len(reader.losses)
    return found, losses > 0


@pytest.fixture
def check(caplog: pytest.LogCaptureFixture) -> Check:
    """Open a disk that was damaged, and hold what comes against what is reported."""

    def check(name: str, fs: CrashFS, what: str) -> None:
        sure = killed(name).sure
        verdicts = {verify(store, fs=fs).verdict for store in stores(name)}
        caplog.clear()
        found, is_told = found_in(name, fs)
        assert set(found) <= set(SENT), what
        assert len(set(found)) == len(found), what
        if not sure <= set(found):
            assert is_told or any(
                getattr(record, "diskq_event", "") == "repair" for record in caplog.records
            ), what
            assert "damaged" in verdicts, what

    return check


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", KINDS)
def test_what_was_acknowledged_is_there(name: str, loop: str) -> None:
    left = killed(name, loop)
    found, is_told = found_in(name, left.fs.copy())
    assert (sorted(found), is_told) == (sorted(left.sure), False)
    assert {verify(store, fs=left.fs).verdict for store in stores(name)} <= {"clean", "torn"}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("damage", ["removed", "emptied", "cut"])
def test_what_is_lost_with_a_missing_file_is_reported(name: str, damage: str, check: Check) -> None:
    left = killed(name)
    for path, content in left.fs.files().items():
        fs = left.fs.copy()
        if damage == "removed":
            fs.unlink(path)
        else:
            fs.write_durably(path, content[: len(content) // 2 if damage == "cut" else 0])
        check(name, fs, path)


@pytest.mark.sampled
@pytest.mark.parametrize("name", KINDS)
def test_no_flipped_byte_alters_a_message_or_takes_one_without_a_word(name: str, check: Check) -> None:
    left = killed(name)
    for path, content in left.fs.files().items():
        used = len(content.rstrip(b"\0"))
        for at in sampled(range(used), 20):
            fs = left.fs.copy()
            fs.write_durably(path, content[:at] + bytes([content[at] ^ 0x20]) + content[at + 1 :])
            check(name, fs, f"{path} {at}")

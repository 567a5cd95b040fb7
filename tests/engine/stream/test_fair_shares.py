# Groups whose members share fairly. Law: a member with more than its share gives up partitions, once nothing
# of them is in hand, and each message is processed once.

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import trio

import diskq
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.group_members import GroupMembers
from diskq.engine.stream.groups import ConsumerGroup
from diskq.storage.fs import OsFileSystem
from diskq.storage.lock import read_holder
from diskq.testing import CrashFS
from tests import waiting

INTERVAL = 0.02
LONG = 20.0

until = partial(waiting.until, seconds=3 * LONG, pause=0.05)


def members(path: Path, count: int) -> list[GroupMembers]:
    fs = OsFileSystem()
    files = StreamFiles(fs, str(path))
    ConsumerGroup(fs, files, "g")
    return [GroupMembers(fs, files, "g") for _ in range(count)]


def test_shares_add_up_and_differ_by_one_at_most(tmp_path: Path) -> None:
    diskq.Stream(tmp_path, partition_count=8).close()
    them = members(tmp_path, 3)
    assert [member.share(8) for member in them] == [3, 3, 2]
    them[1].close()
    assert [member.share(8) for member in (them[0], them[2])] == [4, 4]
    (late,) = members(tmp_path, 1)
    assert (late.number, late.share(2)) == (1, 1)
    for member in (*them, late):
        member.close()
        member.close()


def wait_for(readers: list[diskq.StreamReader], counts: list[int]) -> list[list[int]]:
    """Let the readers look until they have so many partitions. Returns them."""
    end = time.monotonic() + LONG
    while [len(reader.partitions) for reader in readers] != counts:
        assert time.monotonic() < end, [reader.partitions for reader in readers]
        for reader in readers:
            assert reader.read(0) is None
        time.sleep(INTERVAL / 4)
    return [list(reader.partitions) for reader in readers]


def opened(path: Path, **how: object) -> diskq.StreamReader:
    return diskq.StreamReader(path, group="g", claim_interval=INTERVAL, **how)  # type: ignore[arg-type]


def test_a_new_member_gets_its_share_and_a_leaving_one_gives_it_back(tmp_path: Path) -> None:
    diskq.Stream(tmp_path, partition_count=8).close()
    with opened(tmp_path) as one:
        assert len(one.partitions) == 8
        with opened(tmp_path) as two, opened(tmp_path) as three:
            found = wait_for([one, two, three], [3, 3, 2])
            assert sorted(index for its in found for index in its) == list(range(8))
        wait_for([one], [8])


def test_a_partition_with_messages_in_hand_is_given_up_after_their_commit(tmp_path: Path) -> None:
    with diskq.Stream(tmp_path, partition_count=2) as stream, opened(tmp_path) as one:
        stream.append_many([b"%d" % number for number in range(100)])
        in_hand = one.read_many(100)
        assert len(in_hand) == 100
        with opened(tmp_path) as two:
            end = time.monotonic() + 10 * INTERVAL
            while time.monotonic() < end:
                assert one.read(0) is None
                assert two.read(0) is None
            assert (len(one.partitions), len(two.partitions)) == (2, 0)
            one.commit()
            wait_for([one, two], [1, 1])
            stream.append_many([b"new %d" % number for number in range(100)])
            found = [*one.read_many(200, timeout=0), *two.read_many(200, timeout=0)]
            assert len(found) == len({(message.partition, message.offset) for message in found}) == 100


def test_a_member_that_reads_some_partitions_or_to_the_end_takes_what_it_is_told(tmp_path: Path) -> None:
    with diskq.Stream(tmp_path, partition_count=4) as stream:
        stream.append_many([b"%d" % number for number in range(100)])
    with opened(tmp_path, end="close") as one:
        assert len(one.partitions) == 4
    with opened(tmp_path, partitions=[0, 1, 2]) as one, opened(tmp_path) as two:
        assert (one.partitions, two.partitions) == ((0, 1, 2), (3,))


def test_holders_of_too_many_partitions_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    diskq.Stream(tmp_path, partition_count=2).close()
    caplog.set_level(logging.WARNING, "diskq")
    with opened(tmp_path) as hangs, opened(tmp_path) as waits:
        end = time.monotonic() + LONG
        while not caplog.records and time.monotonic() < end:
            assert waits.read(INTERVAL) is None
        assert len(hangs.partitions) == 2
    (record,) = caplog.records
    assert (
        "group 'g': 1 of the 1 partitions that this member should have are kept by process" in record.message
    )


async def test_consumers_share_while_they_work(autojump_clock: trio.testing.MockClock) -> None:
    fs, done = CrashFS(), Counter[bytes]()
    async with (
        diskq.open_producer("/s", fs=fs, partition_count=4) as producer,
        trio.open_nursery() as nursery,
    ):

        async def work(name: str) -> None:
            async with diskq.open_consumer("/s", group="g", fs=fs) as consumer:
                workers[name] = consumer
                is_open[name].set()
                async for message in consumer:
                    done[message.value] += 1
                    await trio.sleep(0.01)
                    await consumer.commit(message)

        workers: dict[str, diskq.StreamConsumer] = {}
        is_open = {"one": trio.Event(), "two": trio.Event()}
        nursery.start_soon(work, "one")
        await producer.send_many([b"%d" % number for number in range(1000)])
        await is_open["one"].wait()
        await trio.sleep(2)
        nursery.start_soon(work, "two")
        await is_open["two"].wait()  # the clock jumps while a thread opens it
        await trio.sleep(2.5)  # two claim intervals
        assert [len(worker.position) for worker in workers.values()] == [2, 2]
        await trio.sleep(20)
        assert done == Counter(b"%d" % number for number in range(1000))
        nursery.cancel_scope.cancel()


MEMBER = """
import sys, time, diskq
with diskq.StreamReader(sys.argv[1], group="g", claim_interval=0.5) as reader:
    print("reads", flush=True)
    for message in reader:
        time.sleep(0.002)
        print(message.value.decode(), flush=True)
        reader.commit(message)
"""


@pytest.mark.slow
def test_four_processes_share_eight_partitions_also_after_a_kill_and_a_join(tmp_path: Path) -> None:
    fs = OsFileSystem()
    files = StreamFiles(fs, str(tmp_path))
    with diskq.Stream(tmp_path, partition_count=8) as stream:

        def start() -> subprocess.Popen[bytes]:
            path = tmp_path / f"out{len(outs)}"
            outs.append(path)
            with path.open("wb") as out:
                return subprocess.Popen([sys.executable, "-c", MEMBER, str(tmp_path)], stdout=out)

        def shares(number: int) -> list[float]:
            """The share of each member in the next messages."""
            before = [len(out.read_bytes().split(b"\n")) for out in outs]
            stream.append_many([(b"%d" % (index % 800), b"%d" % (number + index)) for index in range(800)])
            counts: list[int] = []

            def are_all_processed() -> bool:
                after = [len(out.read_bytes().split(b"\n")) for out in outs]
                counts[:] = [new - old for new, old in zip(after, before, strict=True)]
                return sum(counts) >= 800

            until(are_all_processed)
            return [count / 800 for count in counts]

        def have_two_each() -> bool:
            holders = [read_holder(fs, files.claim("g", index)) for index in range(8)]
            claimed = Counter(holder.pid for holder in holders if holder is not None)
            return claimed == {worker.pid: 2 for worker in workers if worker.returncode is None}

        outs: list[Path] = []
        workers = [start() for _ in range(4)]
        try:
            until(have_two_each)
            assert all(0.15 <= share <= 0.35 for share in shares(0)), "not fair"
            workers[0].send_signal(signal.SIGKILL)
            workers[0].wait()
            workers.append(start())
            until(have_two_each)
            after = shares(800)
            assert after[0] == 0
            assert all(0.15 <= share <= 0.35 for share in after[1:]), after
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    lines = [line for out in outs for line in out.read_bytes().split()]
    found = Counter(int(line) for line in lines if line != b"reads")
    assert set(found) == set(range(1600))
    assert sum(found.values()) <= 1600 + 1

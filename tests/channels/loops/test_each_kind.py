# Every kind of channel, on each event loop: sending, waiting, closing, and the same errors.

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import diskq
from tests.channels.rig import fault_disk, opened
from tests.contract.channels import Handle, disk, feeding, handles, left
from tests.contract.kinds import DURABILITIES, ChannelKind, bodies, channels
from tests.contract.lives import PATH
from tests.contract.lives import disk as empty_disk
from tests.loops import each_loop

CALLS = [
    pytest.param(handle, name, id=f"{handle}: {name}")
    for handle in handles("spool", "watch of a root")
    for name in handle.awaited
]


@pytest.mark.parametrize("handle, name", CALLS)
@each_loop
async def test_each_call_returns(handle: Handle, name: str) -> None:
    async with handle.open(disk()) as its:
        with anyio.fail_after(30):
            await handle.awaited[name](its)


@pytest.mark.parametrize("handle", [each for each in handles("watch of a root") if each.waiting], ids=str)
@each_loop
async def test_a_waiting_task_is_woken_with_the_message(handle: Handle) -> None:
    fs = disk(messages=0)
    async with handle.open(fs) as its, feeding(handle, its, fs) as send:
        assert handle.waiting is not None
        found: list[Any] = []

        async def receive() -> None:
            assert handle.waiting is not None
            found.append(await handle.waiting(its))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receive)
                await anyio.wait_all_tasks_blocked()
                send(b"new")
        assert len(found) == 1


@pytest.mark.parametrize("handle", [each for each in handles() if each.waiting], ids=str)
@each_loop
async def test_closing_wakes_waiting_tasks(handle: Handle) -> None:
    async with handle.open(disk(messages=0)) as its:

        async def receive() -> None:
            assert handle.waiting is not None
            with pytest.raises(diskq.ClosedResourceError):
                await handle.waiting(its)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            its.close()


@pytest.mark.parametrize("kind", channels(), ids=str)
@each_loop
async def test_what_was_sent_with_any_durability_is_read_by_the_engine(kind: ChannelKind) -> None:
    fs = empty_disk()
    async with kind.open(PATH, fs=fs) as channel:
        await channel.send_many(bodies(3))
        for number, word in enumerate(DURABILITIES, 3):
            await channel.send(bodies(6)[number], word)
        await channel.sync()
    assert kind.read(PATH, fs=fs) == bodies(6)


@pytest.mark.parametrize("kind", channels(), ids=str)
@each_loop
async def test_tasks_that_wait_for_the_disk_share_their_syncs(kind: ChannelKind, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    async with kind.open(tmp_path / "store") as channel:
        async with anyio.create_task_group() as tasks:
            for body in bodies(100):
                tasks.start_soon(channel.send, body, "synced")
        syncs = (channel.store or channel.handle).statistics().barrier_seconds.count
        assert 0 < syncs < 50
    assert sorted(kind.read(tmp_path / "store")) == sorted(bodies(100))


@each_loop
async def test_a_spool_delivers_and_tries_again() -> None:
    fs = empty_disk()
    got: list[bytes] = []

    async def deliver(batch: diskq.Batch) -> None:
        await anyio.lowlevel.checkpoint()
        if len(got) < 1:
            got.append(b"a failure")
            raise OSError("away")
        got.extend(batch)

    async with diskq.open_spool(PATH, deliver, fs=fs, backoff_initial=0.001, backoff_max=0.001) as spool:
        await spool.send_many(bodies(5))
        with anyio.fail_after(60):
            await spool.drained()
    assert got == [b"a failure", *bodies(5)]


@each_loop
async def test_a_delivery_that_takes_too_long_is_cancelled_and_tried_again() -> None:
    fs = empty_disk()
    tries = 0

    async def deliver(batch: diskq.Batch) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            await anyio.sleep(60)

    options: dict[str, Any] = {"deliver_timeout": 0.01, "backoff_initial": 0.001, "backoff_max": 0.001}
    async with diskq.open_spool(PATH, deliver, fs=fs, **options) as spool:
        await spool.send(b"x")
        with anyio.fail_after(60):
            await spool.drained()
        assert spool.statistics().delivered == 1
    assert tries == 2


@each_loop
async def test_what_a_delivery_raises_for_good_ends_the_block() -> None:
    async def deliver(batch: diskq.Batch) -> None:
        raise KeyError("a mistake")

    with pytest.raises(KeyError):  # noqa: PT012
        async with diskq.open_spool(PATH, deliver, fs=empty_disk(), retry_on=OSError) as spool:
            await spool.send(b"x")
            await anyio.sleep(30)


@each_loop
async def test_a_merge_and_select_take_from_whichever_has_a_message() -> None:
    fs = disk(messages=0)
    async with (
        diskq.open_queue("/q", "events", fs=fs) as one,
        diskq.open_queue("/q", "spare", fs=fs) as other,
        diskq.merge(one, other) as merged,
    ):
        await other.send(b"1")
        assert await merged.receive() == b"1"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.send, b"2")
            assert await diskq.select(one, other) == (one, b"2")
        await one.send(b"3")
        assert diskq.select_nowait(one, other) == (one, b"3")
        with pytest.raises(diskq.WouldBlock):
            diskq.select_nowait(one, other)


@each_loop
async def test_threads_send_into_a_queue() -> None:
    fs = disk(messages=0)
    async with diskq.open_queue("/q", "events", fs=fs) as queue:
        async with diskq.open_thread_sender(queue) as sender:
            for body in bodies(50):
                await anyio.to_thread.run_sync(sender.put, body)
        assert queue.depth == 50
    assert left(fs, "queue")["queue"] == bodies(50)


@each_loop
async def test_a_watch_of_a_root_reports_journals_as_they_appear(tmp_path: Path) -> None:
    async with diskq.open_root_watch(tmp_path) as watch, anyio.create_task_group() as tasks:

        async def make() -> None:
            await anyio.sleep(0.05)
            async with diskq.open_journal(tmp_path / "one") as journal:
                await journal.send(b"x")

        tasks.start_soon(make)
        with anyio.fail_after(60):
            assert await watch.receive() == str(tmp_path / "one")


@each_loop
async def test_a_reader_hears_of_another_processs_messages(tmp_path: Path) -> None:
    with diskq.Stream(tmp_path / "s", options=diskq.StreamOptions(partition_count=1)) as stream:
        stream.append(b"0")
        async with diskq.open_consumer(tmp_path / "s") as consumer:
            assert (await consumer.receive()).value == b"0"

            async def append() -> None:
                await anyio.sleep(0.05)
                await anyio.to_thread.run_sync(stream.append, b"1")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(append)
                with anyio.fail_after(60):
                    assert (await consumer.receive()).value == b"1"


@each_loop
async def test_a_failed_sync_breaks_the_channel() -> None:
    fs = fault_disk()
    with pytest.raises(diskq.BrokenResourceError):  # noqa: PT012
        async with opened(fs) as queue:
            fs.fail("sync_files")
            with pytest.raises(diskq.BrokenResourceError):
                await queue.send(b"x", durability="synced")
            raised = None
            try:
                await queue.receive()
            except diskq.BrokenResourceError as error:
                raised = error
            assert raised is not None

# A channel belongs to the thread of its event loop. Law: a call from any other thread is refused before
# anything is changed, and the error names the way for threads to send.

from __future__ import annotations

from typing import Any

import anyio
import pytest
import trio

import diskq
from diskq.testing import CrashFS
from tests.contract.channels import Handle, disk, handles, left
from tests.loops import each_loop

PLAIN = [pytest.param(handle, name, id=f"{handle}: {name}") for handle in handles() for name in handle.plain]
AWAITED = [
    pytest.param(handle, name, id=f"{handle}: {name}")
    for handle in handles()
    for name in handle.awaited
    # They end at the first thing that is not there; or what they need is not of this run.
    if "lingering" not in name and handle.name not in ("watch of a root",)
]


def files_of(fs: CrashFS) -> dict[str, bytes]:
    """But for what a spool writes down now and then of itself."""
    return {path: content for path, content in fs.files().items() if not path.startswith("/spool/.diskq")}


def numbers(its: Any) -> object:
    """The statistics of messages and waiting tasks; None if there are none."""
    return its.statistics() if hasattr(its, "statistics") else None


@pytest.mark.parametrize("handle, name", PLAIN)
@each_loop
async def test_a_call_from_another_thread_is_refused_and_leaves_everything_as_it_was(
    handle: Handle, name: str
) -> None:
    fs = disk()
    with anyio.fail_after(60):  # it may leave its block
        async with handle.open(fs) as its:
            if handle.name == "merge":
                its.receive_nowait()  # from here on it is this thread's
            before, files = numbers(its), files_of(fs)
            with pytest.raises(
                diskq.BusyError, match=r"belongs to the thread of its event loop.*open_thread_sender"
            ):
                await anyio.to_thread.run_sync(handle.plain[name], its)
            assert numbers(its) == before
            assert files_of(fs) == files
    if handle.name != "merge":
        assert left(fs, handle.kind) == left(disk(), handle.kind)


@pytest.mark.parametrize("handle, name", AWAITED)
@each_loop
async def test_so_is_one_from_another_run_of_trio(handle: Handle, name: str) -> None:
    fs = disk()
    with anyio.fail_after(60):
        async with handle.open(fs) as its:
            if handle.name == "merge":
                its.receive_nowait()
            before, files = numbers(its), files_of(fs)

            async def elsewhere() -> None:
                await handle.awaited[name](its)

            with pytest.raises(diskq.BusyError, match="belongs to the thread of its event loop"):
                await anyio.to_thread.run_sync(trio.run, elsewhere)
            assert numbers(its) == before
            assert files_of(fs) == files
    if handle.name != "merge":
        assert left(fs, handle.kind) == left(disk(), handle.kind)


@each_loop
async def test_the_message_of_a_thread_that_was_refused_is_not_in_and_the_block_can_be_left():
    fs = disk()
    with anyio.fail_after(60):
        async with diskq.open_queue("/q", "events", fs=fs) as queue:
            with pytest.raises(diskq.BusyError):
                await anyio.to_thread.run_sync(queue.send_nowait, b"foreign")
            await queue.send(b"3")
            assert [await queue.receive() for _ in range(4)] == [b"0", b"1", b"2", b"3"]
            async with diskq.open_thread_sender(queue) as sender:
                await anyio.to_thread.run_sync(sender.put, b"4")
            assert await queue.receive() == b"4"


@pytest.mark.parametrize("handle", handles(), ids=str)
@each_loop
async def test_statistics_are_for_any_thread(handle: Handle) -> None:
    async with handle.open(disk()) as its:
        if hasattr(its, "statistics"):
            assert type(await anyio.to_thread.run_sync(its.statistics)) is type(its.statistics())
        if hasattr(its, "look"):
            await anyio.to_thread.run_sync(its.look)

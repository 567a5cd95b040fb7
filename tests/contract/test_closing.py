# Closing. Law: it may be repeated; waiting and later calls get an error; other handles go on.

from __future__ import annotations

from typing import Any

import anyio
import pytest
import trio

from tests.channels.rig import Tasks, blocked
from tests.contract.channels import Handle, disk, handles, left
from tests.loops import each_loop

CLOSABLE = [handle for handle in handles("sender from threads") if "close" in handle.plain or handle.waiting]
# Those that close, that have nothing to do, and that ask nothing of what is closed.
ASK_NOTHING = ("close", "ack", "nack", "ack_nowait", "pause", "resume", "drained")
WAITING = [handle for handle in CLOSABLE if handle.waiting is not None]
CLONED = [handle for handle in handles() if "clone" in handle.plain]


async def called(call: Any, its: Any) -> object:
    result = call(its)
    return await result if hasattr(result, "__await__") else result


async def close(its: Any) -> None:
    if hasattr(its, "aclose"):
        await its.aclose()
    else:
        its.close()


@pytest.mark.parametrize("handle", CLOSABLE, ids=str)
@each_loop
async def test_it_may_be_closed_as_often_as_one_likes(handle: Handle) -> None:
    fs = disk()
    async with handle.open(fs) as its:
        for _ in range(2):
            its.close()
            await close(its)
    its.close()
    await close(its)
    assert left(fs, handle.kind) == left(disk(), handle.kind)


@pytest.mark.parametrize("has_left", [False, True], ids=["closed", "left"])
@pytest.mark.parametrize("handle", CLOSABLE, ids=str)
@each_loop
async def test_each_call_of_what_is_closed_is_refused_and_does_nothing(
    handle: Handle, has_left: bool
) -> None:
    fs = disk()
    calls = {**handle.plain, **handle.awaited}
    async with handle.open(fs) as its:
        if not has_left:
            its.close()
            await check_refused(calls, its)
    await check_refused(calls, its)
    assert left(fs, handle.kind) == left(disk(), handle.kind)


async def check_refused(calls: dict[str, Any], its: Any) -> None:
    for name, call in calls.items():
        if name not in ASK_NOTHING:
            with pytest.raises(trio.ClosedResourceError):
                await called(call, its)


@pytest.mark.parametrize("checkpoint_slice", [0, 100e-6])
@pytest.mark.parametrize("has_left", [False, True], ids=["closed", "left"])
@pytest.mark.parametrize("handle", WAITING, ids=str)
@each_loop
async def test_waiting_calls_get_an_error_when_it_is_closed(
    handle: Handle, has_left: bool, checkpoint_slice: float
) -> None:
    options = {} if handle.name in ("watch of a root", "merge") else {"checkpoint_slice": checkpoint_slice}
    async with anyio.create_task_group() as nursery:
        tasks = Tasks(nursery)
        async with handle.open(disk(messages=0), **options) as its:
            assert handle.waiting is not None
            for key in range(3):
                await tasks.start(key, handle.waiting, its)
            assert tasks.ended == []
            if not has_left:
                its.close()
                await blocked()
                assert [type(result) for _, result in tasks.ended] == [trio.ClosedResourceError] * 3
        await blocked()
        assert [type(result) for _, result in tasks.ended] == [trio.ClosedResourceError] * 3
        assert len({id(result) for _, result in tasks.ended}) == 3, "each has an error of its own"


@pytest.mark.parametrize("handle", CLONED, ids=str)
@each_loop
async def test_a_clone_is_closed_on_its_own(handle: Handle) -> None:
    fs = disk()
    async with handle.open(fs) as its:
        clone = its.clone()
        assert its.statistics().open_handles == 2
        clone.close()
        await its.send(b"3")
        other = its.clone()
        its.close()
        await other.send(b"4")
        with pytest.raises(trio.ClosedResourceError):
            its.clone()
        assert other.statistics().open_handles == 1
    with pytest.raises(trio.ClosedResourceError):
        await other.send(b"5")
    assert left(fs, handle.kind)[handle.kind] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("handle", [handle for handle in CLONED if handle.waiting], ids=str)
@each_loop
async def test_closing_one_handle_leaves_waiting_calls_on_its_clone(handle: Handle) -> None:
    async with handle.open(disk(messages=0)) as its, anyio.create_task_group() as nursery:
        tasks, clone = Tasks(nursery), its.clone()
        assert handle.waiting is not None
        await tasks.start("its", handle.waiting, its)
        await tasks.start("clone's", handle.waiting, clone)
        its.close()
        await blocked()
        assert [key for key, _ in tasks.ended] == ["its"]
        await clone.send(b"x")
        await blocked()
        assert tasks["clone's"] == b"x"

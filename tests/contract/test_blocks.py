# Leaving a block. Law: the exception that its body raised leaves it unchanged, also if a task around it is
# cancelled; after it nothing is open any more, and nothing is lost.

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing

import diskq
from tests.contract.channels import Handle, disk, handles, left
from tests.loops import each_loop


@contextmanager
def leaving(seen: list[BaseException]) -> Iterator[None]:
    """Note what comes out of a block."""
    try:
        yield
    except BaseException as failure:
        seen.append(failure)
        raise


class Mistake(Exception):
    """Of the program's own."""


async def fall(scope: anyio.CancelScope) -> None:
    raise Mistake


async def fall_when_cancelled(scope: anyio.CancelScope) -> None:
    scope.cancel()
    raise Mistake


async def fall_behind_a_cancelled_wait(scope: anyio.CancelScope) -> None:
    scope.cancel()
    try:
        await anyio.sleep_forever()
    finally:
        raise Mistake


async def fall_in_a_shield(scope: anyio.CancelScope) -> None:
    scope.cancel()
    with anyio.CancelScope(shield=True):
        await anyio.lowlevel.checkpoint()
        raise Mistake


async def fall_in_a_nursery(scope: anyio.CancelScope) -> None:
    async with anyio.create_task_group() as nursery:
        nursery.start_soon(fall, scope)
        await anyio.sleep_forever()


async def fall_as_a_group(scope: anyio.CancelScope) -> None:
    scope.cancel()
    raise ExceptionGroup("two", [Mistake(), ValueError()])


async def leave_with(failure: BaseException) -> None:
    raise failure


async def wait_and_be_cancelled(scope: anyio.CancelScope) -> None:
    scope.cancel()
    await anyio.sleep_forever()


async def wait_in_a_nursery_and_be_cancelled(scope: anyio.CancelScope) -> None:
    async with anyio.create_task_group() as nursery:
        nursery.start_soon(anyio.sleep_forever)
        scope.cancel()
        await anyio.sleep_forever()


BODIES: list[Callable[[anyio.CancelScope], Awaitable[None]]] = [
    fall,
    fall_when_cancelled,
    fall_behind_a_cancelled_wait,
    fall_in_a_shield,
    fall_in_a_nursery,
    fall_as_a_group,
    wait_and_be_cancelled,
    wait_in_a_nursery_and_be_cancelled,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("handle", handles(), ids=str)
@each_loop
async def test_what_the_body_raises_leaves_the_block_as_it_is(
    handle: Handle, body: Callable[[anyio.CancelScope], Awaitable[None]]
) -> None:
    fs, raised, left_with = disk(), list[BaseException](), list[BaseException]()
    with anyio.CancelScope() as scope, suppress(Mistake, ExceptionGroup), leaving(left_with):
        async with handle.open(fs):
            with leaving(raised):
                await body(scope)
    assert len(raised) == 1
    assert left_with == raised
    async with handle.open(fs):  # no process has it any more
        pass
    assert left(fs, handle.kind) == left(disk(), handle.kind)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), SystemExit(1), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("handle", handles(), ids=str)
@each_loop
async def test_so_does_what_is_no_exception_of_a_program(handle: Handle, failure: BaseException) -> None:
    fs, left_with = disk(), list[BaseException]()
    with suppress(type(failure)), leaving(left_with):
        async with handle.open(fs):
            await leave_with(failure)
    assert left_with == [failure]
    async with handle.open(fs):
        pass


@pytest.mark.parametrize("body", [fall_when_cancelled, fall_in_a_nursery, wait_and_be_cancelled])
@pytest.mark.parametrize("handle", handles("priority store", "shards", "sender from threads"), ids=str)
@each_loop
async def test_so_it_does_with_a_handle_in_a_block_of_its_own(
    handle: Handle, body: Callable[[anyio.CancelScope], Awaitable[None]]
) -> None:
    fs, raised, left_with = disk(), list[BaseException](), list[BaseException]()
    async with handle.open(fs) as its:
        with anyio.CancelScope() as scope, suppress(Mistake, ExceptionGroup), leaving(left_with):
            async with its:
                with leaving(raised):
                    await body(scope)
        assert len(raised) == 1
        assert left_with == raised
    assert left(fs, handle.kind) == left(disk(), handle.kind)


# The others' blocks are those of a handle, which end with a checkpoint, as Trio's do.
@pytest.mark.parametrize("handle", handles("merge", "watch of a root"), ids=str)
@each_loop
async def test_a_block_in_a_cancelled_scope_that_does_not_wait_is_left_without_an_exception(
    handle: Handle,
) -> None:
    fs = disk()
    with anyio.CancelScope() as scope:
        async with handle.open(fs):
            scope.cancel()
    assert not scope.cancelled_caught, "nothing was waited for"
    assert left(fs, handle.kind) == left(disk(), handle.kind)


async def test_a_member_goes_on_to_claim_in_a_shielded_body_of_a_cancelled_block(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fs, leave, gone = disk(), trio.Event(), trio.Event()

    async def first(task_status: trio.TaskStatus[None]) -> None:
        async with diskq.open_consumer("/s", group="g", fs=fs):
            task_status.started()
            await leave.wait()
        gone.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(first)
        with trio.CancelScope() as scope:
            async with diskq.open_consumer("/s", group="g", fs=fs, claim_interval=1) as second:
                scope.cancel()
                with trio.CancelScope(shield=True):
                    await trio.sleep(5)
                    before = second.position
                    leave.set()
                    await gone.wait()
                    await trio.sleep(5)
                    claimed = second.position
    assert (before, claimed) == ({}, {0: 0})

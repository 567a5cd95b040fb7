"""Many queues open in one program, and a task that sends to each of them in turn."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import AsyncIterator

import pytest
import trio

import diskq
from diskq.testing import CrashFS, FaultFS
from tests.channels.rig import DIRECTORY, blocked, fault_disk

QUEUES = 20


class TaskSteps(trio.abc.Instrument):
    """The names of the tasks that run, a name for each time."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.names.append(task.name)


@contextlib.contextmanager
def steps_noted():
    watch = TaskSteps()
    trio.lowlevel.add_instrument(watch)
    try:
        yield watch.names
    finally:
        trio.lowlevel.remove_instrument(watch)


@pytest.fixture
def disk() -> FaultFS[CrashFS]:
    return fault_disk()


@pytest.fixture
async def queues(disk: FaultFS[CrashFS]) -> AsyncIterator[list[diskq.QueueChannel]]:
    """Each of them has had a message since its last sync."""
    async with contextlib.AsyncExitStack() as stack:
        opened = []
        for number in range(QUEUES):
            opening = diskq.open_queue(DIRECTORY, f"q{number}", fs=disk, checkpoint_slice=60.0)
            opened.append(await stack.enter_async_context(opening))
        await send_round(opened)
        await blocked()
        yield opened


async def send_round(queues: list[diskq.QueueChannel]) -> None:
    for queue in queues:
        await queue.send(b"x" * 100)


async def test_a_task_that_sends_to_many_queues_has_one_slice_and_not_one_of_each(queues):
    with steps_noted() as steps:
        await send_round(queues)
        await send_round(queues)
    assert not steps


async def test_the_first_messages_of_a_slice_are_written_at_once_and_wake_no_task(queues, disk):
    queues[0]._loop.new_slice()
    before = len(disk.calls)
    with steps_noted() as steps:
        await send_round(queues)
        writes = [call for call in disk.calls[before:] if call.verb == "pwrite"]
        await trio.lowlevel.checkpoint()
    assert len(writes) == QUEUES
    assert len(steps) == 1, "that of this task itself"


async def test_the_second_messages_of_a_slice_are_written_when_the_task_yields(queues, disk):
    await send_round(queues)
    before = len(disk.calls)
    await send_round(queues)
    assert not [call for call in disk.calls[before:] if call.verb == "pwrite"]
    await blocked()
    assert len([call for call in disk.calls[before:] if call.verb == "pwrite"]) == QUEUES
    assert sum(queue.statistics().accepted for queue in queues) == 3 * QUEUES


async def test_what_has_no_state_of_its_own_is_shared_and_no_handle_has_a_dict(queues):
    assert len({queue._needs_point for queue in queues}) == 1
    assert len({queue._loop.engine._parts.framing for queue in queues}) == 1
    assert not [queue for queue in queues if hasattr(queue, "__dict__") or hasattr(queue._loop, "__dict__")]


async def test_an_open_queue_takes_little_memory(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        for number in range(3):
            warm = await stack.enter_async_context(diskq.open_queue(tmp_path, f"warm{number}"))
            await warm.send(b"x" * 100)
        gc.collect()
        tracemalloc.start()
        try:
            for number in range(QUEUES):
                queue = await stack.enter_async_context(diskq.open_queue(tmp_path, f"q{number}"))
                await queue.send(b"x" * 100)
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert taken < QUEUES * 18_000


async def test_runs_in_two_threads_have_a_clock_each(tmp_path):
    def run(name: str) -> object:
        async def main() -> object:
            async with diskq.open_queue(tmp_path, name) as one, diskq.open_queue(tmp_path, name + "2") as two:
                await one.send(b"x")
                clocks = {gate.clock for queue in (one, two) for gate in queue._loop.engine.log.gates}
                assert len(clocks) == 1
                return clocks.pop()

        return trio.run(main)

    assert await trio.to_thread.run_sync(run, "a") is not await trio.to_thread.run_sync(run, "b")

# Cancelled means that nothing happened: a call that is cancelled, at whichever moment of its task, has sent
# and taken nothing, and one that returned has done it once. What is open goes on, and so does the next open.
#
# The moments of a task are those at which it yields, and those at which it is about to run again, with what
# it waited for in its hands. A call is made anew for each of them, until it returns before its moment comes.

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing

from diskq.testing import CrashFS
from tests.channels.rig import blocked, until
from tests.contract.channels import Handle, disk, feeding, handles, left
from tests.loops import each_asyncio_loop, each_loop, is_on_trio

SLICES = [0, 100e-6]
CANCELLED = "cancelled"


class Threat:
    """Cancels a call at the moment of this number of its task; at moment 0 before it begins."""

    def __init__(self, moment: int) -> None:
        self._moments_left = moment
        self.has_fired = False
        self.result: Any = None

    async def call(self, call: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Leaves in `result` what the call returned, or that it was cancelled."""
        raise NotImplementedError

    def _fire(self) -> None:
        raise NotImplementedError

    def _pass_moment(self) -> None:
        self._moments_left -= 1
        if self._moments_left == 0:
            self.has_fired = True
            self._fire()


class TrioThreat(Threat, trio.abc.Instrument):
    def __init__(self, moment: int) -> None:
        super().__init__(moment)
        self._task: trio.lowlevel.Task | None = None
        self._scope = trio.CancelScope()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        self._task = trio.lowlevel.current_task()
        trio.lowlevel.add_instrument(self)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(self)
            self._task = None

    async def call(self, call: Callable[..., Awaitable[Any]], *args: Any) -> None:
        if not self._moments_left:
            self.has_fired = True
            self._fire()
        with self._scope, self._at_work():
            try:
                self.result = await call(*args)
            except trio.Cancelled:
                self.result = CANCELLED
                raise

    def _fire(self) -> None:
        self._scope.cancel()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._pass_moment()

    before_task_step = after_task_step


class AsyncioThreat(Threat):
    _task: asyncio.Task[Any]

    async def call(self, call: Callable[..., Awaitable[Any]], *args: Any) -> None:
        async def made() -> Any:
            return await _Stepped(call(*args), self)

        self._task = asyncio.create_task(made())
        if not self._moments_left:
            self.has_fired = True
            self._fire()
        try:
            self.result = await self._task
        except asyncio.CancelledError:
            self.result = CANCELLED

    def _fire(self) -> None:
        self._task.cancel()

    def passes_when_paused(self, awaited: Any) -> None:
        """The two moments: it has paused; and it is about to run again."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self._pass_moment)
        if awaited is None:
            loop.call_soon(self._pass_moment)
        else:
            awaited.add_done_callback(lambda _: self._pass_moment())  # before the task's own callback


class _Stepped:
    """Awaits something, and tells of each pause."""

    def __init__(self, awaitable: Awaitable[Any], threat: AsyncioThreat) -> None:
        self._awaitable, self._threat = awaitable, threat

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._awaitable.__await__()
        step: Callable[[], Any] = partial(steps.send, None)
        while True:
            try:
                awaited = step()
            except StopIteration as end:
                return end.value
            self._threat.passes_when_paused(awaited)
            try:
                step = partial(steps.send, (yield awaited))
            except BaseException as thrown:
                step = partial(steps.throw, thrown)


async def at_each_moment(trial: Callable[[Threat], Awaitable[None]]) -> None:
    """Have the trial made, which makes one call of its threat's, until a call returned before its moment."""
    cancelled = 0
    for moment in count():
        threat = TrioThreat(moment) if is_on_trio() else AsyncioThreat(moment)
        await trial(threat)
        cancelled += threat.result is CANCELLED
        if not threat.has_fired:
            break
    assert cancelled, "it is no cancellation point"


def bodies_of(result: Any) -> list[bytes]:
    """Of whatever was received."""
    if result is CANCELLED or result is None:
        return []
    if isinstance(result, list):
        return [body for each in result for body in bodies_of(each)]
    for name in ("body", "payload", "value"):
        if hasattr(result, name):
            return [bytes(getattr(result, name))]
    return [result]


def drain(its: Any) -> list[bytes]:
    found = []
    try:
        while True:
            found += bodies_of(its.receive_nowait())
    except (trio.WouldBlock, trio.EndOfChannel):
        return found


def options_of(handle: Handle, checkpoint_slice: float) -> dict[str, Any]:
    if handle.name in ("replay", "watch of a root", "merge", "spool", "sender from threads"):
        return {}
    return {"checkpoint_slice": checkpoint_slice}


def calls(prefixes: tuple[str, ...], *but: str, but_calls: str = "nothing") -> list[Any]:
    return [
        pytest.param(handle, name, id=f"{handle}: {name}")
        for handle in handles(*but)
        for name in handle.awaited
        if name.startswith(prefixes) and but_calls not in name
    ]


# Nothing comes to the first two; the others are scanners as the one that is left.
NOT_FED = ("watch of a root", "replay", "scanner with a name", "scanner of shards")
RECEIVES = ("receive", "async for", "peek", "receiving")


async def settle(handle: Handle, name: str, its: Any, result: Any) -> list[bytes]:
    """What the call has taken; leases among it are acknowledged."""
    if name == "peek":
        return []
    taken = bodies_of(result)
    if taken and name.split(",")[0] != "receiving":
        if handle.name == "work":
            its.ack(result)
        elif handle.name == "priority queue":
            await its.ack(result)
        elif handle.name == "consumer of a group" or handle.name.endswith("with a name"):
            await its.commit()
    return taken


async def all_of(handle: Handle, fs: CrashFS, taken: list[bytes], rest: list[bytes] | None) -> list[bytes]:
    """All there was: what was taken, and what another open finds."""
    if handle.kind in ("queue", "priority"):
        return taken + left(fs, handle.kind)[handle.kind]
    if handle.name == "consumer of a group" or handle.name.endswith("with a name"):
        async with handle.open(fs) as its:
            return taken + drain(its)
    assert rest is not None
    return taken + rest


async def receive_at_each_moment(handle: Handle, name: str, checkpoint_slice: float) -> None:
    every = [b"0", b"0"] if handle.name == "scanner of shards" else [b"0", b"1", b"2"]

    async def trial(threat: Threat) -> None:
        fs, rest = disk(), None
        async with handle.open(fs, **options_of(handle, checkpoint_slice)) as its:
            await threat.call(handle.awaited[name], its)
            taken = await settle(handle, name, its, threat.result)
            if handle.name in ("consumer", "scanner", "scanner of shards", "replay"):
                rest = drain(its)
        assert await all_of(handle, fs, taken, rest) == every

    await at_each_moment(trial)


# Lingering calls need Trio's clock.
LINGERS = "lingering"


@pytest.mark.parametrize("checkpoint_slice", SLICES)
@pytest.mark.parametrize("handle, name", calls(RECEIVES, "watch of a root"))
async def test_messages_that_are_there_are_received_or_left(
    handle: Handle, name: str, checkpoint_slice: float, autojump_clock: trio.testing.MockClock
) -> None:
    await receive_at_each_moment(handle, name, checkpoint_slice)


@pytest.mark.parametrize("checkpoint_slice", SLICES)
@pytest.mark.parametrize("handle, name", calls(RECEIVES, "watch of a root", but_calls=LINGERS))
@each_asyncio_loop
async def test_so_are_they_on_asyncio(handle: Handle, name: str, checkpoint_slice: float) -> None:
    await receive_at_each_moment(handle, name, checkpoint_slice)


async def wait_at_each_moment(handle: Handle, name: str, checkpoint_slice: float) -> None:
    async def trial(threat: Threat) -> None:
        fs, rest = disk(messages=0), None
        async with (
            handle.open(fs, **options_of(handle, checkpoint_slice)) as its,
            feeding(handle, its, fs) as send,
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(threat.call, handle.awaited[name], its)
                await blocked()
                send(b"0")
                send(b"1")
            await blocked()  # what was sent is written by now
            taken = await settle(handle, name, its, threat.result)
            if handle.name in ("consumer", "scanner", "scanner of shards"):
                rest = drain(its)
        assert await all_of(handle, fs, taken, rest) == [b"0", b"1"]

    await at_each_moment(trial)


@pytest.mark.parametrize("checkpoint_slice", SLICES[1:])
@pytest.mark.parametrize("handle, name", calls(RECEIVES, *NOT_FED))
async def test_a_message_that_comes_while_a_task_waits_is_received_or_left(
    handle: Handle, name: str, checkpoint_slice: float, autojump_clock: trio.testing.MockClock
) -> None:
    await wait_at_each_moment(handle, name, checkpoint_slice)


@pytest.mark.parametrize("checkpoint_slice", SLICES[1:])
@pytest.mark.parametrize("handle, name", calls(RECEIVES, *NOT_FED, but_calls=LINGERS))
@each_asyncio_loop
async def test_so_is_one_that_comes_on_asyncio(handle: Handle, name: str, checkpoint_slice: float) -> None:
    await wait_at_each_moment(handle, name, checkpoint_slice)


@pytest.mark.parametrize("checkpoint_slice", SLICES)
@pytest.mark.parametrize("handle, name", calls(("send",)))
@each_loop
async def test_a_message_is_sent_once_or_not_at_all(
    handle: Handle, name: str, checkpoint_slice: float
) -> None:
    kind = handle.kind
    sent = [b"x", b"y"] if name == "send_many" else [b"x"]

    async def trial(threat: Threat) -> None:
        fs = disk()
        before = left(fs, kind)[kind]
        async with handle.open(fs, **options_of(handle, checkpoint_slice)) as its:
            await threat.call(handle.awaited[name], its)
        now = left(fs, kind)[kind]
        if kind == "shards":
            before, now = sorted(before), sorted(now)
        assert now == (before if threat.result is CANCELLED else before + sent)

    await at_each_moment(trial)


@pytest.mark.parametrize("name", ["send", "send, synced", "send_many"])
@pytest.mark.parametrize("handle", [h for h in handles() if h.name == "queue"], ids=str)
@each_loop
async def test_so_is_one_that_waits_for_room(handle: Handle, name: str) -> None:
    async def trial(threat: Threat) -> None:
        fs, body, filled = disk(messages=0), b"." * 1020, 0
        async with handle.open(fs, max_bytes=65536) as its, anyio.create_task_group() as tasks:
            with pytest.raises(trio.WouldBlock):  # noqa: PT012
                while True:
                    its.send_nowait(body)
                    filled += 1
            tasks.start_soon(threat.call, handle.awaited[name], its)
            await blocked()
            taken = await its.receive_many(filled // 2)
            await until(lambda: threat.result is not None or not its.statistics().tasks_waiting_send)
        now = [each for each in left(fs, "queue")["queue"] if each != body]
        assert len(taken) + left(fs, "queue")["queue"].count(body) == filled
        expected = [b"x", b"y"] if name == "send_many" else [b"x"]
        assert now == ([] if threat.result is CANCELLED else expected)

    await at_each_moment(trial)


@pytest.mark.parametrize("checkpoint_slice", SLICES)
@pytest.mark.parametrize(
    "handle, name",
    calls(("sync", "commit", "seek", "clear", "vacuum", "snapshot", "create", "delete", "ack"), "spool"),
)
@each_loop
async def test_any_other_call_is_done_or_not_and_nothing_is_lost(
    handle: Handle, name: str, checkpoint_slice: float
) -> None:
    async def trial(threat: Threat) -> None:
        fs = disk()
        before = left(fs, handle.kind)
        async with handle.open(fs, **options_of(handle, checkpoint_slice)) as its:
            await threat.call(handle.awaited[name], its)
            if handle.name == "priority store":
                names = {queue.name for queue in its.queues()}
                is_done = {"create_queue": "new" in names, "delete_queue": "old" not in names}
                if name in is_done:
                    assert is_done[name] == (threat.result is not CANCELLED)
        if name == "clear" and threat.result is not CANCELLED:
            before["queue"] = []
        assert left(fs, handle.kind) == before

    await at_each_moment(trial)


@pytest.mark.parametrize("handle", handles(), ids=str)
@each_loop
async def test_a_block_that_is_cancelled_at_any_moment_leaves_nothing_open_and_loses_nothing(
    handle: Handle,
) -> None:
    async def trial(threat: Threat) -> None:
        fs = disk()

        async def use() -> None:
            async with handle.open(fs):
                await anyio.lowlevel.checkpoint()

        before = left(fs, handle.kind)
        await threat.call(use)
        async with handle.open(fs):
            pass
        assert left(fs, handle.kind) == before

    await at_each_moment(trial)

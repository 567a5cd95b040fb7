"""The event loops that channels run on, for tests that run on each of them.

    @each_loop
    async def test_...: ...         written with anyio's names, which mean Trio's or asyncio's own things

A test that uses Trio's testing clocks, or a fixture that is one of Trio's, stays Trio's.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import sniffio
import trio
import trio.testing

__all__ = [
    *("ASYNCIO_LOOPS", "INSTALLED", "LOOPS", "blocked", "each_asyncio_loop", "each_loop", "is_on_trio"),
    "run_on",
]

_HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None
ASYNCIO_LOOPS = [
    "asyncio",
    pytest.param("uvloop", marks=pytest.mark.skipif(not _HAS_UVLOOP, reason="uvloop is not installed")),
]
LOOPS = ["trio", *ASYNCIO_LOOPS]
INSTALLED = ["trio", "asyncio", *["uvloop"] * _HAS_UVLOOP]
"""The same for tables that are no parameters."""


def run_on(loop: str, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Run the call on that loop, to its end. Nothing of diskq's may be left on it then.

    A thread that an earlier test has left, as one whose process counts as killed does, is not this call's.
    """
    before = threading.enumerate()
    if loop == "trio":
        return trio.run(call, *args)
    if loop == "asyncio":
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    else:
        new_loop = importlib.import_module("uvloop").new_event_loop

    async def main() -> Any:
        result = await call(*args)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    with asyncio.Runner(loop_factory=new_loop) as runner:
        result = runner.run(main())
    for thread in threading.enumerate():
        if thread.name.startswith("diskq") and thread not in before:
            thread.join(60)
            assert not thread.is_alive(), thread.name
    return result


def is_on_trio() -> bool:
    return sniffio.current_async_library() == "trio"


async def blocked(cushion: float = 0.0) -> None:
    """Return when all other tasks wait; with a cushion, when they do so for that long."""
    if is_on_trio():
        await trio.testing.wait_all_tasks_blocked(cushion)
        return
    await asyncio.sleep(cushion)
    quiet = 0
    while quiet < 10:  # callbacks, and tasks of diskq's own, are in no list
        await asyncio.sleep(0)
        others: set[Any] = asyncio.all_tasks() - {asyncio.current_task()}
        is_quiet = all(task._fut_waiter is not None and not task._fut_waiter.done() for task in others)
        quiet = quiet + 1 if is_quiet else 0


def each_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a test that is run on Trio, on asyncio, and on uvloop where it is installed."""
    return _on(LOOPS, test)


def each_asyncio_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The same of a test that is about asyncio's own ways."""
    return _on(ASYNCIO_LOOPS, test)


def _on(loops: list[Any], test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def on_one(event_loop: str, **arguments: Any) -> None:
        run_on(event_loop, functools.partial(test, **arguments))

    own = inspect.signature(test)
    first = inspect.Parameter("event_loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    on_one.__signature__ = own.replace(parameters=[first, *own.parameters.values()])  # type: ignore[attr-defined]
    del on_one.__wrapped__
    made: Callable[..., None] = pytest.mark.parametrize("event_loop", loops)(on_one)
    return made

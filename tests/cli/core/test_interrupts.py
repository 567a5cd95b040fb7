# Ctrl-C in a verb that runs in Trio.

from __future__ import annotations

import pytest
import trio

from diskq.cli.core.interrupts import run_async
from tests.channels.rig import interrupt


def test_an_interrupt_while_the_main_task_waits_for_others_comes_by_itself() -> None:
    async def act() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        run_async(act)


def test_errors_of_several_tasks_stay_a_group() -> None:
    async def fail() -> None:
        raise ValueError

    async def act() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(fail)

    with pytest.raises(ExceptionGroup):
        run_async(act)

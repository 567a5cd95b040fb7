# What the benchmarks measure: that each work does what its row says.

from __future__ import annotations

import trio

from benchmarks import works


async def test_each_message_of_a_latency_is_sent_while_the_receiver_waits_for_it():
    sleeper: trio.lowlevel.Task | None = None
    was_waiting: list[bool] = []

    async def send(_: bytes) -> None:
        nonlocal sleeper
        was_waiting.append(sleeper is not None)
        if sleeper is not None:
            trio.lowlevel.reschedule(sleeper)
            sleeper = None

    async def receive() -> None:
        nonlocal sleeper
        sleeper = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    found = await works.latency_of(send, receive, count=50, pace=0.0)
    assert was_waiting == [True] * 150
    assert 0 < found["p50_us"] <= found["max_us"]

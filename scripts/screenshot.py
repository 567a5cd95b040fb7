"""Make docs/top.svg: `diskq top` over demo traffic. python scripts/screenshot.py [FILE]

The traffic is real, in a temporary directory, and what is drawn is what is read from its files. Then what
differs from run to run (process numbers, directories, the time) is replaced, so that the picture does not.
"""

from __future__ import annotations

import dataclasses
import io
import math
import os
import random
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio
from rich.console import Console

import diskq
from diskq.cli.top.screen import Screen
from diskq.tools.watch.watch import StoreWatch, WatchReading

TARGET = Path(__file__).parent.parent / "docs" / "top.svg"
WIDTH, HEIGHT = 160, 14
LOOKS = 24
INTERVAL = 0.25


async def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        for name in ("data", "jobs", "spool"):
            os.mkdir(name)
        async with trio.open_nursery() as nursery:
            await nursery.start(traffic)
            readings = await watched(["data", "clicks", "journal", "jobs", "spool"])
            nursery.cancel_scope.cancel()
    draw(readings, target)


async def watched(paths: list[str]) -> Sequence[WatchReading]:
    watch = StoreWatch(paths)
    readings: Sequence[WatchReading] = []
    for _ in range(LOOKS):
        readings = watch.look()
        await trio.sleep(INTERVAL)
    return readings


def draw(readings: Sequence[WatchReading], target: Path) -> None:
    screen = Screen(1.0, [stable(reading) for reading in readings], clock="14:03:27")
    screen.press("enter")  # the first one is the stream
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True)
    console.print(screen)
    svg = console.export_svg(title="diskq top data clicks journal jobs spool", unique_id="top")
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)  # nothing is fetched from elsewhere
    target.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


def stable(reading: WatchReading) -> WatchReading:
    """The same, with the process by a number of our choosing."""
    sample = reading.sample
    if sample is None or sample.holder is None:
        return reading
    holder = "process 4711 on web1 since 2026-11-22T09:12:03+00:00"
    return dataclasses.replace(reading, sample=dataclasses.replace(sample, holder=holder))


# --- the traffic ----------------------------------------------------------------------------------


async def traffic(task_status: trio.TaskStatus[None]) -> None:
    """Messages into one of each kind, in waves, and readers of different speed."""
    budget = diskq.DiskBudget(64 * 2**20)

    async def deliver(batch: diskq.Batch) -> None:
        await trio.sleep(0.05)

    async with (
        diskq.open_queue("data", "events", max_bytes=32 * 2**20, sync_timeout=0.3) as events,
        diskq.open_producer("clicks", budget=budget, sync_timeout=0.3, partition_count=2) as clicks,
        diskq.open_consumer("clicks", group="billing", start="oldest", sync_timeout=0.3) as billing,
        diskq.open_consumer("clicks", group="search", start="oldest", sync_timeout=0.3) as search,
        diskq.open_journal("journal", sync_timeout=0.3) as journal,
        diskq.open_priority_store("jobs") as jobs,
        diskq.open_spool("spool", deliver=deliver, max_messages=20) as spool,
        trio.open_nursery() as nursery,
    ):
        mail = await jobs.create_queue("mail")
        nursery.start_soon(waves, events.send_many, 90, 300)
        nursery.start_soon(waves, clicks.send_many, 120, 180)
        nursery.start_soon(waves, journal.send_many, 40, 120)
        nursery.start_soon(waves, spool.send_many, 15, 400)
        nursery.start_soon(waves, mail.send_many, 8, 60)
        nursery.start_soon(taken, events, 60)
        nursery.start_soon(committed, billing, 110)
        nursery.start_soon(committed, search, 70)
        task_status.started()
        await trio.sleep_forever()


async def waves(send_many: object, most: int, size: int) -> None:
    """20 batches a second, between a few and `most` messages each, of about `size` bytes."""
    assert callable(send_many)
    chance = random.Random(most)
    step = 0
    while True:
        count = round(most * (0.55 + 0.45 * math.sin(step / 9 + most)))
        await send_many([bytes(chance.randrange(size // 2, size)) for _ in range(max(1, count))])
        step += 1
        await trio.sleep(0.05)


async def taken(queue: diskq.QueueChannel, count: int) -> None:
    while True:
        await queue.receive_many(max_messages=count)
        await trio.sleep(0.05)


async def committed(consumer: diskq.StreamConsumer, count: int) -> None:
    while True:
        messages = await consumer.receive_many(max_messages=count)
        await consumer.commit(*messages)
        await trio.sleep(0.05)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else TARGET)

"""One budget for a log that may forget, jobs that may not, and a stream: nothing fills the disk.

    python examples/budget.py DIRECTORY

Three producers write as fast as they can into 4 MiB, and one consumer takes the jobs. When the budget is used
up, each member acts by its `on_full`; the sum of all files is printed at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

import diskq

MIB = 1024 * 1024


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


async def main(directory: Path) -> None:
    budget = diskq.DiskBudget(4 * MIB)
    async with (
        diskq.open_queue(directory, "log", budget=budget, on_full="drop_oldest") as log,
        diskq.open_queue(directory, "jobs", budget=budget, on_full="wait") as jobs,
        diskq.open_producer(
            directory / "clicks", budget=budget, on_full="drop_oldest", partition_count=1
        ) as clicks,
        trio.open_nursery() as nursery,
    ):

        async def write_jobs() -> None:
            for number in range(5000):
                await jobs.send(b"job %05d" % number + bytes(2000))  # waits for the consumer if necessary

        async def work() -> None:
            for number in range(5000):
                assert (await jobs.receive()).startswith(b"job %05d" % number)

        async def write_log() -> None:
            for number in range(5000):
                await log.send(b"line %05d" % number + bytes(1000))

        async def click() -> None:
            for _ in range(5000):
                await clicks.send(bytes(500), key="ada")

        async with trio.open_nursery() as all_of_them:
            for task in (write_jobs, work, write_log, click):
                all_of_them.start_soon(task)

        for member in budget.statistics().members:
            print(f"{member.name}: {member.used // 1024} KiB, on_full={member.on_full}")
        print(f"all files: {size_of(directory) / MIB:.1f} of {budget.max_bytes / MIB:.1f} MiB, no job lost,")
        print(f"{log.statistics().dropped} lines dropped, {log.depth} kept")
        nursery.cancel_scope.cancel()


where = Path(sys.argv[1] if len(sys.argv) > 1 else "budget")
where.mkdir(exist_ok=True)
trio.run(main, where)

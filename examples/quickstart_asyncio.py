import asyncio
from pathlib import Path

import diskq


async def main() -> None:
    async with diskq.open_queue("data", "jobs") as queue:
        async with asyncio.TaskGroup() as group:
            for job in (b"one", b"two", b"three"):  # these tasks share one sync
                group.create_task(queue.send(job, durability="synced"))
        async with asyncio.timeout(1.0):
            print(await queue.receive_many(max_messages=10))


Path("data").mkdir(exist_ok=True)
asyncio.run(main())

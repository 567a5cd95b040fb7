from pathlib import Path

import trio

import diskq


async def main() -> None:
    async with diskq.open_queue("data", "events") as queue:
        await queue.send(b"survives a crash of this process")
        await queue.send(b"survives a power cut", durability="synced")
        await queue.send_many([b"one", b"two", b"three"])

        print(await queue.receive())
        async with queue.receiving(max_messages=500) as messages:
            print(messages)  # an exception in this block leaves them in the queue


Path("data").mkdir(exist_ok=True)
trio.run(main)

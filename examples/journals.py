"""Journals: what happens, in order, by key in several files, and whoever reads it goes on where he was.

    python examples/journals.py

Two tasks write what happens in a shop; a third one adds it up under the name "billing", twice: the second
time, in a new run of the program, it begins where the first one had committed.
"""

from __future__ import annotations

import tempfile

import trio

import diskq


async def sell(shards: diskq.ShardWriter, shop: str, count: int) -> None:
    for number in range(count):
        await shards.send(b"%d" % number, key=shop, type=1)


async def add_up(root: str, expected: int) -> int:
    """Receive so many messages; what was added up is not received again."""
    total = 0
    async with diskq.scan_shards(root, "shop", 2, reader="billing") as scanner:
        while expected:
            async with scanner.receiving(min(expected, 100)) as messages:
                total += sum(int(message.value) for message in messages)
                expected -= len(messages)
    return total


async def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        async with diskq.open_shards(root, "shop", 2) as shards, trio.open_nursery() as nursery:
            for shop in ("north", "south"):
                nursery.start_soon(sell, shards, shop, 100)
        first = await add_up(root, 120)
        rest = await add_up(root, 80)
        print("each was added once:", first + rest == 2 * sum(range(100)))


if __name__ == "__main__":
    trio.run(main)

"""Journals: events in order, by key in several files, with a reader that resumes at its committed offset.

    python examples/journals.py

Two tasks write the events of two shops; a third one adds them up as the reader "billing", in two runs: the
second one begins after the last commit of the first.
"""

from __future__ import annotations

import tempfile

import trio

import diskq


async def sell(shards: diskq.JournalShardWriter, shop: str, count: int) -> None:
    for number in range(count):
        await shards.send(b"%d" % number, key=shop, type=1)


async def add_up(root: str, expected: int) -> int:
    """Receive and add up `expected` messages. Committed messages are not received again."""
    total = 0
    async with diskq.open_shard_scanner(root, "shop", 2, reader="billing") as scanner:
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

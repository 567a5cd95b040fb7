"""Journals copied across machines: a hub, and two programs that push, one from a journal, one from a queue.

Run it: `python examples/hub.py`. It needs `pip install 'diskqueue[hub]'`, makes `hub-example` in the current
directory, and can be run again: it continues where it stopped. Here all of it is one process; in production
the hub is `diskq hub serve` on another machine, with TLS and tokens.
"""

from __future__ import annotations

import os

import trio

import diskq
from diskq.hub import HubClient, Tokens, open_hub, replicate

TOKEN = "an-example-is-no-secret"


async def main() -> None:
    os.makedirs("hub-example", exist_ok=True)
    tokens = Tokens({TOKEN: ["web1"]})
    async with (
        open_hub("hub-example/root", tokens=tokens) as hub,
        HubClient(hub.address, "web1", token=TOKEN) as client,
    ):
        async with diskq.open_journal("hub-example/clicks") as journal:
            await journal.send_many([(b"ada", b"one"), (b"grace", b"two")])
        copied = await replicate("hub-example/clicks", client, "clicks", follow=False)
        print("copied from the journal:", copied.delivered)

        async with diskq.open_queue("hub-example", "events") as queue:
            await queue.send_many([b"three", b"four", b"five"])
            copied = await replicate(queue, client, "events", follow=False)
            print("taken from the queue:", copied.delivered, "left in it:", queue.depth)

        for found in await hub.journals():
            last = (await client.get(found.journal, found.next_offset - 1))[0]
            print(f"{found.client}.{found.journal}: the last message is {last.value!r}")


trio.run(main)

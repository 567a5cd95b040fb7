# The processes of the hub's soak test: `python -m tests.soak.hubs NAME ARGUMENTS`. They are killed.

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

import trio

from diskq.engine.journal.journal import Journal
from diskq.errors import HubError
from diskq.hub import HubClient, open_hub, replicate
from diskq.options import JournalOptions

SEGMENT = 64 * 1024


def write(path: str, seconds: str, seed: str) -> None:
    """A journal that grows, in batches of any size, synced; then "done" and how many it has."""
    rng, until = random.Random(seed), time.monotonic() + float(seconds)
    with Journal(path, options=JournalOptions(segment_size=SEGMENT)) as journal:
        while time.monotonic() < until:
            batch = [rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(1, 100))]
            journal.append_many([(b"k%d" % rng.randrange(9), value) for value in batch], durability="synced")
            time.sleep(rng.random() * 0.02)
        print("done", journal.next_offset, flush=True)


def serve(root: str, address: str) -> None:
    async def main() -> None:
        async with open_hub(root, address, max_open_journals=2, journal=JournalOptions(segment_size=SEGMENT)):
            print("listening", flush=True)
            await trio.sleep_forever()

    trio.run(main)


def push(source: str, address: str, client_id: str, how: str) -> None:
    """For ever; or, "all", until the hub has all that is there."""

    async def main() -> None:
        async with HubClient(address, client_id, timeout=10) as client:
            while True:
                try:
                    await replicate(
                        source,
                        client,
                        "log",
                        follow=how != "all",
                        max_messages=500,
                        backoff_initial=0.02,
                        backoff_max=0.2,
                        backoff_jitter=0.1,
                    )
                    return
                except HubError as failure:
                    print("failed", failure, flush=True)
                    raise

    trio.run(main)


PROGRAMS: dict[str, Callable[..., None]] = {"write": write, "serve": serve, "push": push}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])

"""A spool on a disk of its own, which is soon full: `python -m tests.channels.full_disk MOUNT ON_FULL BOUND`.

There is 1 MiB at MOUNT. BOUND is the queue's `max_bytes`; 0:
the disk is. The destination is away at first; the disk fills; then it is back. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

import diskq
from diskq.options import QueueOptions

PATIENCE, TRIES = 0.1, 5
"""(Seconds, times): a sender that waits this long, this often in a row, waits for space."""


def message(number: int) -> bytes:
    return b"%06d" % number + bytes(994)


class Destination:
    def __init__(self) -> None:
        self.is_there = False
        self.taken: list[int] = []

    async def take(self, batch: Sequence[bytes]) -> None:
        if not self.is_there:
            raise ConnectionRefusedError("the destination is away")
        for body in batch:
            assert body == message(int(body[:6]))
        self.taken += [int(body[:6]) for body in batch]


def bytes_free(mount: str) -> int:
    found = os.statvfs(mount)
    return found.f_bavail * found.f_frsize


def files_of(spool: Path) -> list[str]:
    return sorted(str(path.relative_to(spool)) for path in spool.rglob("*") if path.is_file())


async def fill(spool: diskq.SpoolChannel, start: int, most: int) -> dict[str, Any]:
    """Send until there is no room, or `most`: what was accepted, and what stopped us."""
    accepted: list[int] = []
    has_synced = False
    for number in range(start, start + most):
        try:
            try:
                is_in = await send_patiently(spool, message(number))
            except diskq.FullError:
                if accepted or has_synced:
                    raise
                # A refusal is what tells an opened queue that the disk is full. The next sync removes the
                # last file then, which is consumed: until then it would be written on.
                has_synced = True
                await spool.sync()
                is_in = await send_patiently(spool, message(number))
        except diskq.FullError as full:
            assert full.accepted == 0  # noqa: PT017 (no test, but what one runs)
            return {"accepted": accepted + await fill_up(spool, number), "stopped_by": "FullError"}
        if not is_in:
            return {"accepted": accepted, "stopped_by": "waiting"}
        accepted.append(number)
    return {"accepted": accepted, "stopped_by": "nothing"}


async def send_patiently(spool: diskq.SpoolChannel, body: bytes) -> bool:
    """False: there is no room for it, for as long as we can wait."""
    for _ in range(TRIES):
        with trio.move_on_after(PATIENCE) as patience:
            await spool.send(body)
        if not patience.cancelled_caught:
            return True
    return False


async def fill_up(spool: diskq.SpoolChannel, start: int) -> list[int]:
    """Send a batch that is too large: which of it were accepted all the same."""
    numbers = list(range(start, start + 100))
    try:
        await spool.send_many(map(message, numbers))
    except diskq.FullError as full:
        return numbers[: full.accepted]
    return numbers


async def main(mount: str, on_full: Any, bound: int) -> dict[str, Any]:
    path, far_end = Path(mount, "spool"), Destination()
    options = diskq.SpoolOptions(
        max_messages=50,
        backoff_initial=0.005,
        backoff_max=0.02,
        backoff_jitter=0.0,
        queue=QueueOptions(max_bytes=bound or None, on_full=on_full),
    )
    rounds = []
    for start in (0, 10_000):
        # What stands on the write-ahead log at the end may have found no room in the file. It is kept there.
        with suppress(diskq.FullError):
            async with diskq.open_spool(path, deliver=far_end.take, options=options) as spool:
                rounds.append(await fill(spool, start, 2000))
                rounds[-1]["free"] = bytes_free(mount)
        async with diskq.open_spool(path, deliver=far_end.take, options=options) as spool:
            rounds[-1]["repairs"] = [str(repair) for repair in spool.repairs]
            rounds[-1] |= await drain(spool, far_end)
            # And once more, without a restart.
            rounds.append(await fill(spool, start + 5000, 2000))
            rounds[-1]["free"] = bytes_free(mount)
            rounds[-1] |= await drain(spool, far_end)
            rounds[-1]["left"] = bytes_free(mount)
    return {"rounds": rounds, "files": files_of(path)}


async def drain(spool: diskq.SpoolChannel, far_end: Destination) -> dict[str, Any]:
    """The destination is back until all is delivered."""
    depth, before = spool.statistics().depth, len(far_end.taken)
    far_end.is_there = True
    await spool.drained()
    far_end.is_there = False
    await spool.sync()  # which removes the files of what was delivered
    letters = spool.statistics().dead_letters
    return {"depth": depth, "drained": far_end.taken[before:], "letters": letters}


if __name__ == "__main__":
    mount, on_full, bound = sys.argv[1:]
    print(json.dumps(trio.run(main, mount, on_full, int(bound))))

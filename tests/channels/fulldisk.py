"""A spool on a disk of its own, which is soon full: `python -m tests.channels.fulldisk MOUNT ON_FULL BOUND`.

Runs in a namespace where it may mount: a tmpfs of 1 MiB at MOUNT. BOUND is the queue's `max_bytes`; 0:
the disk is. The far end is away at first; the disk fills; then it is back. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

import diskq
from diskq.options import QueueOptions

DISK = 1024 * 1024
PATIENCE = 0.3
"""Seconds after which a sender that waits for room has shown that it does."""


def message(number: int) -> bytes:
    return b"%06d" % number + bytes(994)


class FarEnd:
    def __init__(self) -> None:
        self.is_there = False
        self.taken: list[int] = []

    async def take(self, batch: Sequence[bytes]) -> None:
        if not self.is_there:
            raise ConnectionRefusedError("the far end is away")
        for body in batch:
            assert body == message(int(body[:6]))
        self.taken += [int(body[:6]) for body in batch]


def bytes_free(mount: str) -> int:
    found = os.statvfs(mount)
    return found.f_bavail * found.f_frsize


def files_of(spool: Path) -> list[str]:
    return sorted(str(path.relative_to(spool)) for path in spool.rglob("*") if path.is_file())


async def fill(spool: diskq.Spool, start: int, most: int) -> tuple[list[int], str]:
    """Send until there is no room, or `most`: what was accepted, and what stopped us."""
    accepted: list[int] = []
    for number in range(start, start + most):
        try:
            with trio.move_on_after(PATIENCE) as patience:
                await spool.send(message(number))
        except diskq.DiskFullError as full:
            return [*accepted, number][: len(accepted) + full.accepted], type(full).__name__
        if patience.cancelled_caught:
            return accepted, "waits"
        accepted.append(number)
    return accepted, "nothing"


async def fill_up(spool: diskq.Spool, start: int) -> range:
    """Send a batch that is too large: how many of it were accepted all the same."""
    try:
        await spool.send_many([message(number) for number in range(start, start + 100)])
    except diskq.DiskFullError as full:
        return range(start, start + full.accepted)
    return range(start, start + 100)


async def main(mount: str, on_full: Any, bound: int) -> dict[str, Any]:
    path, far_end = Path(mount, "spool"), FarEnd()
    is_restarted = bound > 0  # what found no room on the disk itself waits for some before it is open again
    options = diskq.SpoolOptions(
        max_items=50,
        backoff_initial=0.005,
        backoff_max=0.02,
        backoff_jitter=0.0,
        queue=QueueOptions(max_bytes=bound or None, on_full=on_full, max_bytes_per_file=128 * 1024),
    )
    async with AsyncExitStack() as opened:
        spool = await opened.enter_async_context(
            diskq.open_spool(path, deliver=far_end.take, options=options)
        )
        accepted, stopped_by = await fill(spool, 0, 2000)
        free = bytes_free(mount)
        if stopped_by == "DiskFullError":
            accepted += await fill_up(spool, 2000)
        if is_restarted:
            await opened.aclose()
            spool = await opened.enter_async_context(
                diskq.open_spool(path, deliver=far_end.take, options=options)
            )
        repairs = [str(repair) for repair in spool.repairs]
        await trio.sleep(0.1)
        depth = spool.statistics().depth
        far_end.is_there = True
        await spool.drained()
        drained = list(far_end.taken)
        await spool.sync()  # which removes the files of what was delivered
        again, stopped_again = await fill(spool, 5000, 100)
        await spool.drained()
        assert far_end.taken[len(drained) :] == again
        await spool.sync()
        letters = spool.statistics().dead_letters
    return {
        "accepted": accepted,
        "stopped_by": stopped_by,
        "free": free,
        "depth": depth,
        "drained": drained,
        "again": len(again),
        "stopped_again": stopped_again,
        "letters": letters,
        "repairs": repairs,
        "left": bytes_free(mount),
        "files": files_of(path),
    }


if __name__ == "__main__":
    mount, on_full, bound = sys.argv[1:]
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", mount], check=True)
    print(json.dumps(trio.run(main, mount, on_full, int(bound))))

# After a power cut, readers that are there before a writer get what is in the redo log alone, then what is
# sent, everything once.

from __future__ import annotations

import pytest
import trio

import diskq
from tests.tools.power_cuts import PATH, lost

NEW = [b"new %d" % number for number in range(5)]


@pytest.mark.parametrize("writer_comes_after", [0, 7, 20])
@pytest.mark.parametrize("seed", [None, *range(4)])
@pytest.mark.parametrize("kind", ["stream", "journal"])
async def test_a_reader_that_waits_gets_everything_once(kind, seed, writer_comes_after):
    cut = lost(kind, seed=seed)
    received: list[bytes] = []

    async def read() -> None:
        opened = (
            diskq.open_consumer(PATH, fs=cut.disk)
            if kind == "stream"
            else diskq.open_scanner(PATH, fs=cut.disk)
        )
        async with opened as reader:
            while len(received) < len(cut.synced) + len(NEW):
                received.append((await reader.receive()).value)
                if len(received) == writer_comes_after:
                    await write()

    async def write() -> None:
        opened = (
            diskq.open_producer(PATH, fs=cut.disk)
            if kind == "stream"
            else diskq.open_journal(PATH, fs=cut.disk)
        )
        async with opened as writer:
            for body in NEW:
                await writer.send(body, key=b"key", durability="synced")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            if not writer_comes_after:
                nursery.start_soon(write)
    assert sorted(received) == sorted([*cut.synced, *NEW])

# A disk that is really full: 1 MiB of tmpfs, in a mount namespace of its own. Law: a sender that finds no
# space gets an error, nothing partial stays, and receiving the messages frees the space again.

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

import diskq
from diskq.options import MIB
from tests.namespaces import run_on_small_disk
from tests.sampling import first

BODY = 1000
WORDS: dict[str, dict[str, Any]] = {
    "written": {},
    "synced": {"durability": "synced"},
    "memory": {"durability": "memory"},
    "memory first": {"durability": "memory", "memory_size": 100_000},
}
BOUNDS: dict[str, dict[str, Any]] = {
    "none": {},
    "larger than the disk": {"max_bytes": 4 * MIB},
    "wait": {"max_bytes": MIB // 2, "on_full": "wait"},
    "reject": {"max_bytes": MIB // 2, "on_full": "reject"},
    "drop_oldest": {"max_bytes": MIB // 2, "on_full": "drop_oldest"},
}
# A bound is kept before anything is written, whatever the word: each kind of it once. What the disk itself
# refuses is another matter for each word.
BOUNDS_OF = {
    "written": list(BOUNDS),
    "synced": ["none", "reject"],
    "memory": ["larger than the disk", "drop_oldest"],
    "memory first": ["none", "wait", "reject", "drop_oldest"],
}


def body(number: int) -> bytes:
    return (b"%d " % number).ljust(BODY, b".")


async def fill(queue: diskq.QueueChannel, start: int, on_full: str | None) -> int:
    """Send until the policy or the disk refuses. Returns the number after the last accepted message."""
    number = start
    while number < start + 1500:
        try:
            with trio.fail_after(1 if on_full == "wait" else 60):
                await queue.send(body(number))
        except (diskq.FullError, trio.TooSlowError) as refused:
            told = type(refused)
            break
        number += 1
    else:
        assert on_full == "drop_oldest"
        return number
    at_the_bound = {"wait": trio.TooSlowError, "reject": diskq.FullError}
    assert told is at_the_bound.get(str(on_full), diskq.DiskFullError)
    return number


async def fill_and_drain(directory: Path, word: str, bound: str) -> None:
    on_full = BOUNDS[bound].get("on_full")
    options: dict[str, Any] = {"segment_size": 100_000, **WORDS[word], **BOUNDS[bound]}
    async with diskq.open_queue(directory, "q", **options) as queue:
        end = 0
        for _ in range(2):
            start, end = end, await fill(queue, end, str(on_full) if on_full else None)
            assert end > start + 100
            got = [await queue.receive() for _ in range(queue.depth)]
            first = int(got[0].split()[0])
            assert got == [body(number) for number in range(first, end)]
            assert first == start or on_full == "drop_oldest"
            await queue.sync()  # what was received is removed
        await queue.send(b"the last one")
        assert queue.repairs == ()
    with diskq.Queue(directory, "q") as found:
        assert found.get_many(10) == [b"the last one"]
        assert found.repairs == ()


async def fill_stream(directory: Path, word: str) -> None:
    durability = "memory" if word == "memory first" else word
    options: dict[str, Any] = {"partition_count": 1, "segment_size": 100_000, "durability": durability}
    sent = 0
    ballast = directory / "ballast"
    ballast.write_bytes(bytes(100_000))
    try:
        async with diskq.open_producer(directory / "s", **options) as producer:
            try:
                while True:
                    await producer.send(body(sent))
                    sent += 1
            except diskq.DiskFullError:
                assert sent > 100
    except diskq.DiskFullError:
        assert durability != "synced"  # else it was accepted, and is still to be written
    ballast.unlink()
    async with diskq.open_producer(directory / "s", **options) as producer:
        await producer.send(b"the last one")
    got = []
    async with diskq.open_consumer(directory / "s", start="oldest", end="close") as consumer:
        async for message in consumer:
            got.append(message.value)
    assert got.pop() == b"the last one"
    assert got == [body(number) for number in range(len(got))]
    assert len(got) == sent or durability == "memory"


@pytest.mark.slow
@pytest.mark.parametrize("word", first(1, WORDS))
def test_a_full_disk_is_reported_and_recovers(word, tmp_path):
    printed = run_on_small_disk(tmp_path, "tests.channels.queue.test_real_disk", word, timeout=120)
    assert printed.split() == ["queue"] * len(BOUNDS_OF[word]) + ["stream"]


if __name__ == "__main__":
    for number, bound in enumerate(BOUNDS_OF[sys.argv[2]]):
        place = Path(sys.argv[1], str(number))
        place.mkdir()
        trio.run(fill_and_drain, place, sys.argv[2], bound)
        shutil.rmtree(place)
        print("queue")
    trio.run(fill_stream, Path(sys.argv[1]), sys.argv[2])
    print("stream")

"""Streams and journals on a full disk: `python -m tests.channels.full_producers DIRECTORY WORD`.

To be run in a mount namespace of its own, on a tmpfs of 1 MiB. WORD is how durable what is sent shall be.
Prints `done` when all of it was as it should be.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from typing import Any

import trio

import diskq
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader import JournalReader

BODY = 900
ROUNDS = 4


def value(number: int) -> bytes:
    return (b"%d " % number).ljust(BODY, b".")


def leaving(word: str) -> contextlib.AbstractContextManager[None]:
    """Only messages in memory may find no space at the end; then leaving the block raises."""
    return contextlib.suppress(diskq.FullError) if word == "memory" else contextlib.nullcontext()


async def stored(stream: str) -> list[bytes]:
    async with diskq.open_consumer(stream, end="close") as consumer:
        # To the end: `receive_many` may return some of them.
        found = sorted([message.value async for message in consumer])
        assert not consumer.losses
        return found


async def streams(directory: str, word: Any) -> None:
    stream, sent = os.path.join(directory, "s"), list[bytes]()
    options: dict[str, Any] = {"durability": word, "partition_count": 2, "segment_size": 100_000}
    for turn in range(ROUNDS):
        with leaving(word):
            async with diskq.open_producer(stream, **options) as producer:
                assert producer.repairs == ()
                with contextlib.suppress(diskq.FullError):
                    while True:
                        await producer.send(value(len(sent)))
                        sent.append(value(len(sent)))
        found = await stored(stream)
        if word == "memory":
            assert set(found) <= set(sent)
            sent = found
        assert found == sorted(sent), f"turn {turn}: {len(found)} of {len(sent)}"
    assert len(sent) > 400
    # Retention makes room, and it is used without another open.
    async with diskq.open_producer(stream, retention_max_bytes=200_000, **options) as producer:
        await producer.vacuum()
        kept = len(await stored(stream))
        assert kept < len(sent) - 100
        for number in range(200):
            await producer.send(value(number))
    assert len(await stored(stream)) == kept + 200


def journals(directory: str, word: Any) -> None:
    path, sent, options = os.path.join(directory, "j"), 0, diskq.JournalOptions(segment_size=100_000)
    for _ in range(ROUNDS):
        with leaving(word), Journal(path, options=options, uses_wal=True) as journal:
            assert journal.repairs == ()
            assert journal.next_offset == sent or (word == "memory" and journal.next_offset < sent)
            sent = journal.next_offset
            with contextlib.suppress(diskq.FullError):
                while True:
                    journal.append(value(sent), durability=word)
                    sent += 1
    with JournalReader(path) as reader:
        found = [message.value for message in reader.read_many(100_000)]
    assert found == [value(number) for number in range(len(found))]
    assert len(found) == sent or word == "memory"
    assert len(found) > 400


async def main(directory: str, word: str) -> None:
    await streams(directory, word)
    shutil.rmtree(os.path.join(directory, "s"))
    journals(directory, word)
    print("done")


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])

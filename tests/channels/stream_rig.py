"""The words in which the tests of streams' channels speak, beside those of `rig`."""

from __future__ import annotations

from typing import Any

import trio

from diskq.channels.stream.consumer import StreamConsumer, open_consumer
from diskq.channels.stream.producer import StreamProducer, open_producer
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.reader import ReadableStream
from diskq.messages import Message
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS
from tests.channels.rig import DIRECTORY

STREAM = f"{DIRECTORY}/s"
ONE: dict[str, Any] = {"partition_count": 1}


def producing(fs: FileSystem, path: str = STREAM, **options: Any) -> open_producer:
    return open_producer(path, fs=fs, **options)


def consuming(fs: FileSystem, partitions: list[int] | None = None, **how: Any) -> open_consumer:
    return open_consumer(STREAM, partitions, fs=fs, **how)


def index(base: int = 0, partition: int = 0) -> str:
    return StreamFiles(CrashFS(), STREAM).partition(partition).index_of(base)


def rows_in(fs: CrashFS, base: int = 0, partition: int = 0) -> int:
    """How many messages of a segment other processes see."""
    return len(fs.read(index(base, partition))) // 24


def stored(fs: CrashFS) -> list[Message]:
    """Return what another process reads, by partition, while the stream is not open."""
    stream = ReadableStream(STREAM, fs=fs.copy())
    found = []
    for partition in stream.partitions():
        with stream.open(partition) as reader:
            reader.seek_oldest()
            found += list(iter(reader.read, None))
    return found


def values(messages: list[Message]) -> list[bytes]:
    return [message.value for message in messages]


def drain(consumer: StreamConsumer) -> list[Message]:
    """Everything that can be received at once."""
    messages = []
    while True:
        try:
            messages.append(consumer.receive_nowait())
        except trio.WouldBlock:
            return messages


async def send_all(producer: StreamProducer, bodies: list[bytes], key: bytes = b"k") -> None:
    for body in bodies:
        await producer.send(body, key)

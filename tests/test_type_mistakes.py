# Mistakes that a type checker finds. Law: mypy and pyright find each of them, and complain of nothing else.

from __future__ import annotations

from pathlib import Path

import pytest

from tests.type_checkers import mypy, pyright

# What follows two spaces and `#` is the mistake of a line.
MISTAKES = """\
import diskq
import diskq.logging


async def deliver(batch: diskq.Batch) -> None: ...


async def with_queues() -> None:
    async with diskq.open_queue("q") as queue:
        await queue.send("text")  # text for bytes
        queue.send(b"")  # without await
        await queue.send(b"", durability="sync")  # no such word
        await queue.send(b"", "synced")  # a durability without its name
        await queue.send_many(b"abc")  # one message for many
        text: str = await queue.receive()  # a message is not text
        await queue.recieve()  # a misspelt call
        queue.statistics().bytes_on_disc  # a misspelt figure
        print(text)
        async with queue.working() as work:
            lease = await work.receive()
            lease.bodies  # a misspelt attribute
            work.ack(lease.body)  # a message for its lease


async def with_streams() -> None:
    async with diskq.open_producer("s") as producer, diskq.open_consumer("s", group="g") as consumer:
        async for message in producer:  # who writes does not read
            print(message)
        for message in consumer:  # without async
            print(message)
        received = await consumer.receive()
        await consumer.commit(received.offset)  # an offset for its message
        received.value.encode()  # bytes are encoded


async def with_stores() -> None:
    async with diskq.open_priority_store("p") as store:
        await store.queue().send(b"", "high")  # a priority is a number
        job = await store.queue().receive()
        job.payload  # a name of an earlier version


def without_a_loop() -> None:
    diskq.open_queue("q", durabilty="synced")  # a misspelt option
    diskq.open_producer("s", options=diskq.QueueOptions())  # options of another kind
    with diskq.open_queue("q") as queue:  # without async
        print(queue)
    diskq.open_spool("sp", print)  # delivery is not async
    diskq.open_spool("sp", deliver, retry_on="OSError")  # a name for its class
    diskq.Spool("sp", deliver)  # delivery is async
    diskq.Spool("sp", print, deliver_timeout=1.0)  # a plain function cannot be interrupted
    diskq.logging.SpoolHandler("sp", deliver)  # delivery is async
    with diskq.Queue("q") as engine:
        engine.put(1)  # a number for bytes
        engine.get(timeout="5")  # text for seconds
    with diskq.StreamReader("s") as reader:
        reader.read(1.0).value  # nothing may have come
"""
PLANTED = [number for number, line in enumerate(MISTAKES.splitlines(), 1) if "  # " in line]


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_finds_each_mistake(checker: str, tmp_path: Path) -> None:
    (tmp_path / "mistakes.py").write_text(MISTAKES, encoding="utf-8")
    found = mypy(tmp_path, "--strict") if checker == "mypy" else pyright(tmp_path, "standard")
    assert len(PLANTED) > 20
    assert sorted({complaint.line for complaint in found}) == PLANTED, found

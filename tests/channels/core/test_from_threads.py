# From threads into a channel: all arrives, in order, with few wakings; and what becomes of it without room.

from __future__ import annotations

import logging
import logging.handlers
import queue as stdlib
import threading
from collections.abc import Iterable
from typing import Any

import pytest
import trio

import diskq
from diskq.channels.core.from_threads import ThreadSender, open_thread_sender
from tests.channels.rig import (
    CancelAt,
    blocked,
    crash_disk,
    drain,
    fault_disk,
    numbered,
    opened,
)
from tests.channels.stream_rig import ONE, producing, stored


class Seen:
    """A channel, and the batches in which messages came to it."""

    def __init__(self, channel: diskq.QueueChannel) -> None:
        self._channel = channel
        self.batches: list[int] = []

    async def send_many(self, messages: Iterable[bytes], /) -> None:
        batch = list(messages)
        await self._channel.send_many(batch)
        self.batches.append(len(batch))


async def in_thread(call: Any, *args: Any, **options: Any) -> Any:
    return await trio.to_thread.run_sync(lambda: call(*args, **options))


def outcome_of(call: Any, *args: Any, **options: Any) -> Any:
    try:
        return call(*args, **options)
    except Exception as failure:
        return type(failure)


# --- what arrives -----------------------------------------------------------------------------


async def test_what_threads_put_arrives_and_each_threads_in_order(disk):
    def put(name: bytes) -> None:
        for number in range(500):
            sender.put(b"%s %d" % (name, number))

    names = [b"a", b"b", b"c", b"d"]
    async with opened(disk) as queue:
        async with open_thread_sender(queue, max_messages=50) as sender, trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(in_thread, put, name)
        bodies = drain(queue)
    assert len(bodies) == 2000
    for name in names:
        assert [body for body in bodies if body.startswith(name)] == [
            b"%s %d" % (name, n) for n in range(500)
        ]


async def test_a_burst_is_one_waking_and_few_batches(disk, monkeypatch):
    wakings = 0

    def tell(self: ThreadSender[bytes], tell: Any = ThreadSender._notify) -> None:
        nonlocal wakings
        wakings += 1
        tell(self)

    monkeypatch.setattr(ThreadSender, "_notify", tell)
    async with opened(disk) as queue:
        seen = Seen(queue)
        async with open_thread_sender(seen) as sender:
            for _ in range(2):
                threads = [threading.Thread(target=put_all, args=(sender, numbered(50))) for _ in range(5)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()  # Trio does nothing else meanwhile
                await blocked()
            assert wakings == 2
            assert seen.batches == [100, 100, 50] * 2
            assert sender.qsize() == 0


def put_all(sender: ThreadSender[bytes], bodies: list[bytes]) -> None:
    for body in bodies:
        sender.put_nowait(body)


async def test_it_arrives_while_the_block_lasts(disk):
    async with opened(disk) as queue, open_thread_sender(queue) as sender:
        for body in numbered(3):
            await in_thread(sender.put, body)
            assert await queue.receive() == body


async def test_a_stream_is_a_channel_too(disk):
    async with producing(disk, **ONE) as producer, open_thread_sender(producer) as sender:
        await in_thread(sender.put, ("key", b"value"))
        sender.put_nowait(("key", b"from this thread"))
    assert [(message.key, message.value) for message in stored(disk)] == [
        (b"key", b"value"),
        (b"key", b"from this thread"),
    ]


async def test_loggings_queue_handler_takes_it_for_a_queue(disk):
    class Plain(logging.handlers.QueueHandler):
        def prepare(self, record: logging.LogRecord) -> Any:
            return record.getMessage().encode()

    async with opened(disk) as queue:
        async with open_thread_sender(queue) as sender:
            log = logging.Logger("of this test")
            log.addHandler(Plain(sender))  # type: ignore[arg-type]  # it only puts
            await in_thread(log.warning, "spooled %d", 1)
        assert drain(queue) == [b"spooled 1"]


# --- no room ----------------------------------------------------------------------------------


async def test_without_space_a_thread_gets_full_or_waits(disk):
    async with opened(disk) as queue:
        async with open_thread_sender(queue, max_messages=2) as sender:
            sender.put_nowait(b"0")
            sender.put_nowait(b"1")
            with pytest.raises(stdlib.Full):
                sender.put_nowait(b"2")
            with pytest.raises(RuntimeError, match="put_nowait"):
                sender.put(b"2")
            patient = threading.Thread(target=sender.put, args=(b"3",))
            told: list[Any] = []
            hurried = threading.Thread(target=lambda: told.append(outcome_of(sender.put, b"4", timeout=0.01)))
            hurried.start()
            hurried.join()
            patient.start()
            assert told == [stdlib.Full]
            await in_thread(patient.join)
        assert drain(queue) == [b"0", b"1", b"3"]


async def test_while_the_disk_is_full_messages_wait(disk, autojump_clock, caplog):
    async with opened(disk, max_bytes=2**20, segment_size=2**16, on_full="reject") as queue:
        while outcome_of(queue.send_nowait, bytes(10_000)) is None:
            pass
        async with open_thread_sender(queue, max_messages=3) as sender:
            for number in range(3):
                sender.put_nowait(bytes([number]) * 20_000)
            await trio.sleep(5)
            assert sender.qsize() == 3
            with pytest.raises(stdlib.Full):
                sender.put_nowait(b"more")
            drain(queue)
            await queue.sync()
        assert [body[0] for body in drain(queue)] == [0, 1, 2]
    assert caplog.text.count("wait in memory") == 1


async def test_what_found_no_room_until_the_end_is_an_error_and_counted(disk, autojump_clock, caplog):
    async with opened(disk, max_bytes=2**20, segment_size=2**16, on_full="reject") as queue:
        while outcome_of(queue.send_nowait, bytes(10_000)) is None:
            pass
        with pytest.raises(diskq.FullError):  # noqa: PT012
            async with open_thread_sender(queue) as sender:
                for _ in range(3):
                    sender.put_nowait(bytes(20_000))
    assert "3 messages that threads have sent are lost" in caplog.text


async def test_what_is_too_much_together_goes_in_one_by_one(disk):
    async with opened(disk, max_bytes=2**20, segment_size=2**16, on_full="drop_oldest") as queue:
        async with open_thread_sender(queue) as sender:
            for number in range(100):
                sender.put_nowait(bytes([number]) * 20_000)
        assert drain(queue)[-1][0] == 99


# --- the end of it ----------------------------------------------------------------------------


async def test_leaving_the_block_carries_over_what_was_put_and_refuses_more(disk):
    async with opened(disk) as queue:
        async with open_thread_sender(queue) as sender:
            put_all(sender, numbered(1000))
        assert drain(queue) == numbered(1000)
        assert outcome_of(sender.put_nowait, b"late") is trio.ClosedResourceError
        assert await in_thread(outcome_of, sender.put, b"late") is trio.ClosedResourceError


async def test_a_thread_that_waits_for_space_gets_an_error_at_the_end(disk):
    told: list[Any] = []
    async with opened(disk, max_bytes=2**20, segment_size=2**16) as queue:
        while outcome_of(queue.send_nowait, bytes(10_000)) is None:
            pass
        with trio.CancelScope() as scope:
            async with open_thread_sender(queue, max_messages=1, flush_timeout=0) as sender:
                sender.put_nowait(bytes(20_000))
                thread = threading.Thread(target=lambda: told.append(outcome_of(sender.put, b"x")))
                thread.start()
                await blocked()
                scope.cancel()
        await in_thread(thread.join)
    assert told == [trio.ClosedResourceError]


@pytest.mark.parametrize("count", [1, 250])
async def test_wherever_the_block_is_cancelled_what_was_put_arrives(count):
    step, has_fired = 0, True
    while has_fired:
        step += 1
        saboteur, put = CancelAt(step), 0
        async with opened(crash_disk()) as queue:
            with saboteur.at_work(), saboteur.scope:
                async with open_thread_sender(queue) as sender:
                    for body in numbered(count):
                        sender.put_nowait(body)
                        put += 1
                        if put % 100 == 0:
                            await trio.lowlevel.checkpoint()
            has_fired = saboteur.has_fired
            assert drain(queue) == numbered(put)
    assert step > 3


async def test_a_cancelled_block_that_is_not_left_yet_goes_on_sending(disk, autojump_clock):
    async with opened(disk) as queue:
        with trio.CancelScope() as scope:
            async with open_thread_sender(queue, flush_timeout=1) as sender:
                scope.cancel()
                with trio.CancelScope(shield=True):
                    await trio.sleep(10)
                    sender.put_nowait(b"last words")
                    assert await queue.receive() == b"last words"


async def test_cancelled_with_no_room_it_gives_up_in_time_and_says_so(disk, autojump_clock, caplog):
    async with opened(disk, max_bytes=2**20, segment_size=2**16) as queue:
        while outcome_of(queue.send_nowait, bytes(10_000)) is None:
            pass
        with trio.move_on_after(1) as scope:
            async with open_thread_sender(queue, flush_timeout=3) as sender:
                sender.put_nowait(bytes(20_000))
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert trio.current_time() == pytest.approx(4, abs=0.5)
    assert "1 messages that threads have sent are lost: the channel did not take them in 3 s" in caplog.text


async def test_a_channel_that_fails_raises_in_threads_and_at_the_end(caplog):
    disk = fault_disk()
    async with opened(disk) as queue:
        handle = queue.clone()
        with pytest.raises(trio.ClosedResourceError):  # noqa: PT012
            async with open_thread_sender(handle) as sender:
                handle.close()
                sender.put_nowait(b"never in")
                await blocked()
                assert outcome_of(sender.put_nowait, b"x") is trio.BrokenResourceError
                assert await in_thread(outcome_of, sender.put, b"x") is trio.BrokenResourceError
    assert "1 messages that threads have sent are lost: this handle was closed" in caplog.text


async def test_what_the_block_raises_leaves_it_as_it_is(disk):
    async with opened(disk) as queue:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with open_thread_sender(queue) as sender:
                sender.put_nowait(b"arrives")
                raise ZeroDivisionError
        assert drain(queue) == [b"arrives"]


async def test_it_has_room_for_a_message_at_least(disk):
    async with opened(disk) as queue:
        with pytest.raises(ValueError, match="max_messages"):
            async with open_thread_sender(queue, max_messages=0):
                pass

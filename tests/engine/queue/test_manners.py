# The manners of the standard library's queue.Queue. Law: code that puts into such a queue and gets from it
# works with a Queue; a thread that waits is woken by the message or the space that it waits for, and when
# the queue is closed or has failed.

from __future__ import annotations

import queue as stdlib
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq import FullError, Queue, QueueEmptyError, QueueFullError, QueueWork
from tests import waiting
from tests.engine.queues import disk, failing_disk, opened

MOST_SECONDS = 30.0


class Waiting:
    """A thread that makes one call."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.result: object = None
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            self.result = call()
        except BaseException as failure:
            self.result = failure

    def end(self) -> object:
        self._thread.join(MOST_SECONDS)
        assert not self._thread.is_alive(), "it waits for ever"
        return self.result


until = partial(waiting.until, seconds=MOST_SECONDS, pause=0)


def waits(queue: Queue, messages: int = 0, space: int = 0) -> None:
    """Return when so many threads wait."""

    def is_so() -> bool:
        lines = queue.log.lines
        return lines is not None and (len(lines.for_messages), len(lines.for_space)) == (messages, space)

    until(is_so)


def bounded(**options: Any) -> Queue:
    """A queue that is full."""
    queue = opened(disk(), max_bytes=100_000, segment_size=2_000, **options)
    for size in (1024, 1, 0):
        with suppress(FullError):
            while True:
                queue.put_nowait(b"x" * size)
    return queue


# --- getting ------------------------------------------------------------------------------------------------


def test_an_empty_queue_raises_what_queue_queue_raises() -> None:
    with opened(disk()) as queue:
        for get in (queue.get_nowait, lambda: queue.get(False), lambda: queue.get(timeout=0.0)):
            with pytest.raises(stdlib.Empty):
                get()
        with pytest.raises(QueueEmptyError, match="'q' has no message"):
            queue.get(True, 0.001)
        with pytest.raises(ValueError, match="non-negative"):
            queue.get(timeout=-1.0)


@pytest.mark.parametrize(
    "options", [{}, {"durability": "memory", "memory_size": 10_000}], ids=["files", "memory"]
)
@pytest.mark.parametrize("put", ["put", "put_many"])
def test_a_get_that_waits_is_woken_by_the_put_of_another_thread(options: dict[str, Any], put: str) -> None:
    with opened(disk(), **options) as queue:
        getting = Waiting(queue.get)
        waits(queue, messages=1)
        queue.put(b"one") if put == "put" else queue.put_many([b"one"])
        assert getting.end() == b"one"
        assert queue.empty()


def test_each_of_many_that_wait_gets_one_message() -> None:
    with opened(disk()) as queue:
        getting = [Waiting(queue.get) for _ in range(5)]
        waits(queue, messages=5)
        queue.put_many([b"%d" % number for number in range(3)])
        for number in (3, 4):
            queue.put(b"%d" % number)
        assert sorted(str(each.end()) for each in getting) == [str(b"%d" % number) for number in range(5)]


def test_a_get_that_times_out_leaves_the_line() -> None:
    with opened(disk()) as queue:
        with pytest.raises(QueueEmptyError):
            queue.get(timeout=0.001)
        waits(queue)
        getting = Waiting(queue.get)
        waits(queue, messages=1)
        queue.put(b"one")
        assert getting.end() == b"one"


def test_who_waits_is_woken_when_the_queue_is_closed_or_fails() -> None:
    queue = opened(disk())
    getting = Waiting(queue.get)
    waits(queue, messages=1)
    queue.close()
    assert isinstance(getting.end(), ValueError)

    fs = failing_disk()
    queue = opened(fs)
    getting = Waiting(queue.get)
    waits(queue, messages=1)
    fs.fail("sync_files", nth=1)
    with pytest.raises(diskq.StorageFailedError):
        queue.sync()
    assert isinstance(getting.end(), diskq.StorageFailedError)
    queue.close()


def test_producers_and_consumers_in_threads_lose_nothing(tmp_path: Path) -> None:
    with Queue(tmp_path, "q") as queue:
        got: list[bytes] = []

        def consume() -> None:
            while (message := queue.get()) != b"end":
                got.append(message)

        def produce(first: int) -> None:
            for number in range(first, first + 500):
                queue.put(b"%d" % number)

        consumers = [Waiting(consume) for _ in range(4)]
        producers = [Waiting(lambda first=first: produce(first)) for first in range(0, 2000, 500)]  # type: ignore[misc]
        assert [each.end() for each in producers] == [None] * 4
        for _ in consumers:
            queue.put(b"end")
        assert [each.end() for each in consumers] == [None] * 4
        assert sorted(map(int, got)) == list(range(2000))
        assert not queue.qsize()


# --- putting ------------------------------------------------------------------------------------------------


def test_a_full_queue_raises_what_queue_queue_raises() -> None:
    with bounded() as queue:
        assert queue.full()
        for put in (
            queue.put_nowait,
            lambda body: queue.put(body, False),
            lambda body: queue.put(body, timeout=0),
        ):
            with pytest.raises(stdlib.Full):
                put(b"x" * 1024)
        with pytest.raises(QueueFullError, match="max_bytes=100000"):
            queue.put(b"x" * 1024, True, 0.001)


@pytest.mark.parametrize("on_full", ["reject", "drop_oldest"])
def test_only_with_wait_does_a_put_wait(on_full: str) -> None:
    if on_full == "reject":
        with bounded(on_full="reject") as queue, pytest.raises(stdlib.Full):
            queue.put(b"x" * 1024)
    else:
        with opened(disk(), max_bytes=100_000, segment_size=2_000, on_full="drop_oldest") as queue:
            for _ in range(200):
                queue.put(b"x" * 1024)
            assert not queue.full()


def take_one_by_one(queue: Queue) -> None:
    for _ in range(20):
        queue.get()


def take_leases(queue: Queue) -> None:
    with QueueWork(queue) as work:
        for _ in range(20):
            work.ack(work.get_many(1))


TAKES: dict[str, Callable[[Queue], object]] = {
    "get": take_one_by_one,
    "get_many": lambda queue: queue.get_many(20),
    "advance": lambda queue: queue.advance(len(queue.peek_many(20))),
    "clear": lambda queue: queue.clear(),
    "ack": take_leases,
}


@pytest.mark.parametrize("take", TAKES)
def test_a_put_that_waits_is_woken_when_another_thread_takes_messages(take: str) -> None:
    with bounded() as queue:
        putting = Waiting(lambda: queue.put(b"y" * 1024))
        waits(queue, space=1)
        TAKES[take](queue)
        assert putting.end() is None


def test_a_message_that_never_fits_is_refused_at_once() -> None:
    with opened(disk(), max_bytes=100_000) as queue, pytest.raises(FullError):
        queue.put(b"x" * 150_000)


def test_a_put_whose_durability_is_in_the_place_of_block_is_refused() -> None:
    with opened(disk()) as queue:
        with pytest.raises(TypeError, match="durability is a keyword"):
            queue.put(b"one", "synced")  # type: ignore[arg-type]
        assert queue.empty()


# --- leases -------------------------------------------------------------------------------------------------


def test_a_worker_that_waits_is_woken_by_a_message_and_by_one_that_is_given_back() -> None:
    with opened(disk()) as queue, QueueWork(queue) as work:
        with pytest.raises(stdlib.Empty):
            work.get_nowait()
        for timeout in (0, 0.0, 0.001):
            with pytest.raises(stdlib.Empty):
                work.get(timeout=timeout)
        with pytest.raises(ValueError, match="non-negative"):
            work.get(timeout=-1)
        getting = Waiting(work.get)
        waits(queue, messages=1)
        queue.put(b"one")
        first = getting.end()
        assert isinstance(first, diskq.Lease)
        getting = Waiting(work.get)
        waits(queue, messages=1)
        work.nack(first)
        again = getting.end()
        assert isinstance(again, diskq.Lease)
        assert (again.body, again.attempts) == (b"one", 2)
        work.ack(again)


def test_a_worker_that_waits_gets_a_delayed_message_when_it_is_due(tmp_path: Path) -> None:
    with Queue(tmp_path, "q") as queue, QueueWork(queue) as work:
        queue.put(b"one")
        getting = Waiting(lambda: (work.get(), work.get()))
        until(lambda: work.statistics().in_flight == 1)
        waits(queue, messages=1)
        (lease,) = work._in_flight.values()
        work.nack(lease, delay=0.02)
        result = getting.end()
        assert isinstance(result, tuple)
        assert result[1].attempts == 2
        work.ack(result[1])


def test_a_worker_waits_while_as_many_are_in_flight_as_may_be() -> None:
    with opened(disk()) as queue, QueueWork(queue, options=diskq.QueueWorkOptions(max_in_flight=1)) as work:
        queue.put_many([b"one", b"two"])
        first = work.get()
        getting = Waiting(work.get)
        waits(queue, messages=1)
        work.task_done(first)
        second = getting.end()
        assert isinstance(second, diskq.Lease)
        assert second.body == b"two"
        work.task_done(second)


def test_closing_the_work_wakes_who_waits() -> None:
    with opened(disk()) as queue:
        work = QueueWork(queue)
        getting = Waiting(work.get)
        waits(queue, messages=1)
        work.close()
        assert isinstance(getting.end(), ValueError)


@pytest.mark.parametrize("of", ["queue", "work"])
def test_join_waits_until_every_message_is_acknowledged(of: str) -> None:
    with opened(disk()) as queue, QueueWork(queue) as work:
        joins = queue.join if of == "queue" else work.join
        assert joins()
        queue.put_many([b"one", b"two"])
        assert not joins(0.001)
        joining = Waiting(joins)
        until(lambda: queue.log.lines is not None and len(queue.log.lines.for_end))
        first, second = work.get(), work.get()
        work.task_done(second)
        assert not joins(0.0)
        work.task_done(first)
        assert joining.end() is True


def test_join_waits_until_every_message_was_taken() -> None:
    with opened(disk()) as queue:
        queue.put_many([b"one", b"two"])
        joining = Waiting(queue.join)
        until(lambda: queue.log.lines is not None and len(queue.log.lines.for_end))
        queue.get()
        queue.get_many(5)
        assert joining.end() is True


# --- asking -------------------------------------------------------------------------------------------------


def test_the_number_of_messages() -> None:
    with opened(disk()) as queue:
        assert (queue.qsize(), len(queue), bool(queue), queue.empty(), queue.full()) == (
            0,
            0,
            True,
            True,
            False,
        )
        queue.put_many([b"one", b"two"])
        assert (queue.qsize(), len(queue), bool(queue), queue.empty(), queue.full()) == (
            2,
            2,
            True,
            False,
            False,
        )


def test_it_says_what_it_is() -> None:
    queue = opened(disk())
    queue.put(b"one")
    assert repr(queue) == "<Queue 'q': 1 messages, open>"
    queue.close()
    assert repr(queue) == "<Queue 'q': 1 messages, closed>"


def test_a_logging_handler_puts_into_it(tmp_path: Path) -> None:
    import logging
    import logging.handlers

    class Handler(logging.handlers.QueueHandler):
        def prepare(self, record: logging.LogRecord) -> Any:
            return self.format(record).encode()

    with Queue(tmp_path, "log") as queue:
        handler = Handler(queue)
        logger = logging.Logger("shop")
        logger.addHandler(handler)
        logger.warning("sold out")
        assert queue.get_nowait() == b"sold out"

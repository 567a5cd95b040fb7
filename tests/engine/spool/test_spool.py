# A spool without an event loop. Law: what was accepted is delivered, in order, or is a dead letter; what was
# not delivered stays, and the next process delivers it.

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import diskq
from diskq.engine.spool.files import spool_status
from diskq.options import QueueOptions
from tests import waiting

LONG = 20.0
QUICK: dict[str, Any] = {"backoff_initial": 0.01, "backoff_jitter": 0.0}


class Sink:
    """Delivers into a list. It first raises the given errors, one in each try."""

    def __init__(self, *answers: BaseException) -> None:
        self.answers = list(answers)
        self.got: list[bytes] = []
        self.tries: list[list[bytes]] = []
        self.attempts: list[int] = []

    def __call__(self, batch: diskq.Batch) -> None:
        self.tries.append(list(batch))
        self.attempts.append(batch.attempts)
        if self.answers:
            raise self.answers.pop(0)
        self.got += batch


until = partial(waiting.until, seconds=LONG, pause=0.002)


# --- delivering -------------------------------------------------------------------------------


def test_what_is_put_is_delivered_in_order(tmp_path: Path) -> None:
    sink = Sink()
    with diskq.Spool(tmp_path / "s", sink, max_messages=7) as spool:
        spool.put_many([b"%d" % number for number in range(50)])
        spool.put(b"last")
        assert spool.drained(LONG)
        assert sink.got == [*(b"%d" % number for number in range(50)), b"last"]
        assert max(map(len, sink.tries)) <= 7
        until(lambda: spool.statistics().delivered == 51)
        assert spool.statistics().depth == 0
        assert repr(spool).endswith("0 messages, open>")


def test_a_failure_is_tried_again_until_it_is_none(tmp_path: Path) -> None:
    sink = Sink(ConnectionError("down"), ConnectionError("down"), diskq.Retry("soon", after=0.01))
    with diskq.Spool(tmp_path / "s", sink, **QUICK) as spool:
        spool.put_many([b"1", b"2"])
        assert spool.drained(LONG)
        assert (sink.got, sink.attempts) == ([b"1", b"2"], [1, 2, 3, 4])
        assert spool.statistics().failed_tries == 3


def test_what_the_destination_refuses_becomes_dead_letters_and_may_be_replayed(tmp_path: Path) -> None:
    sink = Sink(diskq.Permanent("HTTP 400", [1]))
    with diskq.Spool(tmp_path / "s", sink) as spool:
        spool.put_many([b"1", b"2", b"3"])
        assert spool.drained(LONG)
        assert sink.got == [b"1", b"3"]
        (letter,) = spool.dead_letters.list()
        assert (letter.body, letter.reason, letter.attempts) == (b"2", "HTTP 400", 1)
        assert spool.dead_letters.replay([letter.id]) == 1
        assert spool.drained(LONG)
        assert (sink.got[2:], len(spool.dead_letters)) == ([b"2"], 0)


def test_after_the_last_attempt_the_batch_is_given_up(tmp_path: Path) -> None:
    sink = Sink(*(ConnectionError("down") for _ in range(3)))
    with diskq.Spool(tmp_path / "s", sink, max_attempts=3, **QUICK) as spool:
        spool.put(b"1")
        assert spool.drained(LONG)
        assert [letter.reason for letter in spool.dead_letters.list()] == [
            "gave up after 3 attempts: ConnectionError: down"
        ]
        assert spool.dead_letters.purge() == 1


def test_a_batch_that_is_not_full_lingers(tmp_path: Path) -> None:
    sink = Sink()
    with diskq.Spool(tmp_path / "s", sink, linger=LONG, max_messages=3) as spool:
        for number in range(3):
            spool.put(b"%d" % number)
        assert spool.drained(LONG)
        assert sink.tries == [[b"0", b"1", b"2"]]


def test_a_paused_spool_delivers_when_it_is_resumed(tmp_path: Path) -> None:
    sink = Sink()
    with diskq.Spool(tmp_path / "s", sink) as spool:
        spool.pause()
        spool.put(b"1")
        assert not spool.drained(0.05)
        assert spool.statistics().is_paused
        spool.resume()
        assert spool.drained(LONG)


def test_resume_ends_a_back_off(tmp_path: Path) -> None:
    sink = Sink(ConnectionError("down"))
    with diskq.Spool(tmp_path / "s", sink, backoff_initial=LONG) as spool:
        spool.put(b"1")
        until(lambda: spool.statistics().next_try_in)
        spool.resume()
        assert spool.drained(LONG / 2)


def test_threads_put_while_it_delivers(tmp_path: Path) -> None:
    sink = Sink()
    with diskq.Spool(tmp_path / "s", sink, max_messages=50) as spool:

        def put(thread: int) -> None:
            for number in range(200):
                spool.put(b"%d %d" % (thread, number))

        threads = [threading.Thread(target=put, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert spool.drained(LONG)
    for one in range(8):
        mine = [int(body.split()[1]) for body in sink.got if int(body.split()[0]) == one]
        assert mine == list(range(200))


def test_a_full_spool_waits_until_some_are_delivered(tmp_path: Path) -> None:
    sink, queue = Sink(), QueueOptions(max_bytes=65536)
    with diskq.Spool(tmp_path / "s", sink, queue=queue, max_messages=5) as spool:
        for number in range(300):
            spool.put(b"%d" % number + b"x" * 1000, timeout=LONG)
        assert spool.drained(LONG)
    assert len(sink.got) == 300


# --- closing ----------------------------------------------------------------------------------


def test_what_was_not_delivered_is_delivered_by_the_next_one(tmp_path: Path) -> None:
    down, sink = Sink(*(ConnectionError() for _ in range(10_000))), Sink()
    with diskq.Spool(tmp_path / "s", down) as spool:
        spool.put_many([b"1", b"2"])
        until(lambda: down.tries)
    with diskq.Spool(tmp_path / "s", sink, drain_timeout=LONG):
        pass
    assert sink.got == [b"1", b"2"]


def test_a_channel_and_a_spool_open_the_same_files_in_turn(tmp_path: Path) -> None:
    got: list[bytes] = []

    async def deliver(batch: diskq.Batch) -> None:
        got.extend(batch)

    async def main() -> None:
        async with diskq.open_spool(tmp_path / "s", deliver) as channel:
            await channel.drained()

    down = Sink(*(ConnectionError() for _ in range(10_000)))
    with diskq.Spool(tmp_path / "s", down) as spool:
        spool.put_many([b"1", b"2"])
    trio.run(main)
    assert got == [b"1", b"2"]


def test_closing_waits_for_the_batch_that_is_being_delivered(tmp_path: Path) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow(batch: diskq.Batch) -> None:
        began.set()
        may_end.wait(LONG)

    spool = diskq.Spool(tmp_path / "s", slow)
    spool.put(b"1")
    began.wait(LONG)
    threading.Timer(0.05, may_end.set).start()
    spool.close()
    spool.close()
    status = spool_status(tmp_path / "s")
    assert status is not None
    assert (status.delivered, status.depth) == (1, 0)
    with pytest.raises(ValueError, match="closed"):
        spool.put(b"2")


def test_an_error_that_is_not_to_be_tried_again_ends_delivery_and_is_raised_at_the_end(
    tmp_path: Path,
) -> None:
    spool = diskq.Spool(tmp_path / "s", Sink(ZeroDivisionError()), retry_on=OSError)
    spool.put(b"1")
    until(lambda: spool.failure)
    spool.put(b"2")  # it is kept
    with pytest.raises(ZeroDivisionError):
        spool.drained()
    with pytest.raises(ZeroDivisionError):
        spool.close()
    sink = Sink()
    with diskq.Spool(tmp_path / "s", sink, drain_timeout=LONG):
        pass
    assert sink.got == [b"1", b"2"]


def test_the_error_of_the_block_is_the_one_that_is_raised(tmp_path: Path) -> None:
    def use() -> None:
        with diskq.Spool(tmp_path / "s", Sink(ZeroDivisionError()), retry_on=OSError) as spool:
            spool.put(b"1")
            until(lambda: spool.failure)
            raise KeyError

    with pytest.raises(KeyError):
        use()


def test_deliver_may_not_wait_for_itself(tmp_path: Path) -> None:
    raised: list[str] = []

    def deliver(batch: diskq.Batch) -> None:
        for call in (spool.drained, spool.close):
            try:
                call()
            except RuntimeError as error:
                raised.append(str(error))

    with diskq.Spool(tmp_path / "s", deliver) as spool:
        spool.put(b"1")
        assert spool.drained(LONG)
    assert ["called drained()" in raised[0], "called close()" in raised[1]] == [True, True]


async def _deliver(batch: diskq.Batch) -> None: ...


def test_what_it_cannot_do_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="give a plain one"):
        diskq.Spool(tmp_path / "s", _deliver)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be interrupted"):
        diskq.Spool(tmp_path / "s", Sink(), deliver_timeout=1.0)  # type: ignore[call-arg]
    with diskq.Spool(tmp_path / "s", Sink()), pytest.raises(diskq.LockedError):
        diskq.Spool(tmp_path / "s", Sink())


def test_an_async_function_in_disguise_ends_delivery(tmp_path: Path) -> None:
    disguised: Callable[[diskq.Batch], Any] = lambda batch: _deliver(batch)  # noqa: E731
    spool = diskq.Spool(tmp_path / "s", disguised, retry_on=OSError)
    spool.put(b"1")
    with pytest.raises(TypeError, match="give a plain function"):
        spool.drained(LONG)
    with pytest.raises(TypeError):
        spool.close()


# --- other processes --------------------------------------------------------------------------

PUTS = """
import sys, diskq
def deliver(batch):
    with open(sys.argv[2], "ab", buffering=0) as file:
        for body in batch:
            file.write(body + b"\\n")
with diskq.Spool(sys.argv[1], deliver, max_messages=10) as spool:
    for number in range(int(sys.argv[3]), 10**6):
        spool.put(b"%d" % number)
        print(number, flush=True)
"""


@pytest.mark.slow
def test_kills_lose_nothing_and_repeat_at_most_the_batch_in_hand(tmp_path: Path) -> None:
    accepted, kills = -1, 8
    for kill in range(kills):
        command = [sys.executable, "-c", PUTS, str(tmp_path / "s"), str(tmp_path / "got"), str(accepted + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                accepted = int(line)
                if accepted >= (kill + 1) * 100:
                    child.send_signal(signal.SIGKILL)
                    break
            rest = child.stdout.read().split("\n")[:-1]
            accepted = int(rest[-1]) if rest else accepted
    got: list[int] = []
    with diskq.Spool(tmp_path / "s", lambda batch: got.extend(map(int, batch)), drain_timeout=LONG):
        pass
    before = [int(line) for line in (tmp_path / "got").read_bytes().split()]
    found = before + got
    assert set(range(accepted + 1)) <= set(found)
    assert len(found) - len(set(found)) <= 11 * kills


def _put(spool: diskq.Spool, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        spool.put(b"x")
    except diskq.ForkedError as error:
        answers.put(str(error))


def test_a_child_of_a_fork_is_refused(tmp_path: Path) -> None:
    with diskq.Spool(tmp_path / "s", Sink()) as spool:
        context = multiprocessing.get_context("fork")
        answers: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
        child = context.Process(target=_put, args=(spool, answers))
        child.start()
        assert str(os.getpid()) in answers.get()
        child.join()
        assert child.exitcode == 0


def test_its_thread_holds_nothing_while_it_logs(tmp_path: Path) -> None:
    """A handler of logging may wait for a thread that puts, and holds what the handler waits for."""

    class Waiting(logging.Handler):
        is_reached, may_go = threading.Event(), threading.Event()

        def emit(self, record: logging.LogRecord) -> None:
            self.is_reached.set()
            self.may_go.wait(LONG)

    handler, logger = Waiting(), logging.getLogger("diskq.spool")
    logger.addHandler(handler)
    try:
        with diskq.Spool(tmp_path / "s", Sink(ConnectionError("down")), **QUICK) as spool:
            spool.put(b"1")
            assert handler.is_reached.wait(LONG)
            putting = threading.Thread(target=spool.put, args=(b"2",))
            putting.start()
            putting.join(LONG / 2)
            is_stuck = putting.is_alive()
            handler.may_go.set()
            assert not is_stuck
            putting.join()
            assert spool.drained(LONG)
    finally:
        logger.removeHandler(handler)

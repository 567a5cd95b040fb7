# Threads that wake one another. Law: each that `wake_all` was given returns from `sleep`, and a signal that
# ends the sleep of one leaves the others to be woken.

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest

from diskq._native.core.chained_wait import ChainedWait, wake_all
from tests import waiting

MOST_SECONDS = 30.0

until = partial(waiting.until, seconds=MOST_SECONDS, pause=0)


class Sleeper:
    """A thread that sleeps."""

    def __init__(self) -> None:
        self.wait = ChainedWait()
        self._thread = threading.Thread(target=self.wait.sleep)
        self._thread.start()

    def is_asleep(self) -> bool:
        return self.wait.is_asleep

    def join(self) -> None:
        self._thread.join(MOST_SECONDS)
        assert not self._thread.is_alive(), "it sleeps for ever"


def sleepers(count: int) -> list[Sleeper]:
    """Threads that are asleep."""
    found = [Sleeper() for _ in range(count)]
    for each in found:
        until(each.is_asleep)
    return found


def wake(found: list[Sleeper]) -> None:
    wake_all([each.wait for each in found])
    for each in found:
        each.join()


@pytest.mark.parametrize("count", [1, 2, 64])
def test_all_that_sleep_return(count: int) -> None:
    wake(sleepers(count))


def test_all_are_awake_at_once() -> None:
    found = sleepers(3)
    waits = [each.wait for each in found]
    wake_all(waits)
    assert [each.is_awake for each in waits] == [True] * 3
    for each in found:
        each.join()


def test_who_is_woken_before_it_sleeps_does_not_sleep() -> None:
    early = ChainedWait()
    found = sleepers(2)
    wake_all([found[0].wait, early, found[1].wait])
    early.sleep()
    for each in found:
        each.join()


def test_one_is_woken_by_itself_and_once() -> None:
    found = sleepers(3)
    found[1].wait.wake()
    found[1].wait.wake()
    found[1].join()
    assert not found[0].wait.is_awake
    wake(found)


def test_none_are_woken() -> None:
    wake_all([])


def sleep_under_signals(wait: ChainedWait, handle: Callable[[], object], is_over: threading.Event) -> None:
    """Sleep in this thread, which gets signals until `is_over`."""
    main = threading.get_ident()

    def send() -> None:
        while not is_over.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)
            is_over.wait(0.001)

    old = signal.signal(signal.SIGUSR1, lambda *_: handle())
    sending = threading.Thread(target=send)
    sending.start()
    try:
        wait.sleep()
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        is_over.set()
        sending.join(MOST_SECONDS)
        signal.signal(signal.SIGUSR1, old)


class Interrupted(Exception):
    pass


def test_an_exception_of_a_signals_handler_ends_a_sleep_and_leaves_the_others() -> None:
    found, wait, is_over = sleepers(2), ChainedWait(), threading.Event()

    def interrupt() -> None:
        if not is_over.is_set():  # another one may be on its way
            is_over.set()
            raise Interrupted

    with pytest.raises(Interrupted):
        sleep_under_signals(wait, interrupt, is_over)
    assert not wait.is_asleep
    wake_all([found[0].wait, wait, found[1].wait])
    for each in found:
        each.join()


def test_a_signal_whose_handler_returns_does_not_end_a_sleep() -> None:
    wait, is_over, handled = ChainedWait(), threading.Event(), []

    def handle() -> None:
        handled.append(wait.is_awake)
        if len(handled) == 5:
            is_over.set()
            wait.wake()

    sleep_under_signals(wait, handle, is_over)
    assert handled[:5] == [False] * 5


def test_a_handler_may_wake_the_thread_that_it_interrupts_and_those_after_it() -> None:
    found, wait, is_over = sleepers(2), ChainedWait(), threading.Event()

    def handle() -> None:
        is_over.set()
        wake_all([found[0].wait, wait, found[1].wait])
        for each in found:
            each.join()  # this thread is no link: it could not wake them

    sleep_under_signals(wait, handle, is_over)


@pytest.mark.parametrize("rounds", [50])
def test_wherever_signals_come_each_is_woken(rounds: int) -> None:
    for _ in range(rounds):
        found, wait, is_over = sleepers(2), ChainedWait(), threading.Event()
        waits = [found[0].wait, wait, found[1].wait]

        def wake_soon(waits: list[ChainedWait] = waits) -> None:
            until(lambda: waits[1].is_asleep)
            wake_all(waits)

        waking = threading.Thread(target=wake_soon)
        waking.start()
        sleep_under_signals(wait, lambda: None, is_over)
        waking.join(MOST_SECONDS)
        for each in found:
            each.join()

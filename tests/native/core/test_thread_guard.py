# The thread guard. Law: one thread at a time holds it, each that waits gets it, and a wait that a signal ends
# leaves nothing behind.

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from diskq._native.core.thread_guard import ThreadGuard
from tests import waiting

MOST_SECONDS = 30.0


until = partial(waiting.until, seconds=MOST_SECONDS, pause=0)


class Visitor:
    """A thread that takes the guard, holds it until `leave`, and gives it back."""

    def __init__(self, guard: ThreadGuard, got: list[object], name: object = None) -> None:
        self._guard, self._got, self._name = guard, got, name
        self._leave = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._visit)
        self._thread.start()

    def _visit(self) -> None:
        try:
            with self._guard:
                self._got.append(self._name)
                assert self._leave.wait(MOST_SECONDS)
        except BaseException as failure:
            self.failure = failure

    def leave(self) -> None:
        self._leave.set()

    def join(self) -> None:
        self._leave.set()
        self._thread.join(MOST_SECONDS)
        assert not self._thread.is_alive()


@pytest.fixture
def guard() -> ThreadGuard:
    return ThreadGuard(lambda: RuntimeError("another one has it"))


@pytest.fixture
def inside(guard: ThreadGuard) -> Iterator[Visitor]:
    """Another thread, which is inside."""
    got: list[object] = []
    visitor = Visitor(guard, got)
    until(lambda: bool(got))
    yield visitor
    visitor.join()


def test_a_thread_that_is_inside_may_enter_again_and_leaves_as_often(guard: ThreadGuard) -> None:
    got: list[object] = []
    with guard:
        with guard:
            visitor = Visitor(guard, got)
            until(lambda: guard.waiting == 1)
        assert not got
    visitor.join()
    assert got == [None]


def test_threads_that_wait_come_in_the_order_of_arrival(guard: ThreadGuard) -> None:
    got: list[object] = []
    visitors = []
    with guard:
        for name in range(5):
            visitors.append(Visitor(guard, got, name))
            until(lambda: guard.waiting == len(visitors))
    for visitor in visitors:
        visitor.join()  # it leaves: the next one enters
    assert got == list(range(5))
    assert guard.waiting == 0


def test_a_thread_that_was_woken_in_vain_is_handed_the_guard_the_next_time(guard: ThreadGuard) -> None:
    got: list[object] = []
    with guard:
        visitor = Visitor(guard, got)
        visitor.leave()
        until(lambda: guard.waiting == 1)
    before = sys.getswitchinterval()
    sys.setswitchinterval(10 * MOST_SECONDS)  # other threads run while the guard is held, and not between
    try:
        end = time.monotonic() + MOST_SECONDS
        while not got:
            assert time.monotonic() < end
            with guard:
                time.sleep(0.001)  # it runs, and finds that the guard is taken again
    finally:
        sys.setswitchinterval(before)
    visitor.join()


def test_a_bound_guard_refuses_other_threads_at_once_and_those_that_wait(guard: ThreadGuard) -> None:
    got: list[object] = []
    guard.take()
    visitor = Visitor(guard, got)
    until(lambda: guard.waiting == 1)
    guard.bind(lambda: RuntimeError("it is bound"))
    visitor.join()
    assert str(visitor.failure) == "it is bound"
    assert guard.waiting == 0
    late = Visitor(guard, got)
    late.join()
    assert str(late.failure) == "it is bound"
    guard.unbind()
    guard.give()
    assert not got
    Visitor(guard, got).join()
    assert got == [None]


def test_binding_waits_for_no_thread(guard: ThreadGuard, inside: Visitor) -> None:
    with pytest.raises(RuntimeError, match="another one has it"):
        guard.bind(lambda: RuntimeError("it is bound"))
    inside.join()
    guard.bind(lambda: RuntimeError("it is bound"))
    guard.unbind()


class Signal:
    """Sends a signal to this thread once it waits for the guard, and calls `handle` in it."""

    def __init__(self, guard: ThreadGuard, handle: Callable[[], object]) -> None:
        self._guard = guard
        self._old = signal.signal(signal.SIGUSR1, lambda *_: handle())
        self._thread = threading.Thread(target=self._send, args=(threading.get_ident(),))

    def _send(self, thread: int) -> None:
        until(lambda: self._guard.waiting > 0)
        while self._guard.waiting == 1 and not self._is_over:
            signal.pthread_kill(thread, signal.SIGUSR1)
            time.sleep(0.01)  # one may come before it sleeps

    def __enter__(self) -> Signal:
        self._is_over = False
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._old)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_signal_whose_handler_raises_ends_the_wait_and_the_next_one_is_woken(
    guard: ThreadGuard, inside: Visitor
) -> None:
    with pytest.raises(KeyboardInterrupt), Signal(guard, interrupt), guard:
        pass
    assert guard.waiting == 0
    got: list[object] = []
    last = Visitor(guard, got)
    until(lambda: guard.waiting == 1)
    inside.join()
    last.join()
    assert got == [None]


def test_a_signal_whose_handler_returns_does_not_end_the_wait(guard: ThreadGuard, inside: Visitor) -> None:
    with Signal(guard, inside.leave), guard:
        assert guard.waiting == 0


def test_a_handler_may_use_the_guard_that_its_thread_waits_for(guard: ThreadGuard, inside: Visitor) -> None:
    done: list[int] = []

    def use_it() -> None:
        if not done:
            done.append(guard.waiting)
            inside.leave()
            with guard:
                done.append(guard.waiting)

    with Signal(guard, use_it), guard:
        pass
    assert done == [0, 0]
    assert guard.waiting == 0


@pytest.mark.parametrize("threads", [2, 16])
def test_no_wake_up_is_lost_and_no_two_are_inside(guard: ThreadGuard, threads: int) -> None:
    total = 0
    turns = 4_000 // threads
    before = sys.getswitchinterval()

    def count() -> None:
        nonlocal total
        for turn in range(turns):
            with guard:
                seen = total
                if turn % 8 == 0:
                    time.sleep(0)  # the others run, and meet a guard that is taken
                total = seen + 1

    crowd = [threading.Thread(target=count) for _ in range(threads)]
    sys.setswitchinterval(1e-5)
    try:
        for each in crowd:
            each.start()
        for each in crowd:
            each.join(MOST_SECONDS)
    finally:
        sys.setswitchinterval(before)
    assert not any(each.is_alive() for each in crowd)
    assert total == turns * threads
    assert guard.waiting == 0

# Spools with slots. Law: any number of processes put at the same time, each has a slot of its own, and what a
# dead process has accepted is delivered by another one.

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

import diskq
from diskq.channels.spool import spool as channel_module
from diskq.engine.spool import spool as spool_module
from diskq.tools.stores import stores_at
from diskq.tools.view.spool import look_at_spool, slots_of
from tests import waiting
from tests.loops import each_loop

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # there are threads

LONG = 20.0


until = partial(waiting.until, seconds=LONG, pause=0.01)


def down(batch: diskq.Batch) -> None:
    raise ConnectionError


def test_each_one_that_opens_has_the_first_free_slot(tmp_path: Path) -> None:
    def opened() -> diskq.Spool:
        return diskq.Spool(tmp_path / "s", lambda batch: None, slots=True)

    with opened() as one, opened() as two:
        assert [one.path, two.path] == [f"{tmp_path}/s/slot.000", f"{tmp_path}/s/slot.001"]
        one.close()
        with opened() as three:
            assert three.path == one.path
    assert slots_of(f"{tmp_path}/s") == [f"{tmp_path}/s/slot.000", f"{tmp_path}/s/slot.001"]
    assert {store.path for store in stores_at(tmp_path / "s") if store.kind == "spool"} == set(
        slots_of(f"{tmp_path}/s")
    )


def test_the_next_one_that_opens_delivers_what_is_in_its_slot(tmp_path: Path) -> None:
    got: list[bytes] = []
    with diskq.Spool(tmp_path / "s", down, slots=True) as spool:
        spool.put(b"1")
    with diskq.Spool(tmp_path / "s", got.extend, slots=True) as spool:
        assert spool.drained(LONG)
    assert got == [b"1"]


def test_an_idle_one_delivers_what_another_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "ADOPTING", 0.05)
    got: list[bytes] = []
    with diskq.Spool(tmp_path / "s", got.extend, slots=True) as idle:
        with diskq.Spool(tmp_path / "s", down, slots=True) as other:
            assert other.path != idle.path
            other.put_many([b"1", b"2"])
        until(lambda: got == [b"1", b"2"])
        idle.put(b"3")
        until(lambda: got == [b"1", b"2", b"3"])


async def test_an_idle_channel_delivers_what_a_spool_has_left(tmp_path: Path) -> None:
    got: list[bytes] = []

    async def deliver(batch: diskq.Batch) -> None:
        got.extend(batch)

    with (
        diskq.Spool(tmp_path / "s", down, slots=True) as first,
        diskq.Spool(tmp_path / "s", down, slots=True) as o,
    ):
        first.put(b"0")
        o.put_many([b"1", b"2"])
    async with diskq.open_spool(tmp_path / "s", deliver, slots=True):
        await trio.to_thread.run_sync(until, lambda: len(got) == 3)
    assert sorted(got) == [b"0", b"1", b"2"]


@each_loop
async def test_a_try_for_another_slot_is_completed_though_messages_of_its_own_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "_LOOK", 0.001)
    monkeypatch.setattr(channel_module, "ADOPTING", 0.001)
    tried: list[bytes] = []
    is_tried, go_on = anyio.Event(), anyio.Event()

    async def deliver(batch: diskq.Batch) -> None:
        tried.extend(batch)
        is_tried.set()
        await go_on.wait()

    def is_empty() -> bool:
        return not any(look_at_spool(slot).status.depth for slot in slots_of(f"{tmp_path}/s"))

    with (
        diskq.Spool(tmp_path / "s", down, slots=True),
        diskq.Spool(tmp_path / "s", down, slots=True) as other,
    ):
        other.put(b"left")
    with anyio.fail_after(LONG):
        async with diskq.open_spool(tmp_path / "s", deliver, slots=True) as spool:
            await is_tried.wait()
            await spool.send(b"own")
            await anyio.sleep(0.1)  # it looks a hundred times whether there are messages of its own
            go_on.set()
            await anyio.to_thread.run_sync(until, is_empty)
    assert sorted(tried) == [b"left", b"own"]


def test_messages_of_its_own_do_not_wait_until_another_slot_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "_LOOK", 0.01)
    got: list[bytes] = []
    is_tried = threading.Event()

    def deliver(batch: diskq.Batch) -> None:
        if b"left" in batch:
            is_tried.set()
            raise ConnectionError
        got.extend(batch)

    with (
        diskq.Spool(tmp_path / "s", down, slots=True),
        diskq.Spool(tmp_path / "s", down, slots=True) as other,
    ):
        other.put(b"left")
    with diskq.Spool(tmp_path / "s", deliver, slots=True, drain_timeout=1000.0) as spool:
        assert is_tried.wait(LONG)
        spool.put(b"own")
        until(lambda: got == [b"own"])


def _put_in_a_child(spool: diskq.Spool) -> None:
    spool.put(b"child %d" % os.getpid())
    spool.drained(LONG)
    os._exit(0)


def test_a_child_of_a_fork_has_a_slot_of_its_own(tmp_path: Path) -> None:
    def deliver(batch: diskq.Batch) -> None:
        with (tmp_path / "got").open("ab") as file:
            file.writelines(body + b"\n" for body in batch)

    with diskq.Spool(tmp_path / "s", deliver, slots=True) as spool:
        spool.put(b"parent")
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=_put_in_a_child, args=(spool,)) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join(LONG)
        spool.put(b"parent again")
        assert spool.drained(LONG)
    lines = (tmp_path / "got").read_bytes().splitlines()
    assert sorted(lines) == sorted(
        [b"parent", b"parent again", *(b"child %d" % (each.pid or 0) for each in children)]
    )


CALLS: dict[str, Callable[[diskq.Spool], object]] = {
    "sync": lambda spool: spool.sync(),
    "drained": lambda spool: spool.drained(),
    "pause": lambda spool: spool.pause(),
    "resume": lambda spool: spool.resume(),
}
"""They wait for nothing in a slot that is empty."""


def _call_in_a_child(call: Callable[[], object]) -> str:
    """What it comes to in a child of a fork, which may not take long."""
    results, told = os.pipe()
    if (child := os.fork()) == 0:
        signal.alarm(int(LONG))
        try:
            text = repr(call())
        except BaseException as failure:
            text = f"{type(failure).__name__}: {failure}"
        os.write(told, text.encode())
        os._exit(0)
    os.close(told)
    with open(results, "rb") as file:
        text = file.read().decode()
    assert os.waitpid(child, 0)[1] == 0, "it hangs"
    return text


@pytest.mark.parametrize("name", CALLS)
def test_the_first_call_of_a_child_gives_it_a_slot_whatever_its_parent_waits_for(
    name: str, tmp_path: Path
) -> None:
    with diskq.Spool(tmp_path / "s", down, slots=True) as spool:
        spool.put(b"of the parent")

        def call() -> str:
            CALLS[name](spool)
            spool.put(b"of the child", durability="synced")
            return spool.path

        assert _call_in_a_child(call) == repr(f"{tmp_path}/s/slot.001")
        assert spool.statistics().depth == 1
    left: list[bytes] = []
    with diskq.Spool(tmp_path / "s" / "slot.001", left.extend) as other:
        assert other.drained(LONG)
    assert left == [b"of the child"]


def test_a_child_of_a_child_that_is_opening_its_slot_opens_one_of_its_own(tmp_path: Path) -> None:
    class Slow(diskq.Spool):
        is_slow = False

        def _begin(self, fs: Any) -> None:
            if self.is_slow:
                has_begun.set()
                assert go_on.wait(LONG)
            super()._begin(fs)

    has_begun, go_on = threading.Event(), threading.Event()

    def put(body: bytes) -> str:
        spool.is_slow = False
        spool.put(body, durability="synced")
        return spool.path

    def put_and_fork() -> tuple[str, str]:
        spool.is_slow = True
        opening = threading.Thread(target=spool.put, args=(b"of the child",))
        opening.start()
        assert has_begun.wait(LONG)
        of_the_grandchild = _call_in_a_child(lambda: put(b"of the grandchild"))
        go_on.set()
        opening.join()
        return of_the_grandchild, spool.path

    with Slow(tmp_path / "s", down, slots=True) as spool:
        slot = f"{tmp_path}/s/slot.001"
        assert _call_in_a_child(put_and_fork) == repr((repr(slot), slot))  # it was free again
    left: list[bytes] = []
    with diskq.Spool(slot, left.extend) as other:
        assert other.drained(LONG)
    assert left == [b"of the grandchild", b"of the child"]


def test_a_child_that_could_not_open_its_slot_tries_it_again_at_its_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no cursor")

    def call() -> str:
        with monkeypatch.context() as patch:
            patch.setattr(spool_module, "DeliveryCursor", fail)
            for _ in range(2):
                with pytest.raises(OSError, match="no cursor"):
                    spool.put(b"1")
        spool.put(b"2", durability="synced")
        return spool.path

    with diskq.Spool(tmp_path / "s", down, slots=True) as spool:
        assert _call_in_a_child(call) == repr(f"{tmp_path}/s/slot.001")


@pytest.mark.parametrize("name", CALLS)
def test_without_slots_each_call_of_a_child_is_refused(name: str, tmp_path: Path) -> None:
    with diskq.Spool(tmp_path / "s", down) as spool:
        spool.put(b"of the parent")
        assert "ForkedError: queue 'spool'" in _call_in_a_child(lambda: CALLS[name](spool))


@pytest.mark.parametrize("slots", [False, True])
def test_dead_letters_are_those_of_the_parent(slots: bool, tmp_path: Path) -> None:
    with diskq.Spool(tmp_path / "s", down, slots=slots) as spool:
        letters = spool.dead_letters
        for call in (letters.list, letters.replay, letters.purge):
            assert f"ForkedError: queue 'spool' in {spool.path}" in _call_in_a_child(call)


def test_the_slot_of_a_process_that_was_killed_is_free_though_its_child_lives(tmp_path: Path) -> None:
    told, tell = os.pipe()
    wait, go_on = os.pipe()
    if (parent := os.fork()) == 0:
        spool = diskq.Spool(tmp_path / "s", down, slots=True)
        spool.put(b"1")
        if os.fork() == 0:
            os.close(go_on)
            os.write(tell, b"x")
            os.read(wait, 1)  # until the test ends
            os._exit(0)
        signal.pause()
    os.read(told, 1)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    got: list[bytes] = []
    with diskq.Spool(tmp_path / "s", got.extend, slots=True) as spool:
        assert spool.path.endswith("slot.000")
        assert spool.drained(LONG)
    os.close(go_on)
    assert got == [b"1"]


WORKER = """
import sys, diskq
def deliver(batch):
    with open(sys.argv[2], "ab", buffering=0) as file:
        file.write(b"".join(body + b"\\n" for body in batch))
with diskq.Spool(sys.argv[1], deliver, slots=True, max_messages=1) as spool:
    for number in range(100_000):
        spool.put(b"%s-%d" % (sys.argv[3].encode(), number))
        sys.stdout.write("%s-%d\\n" % (sys.argv[3], number))
        sys.stdout.flush()
"""


@pytest.mark.slow
def test_workers_that_are_killed_lose_nothing_and_repeat_one_message_each_at_most(tmp_path: Path) -> None:
    chance, accepted, kills = random.Random(1), list[bytes](), 12
    running: list[subprocess.Popen[bytes]] = []
    outs: list[Path] = []
    for _ in range(kills):
        while len(running) < 4:
            outs.append(tmp_path / f"out{len(outs)}")
            command = [
                sys.executable,
                "-c",
                WORKER,
                str(tmp_path / "s"),
                str(tmp_path / "got"),
                f"w{len(outs)}",
            ]
            with outs[-1].open("wb") as file:
                running.append(subprocess.Popen(command, stdout=file))
        until(lambda: all(out.stat().st_size for out in outs))
        time.sleep(chance.random() / 5)
        victim = running.pop(chance.randrange(4))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    for worker in running:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    for out in outs:
        accepted += out.read_bytes().split(b"\n")[:-1]
    for slot in slots_of(str(tmp_path / "s")):
        rest: list[bytes] = []
        with diskq.Spool(slot, rest.extend) as spool:
            assert spool.drained(LONG)
        with (tmp_path / "got").open("ab") as got:
            got.writelines(body + b"\n" for body in rest)
    found = Counter((tmp_path / "got").read_bytes().split())
    assert not set(accepted) - set(found), "lost"
    assert sum(found.values()) - len(found) <= kills + 3

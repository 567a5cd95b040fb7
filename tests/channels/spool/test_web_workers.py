# The FastAPI example under uvicorn with four workers, which are killed. Law: each request that was answered
# is delivered, and what comes twice is what a killed worker had in hand: the last batch that it delivered.

from __future__ import annotations

import http.client
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from json import loads
from pathlib import Path
from typing import NamedTuple

import pytest

from diskq.tools.view.spool import look_at_spool, slots_of
from tests import waiting

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

ROOT = Path(__file__).parents[3]
LONG = 120.0
"""Seconds for what takes a second or two: the machine may be busy."""
WORKERS = 4


until = partial(waiting.until, seconds=LONG, pause=0.02)


class Delivery(NamedTuple):
    sender: str
    """The process, and the task in it, that delivered it."""
    orders: tuple[int, ...]


class FarEnd:
    """A destination on loopback that is there about half the time. What it answers it has kept."""

    def __init__(self, seed: int) -> None:
        self.deliveries: list[Delivery] = []
        self.stays = False  # it goes away no more
        self._times = random.Random(seed)
        self._is_over = threading.Event()
        # Bound while nobody listens on it: else another socket could be given the port.
        self._place = _bound(0)
        self.port: int = self._place.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="far end")
        self._thread.start()

    def kept(self) -> set[int]:
        return {order for delivery in list(self.deliveries) for order in delivery.orders}

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._place.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._listen(self._times.uniform(0.05, 0.5))
            if not self.stays:
                self._is_over.wait(self._times.uniform(0.05, 0.5))

    def _listen(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        with _bound(self.port) as listener:
            listener.listen()
            while not self._is_over.is_set() and (left := end - time.monotonic()) > 0:
                listener.settimeout(left)
                with suppress(OSError):  # nobody came, or who came was killed
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(LONG)
                        self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as file:
            line = file.readline()
        if line.endswith(b"\n"):
            found = loads(line)
            self.deliveries.append(Delivery(found["sender"], tuple(found["orders"])))
            time.sleep(0.005)  # it has it in hand, and may be killed
            connection.sendall(b"kept\n")


def _bound(port: int) -> socket.socket:
    found = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        found.setsockopt(socket.SOL_SOCKET, option, 1)
    found.bind(("127.0.0.1", port))
    return found


class Server:
    """uvicorn, and its workers, which it starts again when they die."""

    def __init__(self, directory: Path, far_end: FarEnd) -> None:
        self._log = directory / "log"
        self._killed: set[int] = set()
        arguments = ["tests.channels.spool.orders:app", "--app-dir", str(ROOT / "examples")]
        # Between two pings of a worker uvicorn waits that long for one that was killed as it was asked. It
        # kills who has not answered by then, on a busy machine also who is just slow.
        options = ["--workers", str(WORKERS), "--port", "0", "--timeout-worker-healthcheck", "10"]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", *arguments, *options, "--no-access-log"],
                cwd=directory,
                env={**os.environ, "PYTHONPATH": path, "ORDERS_PORT": str(far_end.port)},
                stderr=log,
                start_new_session=True,
            )
        until(lambda: b"Uvicorn running on" in self._log.read_bytes(), "uvicorn listens")
        (port,) = re.findall(rb"running on http://127.0.0.1:(\d+)", self._log.read_bytes())
        self.port = int(port)
        until(lambda: self._log.read_bytes().count(b"startup complete") >= WORKERS, "all workers started")

    def kill_a_worker(self, chance: random.Random) -> None:
        """Kill one of them, whatever it does."""
        until(lambda: self._named("Started server process") - self.killed(), "a worker runs")
        worker = chance.choice(sorted(self._named("Started server process") - self.killed()))
        self._killed.add(worker)
        with suppress(ProcessLookupError):  # uvicorn has just done it
            os.kill(worker, signal.SIGKILL)

    def killed(self) -> set[int]:
        """The process ids of the workers that were killed, by uvicorn too."""
        return self._killed | self._named("Child process")

    def _named(self, words: str) -> set[int]:
        """The process ids in the lines of its log that begin with these words."""
        return set(map(int, re.findall(rf"{words} \[(\d+)\]".encode(), self._log.read_bytes())))

    def close(self) -> None:
        """End it as an administrator does, and return when it has ended."""
        self._process.terminate()
        assert self._process.wait(LONG) == 0, self._log.read_text()

    def kill(self) -> None:
        """Whatever has become of it, nothing of it stays."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Clients:
    """Threads that send orders, each in a request of its own, and note those that were answered."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count()
        self._is_over = threading.Event()
        self.answered: list[int] = []
        self.others: list[int] = []  # not answered: nobody knows whether they were accepted
        self._threads = [threading.Thread(target=self._send, name="client") for _ in range(WORKERS)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        while not self._is_over.wait(0.005):
            number = next(self._numbers)
            (self.answered if self._is_answered(number) else self.others).append(number)

    def _is_answered(self, number: int) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LONG)
        try:
            connection.request("POST", "/orders", b"%d" % number)
            answer = connection.getresponse()
            answer.read()
            return answer.status == 202
        except (OSError, http.client.HTTPException):  # the worker was killed
            return False
        finally:
            connection.close()


@contextmanager
def all_of_it(directory: Path, seed: int) -> Iterator[tuple[FarEnd, Server, Clients]]:
    far_end = FarEnd(seed)
    try:
        server = Server(directory, far_end)
        try:
            clients = Clients(server.port)
            try:
                yield far_end, server, clients
            finally:
                clients.close()
        finally:
            server.kill()
    finally:
        far_end.close()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_each_answered_request_is_delivered_though_workers_are_killed(kills: int, tmp_path: Path) -> None:
    chance = random.Random(kills)
    with all_of_it(tmp_path, kills) as (far_end, server, clients):
        for _ in range(kills):
            goal = len(clients.answered) + 10
            until(lambda goal=goal: len(clients.answered) >= goal, "orders are answered")  # type: ignore[misc]
            time.sleep(chance.random() / 2)
            server.kill_a_worker(chance)
        clients.close()
        far_end.stays = True
        slots = slots_of(str(tmp_path / "outbox"))
        answered = set(clients.answered)
        # What a status says is up to a second old.
        until(lambda: answered <= far_end.kept(), "what was answered is delivered")
        until(lambda: not any(look_at_spool(slot).status.depth for slot in slots), "all is delivered")
        server.close()
    places = defaultdict[int, list[int]](list)
    last = dict[str, int]()
    for place, (sender, orders) in enumerate(far_end.deliveries):
        last[sender] = place
        for order in orders:
            places[order].append(place)
    assert set(places) <= answered | set(clients.others)
    killed = server.killed()
    for order, found in places.items():
        for place in found[:-1]:
            sender = far_end.deliveries[place].sender
            assert int(sender.partition(".")[0]) in killed, f"order {order} came twice without a kill"
            assert last[sender] == place, f"order {order} came twice, and was not in hand"
    print(
        f"{kills} kills, {len(answered)} answered, {len(clients.others)} not, {len(slots)} slots, "
        f"{sum(map(len, places.values())) - len(places)} came twice"
    )
    # Each has its own, and may have adopted another one.
    assert WORKERS <= len(slots) <= 2 * WORKERS
    assert not any(look_at_spool(slot).queue.depth for slot in slots)

"""An HTTP server on loopback that fails by a plan: the destination of a spool.

    python tests/soak/destination.py SEED RECORD

Says its port, then serves until it is killed. It is there about half the time. Whatever it was asked goes
into the file RECORD before it is answered, in the order in which it came; `requests` reads that.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path

import trio

SLOW = 0.03  # seconds
GONE = (0.05, 0.4)
"""It goes, and comes back, after between so many seconds."""

# What becomes of a request, and how often. Behind a "+" it was kept, and the sender cannot know it.
WEIGHTS = {
    "answered": 60,
    "answered twice": 5,
    "slow": 4,
    "503": 7,
    "+500": 5,
    "hang": 2,
    "+hang": 2,
    "reset": 7,
    "+reset": 6,
    "+half an answer": 2,
}
KEPT = {"answered", "answered twice", "slow"} | {fate for fate in WEIGHTS if fate.startswith("+")}

_LENGTH = struct.Struct(">I")


# --- what it was asked ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    run: int
    """Which of the senders asked, one after the other,"""
    number: int
    """and how often that had asked before."""
    fate: str
    bodies: tuple[bytes, ...]
    """Those that it kept: none, where it kept nothing."""


def packed(bodies: Sequence[bytes]) -> bytes:
    """The body of a request: a u32 big endian length before each message."""
    return b"".join(_LENGTH.pack(len(body)) + body for body in bodies)


def unpacked(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + size
        assert at <= len(data), "a message is cut short"
        yield data[at - size : at]


def requests(record: Path) -> Iterator[Request]:
    """In the order in which they came."""
    with record.open("rb") as file:
        while line := file.readline():
            told = json.loads(line)
            bodies = tuple(unpacked(file.read(told.pop("size"))))
            yield Request(**told, bodies=bodies)


# --- the server -----------------------------------------------------------------------------------


class Destination:
    def __init__(self, seed: int, record: BufferedWriter) -> None:
        self._fates = random.Random(f"fates {seed}")
        self._times = random.Random(f"times {seed}")
        self._record = record

    async def run(self) -> None:
        """Be there and away by turns, for ever."""
        # A name that is kept while nobody listens on it: else another socket could be given the port, as
        # the near end of a connection to itself, even.
        with _bound(0) as place:
            port = place.getsockname()[1]
            print(port, flush=True)
            while True:
                with trio.move_on_after(self._times.uniform(*GONE)), _bound(port) as listener:
                    listener.listen(socket.SOMAXCONN)
                    async with trio.open_nursery() as nursery:
                        while True:
                            connection, _ = await listener.accept()
                            nursery.start_soon(self._serve, connection)
                await trio.sleep(self._times.uniform(*GONE))

    async def _serve(self, connection: trio.socket.SocketType) -> None:
        """Answer the requests of a connection until it is closed, by either side."""
        _reset_at_close(connection)
        with connection:
            try:
                found = await _read(connection)
                if found is not None:
                    await self._answer(connection, *found)
            except OSError:
                pass  # the sender was killed, or had enough of waiting

    async def _answer(self, connection: trio.socket.SocketType, name: str, body: bytes) -> None:
        fate = self._fates.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        self._note(name, fate, body if fate in KEPT else b"")
        if fate.endswith("reset"):
            return
        if fate.endswith("hang"):
            await trio.sleep_forever()
        if fate == "slow":
            await trio.sleep(SLOW)
        status = {"503": b"503 Service Unavailable", "+500": b"500 Internal Server Error"}
        answer = b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % status.get(fate, b"200 OK")
        if fate == "answered twice":
            answer *= 2
        if fate == "+half an answer":
            answer = answer[:10]
        await connection.send(answer)
        connection.shutdown(socket.SHUT_WR)
        await connection.recv(1)  # it closes first: what we said is not lost in a reset

    def _note(self, name: str, fate: str, body: bytes) -> None:
        run, number = map(int, name.split("."))
        told = json.dumps({"run": run, "number": number, "fate": fate, "size": len(body)})
        self._record.write(told.encode() + b"\n" + body)
        self._record.flush()


def _bound(port: int) -> trio.socket.SocketType:
    found = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        found.setsockopt(socket.SOL_SOCKET, option, 1)
    found.bind(("127.0.0.1", port))
    return trio.socket.from_stdlib_socket(found)


def _reset_at_close(connection: trio.socket.SocketType) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _read(connection: trio.socket.SocketType) -> tuple[str, bytes] | None:
    """The name of a request, and its body. None: it did not come whole."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := await connection.recv(65536)):
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    size = int(fields[b"Content-Length"])
    parts, left = [body], size - len(body)
    while left > 0:
        if not (more := await connection.recv(65536)):
            return None
        parts.append(more)
        left -= len(more)
    return fields[b"X-Request"].decode(), b"".join(parts)


if __name__ == "__main__":
    seed, path = sys.argv[1:]
    with open(path, "wb") as record:
        trio.run(Destination(int(seed), record).run)

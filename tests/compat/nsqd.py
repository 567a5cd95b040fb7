"""A real nsqd on loopback, with no memory queue: every message goes through its disk queues.

    with Nsqd(Nsqd.build(), directory) as nsqd:
        nsqd.publish_many("events", [b"one", b"two"])     # a topic without a channel keeps them
        messages = nsqd.consume("events", "archive", 2)   # taken and finished, in order

Its queues are `topic` and `topic:channel` in `directory`. A message in them is not the body alone
but nsqd's own encoding of a message: `Message.encode`, `Message.decode`.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from tests.compat.golang import build

HOST = "127.0.0.1"
SECONDS = 30  # what any one step may take
MPUB_BATCH = 500  # messages in one request; nsqd takes 5 MiB

_HEADER = struct.Struct(">qH16s")

# nsqd gives its disk queues these limits (bytes), the upper one with its default options.
MIN_MESSAGE_SIZE = _HEADER.size
MAX_MESSAGE_SIZE = _HEADER.size + (1 << 20)


class Message(NamedTuple):
    timestamp_ns: int
    attempts: int
    id: bytes  # 16 hexadecimal digits
    body: bytes

    def encode(self) -> bytes:
        return _HEADER.pack(self.timestamp_ns, self.attempts, self.id) + self.body

    @classmethod
    def decode(cls, data: bytes) -> Message:
        timestamp_ns, attempts, message_id = _HEADER.unpack_from(data)
        return cls(timestamp_ns, attempts, message_id, data[_HEADER.size :])


def write_metadata(directory: Path, topics: dict[str, Sequence[str]]) -> None:
    """nsqd.dat: the topics, and the channels of each, that nsqd opens at start."""
    listed = [
        {"name": topic, "paused": False, "channels": [{"name": name, "paused": False} for name in channels]}
        for topic, channels in topics.items()
    ]
    (directory / "nsqd.dat").write_text(json.dumps({"version": "1.3.0", "topics": listed}))


class Nsqd:
    """A context manager: entered, it is listening; left, it has stopped and written everything down."""

    def __init__(self, program: Path, directory: Path, **options: str | int) -> None:
        flags = {"max_bytes_per_file": 100 << 20} | options
        self._command = [
            str(program),
            f"--data-path={directory}",
            "--mem-queue-size=0",
            f"--broadcast-address={HOST}",
            f"--tcp-address={HOST}:0",
            f"--http-address={HOST}:0",
            *(f"--{name.replace('_', '-')}={value}" for name, value in flags.items()),
        ]
        self.log: list[str] = []
        self.ports: dict[str, int] = {}

    @staticmethod
    def build() -> Path:
        return build(Path(__file__).with_name("nsqd"), "github.com/nsqio/nsq/apps/nsqd")

    # --- its life -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        for line in self._stderr():
            if listening := re.search(rf"(TCP|HTTP): listening on {HOST}:(\d+)", line):
                self.ports[listening[1]] = int(listening[2])
            if len(self.ports) == 2:
                break
        else:
            self._process.communicate()
            raise RuntimeError(f"nsqd did not start: {''.join(self.log)}")
        self._drain = threading.Thread(target=lambda: [None for _ in self._stderr()], name="nsqd's log")
        self._drain.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.returncode is None:
            self.stop()

    def stop(self) -> None:
        """SIGTERM: nsqd closes its queues, which writes their metadata, and exits."""
        status = self._end(signal.SIGTERM)
        if status != 0:
            raise RuntimeError(f"nsqd exited with {status}: {''.join(self.log)}")

    def kill(self) -> None:
        """SIGKILL: the files stay as they are at this moment."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> int:
        self._process.send_signal(how)
        try:
            status = self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._drain.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        return status

    def _stderr(self) -> Iterator[str]:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
            yield line

    def complaints(self) -> list[str]:
        """What its disk queues found wrong. Other errors it logs in the normal course of a stop."""
        return [line for line in self.log if re.search(r"(WARNING|ERROR|FATAL): DISKQUEUE\(", line)]

    # --- in and out -----------------------------------------------------------------------------

    def publish(self, topic: str, body: bytes) -> None:
        self._post(f"/pub?topic={topic}", body)

    def publish_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        for at in range(0, len(bodies), MPUB_BATCH):
            batch = bodies[at : at + MPUB_BATCH]
            framed = [struct.pack(">i", len(batch))]
            framed += [struct.pack(">i", len(body)) + body for body in batch]
            self._post(f"/mpub?topic={topic}&binary=true", b"".join(framed))

    def create_channel(self, topic: str, channel: str) -> None:
        self._post(f"/topic/create?topic={topic}")
        self._post(f"/channel/create?topic={topic}&channel={channel}")

    def consume(self, topic: str, channel: str, count: int) -> list[Message]:
        """Take `count` messages, one under way at a time, so that their order is the queue's."""
        with Subscription(self.ports["TCP"], topic, channel) as subscription:
            return [subscription.take() for _ in range(count)]

    def _post(self, path: str, body: bytes = b"") -> None:
        connection = http.client.HTTPConnection(HOST, self.ports["HTTP"], timeout=SECONDS)
        try:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {text.decode()}")


class Subscription:
    """One consumer of one channel. Leaving it waits until nsqd has seen every FIN."""

    RESPONSE, ERROR, MESSAGE = range(3)

    def __init__(self, port: int, topic: str, channel: str) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=SECONDS)
        self._in = self._socket.makefile("rb")
        self._socket.sendall(b"  V2" + f"SUB {topic} {channel}\n".encode())
        self._expect(b"OK")
        self._socket.sendall(b"RDY 1\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._socket.sendall(b"CLS\n")
            self._expect(b"CLOSE_WAIT")
        finally:
            self._in.close()
            self._socket.close()

    def take(self) -> Message:
        """The next message, finished: it will not come again."""
        kind, data = self._frame()
        assert kind == self.MESSAGE, (kind, data)
        message = Message.decode(data)
        self._socket.sendall(b"FIN " + message.id + b"\n")
        return message

    def _expect(self, response: bytes) -> None:
        # A message that was on its way when we said CLS is not finished: nsqd keeps it.
        frame = self._frame()
        while frame[0] == self.MESSAGE:
            frame = self._frame()
        assert frame == (self.RESPONSE, response), frame

    def _frame(self) -> tuple[int, bytes]:
        """The next frame that is not a heartbeat; those are answered."""
        while True:
            size, kind = struct.unpack(">ii", self._exactly(8))
            data = self._exactly(size - 4)
            if (kind, data) != (self.RESPONSE, b"_heartbeat_"):
                return kind, data
            self._socket.sendall(b"NOP\n")

    def _exactly(self, size: int) -> bytes:
        data = self._in.read(size)
        if len(data) != size:
            raise EOFError("nsqd closed the connection")
        return data

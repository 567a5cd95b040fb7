"""The hub of sej's protocol in Go, on the other end of a connection: another implementation of gRPC.

peer = GoHub.build()                                  # raises GoUnavailableError without Go
peer.put("127.0.0.1:7070", journal="log", count=100)  # as a client
with peer.serving(root) as address: ...               # as a hub
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diskq.messages import NULL_TIMESTAMP, JournalMessage
from tests.compat.golang import build

SECONDS = 60


class GoHub:
    def __init__(self, program: Path) -> None:
        self.program = program

    @classmethod
    def build(cls) -> GoHub:
        return cls(build(Path(__file__).with_name("gohub")))

    def put(self, address: str, **options: object) -> dict[str, Any]:
        """Messages `made` by the program, `first` and so on: what the hub answered to the last request."""
        return self._run("put", addr=address, **options)

    def get(self, address: str, **options: object) -> tuple[list[JournalMessage], dict[str, list[str]]]:
        """The messages of one answer, and what came beside them."""
        told = self._run("get", addr=address, **options)
        return [_message(each) for each in told["messages"] or []], told["trailer"]

    def _run(self, command: str, **options: object) -> dict[str, Any]:
        flags = [f"--{name}={value}" for name, value in options.items()]
        done = subprocess.run(
            [self.program, command, *flags], capture_output=True, timeout=SECONDS, check=True
        )
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    @contextmanager
    def serving(self, root: Path) -> Iterator[str]:
        """Where it listens."""
        with self.running(root) as (address, _):
            yield address

    @contextmanager
    def running(self, root: Path) -> Iterator[tuple[str, int]]:
        """Where it listens, and its process."""
        command = [str(self.program), "serve", f"--root={root}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield process.stdout.readline().strip(), process.pid
            finally:
                process.stdin.close()
                try:
                    process.wait(SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()


def _message(told: dict[str, Any]) -> JournalMessage:
    timestamp = None if told["timestamp"] == NULL_TIMESTAMP else told["timestamp"]
    key, value = (base64.b64decode(told[part] or "") for part in ("key", "value"))
    return JournalMessage(0, told["offset"], timestamp, told["type"], key, value)

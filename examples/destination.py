"""The destination of the spool examples: an HTTP server on loopback that fails on purpose, by a plan.

The examples show the other side.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

# The fates of requests, and their frequencies.
PLAN = {
    "answered": 60,
    "503, come back later": 8,
    "500": 8,
    "slow": 6,
    "hangs": 4,
    "connection reset": 8,
    "answer lost": 6,  # the server has accepted the request, and the client gets no answer
}
SLOW = 0.05
RETRY_AFTER = 0.05
"""Seconds. A real server sends whole ones."""

Accept = Callable[[bytes, Mapping[str, str]], tuple[int, bytes]]
"""Returns the status and the body of the answer to a request with this body and these headers."""


class Destination:
    """Answers requests at `url` during its block, unless it fails them. `fates` counts both."""

    def __init__(self, accept: Accept, *, never: str = "", seed: int = 1) -> None:
        """Start without the fate `never`."""
        self.fates: Counter[str] = Counter()
        self._accept = accept
        self._plan = {fate: often for fate, often in PLAN.items() if fate != never}
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._is_over = threading.Event()

        destination = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                destination.handle(self, body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def handle(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        with self._lock:
            (fate,) = self._chance.choices([*self._plan], [*self._plan.values()])
            self.fates[fate] += 1
        if fate == "hangs":
            self._is_over.wait(30)
            reset(request)
        elif fate == "connection reset":
            reset(request)
        elif fate == "500":
            answer(request, 500, b"on purpose")
        elif fate.startswith("503"):
            answer(request, 503, b"on purpose", {"Retry-After": str(RETRY_AFTER)})
        else:
            if fate == "slow":
                self._is_over.wait(SLOW)
            with self._lock:
                status, content = self._accept(body, dict(request.headers))
            if fate == "answer lost":
                reset(request)
            else:
                answer(request, status, content)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the client has closed the connection, after its timeout


def answer(
    request: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> None:
    request.send_response(status)
    for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)


def reset(request: BaseHTTPRequestHandler) -> None:
    """Close the connection with a TCP reset, without an answer."""
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.close_connection = True

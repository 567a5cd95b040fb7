# Peers that are servers. Law: one server per measurement, in its scratch directory, by a Unix socket or on
# loopback at a port of its own choice; it ends with the measurement.

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["JetStream", "Server", "jetstream", "program", "redis_at", "redis_streams"]

_PATIENCE = 10.0  # seconds until a server must answer
_AT_ONCE = 100


class Server:
    """A server in a process of its own. Raises ModuleNotFoundError where it is not installed."""

    def __init__(self, name: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [program(name), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def program(name: str) -> str:
    """Where a server is. Raises ModuleNotFoundError, as for a peer that is a package."""
    # Where Debian has its servers is on root's path alone.
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise ModuleNotFoundError("no server", name=name)
    return found


# --- Redis -------------------------------------------------------------------------------------------


def redis_at(directory: str, durable: bool) -> tuple[Server, Any]:
    """A server with an append-only file, and a client.

    Durable: the file is synced before each answer. Relaxed: each second.
    """
    module = import_module("redis")
    socket = os.path.join(directory, "s")
    server = Server(
        "redis-server",
        *("--port", "0", "--unixsocket", socket, "--dir", directory, "--save", ""),
        *("--appendonly", "yes", "--appendfsync", "always" if durable else "everysec"),
    )
    client = module.Redis(unix_socket_path=socket)
    end = time.monotonic() + _PATIENCE * 6  # it answers when it has loaded its file
    while True:
        try:
            client.ping()
            return server, client
        except (module.ConnectionError, module.exceptions.BusyLoadingError):
            if time.monotonic() > end:
                raise
            time.sleep(0.005)


def redis_streams(directory: str, durable: bool) -> tuple[Server, Any]:
    """The same, with a stream called `queue` and a group of consumers called `all`."""
    server, client = redis_at(directory, durable)
    try:
        client.xgroup_create("queue", "all", id="0", mkstream=True)
    except import_module("redis").ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise
    return server, client


# --- NATS --------------------------------------------------------------------------------------------


def jetstream(directory: str) -> tuple[Server, JetStream]:
    """A server with JetStream in files, and a client of one stream."""
    module = import_module("nats")
    server = Server(
        "nats-server",
        *("--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir", directory),
        *("--jetstream", "--store_dir", directory),
    )
    ports = Path(directory, f"nats-server_{server.pid}.ports")
    end = time.monotonic() + _PATIENCE
    while not ports.exists() or not ports.read_text().strip():
        if time.monotonic() > end:
            raise RuntimeError("nats-server does not say where it listens")
        time.sleep(0.005)
    return server, JetStream(server, module, json.loads(ports.read_text())["nats"][0])


class JetStream:
    """Its client is asyncio's: each call runs a loop until it is done."""

    def __init__(self, server: Server, module: Any, address: str) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._fetched: deque[Any] = deque()
        self._run(self._connect(module, address))

    def put(self, body: bytes) -> None:
        self._run(self._stream.publish("queue", body))

    def put_many(self, bodies: Sequence[bytes]) -> None:
        self._run(self._publish_all(bodies))

    def get(self) -> bytes:
        body: bytes = self._run(self._get())
        return body

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.close()
        self._server.stop()

    def _run(self, act: Any) -> Any:
        return self._loop.run_until_complete(act)

    async def _connect(self, module: Any, address: str) -> None:
        self._client = await module.connect(address)
        self._stream = self._client.jetstream(timeout=60)
        await self._stream.add_stream(name="queue", subjects=["queue"], retention="workqueue", storage="file")
        self._pulled = await self._stream.pull_subscribe("queue", "all")

    async def _publish_all(self, bodies: Sequence[bytes]) -> None:
        await asyncio.gather(*(self._stream.publish("queue", body) for body in bodies))

    async def _get(self) -> bytes:
        if not self._fetched:
            self._fetched.extend(await self._pulled.fetch(_AT_ONCE))
        message = self._fetched.popleft()
        await message.ack()
        body: bytes = message.data
        return body

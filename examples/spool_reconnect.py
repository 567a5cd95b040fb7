"""A session that is lost and opened again in `deliver`, as with an MQTT broker.

    python examples/spool_reconnect.py

1,000 readings go through a spool in the directory spool/reconnect to a broker in this same program, over TCP.
The session must be opened before anything can be published, and each message has a packet id, which the
broker acknowledges. The broker sometimes ends the session, before or after it has accepted a message, and
refuses connections for a while. The program prints how often that happened, and what the broker has: every
reading at least once, in order. The broker recognizes repeated ones by their ids.

This is a toy protocol of JSON lines, with the structure of MQTT (CONNECT, CONNACK, PUBLISH, PUBACK, quality
of service 1). With a real client, `connect` and `publish` are that client's.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import trio

import diskq

READINGS = 1_000
OPTIONS = diskq.SpoolOptions(
    retry_on=(OSError, trio.BrokenResourceError, trio.TooSlowError),
    max_messages=20,  # the most that may be unacknowledged at a time
    deliver_timeout=1.0,
    backoff_initial=0.01,
    backoff_max=0.1,
    backoff_jitter=0.01,
)


async def main() -> None:
    broker = Broker()
    async with trio.open_nursery() as nursery:
        port = await nursery.start(broker.serve)
        client = Client(port)
        async with diskq.open_spool("spool/reconnect", client.deliver, options=OPTIONS) as spool:
            for number in range(READINGS):
                await spool.send(b"reading %d" % number)
            await spool.drained()
        await client.disconnect()
        nursery.cancel_scope.cancel()
    readings = list(broker.messages.values())
    print(f"{client.sessions} sessions, {broker.refused} connections were refused")
    print(f"{len(readings):,} readings are there, in order: {readings == sorted(readings, key=number_of)}")
    print(f"{broker.repeated} came again, and were recognized")


# --- the client: the part to copy -----------------------------------------------------------------


class Client:
    """One session, opened for a delivery, and closed after any error."""

    def __init__(self, port: int) -> None:
        self.sessions = 0
        self._port = port
        self._stream: trio.SocketStream | None = None

    async def deliver(self, batch: diskq.Batch) -> None:
        try:
            if self._stream is None:
                await self.connect()
            await self.publish(batch)
        except BaseException:
            # Also if cancelled: the state of the connection is unknown, so it cannot be used any more.
            await self.disconnect()
            raise  # the spool waits, and calls `deliver` again with the same batch

    async def connect(self) -> None:
        self._stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        self._packets = packets(self._stream)
        await send(self._stream, {"connect": "example"})
        await self._expect("connack")
        self.sessions += 1

    async def publish(self, batch: diskq.Batch) -> None:
        """Return when the broker has acknowledged every message."""
        assert self._stream is not None
        for packet, (message_id, body) in enumerate(zip(batch.ids, batch, strict=True)):
            await send(self._stream, {"publish": packet, "id": message_id, "body": body.decode()})
        for packet in range(len(batch)):
            await self._expect("puback", packet)

    async def _expect(self, kind: str, packet: int | None = None) -> None:
        answer = await anext(self._packets, dict[str, Any]())
        if kind not in answer or answer[kind] != packet:
            raise trio.BrokenResourceError(f"the session is lost: {kind} was expected")

    async def disconnect(self) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await trio.aclose_forcefully(stream)


# --- the broker -----------------------------------------------------------------------------------


class Broker:
    def __init__(self, seed: int = 1) -> None:
        self.messages: dict[str, str] = {}
        self.repeated = self.refused = 0
        self._chance = random.Random(seed)
        self._is_out_until = 0.0

    async def serve(self, task_status: trio.TaskStatus[int]) -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, self._handle, 0)
            task_status.started(listeners[0].socket.getsockname()[1])

    async def _handle(self, stream: trio.SocketStream) -> None:
        try:
            if trio.current_time() < self._is_out_until:
                self.refused += 1
                return
            async for packet in packets(stream):
                if "connect" in packet:
                    await send(stream, {"connack": None})
                elif not await self._accept(stream, packet):
                    self._is_out_until = trio.current_time() + 0.02
                    return
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def _accept(self, stream: trio.SocketStream, packet: dict[str, Any]) -> bool:
        """Accept a message. False if the session is lost, before or after that."""
        fate = self._chance.random()
        if fate < 0.01:
            return False
        self.repeated += packet["id"] in self.messages
        self.messages[packet["id"]] = packet["body"]
        if fate < 0.02:
            return False
        await send(stream, {"puback": packet["publish"]})
        return True


# --- on both sides --------------------------------------------------------------------------------


async def send(stream: trio.SocketStream, packet: dict[str, Any]) -> None:
    await stream.send_all(json.dumps(packet).encode() + b"\n")


async def packets(stream: trio.SocketStream) -> AsyncIterator[dict[str, Any]]:
    left = b""
    async for some in stream:
        *lines, left = (left + some).split(b"\n")
        for line in lines:
            yield json.loads(line)


def number_of(reading: str) -> int:
    return int(reading.split()[1])


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)  # a spool logs failures; here they are on purpose
    trio.run(main)

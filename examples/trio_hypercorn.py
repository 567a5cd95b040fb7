"""Accept orders by HTTP, and hand them on when the other side is there: hypercorn on Trio.

    pip install diskqueue 'hypercorn[trio]' httpx
    hypercorn --worker-class trio trio_hypercorn:app

A plain ASGI application. `POST /orders` answers when the order is on disk; the spool delivers it, also after
a restart. The spool has slots, so `--workers 4` may serve as well. Run by itself, this program starts the
server, sends it three orders, and stops it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

import httpx
import trio
from hypercorn.config import Config
from hypercorn.trio import serve

import diskq

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

DELIVERED: list[bytes] = []


async def deliver(batch: diskq.Batch) -> None:
    await trio.sleep(0.01)  # a call of another service
    DELIVERED.extend(batch)


class Application:
    """An ASGI application whose lifespan is that of its spool."""

    outbox: diskq.SpoolChannel

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.live(receive, send)
        elif scope["type"] == "http":
            await self.outbox.send(await body_of(receive), durability="synced")
            await send({"type": "http.response.start", "status": 202, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async def live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        async with diskq.open_spool("outbox", deliver, slots=True, drain_timeout=5.0) as self.outbox:
            await send({"type": "lifespan.startup.complete"})
            await receive()  # lifespan.shutdown
        await send({"type": "lifespan.shutdown.complete"})


async def body_of(receive: Receive) -> bytes:
    found = b""
    while True:
        message = await receive()
        found += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return found


app = Application()


async def main() -> None:
    config = Config()
    config.bind, config.loglevel = ["127.0.0.1:0"], "ERROR"
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        server = partial(serve, app, config, shutdown_trigger=stop.wait)  # type: ignore[arg-type]
        (url,) = await nursery.start(server)
        async with httpx.AsyncClient(base_url=url) as client:
            for number in range(3):
                answer = await client.post("/orders", content=b"order %d" % number)
                print(answer.status_code)
        stop.set()
    print(DELIVERED)


if __name__ == "__main__":
    trio.run(main)

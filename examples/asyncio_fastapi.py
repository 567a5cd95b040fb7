"""Accept orders by HTTP, and hand them on when the other side is there: FastAPI on uvicorn.

    pip install diskqueue fastapi uvicorn httpx
    uvicorn asyncio_fastapi:app --workers 4

`POST /orders` answers when the order is on disk; the spool delivers it, also after a restart. Run by itself,
this program starts the server, sends it three orders, and stops it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI, Request

import diskq

DELIVERED: list[bytes] = []


async def deliver(batch: diskq.Batch) -> None:
    await asyncio.sleep(0.01)  # a call of another service
    DELIVERED.extend(batch)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with diskq.open_spool("outbox", deliver, slots=True, drain_timeout=5.0) as app.state.outbox:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def order(request: Request) -> dict[str, int]:
    outbox: diskq.SpoolChannel = request.app.state.outbox
    await outbox.send(await request.body(), durability="synced")
    return {"waiting": outbox.statistics().depth}


async def main() -> None:
    server = uvicorn.Server(uvicorn.Config(app, uds=f"server.{os.getpid()}", log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    transport = httpx.AsyncHTTPTransport(uds=f"server.{os.getpid()}")
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        for number in range(3):
            answer = await client.post("/orders", content=b"order %d" % number)
            print(answer.status_code)
    server.should_exit = True
    await serving
    print(DELIVERED)


if __name__ == "__main__":
    asyncio.run(main())

"""Put what is posted into a queue, and work on it in the same process: aiohttp.

    pip install diskqueue aiohttp
    python asyncio_aiohttp.py

The queue is opened by a cleanup context, which closes it when the application ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import ClientSession, UnixConnector, web

import diskq

QUEUE = web.AppKey("queue", diskq.QueueChannel)


async def queue_and_worker(app: web.Application) -> AsyncIterator[None]:
    async with diskq.open_queue(".", "jobs") as queue:
        app[QUEUE] = queue
        worker = asyncio.create_task(work(queue))
        yield
        worker.cancel()  # a message that it has not finished stays in the queue
        with contextlib.suppress(asyncio.CancelledError):
            await worker


async def work(queue: diskq.QueueChannel) -> None:
    while True:
        async with queue.receiving(max_messages=10) as jobs:
            for job in jobs:
                print("done:", job.decode())


async def accept(request: web.Request) -> web.Response:
    await request.app[QUEUE].send(await request.read(), durability="synced")
    return web.Response(status=202)


def application() -> web.Application:
    app = web.Application()
    app.cleanup_ctx.append(queue_and_worker)
    app.router.add_post("/jobs", accept)
    return app


async def main() -> None:
    runner = web.AppRunner(application())
    await runner.setup()
    await web.UnixSite(runner, "server.sock").start()
    async with ClientSession(connector=UnixConnector("server.sock")) as client:
        for number in range(3):
            async with client.post("http://here/jobs", data=b"job %d" % number) as answer:
                assert answer.status == 202
    await asyncio.sleep(0.1)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())

"""The FastAPI example, with a destination that may be away: what the test of its workers serves.

    ORDERS_PORT=... uvicorn tests.channels.spool.orders:app --app-dir examples --workers 4

A delivery is a connection to that port: one line of JSON, answered by a line when it is kept.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from weakref import WeakKeyDictionary

import asyncio_fastapi as example

import diskq

_count = itertools.count()
_numbers: WeakKeyDictionary[asyncio.Task[object], int] = WeakKeyDictionary()


async def deliver(batch: diskq.Batch) -> None:
    task = asyncio.current_task()
    assert task is not None
    if task not in _numbers:
        _numbers[task] = next(_count)
    # A process delivers from its own slot, and perhaps from one that it has adopted: in another task.
    sender = f"{os.getpid()}.{_numbers[task]}"
    line = json.dumps({"sender": sender, "orders": [int(body) for body in batch]})
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["ORDERS_PORT"]))
    try:
        writer.write(line.encode() + b"\n")
        if await reader.readline() != b"kept\n":
            raise ConnectionError("the far end went away")
    finally:
        writer.close()


example.deliver = deliver
app = example.app

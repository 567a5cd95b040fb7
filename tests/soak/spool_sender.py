"""A process with a spool that delivers by HTTP: what the soak test kills.

    python tests/soak/spool_sender.py PATH PORT RUN FIRST GOAL HOW

Sends the messages FIRST to GOAL - 1 in batches of any size; then it waits to be killed or, where HOW is
`finish`, until all is delivered. Each line it says is one act, said when the act is done (`sending` before):

    ready               the process runs, and opens the spool
    sending FIRST END   messages FIRST to END - 1 are handed to the spool
    sent FIRST END      and the spool has them
    answered NUMBER     the destination answered request NUMBER with 200
    finished            all is delivered, and the spool closed
"""

from __future__ import annotations

import logging
import os
import random
import sys

import trio

import diskq
from tests.soak.destination import packed

BATCH = 100
"""So many messages in a request at most."""
TIMEOUT = 0.15
"""Seconds for a request: more than the destination takes where it is slow."""


def message(number: int) -> bytes:
    """Message `number`: told from every other, and from itself with any byte changed."""
    return b"%010d" % number + random.Random(number).randbytes(40 + number * 7 % 50)


def say(*words: object) -> None:
    """In one write: a line is said, or it is not."""
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


class Sender:
    def __init__(self, port: int, run: int) -> None:
        self._port = port
        self._run = run
        self._asked = 0

    async def deliver(self, batch: diskq.Batch) -> None:
        """One request on a connection of its own. Raises OSError for whatever is not a whole 200."""
        self._asked += 1
        number, body = self._asked, packed(batch)
        head = (
            f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Request: {self._run}.{number}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        with trio.socket.socket() as connection:
            await connection.connect(("127.0.0.1", self._port))
            await trio.SocketStream(connection).send_all(head.encode() + body)
            answer = b""
            while b"\r\n\r\n" not in answer:
                if not (more := await connection.recv(4096)):
                    raise ConnectionError("the destination went away")
                answer += more
        status = int(answer.split()[1])
        if status == 503:
            raise diskq.Retry(after=0.01)
        if status != 200:
            raise ConnectionError(f"HTTP {status}")
        say("answered", number)


async def main(*arguments: str) -> None:
    path, port, run, first, goal, how = arguments
    say("ready")
    logging.disable()  # it has much to complain of
    rng = random.Random(f"{run} {first}")
    options = diskq.SpoolOptions(
        max_messages=BATCH,
        deliver_timeout=TIMEOUT,
        backoff_initial=0.005,
        backoff_max=0.05,
        backoff_jitter=0.01,
        pause_after=10,
        pause=0.05,
    )
    sender = Sender(int(port), int(run))
    async with diskq.open_spool(path, deliver=sender.deliver, options=options) as spool:
        at = int(first)
        while at < int(goal):
            end = min(int(goal), at + rng.choice([1, 2, rng.randrange(3, 250)]))
            say("sending", at, end)
            if end - at == 1:
                await spool.send(message(at))
            else:
                await spool.send_many([message(number) for number in range(at, end)])
            say("sent", at, end)
            at = end
            if rng.random() < 0.05:
                await trio.sleep(0.01)
        if how != "finish":
            await trio.sleep_forever()
        await spool.drained()
    say("finished")


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])

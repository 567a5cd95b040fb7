"""Events over HTTP, to a server that fails on purpose: none is lost, none is counted twice.

    pip install 'diskqueue[examples]'
    python examples/spool_http.py        # destination.py beside it is the server

2,000 events go through a spool in the directory spool/http to a server in this same program, which answers
503 or 500, is slow, hangs, resets connections, or accepts a batch and loses its answer. Three events are not
JSON, and the server refuses them: they become dead letters. The program prints what the server did, what it
has received, and the dead letters.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import httpx
import trio
from destination import Destination

import diskq

EVENTS = 2_000
NO_JSON = (100, 1_000, 1_001)

# Only HTTP errors are tried again. A bug in this program ends the spool's block, and is reported.
OPTIONS = diskq.SpoolOptions(
    retry_on=httpx.HTTPError, linger=0.01, backoff_initial=0.01, backoff_max=0.2, backoff_jitter=0.01
)


async def main() -> None:
    ledger = Ledger()
    with Destination(ledger.accept) as destination:
        async with httpx.AsyncClient(base_url=destination.url, timeout=0.2) as client:

            async def post(batch: diskq.Batch) -> None:
                # One key for all tries of a batch, by which the server recognizes a repetition.
                headers = {"Idempotency-Key": f"{batch.ids[0]} {batch.ids[-1]}"}
                response = await client.post("/events", content=b"\n".join(batch), headers=headers)
                if response.status_code == 422:  # these will never be accepted
                    raise diskq.Permanent("no JSON, says the server", messages=response.json()["bad"])
                if response.status_code == 503:
                    raise diskq.Retry("HTTP 503", after=float(response.headers["Retry-After"]))
                response.raise_for_status()  # any other error: tried again later

            async with diskq.open_spool("spool/http", post, options=OPTIONS) as spool:
                for number in range(EVENTS):
                    body = b"oops" if number in NO_JSON else json.dumps({"number": number}).encode()
                    await spool.send(body)
                await spool.drained()

                for fate, count in destination.fates.most_common():
                    print(f"{count:4} requests: {fate}")
                print(f"{len(ledger.numbers):,} events are there, in order: {ledger.is_in_order}")
                print(f"{ledger.repeated} batches came again, and were recognized")
                for letter in await spool.dead_letters.list():
                    print(f"dead letter: {letter.body.decode()} ({letter.reason})")
                await spool.dead_letters.purge()


class Ledger:
    """The server's record of events."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.repeated = 0
        self._keys: set[str] = set()

    def accept(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        lines = body.split(b"\n")
        bad = [place for place, line in enumerate(lines) if not line.startswith(b"{")]
        if bad:
            return 422, json.dumps({"bad": bad}).encode()
        if headers["Idempotency-Key"] in self._keys:
            self.repeated += 1
        else:
            self._keys.add(headers["Idempotency-Key"])
            self.numbers += [json.loads(line)["number"] for line in lines]
        return 200, b""

    @property
    def is_in_order(self) -> bool:
        return self.numbers == sorted(set(self.numbers))


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)  # a spool logs failures; here they are on purpose
    trio.run(main)

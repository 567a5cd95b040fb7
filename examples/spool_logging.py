"""Log records from any thread, through a spool, to a collector that is down at first.

    python examples/spool_logging.py

A handler for the standard library's logging turns each record into a line of JSON and puts it, without
waiting, into a bridge to Trio's thread; from there it goes into a spool in the directory spool/logging, and
on to a collector, which is only a list here. Four threads and Trio's own log 250 records each; the collector
is down for the first half second. The program prints how many records the collector has in the end, and an
exception that was logged.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
from typing import Any

import trio

import diskq

THREADS, RECORDS = 4, 250


class SpoolHandler(logging.handlers.QueueHandler):
    """Puts each record, as a line of JSON, into `sender` with `put_nowait`.

    If it is full the record is dropped, since logging must not stop the program: logging reports that on
    standard error.
    """

    def __init__(self, sender: diskq.ThreadSender[bytes]) -> None:
        super().__init__(sender)  # type: ignore[arg-type]  # it calls only put_nowait

    def prepare(self, record: logging.LogRecord) -> Any:
        line = {
            "time": record.created,
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = logging.Formatter().formatException(record.exc_info)
        return json.dumps(line).encode()


async def main() -> None:
    collected: list[bytes] = []
    comes_up_at = trio.current_time() + 0.5

    async def deliver(batch: diskq.Batch) -> None:
        if trio.current_time() < comes_up_at:
            raise ConnectionRefusedError("the collector is down")
        collected.extend(batch)

    # diskq's own log must not go into the spool: a failure would create a record that fails.
    log = logging.getLogger("shop")
    log.setLevel(logging.INFO)

    options = diskq.SpoolOptions(backoff_initial=0.05, backoff_max=0.2, backoff_jitter=0.05)
    async with diskq.open_spool("spool/logging", deliver, options=options) as spool:
        async with diskq.open_thread_sender(spool) as sender:  # leaving it sends the rest to the spool
            handler = SpoolHandler(sender)
            log.addHandler(handler)
            async with trio.open_nursery() as nursery:
                for number in range(THREADS):
                    nursery.start_soon(trio.to_thread.run_sync, work, log, f"thread {number}")
                work(log, "Trio's own thread")
            log.removeHandler(handler)
        print(f"the spool holds {spool.statistics().depth:,} records")
        await spool.drained()

    records = [json.loads(line) for line in collected]
    print(f"the collector has {len(records):,} records")
    for origin in ("thread 0", "Trio's own thread"):
        numbers = [int(each["message"].split()[-1]) for each in records if each["message"].startswith(origin)]
        print(f"of {origin}: {len(numbers)}, in order: {numbers == sorted(numbers)}")
    print(next(record["exception"] for record in records if "exception" in record).splitlines()[-1])


def work(log: logging.Logger, name: str) -> None:
    for number in range(RECORDS - 1):
        log.info("%s has done %d", name, number)
    try:
        raise ValueError(f"{name} is tired")
    except ValueError:
        log.exception("%s stops at %d", name, RECORDS - 1)


if __name__ == "__main__":
    logging.getLogger("diskq").setLevel(logging.ERROR)  # a spool logs failures; here they are on purpose
    trio.run(main)

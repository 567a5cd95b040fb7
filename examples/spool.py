import itertools
import logging

import trio

import diskq

tries = itertools.count()


async def post(batch: diskq.Batch) -> None:
    if next(tries) < 3:
        raise ConnectionError("the network is down")  # the same batch is tried again, after growing delays
    if refused := [number for number, body in enumerate(batch) if b"?" in body]:
        raise diskq.Permanent("HTTP 400", refused)  # dead letters; the others of the batch are tried again
    print(f"attempt {batch.attempts}: {list(batch)}")  # returning means: delivered


async def main() -> None:
    async with diskq.open_spool("spool", deliver=post, backoff_jitter=0.1) as spool:
        await spool.send_many([b"one", b"two?", b"three"])  # takes microseconds, whatever the network does

        await spool.drained()  # only to see it: what is left waits on disk for the next process
        for letter in await spool.dead_letters.list():
            print(f"{letter.reason}, after {letter.attempts} attempts: {letter.body!r}")
        await spool.dead_letters.purge()


logging.basicConfig(filename="spool.log")
trio.run(main)

# A spool in a program without an event loop: any thread puts, a thread of the spool's own delivers.

import itertools
import logging
import threading

import diskq

tries = itertools.count()


def post(batch: diskq.Batch) -> None:
    if next(tries) < 3:
        raise ConnectionError("the network is down")  # the same batch is tried again, after growing delays
    for message in batch:
        print(message)  # returning means: delivered


logging.basicConfig(filename="spool.log")
with diskq.Spool("spool", deliver=post, backoff_jitter=0.1) as spool:
    threads = [threading.Thread(target=spool.put, args=(b"from a thread",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(spool.drained(timeout=30.0))  # only to see it: what is left waits on disk for the next process

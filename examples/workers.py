# Several workers on one queue: they take jobs at the same time, finish them in any order, and give some back
# for later; a job that fails every time ends in a queue of its own. Started again, it repeats no finished
# job.

import random

import trio

import diskq

WORKERS = 4


async def do(job: bytes, luck: random.Random) -> None:
    await trio.sleep(luck.uniform(0.0, 0.01))
    if b"13" in job:
        raise ValueError("bad luck")
    if luck.random() < 0.2:
        raise ConnectionError("not now")


async def worker(
    jobs: diskq.QueueChannel, work: diskq.QueueWorkChannel, done: list[bytes], seed: int
) -> None:
    luck = random.Random(seed)
    while jobs.depth:
        lease = None
        with trio.move_on_after(0.1):  # the other workers may have the last jobs
            lease = await work.receive()  # nothing else in this scope: a worker that has a job finishes it
        if lease is None:
            continue
        try:
            await do(lease.body, luck)
        except (ConnectionError, ValueError):
            work.nack(lease, delay=0.01 * lease.attempts)  # later, after other jobs
        else:
            work.ack(lease)  # in any order; written when it returns
            done.append(lease.body)


async def main() -> None:
    done: list[bytes] = []
    async with diskq.open_queue(".", "jobs") as jobs, diskq.open_queue(".", "failed") as failed:
        await jobs.send_many([b"job %d" % number for number in range(20)])

        def give_up(lease: diskq.Lease) -> None:
            failed.send_nowait(lease.body)  # once this returns, the job has left the other queue

        async with (
            jobs.working(max_in_flight=WORKERS, max_attempts=5, exhausted=give_up) as work,
            trio.open_nursery() as nursery,
        ):
            for number in range(WORKERS):
                nursery.start_soon(worker, jobs, work, done, number)

        print(f"{len(done)} jobs are done, each once: {len(done) == len(set(done))}")
        print(f"given up after 5 attempts: {await failed.receive()!r}")


trio.run(main)

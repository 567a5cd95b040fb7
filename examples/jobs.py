import trio

import diskq


async def work(mail: diskq.PriorityQueueChannel, failures: set[bytes]) -> None:
    while mail.statistics().ready:
        try:
            async with mail.receiving() as record:  # leaving it cleanly is the acknowledgement
                if record.body in failures:
                    failures.remove(record.body)
                    raise ConnectionError("the mail server hung up")
                print(record.priority, record.body.decode())
        except ConnectionError as failure:
            print(failure, "- the job is back in its place")


async def main() -> None:
    async with diskq.open_priority_store("jobs", durability="synced") as store:
        try:
            mail = store.queue("mail")
        except diskq.NotFoundError:
            mail = await store.create_queue("mail", max_messages=10_000)
        await mail.send(b"newsletter", priority=9)
        await mail.send_many([(1, b"password reset"), (5, b"receipt"), (1, b"login code")])
        await work(mail, failures={b"password reset"})


trio.run(main)

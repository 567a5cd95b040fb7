from datetime import UTC, datetime

import trio

import diskq

NOON = datetime(2013, 7, 4, 12, tzinfo=UTC)


async def main() -> None:
    async with diskq.open_producer("clicks", partition_count=3) as producer:
        place = await producer.send(b"a key decides on the partition", key="ada")
        await producer.send(b"any time will do", key="ada", timestamp=NOON)
        await producer.send_many([("ada", b"one"), ("grace", b"two")], durability="synced")

    async with diskq.open_consumer("clicks", group="billing", end="close") as consumer:
        async for message in consumer:  # any number of consumers, in any process, from anywhere
            print(message.key, message.value)
            await consumer.commit(message)  # the next reader of the group begins after it

    print(await diskq.offset_after("clicks", place.partition, NOON))


trio.run(main)

# How soon a message is in a table. Law: with `segment_age`, that much later and two seconds at most, if the
# table is updated once a second; however few messages there are, and however seldom the producer syncs.

from __future__ import annotations

import pytest
import trio

from diskq.channels.stream.producer import open_producer
from tests.channels.rig import crash_disk, until
from tests.tables.logs import STREAM, in_table, table


@pytest.mark.parametrize("sync_timeout", [2.0, 3600.0])
async def test_with_a_segment_age_of_10_s_a_message_is_in_the_table_within_12_s(autojump_clock, sync_timeout):
    disk = crash_disk()
    options = {"partition_count": 1, "segment_age": 10.0, "sync_timeout": sync_timeout}
    async with open_producer(STREAM, fs=disk, **options) as producer:
        its = table(disk)
        for number in range(3):
            await producer.send(b"%d" % number)
            sent = trio.current_time()
            while len(in_table(its)) <= number:
                await trio.sleep(1)
                await until(lambda: not producer._loop._has_flight)  # no time passes while a thread syncs
                its.update()
            assert trio.current_time() - sent <= 12
            await trio.sleep(0.37)  # so that the next one falls elsewhere between two updates

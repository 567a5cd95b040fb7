# Segments that fill while a barrier over their beginnings is being paid, in a thread.

from __future__ import annotations

import random

from tests.engine.streams import disk, opened, stored


def test_however_many_segments_fill_while_a_barrier_is_paid_it_syncs_what_it_was_taken_for():
    fs = disk()
    with opened(fs, partition_count=2, segment_size=100) as stream:
        stream.append(b"first", "k")
        ticket = stream.log.prepare(full=False)
        for _ in range(3):
            batch = stream.steps.checked_many(
                [(f"key-{number}", b"x" * 100) for number in range(200)], None, None
            )
            stream.steps.accept_many(batch, None, None, is_held=False)
        stream.log.complete(ticket, ticket.barrier.execute(fs))
        stream.sync()
        after = fs.crash(random.Random(1))
        assert sum(map(len, stored(after).values())) == 601
    assert sum(map(len, stored(fs).values())) == 601

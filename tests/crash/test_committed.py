# A group that has read, and committed, what was never synced. Law: after the power failed it skips no
# message: the offsets that it has processed are not given to others.

from __future__ import annotations

import random

import pytest

import diskq
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup
from diskq.testing import CrashFS

OPTIONS = diskq.StreamOptions(partition_count=1, segment_size=700, sync_timeout=1000.0)


def crashed(seed: int) -> CrashFS:
    """The disk after a power cut: ten messages, of which some were synced, and all durably processed."""
    fs = CrashFS()
    rng = random.Random(seed)
    stream = diskq.Stream("/s", options=OPTIONS, fs=fs)
    for number in range(10):
        stream.append(b"%d" % number + rng.randbytes(rng.randrange(150)), key="k")
        if rng.random() < 0.1:
            stream.sync()
    with ConsumerGroup(fs, StreamFiles(fs, "/s"), "g").committed_offset(0) as committed_offset:
        for offset in range(10):
            committed_offset.commit(offset)
            if rng.random() < 0.3:
                committed_offset.sync()
        committed_offset.sync()
        return fs.crash(rng)


@pytest.mark.parametrize("seed", range(60))
def test_offsets_that_a_group_has_processed_are_not_given_again(seed):
    fs = crashed(seed)
    with diskq.Stream("/s", options=OPTIONS, fs=fs) as stream:
        assert stream.append(b"new", key="k").offset >= 10
    with diskq.Stream("/s", options=OPTIONS, fs=fs) as stream:
        assert stream.append(b"newer", key="k").offset >= 11
        assert not stream.repairs


@pytest.mark.parametrize("seed", range(20))
async def test_the_group_goes_on_with_what_comes(seed):
    fs = crashed(seed)
    with diskq.Stream("/s", options=OPTIONS, fs=fs) as stream:
        first = stream.append(b"new", key="k").offset
        stream.append(b"newer", key="k")
    async with diskq.open_consumer("/s", group="g", end="close", fs=fs) as consumer:
        received = [message async for message in consumer]
    assert [(message.offset, message.value) for message in received] == [
        (first, b"new"),
        (first + 1, b"newer"),
    ]

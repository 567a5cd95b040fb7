# A moment after a crash. Law: what is noted beside a timeindex is not synced, and no power cut, nor two of
# them, makes it answer wrongly.

from __future__ import annotations

import random

import pytest

from diskq.engine.stream.stream import Stream
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.options import StreamOptions
from diskq.testing import CrashFS
from tests.crash.harness import KILL, Witness, run_cuts
from tests.engine.moments import ROOT, first_after, messages, offset_after_once, partition
from tests.sampling import IS_EXHAUSTIVE

# Of records of 50 bytes: 300 to a segment, so that each has a mark and a rest.
OPTIONS = StreamOptions(partition_count=1, segment_size=300 * 50)


def sent(fs: CrashFS, life: int, count: int, batch: int, witness: Witness | None = None) -> None:
    """Messages whose timestamps step back, and which are other ones in each life. Some are synced."""
    rng = random.Random(life)
    with Stream(ROOT, options=OPTIONS, fs=fs, take_over=True) as stream:
        for number in range(0, count, batch):
            times = [life * 1000 + number + rng.randrange(-50, 50) for _ in range(batch)]
            stream.append_many([(b"key", b"x" * 27, time) for time in times])
            if number // batch % 3 == 2:
                stream.append(b"x" * 27, b"key", life * 1000 + number, durability="synced")


def agree(fs: CrashFS) -> None:
    """Any moment is answered by what the records say."""
    known = list(messages(fs, partition(fs)))
    times = sorted(time for _, time in known)
    asked = [*times[::29], *times[-2:], *(time - 1 for time in times[:2]), 0, 10**6]
    with TimeLookup(fs, partition(fs)) as lookup:
        for time in asked:
            judged = first_after(known, time)
            assert lookup.offset_after(time) == judged, time
            assert offset_after_once(fs, ROOT, 0, time) == judged, time


def first_life(fs: CrashFS, witness: Witness) -> None:
    sent(fs, 1, 1000, 90)


def check(outcome: str, fs: CrashFS, witness: Witness) -> None:
    if outcome == KILL and fs.size_of(partition(fs).directory) is not None:
        agree_with_what_has_rows(fs)
    Stream(ROOT, options=OPTIONS, fs=fs, take_over=True).close()
    agree(fs)
    # Later messages under offsets that were given before the crash, and not kept; and a crash again.
    sent(fs, 2, 700, 90)
    agree(fs)
    for seed in range(2):
        after = fs.crash(random.Random(seed))
        Stream(ROOT, options=OPTIONS, fs=after, take_over=True).close()
        agree(after)


def agree_with_what_has_rows(fs: CrashFS) -> None:
    """The next process may be a reader: what has no row of the index is not there yet."""
    files = partition(fs)
    bases = files.bases()
    if not bases:
        return
    end = bases[-1] + (fs.size_of(files.index_of(bases[-1])) or 0) // 24
    known = [told for told in messages(fs, files) if told[0] < end]
    for time in sorted(time for _, time in known)[::97]:
        assert offset_after_once(fs, ROOT, 0, time) == first_after(known, time), time


@pytest.mark.sampled
@pytest.mark.slow
def test_no_crash_makes_a_moment_lead_elsewhere():
    most = 40 if IS_EXHAUSTIVE else 4
    report = run_cuts(first_life, check, seeds=2, limit=most)
    assert report.cuts == most

# Segments that are complete by their age. Law: a segment has the age of its first message, and one without
# messages has none.

from __future__ import annotations

import random

import pytest

from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.segment_ages import SegmentAges
from diskq.options import StreamOptions
from tests.engine.streams import disk, opened, stored


def bases(fs, partition: int = 0) -> list[int]:
    return StreamFiles(fs, "/s").partition(partition).bases()


def test_a_segment_is_complete_by_its_age_before_the_next_message():
    fs = disk()
    with opened(fs, partition_count=1, segment_age=10.0) as stream:
        stream.append(b"0")
        fs.clock += 9
        stream.append(b"1")
        fs.clock += 1
        stream.append(b"2")
        assert bases(fs) == [0, 2]
        fs.clock += 9
        stream.append(b"3")
        assert bases(fs) == [0, 2]
        fs.clock += 1
        stream.append(b"4")
        assert bases(fs) == [0, 2, 4]


def test_a_segment_without_messages_has_no_age():
    fs = disk()
    with opened(fs, partition_count=1, segment_age=10.0) as stream:
        for hours in range(3):
            fs.clock += 3600
            stream.append(b"%d" % hours)
            assert stream.steps.segment_due == fs.clock + 10
        assert bases(fs) == [0, 1, 2]


def test_each_partition_has_its_own_age():
    fs = disk()
    with opened(fs, partition_count=2, segment_age=10.0) as stream:
        keys = {stream.partition_of(b"k%d" % number): b"k%d" % number for number in range(9)}
        stream.append(b"0", keys[0])
        fs.clock += 6
        stream.append(b"0", keys[1])
        fs.clock += 6
        stream.append(b"1", keys[0])
        assert (bases(fs, 0), bases(fs, 1)) == ([0, 1], [0])
        fs.clock += 6
        stream.append(b"2", keys[0])
        assert (bases(fs, 0), bases(fs, 1)) == ([0, 1], [0, 1])


def test_a_segment_that_is_full_before_its_age_begins_a_new_age_with_the_next_message():
    fs = disk()
    with opened(fs, partition_count=1, segment_size=1000, segment_age=10.0) as stream:
        stream.append(b"x" * 1000)
        fs.clock += 6
        stream.append(b"1")
        fs.clock += 6
        stream.append(b"2")
        assert bases(fs) == [0, 1]
        fs.clock += 4
        stream.append(b"3")
        assert bases(fs) == [0, 1, 3]


@pytest.mark.parametrize("seconds, complete", [(4.0, False), (5.0, True)])
def test_the_age_counts_from_the_first_message_across_opens(seconds, complete):
    fs = disk()
    with opened(fs, partition_count=1, segment_age=10.0) as stream:
        stream.append(b"0")
        fs.clock += 5
        stream.append(b"1")
    with opened(fs, partition_count=1, segment_age=10.0) as stream:
        fs.clock += seconds
        stream.append(b"2")
    assert bases(fs) == ([0, 2] if complete else [0])


@pytest.mark.parametrize("stamp, complete", [(1, True), (2**62, False)], ids=["long ago", "in the future"])
def test_a_first_message_that_is_stamped_otherwise_makes_no_error(stamp, complete):
    fs = disk()
    with opened(fs, partition_count=1, segment_age=10.0) as stream:
        stream.append(b"0", timestamp=stamp)
    with opened(fs, partition_count=1, segment_age=10.0) as stream:
        stream.append(b"1")
        assert bases(fs) == ([0, 1] if complete else [0])
        fs.clock += 10
        stream.append(b"2")
    assert bases(fs)[-1] == 2


def test_what_is_complete_by_its_age_is_durable_with_the_next_sync():
    fs = disk()
    with opened(fs, partition_count=1, segment_age=10.0) as stream:
        stream.append(b"0")
        fs.clock += 10
        stream.append(b"1")
        stream.sync()
        after = fs.crash(random.Random(1))
    assert bases(after) == [0, 1]
    assert sum(map(len, stored(after).values())) == 2


def test_a_transaction_is_whole_though_a_segment_is_complete_by_its_age_in_the_middle():
    fs = disk()
    with opened(fs, partition_count=1, segment_age=10.0) as stream:
        stream.append(b"0")
        fs.clock += 10
        stream.append_many([b"%d" % number for number in range(1, 100)])
    assert sum(map(len, stored(fs).values())) == 100


def test_an_age_is_positive():
    with pytest.raises(ValueError, match="segment_age"):
        StreamOptions(segment_age=0)


def test_what_is_asked_at_each_turn_does_not_grow_with_the_partitions():
    ages = SegmentAges(10.0)
    for partition in range(1000):
        ages.begin(partition, float(partition))
    assert ages.next_due == 10.0
    assert list(ages.take_due(12.0)) == [0, 1, 2]
    ages.forget(3)
    assert ages.next_due == 14.0
    ages.resume({5: 3.0, 6: 30.0}, 100.0)
    assert list(ages.take_due(100.0)) == [6]
    assert ages.next_due == 107.0

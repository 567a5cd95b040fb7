# Places in checkpoints, and how much is taken at once.

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from diskq.spark.errors import DiskqSparkError
from diskq.spark.offsets import Places, StreamPlace, share
from diskq.spark.schema import SCHEMA
from diskq.spark.streaming import DiskqStreamReader
from tests.spark.readers import key_of, options, ranges_in, write

ALL = ReadAllAvailable()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "clicks"


def reader(path, **given) -> DiskqStreamReader:
    return DiskqStreamReader(
        options(path, is_streaming=True, **{"startingOffsets": "earliest", **given}), SCHEMA
    )


def at(offset) -> dict[int, int]:
    """Of the one stream in a checkpoint."""
    (place,) = Places.from_json(json.loads(json.dumps(offset))).streams.values()
    return dict(place.partitions)


def between(of: DiskqStreamReader, start, end) -> list[tuple[int, int, int]]:
    ranges = ranges_in(of.partitions(start, end))
    return [(each.partition, each.start, each.end) for each in ranges]


def fails_with(code: str):
    return pytest.raises(DiskqSparkError, match=f"^{code}: ")


# --- as text --------------------------------------------------------------------------------------


def test_the_same_places_are_the_same_text():
    one = Places({"b": StreamPlace(None, {10: 1, 9: 2}), "a": StreamPlace("0f", {})})
    other = Places({"a": StreamPlace("0f", {}), "b": StreamPlace(None, {9: 2, 10: 1})})
    text = json.dumps(one.as_json())
    assert text == json.dumps(other.as_json())
    assert text == (
        '{"v": 1, "streams": {"a": {"id": "0f", "partitions": {}}, '
        '"b": {"id": null, "partitions": {"9": 2, "10": 1}}}}'
    )
    assert Places.from_json(json.loads(text)).as_json() == one.as_json()


@pytest.mark.parametrize(
    "found", [{}, {"v": 2, "streams": {}}, {"v": 1}, {"v": 1, "streams": {"a": 5}}, [], None]
)
def test_what_no_diskq_wrote_is_refused(found):
    with fails_with("DISKQ_STREAM_CHANGED"):
        Places.from_json(found)


# --- how much at once -----------------------------------------------------------------------------


@given(st.integers(1, 10**6), st.dictionaries(st.integers(0, 50), st.integers(1, 10**9)))
def test_a_limit_is_shared_in_proportion_and_nobody_is_left_out(limit, waiting):
    taken = share(limit, waiting)
    assert taken.keys() == waiting.keys()
    assert all(1 <= taken[key] <= waiting[key] for key in waiting)
    assert sum(taken.values()) <= max(limit, len(waiting)) + len(waiting)
    if sum(waiting.values()) <= limit:
        assert taken == waiting


def test_what_comes_fast_does_not_starve_what_comes_slowly():
    assert share(100, {"fast": 10**6, "slow": 1}) == {"fast": 99, "slow": 1}


def test_a_rate_is_kept_and_a_trigger_that_wants_all_gets_all(path):
    write(path, 1000, partitions=2)
    stream = reader(path, maxOffsetsPerTrigger=100)
    start = stream.initialOffset()
    assert stream.getDefaultReadLimit() == ReadMaxRows(100)
    assert at(stream.latestOffset(start, ReadMaxRows(100))) == {0: 50, 1: 50}
    assert at(stream.latestOffset(start, ALL)) == {0: 500, 1: 500}


def test_a_rate_in_bytes_is_kept_about(path):
    write(path, 1000)
    size = sum(file.stat().st_size for file in path.glob("parts/*/*.data"))
    stream = reader(path, maxBytesPerTrigger=size // 10)
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxBytes(size // 10)
    assert 90 <= at(stream.latestOffset(stream.initialOffset(), limit))[0] <= 110


def test_few_messages_wait_for_more_but_not_for_ever(path):
    write(path, 10)
    stream = reader(path, minOffsetsPerTrigger=100, maxTriggerDelay="50ms")
    stream._last_batch = time.monotonic() + 100
    start = stream.initialOffset()
    assert stream.getDefaultReadLimit() == ReadMinRows(100)
    assert stream.latestOffset(start, ReadMinRows(100)) == start
    stream._last_batch -= 200
    assert at(stream.latestOffset(start, ReadMinRows(100))) == {0: 10}


def test_where_nothing_is_new_the_place_is_the_same_object(path):
    write(path, 10)
    stream = reader(path)
    start = stream.latestOffset(stream.initialOffset(), ALL)
    assert stream.latestOffset(start, ALL) is start


def test_with_available_now_what_comes_later_is_not_taken(path):
    write(path, 10)
    stream = reader(path, maxOffsetsPerTrigger=4)
    stream.prepareForTriggerAvailableNow()
    write(path, 10, start=10, partitions=2)
    seen, place = [], stream.initialOffset()
    while (then := stream.latestOffset(place, ReadMaxRows(4))) != place:
        seen.append(at(then)[0])
        place = then
    assert seen == [4, 8, 10]
    assert at(reader(path).latestOffset(place, ALL)) == {0: 15, 1: 5}


# --- where it begins ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, {0: 0, 1: 0}),
        ({"startingOffsets": "latest"}, {0: 50, 1: 50}),
        ({"startingOffsets": '{"0": 7, "1": -1}'}, {0: 7, 1: 50}),
        ({"startingOffsets": '{"clicks": {"0": -2, "1": 9}}'}, {0: 0, 1: 9}),
        ({"startingTimestamp": "40"}, {0: 20, 1: 20}),  # message i is of the i-th millisecond
        ({"startingTimestamp": "41"}, {0: 21, 1: 20}),
        ({"startingOffsetsByTimestamp": '{"0": 0, "1": 99}'}, {0: 0, 1: 49}),
        ({"startingTimestamp": "100", "startingOffsetsByTimestampStrategy": "latest"}, {0: 50, 1: 50}),
    ],
)
def test_a_query_begins_at_the_given_offsets(path, given, expected):
    write(path, 100, partitions=2)
    assert at(reader(path, **given).initialOffset()) == expected


@pytest.mark.parametrize(
    "given",
    [
        {"startingTimestamp": "100"},
        {"startingOffsets": '{"0": 7}'},
        {"startingOffsets": '{"0": 7, "1": 0, "2": 0}'},
        {"startingOffsets": '{"taps": {"0": 7, "1": 0}}'},
    ],
)
def test_a_beginning_that_is_not_there_is_refused(path, given):
    write(path, 100, partitions=2)
    with fails_with("DISKQ_OPTION"):
        reader(path, **given).initialOffset()


# --- what happens to a stream meanwhile -----------------------------------------------------------


def test_a_new_partition_is_read_from_its_first_message(path):
    write(path, 10)
    stream = reader(path)
    start = stream.latestOffset(stream.initialOffset(), ALL)
    write(path, 10, start=10, partitions=2)
    end = stream.latestOffset(start, ALL)
    assert between(stream, start, end) == [(0, 10, 15), (1, 0, 5)]


def make_anew(path, count: int) -> None:
    import shutil

    shutil.rmtree(path)
    write(path, count)


@pytest.mark.parametrize("count", [5, 10, 20])
def test_a_stream_that_was_made_again_is_recognised_at_any_length(path, count):
    write(path, 10)
    start = reader(path).latestOffset(reader(path).initialOffset(), ALL)
    make_anew(path, count)
    with fails_with("DISKQ_STREAM_CHANGED"):
        reader(path).latestOffset(start, ALL)
    with fails_with("DISKQ_STREAM_CHANGED"):
        reader(path).partitions(start, start)
    lenient = reader(path, failOnDataLoss=False)
    end = lenient.latestOffset(start, ALL)
    assert between(lenient, start, end) == [(0, 0, count)]


def test_a_stream_that_was_moved_is_the_same_one(path, tmp_path):
    write(path, 10)
    start = reader(path).latestOffset(reader(path).initialOffset(), ALL)
    moved = path.rename(tmp_path / "taps")
    write(moved, 5, start=10)
    stream = reader(moved)
    end = stream.latestOffset(start, ALL)
    assert between(stream, start, end) == [(0, 10, 15)]


def removed(path) -> int:
    """Retention takes all segments but the last. Returns the first offset that is left."""
    from diskq.engine.stream.stream import Stream
    from diskq.options import StreamOptions

    with Stream(path, options=StreamOptions(retention_max_bytes=1)) as stream:
        stream.vacuum()
    return int(next(path.glob("parts/000000/*.data")).stem)


def test_messages_that_retention_removed_before_they_were_read_are_reported(path, caplog):
    write(path, 3000)
    start = reader(path).initialOffset()
    first = removed(path)
    assert 0 < first < 3000
    stream = reader(path)
    with fails_with("DISKQ_DATA_LOSS"):
        stream.partitions(start, stream.latestOffset(start, ALL))
    lenient = reader(path, failOnDataLoss=False, maxOffsetsPerTrigger=10)
    end = lenient.latestOffset(start, ReadMaxRows(10))
    assert between(lenient, start, end) == [(0, first, first + 10)]
    assert f"offsets 0 to {first - 1} are gone" in caplog.text


def test_a_checkpoint_beyond_the_end_of_a_stream_is_reported(path):
    write(path, 10)
    stream = reader(path)
    now = stream.latestOffset(stream.initialOffset(), ALL)
    beyond = json.loads(json.dumps(now).replace('"0": 10', '"0": 15'))
    with fails_with("DISKQ_DATA_LOSS"):
        stream.latestOffset(beyond, ALL)
    lenient = reader(path, failOnDataLoss=False)
    back = lenient.latestOffset(beyond, ALL)
    assert at(back) == {0: 10}
    assert between(lenient, beyond, back) == []
    write(path, 3, start=10)
    assert between(lenient, back, lenient.latestOffset(back, ALL)) == [(0, 10, 13)]


def test_a_stream_or_partition_that_is_gone_is_reported(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name, 10)
    both = reader(tmp_path, subscribePattern="[ab]")
    start = both.initialOffset()
    assert set(Places.from_json(start).streams) == {"a", "b"}
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    with fails_with("DISKQ_DATA_LOSS"):
        both.latestOffset(start, ALL)
    lenient = reader(tmp_path, subscribePattern="[ab]", failOnDataLoss=False)
    assert between(lenient, start, lenient.latestOffset(start, ALL)) == [(0, 0, 10)]


def test_a_missing_stream_is_an_error_when_it_is_needed(path):
    stream = reader(path)
    with fails_with("DISKQ_NOT_FOUND"):
        stream.initialOffset()
    write(path, 1)
    assert at(stream.initialOffset()) == {0: 0}


def test_keys_find_their_partitions():
    assert key_of(1, 2) != key_of(0, 2)

# What may be said to a read, and what is said to who misspells it.

from __future__ import annotations

import pickle
from typing import Any

import pytest

from diskq.spark.errors import DiskqSparkError, classify
from diskq.spark.offsets import EARLIEST, LATEST
from diskq.spark.options import ReadOptions
from tests.spark.readers import options


def refused(**given: Any) -> str:
    with pytest.raises(DiskqSparkError) as caught:
        options("/s/clicks", **given)
    assert caught.value.code == "DISKQ_OPTION"
    return caught.value.sentence


def test_a_batch_begins_at_the_earliest_and_ends_at_the_latest():
    found = options("/s/clicks")
    assert (found.starting.everywhere, found.ending.everywhere) == (EARLIEST, LATEST)


def test_a_stream_begins_at_the_latest():
    assert options("/s/clicks", is_streaming=True).starting.everywhere == LATEST


def test_names_and_words_are_taken_in_any_case():
    found = options("/s/clicks", STARTINGOFFSETS="Earliest", failondataloss="FALSE")
    assert (found.starting.everywhere, found.fail_on_data_loss) == (EARLIEST, False)


def test_options_travel_by_pickle():
    found = options("/s/clicks", startingOffsets='{"0": 5}', minPartitions=4)
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    "given, meant",
    [
        ("failOnDataLos", "failOnDataLoss"),
        ("startingOffset", "startingOffsets"),
        ("maxoffsetpertrigger", "maxOffsetsPerTrigger"),
        ("subscribepatern", "subscribePattern"),
    ],
)
def test_an_unknown_option_is_an_error_that_names_the_nearest_one(given, meant):
    assert f"did you mean {meant}?" in refused(**{given: "1"})


def test_an_option_like_none_is_answered_with_all():
    assert "startingOffsets" in refused(zzz="1")


@pytest.mark.parametrize(
    "name",
    ["kafka.bootstrap.servers", "groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries"],
)
def test_what_only_a_kafka_client_needs_is_passed_over_with_a_warning(name, caplog):
    options("/s/clicks", **{name: "x"})
    assert name in caplog.text


@pytest.mark.parametrize(
    "given",
    [
        {"includeHeaders": True},
        {"failOnDataLoss": "maybe"},
        {"minPartitions": 0},
        {"minPartitions": "many"},
        {"maxRecordsPerPartition": -1},
        {"recordsPerArrowBatch": 0},
        {"bytesPerArrowBatch": 2**40},
        {"layout": "kafka"},
        {"startingOffsets": "latest"},
        {"startingOffsets": "yesterday"},
        {"startingOffsets": "[1]"},
        {"startingOffsets": "{}"},
        {"startingOffsets": '{"0": -3}'},
        {"startingOffsets": '{"0": -1}'},
        {"startingOffsets": '{"0": "5"}'},
        {"startingOffsets": '{"0": true}'},
        {"startingOffsets": '{"zero": 1}'},
        {"startingOffsets": '{"clicks": {"0": 1}, "1": 2}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"0": -2}'},
        {"startingTimestamp": "2024-01-01"},
        {"endingTimestamp": str(10**30)},
        {"startingOffsetsByTimestampStrategy": "guess"},
        {"subscribe": "a", "assign": '{"a": [0]}'},
        {"subscribe": "../a"},
        {"subscribe": "a,,b"},
        {"subscribePattern": "("},
        {"assign": "{}"},
        {"assign": '{"a": [0, 0]}'},
        {"assign": '{"a": [-1]}'},
        {"topic": "t", "subscribe": "a"},
        {"maxTriggerDelay": "soon"},
        {"minOffsetsPerTrigger": 10, "maxOffsetsPerTrigger": 5},
        {"paths": '["/a"]'},
    ],
)
def test_what_cannot_be_is_refused_by_its_name(given):
    assert any(name in refused(**given) for name in given)


def test_without_a_path_it_is_asked_for():
    with pytest.raises(DiskqSparkError, match="path is not given"):
        options()


def test_a_bound_for_the_end_is_refused_for_a_stream_and_a_rate_warned_of_for_a_batch(caplog):
    with pytest.raises(DiskqSparkError, match="only for batch reads"):
        options("/s/clicks", is_streaming=True, endingOffsets="latest")
    options("/s/clicks", maxOffsetsPerTrigger=5)
    assert "maxOffsetsPerTrigger" in caplog.text


def test_times_go_before_times_by_partition_and_these_before_offsets():
    by_each = {"startingOffsetsByTimestamp": '{"0": 7}', "startingOffsets": "earliest"}
    assert options("/s", startingTimestamp=5, **by_each).starting.everywhere == 5
    found = options("/s", **by_each).starting
    assert (found.is_time, found.each) == (True, {None: {0: 7}})


def test_the_topic_of_one_stream_is_its_directory_or_the_option_topic():
    assert options("/s/clicks/").selection.streams == {"clicks": "/s/clicks/"}
    assert options("/s/clicks", topic="taps").selection.streams == {"taps": "/s/clicks"}


def test_several_streams_are_named_below_a_root_or_as_a_list():
    both = {"a": "/s/a", "b": "/s/b"}
    assert options("/s", subscribe="a, b").selection.streams == both
    assert options("/s/", assign='{"a": [1], "b": [0, 2]}').selection.streams == both
    assert ReadOptions.parse({"paths": '["/s/a", "/s/b"]'}, is_streaming=False).selection.streams == both


def test_two_streams_of_one_name_are_refused():
    with pytest.raises(DiskqSparkError, match="two streams have the name 'a'"):
        ReadOptions.parse({"paths": '["/s/a", "/t/a"]'}, is_streaming=False)


@pytest.mark.parametrize(
    "text, seconds", [("90s", 90), ("15m", 900), ("2h", 7200), ("500", 0.5), ("1d", 86400)]
)
def test_a_delay_is_written_as_spark_writes_it(text, seconds):
    assert options("/s", is_streaming=True, maxTriggerDelay=text).max_trigger_delay == seconds


# --- what comes out of Spark ----------------------------------------------------------------------


def test_an_error_is_known_by_its_code_in_a_text():
    text = (
        'File "x.py", line 3\n    raise DiskqSparkError("DISKQ_OPTION", what)\n'
        "diskq.spark.errors.DiskqSparkError: DISKQ_DATA_LOSS: clicks[0]: offsets 1 to 2 are gone\nJVM: x"
    )
    assert classify(RuntimeError(text)) == ("DISKQ_DATA_LOSS", "clicks[0]: offsets 1 to 2 are gone")
    assert classify(RuntimeError("something else")) is None
    late = "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.apache.spark"
    assert classify(RuntimeError(late)) == ("DISKQ_WORKER_LATE", "Python worker failed to connect back.")


def test_an_error_is_known_by_its_cause():
    error = RuntimeError("Spark says this")
    error.__cause__ = DiskqSparkError("DISKQ_LOCKED", "somebody has it")
    assert classify(error) == ("DISKQ_LOCKED", "somebody has it")

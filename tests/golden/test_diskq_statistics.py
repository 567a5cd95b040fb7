# What go-diskq tells of the streams that it left. Law: the same, but where it is wrong.

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from diskq.engine.log.timestamps import as_text
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.statistics import as_go, stream_statistics
from diskq.storage.fs import OsFileSystem
from tests.golden.streams import case, every_stream, golden_stream

FS = OsFileSystem()


def told(name: str, tmp_path) -> dict[str, Any]:
    return as_go(stream_statistics(FS, StreamFiles(FS, str(golden_stream(name, tmp_path)))))


def put_right(name: str) -> dict[str, Any]:
    """Its own account, but what the messages say otherwise."""
    of = case(name)
    right = deepcopy(of.statistics)
    right["TotalOffsets"] = sum(map(len, of.messages.values()))
    for partition in right["Partitions"]:
        if messages := of.messages[partition["PartitionIndex"]]:
            partition["NewestOffset"] = messages[-1].offset
            partition["NewestTimestamp"] = as_text(messages[-1].timestamp_ns)
    right["Age"] = max(
        messages[-1].timestamp_ns - messages[0].timestamp_ns if messages else 0
        for messages in of.messages.values()
    )
    return right


@every_stream
def test_statistics_agree_with_go_diskqs_except_where_these_are_wrong(name, tmp_path):
    right = put_right(name)
    assert told(name, tmp_path) == {**right, "Path": str(tmp_path / name)}


@pytest.mark.parametrize("name", ["defaults", "live_owner", "three_parts", "torn_data", "empty_payload"])
def test_where_it_is_right_but_for_the_total_nothing_is_put_right(name):
    assert {**put_right(name), "TotalOffsets": 0} == {**case(name).statistics, "TotalOffsets": 0}


def test_its_total_is_one_too_few_for_each_partition_with_messages():
    of = case("three_parts")
    assert of.statistics["TotalOffsets"] == put_right("three_parts")["TotalOffsets"] - 3


@pytest.mark.parametrize("name", ["empty_active", "single_msg_segments", "vacuumed"])
def test_where_the_active_segment_is_empty_it_knows_no_newest_message(name):
    wrong, right = case(name).statistics["Partitions"][0], put_right(name)["Partitions"][0]
    assert wrong["NewestTimestamp"] == "0001-01-01T00:00:00Z" != right["NewestTimestamp"]
    assert wrong["NewestOffset"] == right["NewestOffset"] + 1


def test_a_torn_row_of_the_index_is_an_offset_to_it():
    assert case("torn_index").statistics["Partitions"][0]["NewestOffset"] == 14355223812243456
    assert put_right("torn_index")["Partitions"][0]["NewestOffset"] == 5

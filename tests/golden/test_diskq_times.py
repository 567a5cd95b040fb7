# What go-diskq answers about time in the streams that it left. Law: where it is right we agree, and where it
# is not we say what is there.

from __future__ import annotations

from bisect import bisect_right

import pytest

from diskq._native.stream import codec as stream_codec
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.storage.fs import OsFileSystem
from tests.engine.moments import offset_after_once
from tests.golden.streams import STREAMS, Case, Lookup, case, every_stream, golden_stream

FS = OsFileSystem()
ASKED = [(name, lookup) for name in STREAMS for lookup in case(name).lookups]


def is_wrong(name: str, lookup: Lookup) -> bool:
    """In a segment of one message, which go-diskq answers with 0 wherever that segment begins."""
    of = case(name)
    right = judged(of, lookup.partition, lookup.when)
    if not right:
        return False
    bases = of.segments[lookup.partition]
    segments = [bisect_right(bases, told.offset) for told in of.messages[lookup.partition]]
    return segments.count(bisect_right(bases, right)) == 1


def judged(of: Case, partition: int, when: int) -> int | None:
    """By a look at every message of the account."""
    return next((told.offset for told in of.messages[partition] if told.timestamp_ns > when), None)


@pytest.mark.parametrize("name, lookup", ASKED, ids=str)
def test_every_answer_that_is_right_is_ours(name, lookup, tmp_path):
    stream = str(golden_stream(name, tmp_path))
    answer = offset_after_once(FS, stream, lookup.partition, lookup.when)
    assert answer == judged(case(name), lookup.partition, lookup.when)
    assert (answer != lookup.offset) is is_wrong(name, lookup)


def test_go_diskq_is_wrong_where_a_segment_has_one_message_and_only_there():
    wrong = [(name, lookup.offset) for name, lookup in ASKED if is_wrong(name, lookup)]
    assert wrong == [("single_msg_segments", 0)] * 4 + [("three_parts", 0)]


@every_stream
def test_every_moment_is_answered(name, tmp_path):
    of, files = case(name), StreamFiles(FS, str(golden_stream(name, tmp_path)))
    for partition, messages in of.messages.items():
        with TimeLookup(FS, files.partition(partition)) as lookup:
            for when in {told.timestamp_ns + beside for told in messages for beside in (-1, 0, 1)} | {0}:
                assert lookup.offset_after(when) == judged(of, partition, when)


@pytest.mark.parametrize("name", ["torn_data", "torn_index"])
def test_what_go_diskq_wrote_behind_its_own_damage_is_found(name, tmp_path):
    """It was asked itself, after it had gone on behind half a record and half a row."""
    stream = golden_stream(name, tmp_path)
    told = case(name).manifest["after_go_reopens_and_pushes_3"]
    push_as_go_diskq(stream, told["pushed"])
    for asked in told["GetOffsetAfter"]:
        assert offset_after_once(FS, str(stream), 0, asked["after_ns"]) == asked["offset"]
    (stream / f"parts/000000/{0:020}.timeindex").unlink()
    for asked in told["GetOffsetAfter"]:
        assert offset_after_once(FS, str(stream), 0, asked["after_ns"]) == asked["offset"]


def push_as_go_diskq(stream, pushed) -> None:
    """Behind whatever lies there: offsets go on from the whole rows, positions from the file's end."""
    data, index, timeindex = (
        stream / f"parts/000000/{0:020}.{suffix}" for suffix in ("data", "index", "timeindex")
    )
    for message in pushed:
        offset, position = index.stat().st_size // 24, data.stat().st_size
        assert offset == message["offset"]
        triple = (bytes.fromhex(message["key_hex"]), message["ts_ns"], bytes.fromhex(message["hex"]))
        made = stream_codec.encode([triple], offset, position)
        for path, content in ((timeindex, made.timeindex_rows), (data, made.data), (index, made.index_rows)):
            path.chmod(0o644)
            with path.open("ab") as file:
                file.write(content)

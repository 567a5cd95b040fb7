# Streams that go-diskq left, with its own account of what is in them. Law: what is whole in a data file is
# found, whatever lies behind it; and who writes the same messages makes the same files.

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from diskq._native.core.message import Message
from diskq._native.stream import codec as stream_codec
from tests.golden.streams import (
    HERE,
    STREAMS,
    Told,
    case,
    every_stream,
    golden_stream,
    hash_vectors,
    told_of,
)
from tests.reference import triplet_oracle as oracle

TORN = ("torn_data", "torn_index")
WHOLE = [name for name in STREAMS if name not in TORN]

every_whole_stream = pytest.mark.parametrize("name", WHOLE)


def described(messages: list[Message]) -> list[Told]:
    return told_of((m.partition, m.offset, m.timestamp_ns, m.key, m.value) for m in messages)


def partition_directory(stream: Path, partition: int) -> Path:
    return stream / f"parts/{partition:06}"


def by_the_codec(stream: Path, partition: int) -> list[Message]:
    """Every message of the partition's data files."""
    messages: list[Message] = []
    for base in oracle.bases(partition_directory(stream, partition)):
        data = (partition_directory(stream, partition) / f"{base:020}.data").read_bytes()
        messages += stream_codec.scan(data, partition, base).messages
    return messages


# --- what lies there --------------------------------------------------------------------------


def test_there_are_as_many_cases_as_there_were():
    assert len(STREAMS) == 9
    assert len(hash_vectors()) == 15
    assert sum(len(case(name).lookups) for name in STREAMS) == 51


@every_stream
def test_the_files_are_as_they_were_written(name):
    data = HERE / name / "data"
    contents = {str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*") if path.is_file()}
    hashed = {path: (len(content), hashlib.sha256(content).hexdigest()) for path, content in contents.items()}
    assert hashed == case(name).files


@every_stream
def test_a_copy_has_every_file(name, tmp_path):
    stream = golden_stream(name, tmp_path)
    assert {path for path in case(name).files if (stream / path).is_file()} == set(case(name).files)
    assert stream.is_relative_to(tmp_path)


@every_stream
def test_the_settings_are_what_the_peer_reads_in_them(name, tmp_path):
    assert oracle.settings(golden_stream(name, tmp_path)) == case(name).settings


@every_stream
def test_the_segments_are_where_the_peer_finds_them(name, tmp_path):
    stream = golden_stream(name, tmp_path)
    found = {p: oracle.bases(partition_directory(stream, p)) for p in oracle.partitions(stream)}
    assert found == case(name).segments


# --- messages ---------------------------------------------------------------------------------


@every_stream
def test_every_message_is_found_by_the_oracle(name, tmp_path):
    found = oracle.read_stream(golden_stream(name, tmp_path), may_be_torn=name in TORN)
    assert {partition: told_of(messages) for partition, messages in found.items()} == case(name).messages


@every_stream
def test_every_message_is_found_by_the_codec(name, tmp_path):
    stream = golden_stream(name, tmp_path)
    for partition, messages in case(name).messages.items():
        assert described(by_the_codec(stream, partition)) == messages


@every_stream
def test_no_fewer_messages_are_found_than_by_the_peer(name):
    for partition, messages in case(name).found_by_the_peer.items():
        assert case(name).messages[partition][: len(messages)] == messages


@every_whole_stream
def test_writing_the_same_messages_makes_the_same_files(name, tmp_path):
    """Byte for byte: the partition of each key, where segments end, both indices, and the settings."""
    theirs = golden_stream(name, tmp_path)
    read = oracle.read_stream(theirs)
    if name == "vacuumed":
        first = case(name).segments[0][0]
        triples = [(m.key, m.timestamp, m.value) for m in read[0]]
        oracle.write_partition(tmp_path / "ours/parts/000000", triples, 500, first)
    else:
        values = {(m.partition, m.offset): m.value for messages in read.values() for m in messages}
        pushed = [(m.key, m.timestamp_ns, values[m.partition, m.offset]) for m in case(name).pushed]
        oracle.write_stream(tmp_path / "ours", pushed, **case(name).settings)
    for path in (tmp_path / "ours").rglob("*.*"):
        assert path.read_bytes() == (theirs / path.relative_to(tmp_path / "ours")).read_bytes(), path
    parts = {path.relative_to(theirs) for path in theirs.glob("parts/*/*")}
    assert {path.relative_to(tmp_path / "ours") for path in (tmp_path / "ours").glob("parts/*/*")} == parts


@every_whole_stream
def test_the_codec_lays_down_what_lies_there(name, tmp_path):
    stream = golden_stream(name, tmp_path)
    for partition, bases in case(name).segments.items():
        messages = by_the_codec(stream, partition)
        for base, end in zip(bases, [*bases[1:], None], strict=True):
            chosen = [m for m in messages if m.offset >= base and (end is None or m.offset < end)]
            made = stream_codec.encode([(m.key, m.timestamp_ns, m.value) for m in chosen], base)
            for suffix, content in zip(("data", "index", "timeindex"), made, strict=True):
                path = partition_directory(stream, partition) / f"{base:020}.{suffix}"
                assert content == path.read_bytes(), path.name


# --- keys, markers, time ----------------------------------------------------------------------


@pytest.mark.parametrize("key, hashed", hash_vectors())
def test_a_key_has_the_hash_that_go_gives_it(key, hashed):
    assert stream_codec.key_hash(key) == hashed
    assert oracle.fnv1(key) == hashed


@every_stream
def test_every_message_is_in_the_partition_of_its_key(name):
    count = case(name).settings.get("partition_count", 3)
    assert all(stream_codec.key_hash(m.key) % count == m.partition for m in case(name).pushed)


def test_markers_tell_the_last_offset_that_was_processed(tmp_path):
    markers = oracle.read_markers(golden_stream("three_parts", tmp_path))
    assert markers == {"group-α": {0: 7, 1: 0, 2: 11}, "fresh": {0: None}}


@every_stream
def test_the_peers_lookups_are_the_definition_except_in_segments_of_one_message(name, tmp_path):
    stream = golden_stream(name, tmp_path)
    for partition, when, offset in case(name).lookups:
        right = oracle.offset_after(oracle.read_partition(stream, partition), when)
        directory = partition_directory(stream, partition)
        alone = right is not None and (directory / f"{right:020}.timeindex").exists()
        alone = (
            alone and (directory / f"{right:020}.timeindex").stat().st_size == stream_codec.TIMEINDEX_ROW_SIZE
        )
        assert offset == (0 if alone else right), f"after {when} in partition {partition}"


# --- the damaged ones, in words ---------------------------------------------------------------


def test_the_owner_of_a_live_producer_is_sixteen_raw_bytes(tmp_path):
    owner = (golden_stream("live_owner", tmp_path) / "owner").read_bytes()
    assert owner == bytes.fromhex(case("live_owner").manifest["owner_hex"])
    assert len(owner) == 16


def test_half_a_record_is_torn_behind_the_last_whole_one(tmp_path):
    data = (golden_stream("torn_data", tmp_path) / "parts/000000/00000000000000000000.data").read_bytes()
    assert stream_codec.count(data) == (6, 306, "TORN")
    assert len(data) == 306 + 17


def test_half_a_row_does_not_keep_the_rows_before_it_from_being_read(tmp_path):
    index = (golden_stream("torn_index", tmp_path) / "parts/000000/00000000000000000000.index").read_bytes()
    assert stream_codec.index_rows(index) == [(i, 51 * i, 51) for i in range(6)]
    assert len(index) == 6 * 24 + 10


def test_an_empty_value_is_a_message_which_the_peer_cannot_read(tmp_path):
    found = by_the_codec(golden_stream("empty_payload", tmp_path), 0)
    assert [len(message.value) for message in found] == [3, 0, 5, 0]
    assert len(case("empty_payload").found_by_the_peer[0]) == 1

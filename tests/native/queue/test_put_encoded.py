# The stream's fast path for encoded records: it writes the same files as the other ways to send.

from __future__ import annotations

import errno

import pytest

from diskq._native.stream.codec import encode
from tests.engine.streams import Triple, data, disk, failing_disk, held, index, opened, stored, triples


def put_all(stream, encoded: bytes, partition: int = 0) -> int:
    """Return the number of calls."""
    calls = at = 0
    while at < len(encoded):
        after = stream.steps.router.append_encoded(partition, encoded, at)
        assert after > at
        at, calls = after, calls + 1
    stream.flush()
    return calls


@pytest.mark.parametrize("varuint", [False, True])
@pytest.mark.parametrize("length", [0, 100, 5000, 300_000])
def test_files_are_as_if_the_messages_had_been_appended(varuint, length):
    encoding = "varuint" if varuint else "fixed"
    messages: list[Triple] = triples(40, length=length)
    fs, other = disk(), disk()
    with opened(fs, partition_count=1, segment_size=700_000, encoding=encoding) as stream:
        put_all(stream, encode(messages, varuint=varuint).data)
    with opened(other, partition_count=1, segment_size=700_000, encoding=encoding) as stream:
        stream.append_many([(k, v, t) for k, t, v in messages])
    assert stored(fs, varuint=varuint) == stored(other, varuint=varuint)


def test_one_call_is_one_write_at_most():
    fs = failing_disk()
    with opened(fs, partition_count=1) as stream:
        fs.calls.clear()
        calls = put_all(stream, encode(triples(3000, length=500)).data)
        writes = [call.size for call in fs.calls if call.verb == "pwrite" and call.path == data()]
    assert len(writes) == calls
    assert max(writes) < 257 * 1024


@pytest.mark.parametrize("end", ["torn", "corrupt"])
def test_bytes_that_are_not_records_are_not_taken(end):
    encoded = encode(triples(5)).data
    bad = encoded[:-1] if end == "torn" else encoded + b"\0" * 12 + b"\xff" * 8
    fs = disk()
    with opened(fs, partition_count=1) as stream:
        stream.append(b"before", b"k", 1)
        with pytest.raises(ValueError, match="no whole record at byte"):
            stream.steps.router.append_encoded(0, bad)
        assert stream.next_offsets == (1,)
        put_all(stream, encoded)
    assert held(fs)[0] == [(b"k", 1, b"before"), *triples(5)]


def test_records_whose_write_fails_are_not_accepted():
    fs = failing_disk()
    messages = triples(3000, length=500)
    encoded = encode(messages).data
    with opened(fs, partition_count=1) as stream:
        at = stream.steps.router.append_encoded(0, encoded)
        there = stream.next_offsets
        accepted = stream.accepted_bytes
        fs.fail("pwrite", error=errno.EIO, path="*.data")
        with pytest.raises(OSError, match="/s"):
            stream.steps.router.append_encoded(0, encoded, at)
        assert stream.next_offsets == there
        assert stream.accepted_bytes == accepted
        while at < len(encoded):
            at = stream.steps.router.append_encoded(0, encoded, at)
    assert held(fs.inner)[0] == messages


def test_it_goes_no_further_than_a_segment_that_is_full():
    fs = disk()
    encoded = encode(triples(10)).data
    with opened(fs, partition_count=1, segment_size=1) as stream:
        for number in range(10):
            at = stream.steps.router.append_encoded(0, encoded[number * len(encoded) // 10 :])
            assert at == len(encoded) // 10
        stream.flush()
        assert fs.size_of(index(9)) == 24
    assert held(fs)[0] == triples(10)


@pytest.mark.parametrize("start", [-1, 6])
def test_places_outside_are_refused(start):
    with opened(disk(), partition_count=1) as stream:
        with pytest.raises(IndexError):
            stream.steps.router.append_encoded(0, b"12345", start)
        with pytest.raises(IndexError):
            stream.steps.router.append_encoded(1, b"", 0)
        assert stream.steps.router.append_encoded(0, b"") == 0

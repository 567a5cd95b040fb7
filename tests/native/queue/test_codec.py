# The NSQ codec against `struct`. Law: the two agree on every input; no byte is read past the buffer; END,
# TORN and CORRUPT are distinguished.

from __future__ import annotations

import itertools
import struct
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diskq._native.core.gate import Gate
from diskq._native.core.read_ahead import ReadAhead
from diskq._native.queue.codec import MAX_BODY, NsqFraming, QueueColumns, columns, count, encode, scan
from tests.engine.ram import RamFS
from tests.reference import nsq_oracle

# --- the vocabulary ---------------------------------------------------------------------------


def length(size: int) -> bytes:
    """A length word, whether or not it makes sense."""
    return struct.pack(">I", size % 2**32)


def one(body: bytes) -> bytes:
    return nsq_oracle.frame(body)


def found(data: Any, *limits: int) -> tuple[list[bytes], int, str]:
    """Return the result of `scan`, after checking that `count` and `columns` agree."""
    scanned = scan(data, *limits)
    assert count(data, *limits) == (len(scanned.bodies), scanned.valid_end, scanned.stop)
    least, most = limits or (0, MAX_BODY)
    for wide in (False, True):
        in_a_row = columns(data, least, most, wide)
        assert rejoined(in_a_row) == scanned.bodies
        assert in_a_row[-3:] == (8 if wide else 4, scanned.valid_end, scanned.stop)
    return scanned.bodies, scanned.valid_end, scanned.stop


def rejoined(found: QueueColumns) -> list[bytes]:
    """A column taken apart by `struct`."""
    number = "i" if found.offset_width == 4 else "q"
    offsets = [offset for (offset,) in struct.iter_unpack("=" + number, found.value_offsets)]
    assert (len(offsets), offsets[0], offsets[-1]) == (found.records + 1, 0, len(found.values))
    return [found.values[start:end] for start, end in itertools.pairwise(offsets)]


def judged(data: bytes, min_size: int = 0, max_size: int = MAX_BODY) -> tuple[list[bytes], int, str]:
    """The same by `struct`, one byte string after the other."""
    bodies: list[bytes] = []
    at = 0
    while at < len(data):
        if len(data) - at < 4:
            return bodies, at, "TORN"
        (size,) = struct.unpack_from(">i", data, at)
        if not min_size <= size <= max_size:
            return bodies, at, "CORRUPT"
        if len(data) - at < 4 + size:
            return bodies, at, "TORN"
        bodies.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return bodies, at, "END"


bodies = st.lists(st.binary(max_size=40), max_size=8)
limits = st.integers(0, 60).flatmap(lambda least: st.tuples(st.just(least), st.integers(least, 80)))
# Lengths near each border, between real records and noise.
pieces = st.one_of(
    st.binary(max_size=12),
    st.binary(max_size=40).map(one),
    st.sampled_from([0, 1, 3, 4, 60, 80, 2**24, 2**31 - 1, 2**31, 2**32 - 1]).map(length),
)
noise = st.lists(pieces, max_size=8).map(b"".join)


# --- writing ----------------------------------------------------------------------------------


@given(bodies)
def test_encode_agrees_with_the_oracle(bodies):
    assert encode(bodies) == b"".join(map(one, bodies))


def test_no_messages_make_no_bytes():
    assert encode([]) == b""


def test_an_empty_message_is_a_record_of_four_bytes():
    assert encode([b""]) == bytes(4)


def test_mutable_buffers_are_copied():
    body = bytearray(b"abc")
    data = encode([body, memoryview(body)])
    body[:] = b"xyz"
    assert data == one(b"abc") * 2


@pytest.mark.parametrize("body", ["text", 7, None, [b"a"]])
def test_only_bytes_are_messages(body):
    with pytest.raises(TypeError, match="a message is bytes"):
        encode([b"good", body])


# --- reading ----------------------------------------------------------------------------------


@given(bodies)
def test_what_was_written_is_read(bodies):
    data = encode(bodies)
    assert found(data) == (bodies, len(data), "END")
    assert nsq_oracle.frames(data) == bodies


@given(noise, limits)
@example(b"", (0, 0))
def test_scan_agrees_with_struct_on_anything(data, limits):
    assert found(data, *limits) == judged(data, *limits)
    assert found(data) == judged(data)


@given(bodies)
def test_bytes_cut_anywhere_are_torn_after_the_last_whole_record(bodies):
    data = encode(bodies)
    ends = [0]
    for body in bodies:
        ends.append(ends[-1] + 4 + len(body))
    for cut in range(len(data) + 1):
        whole = sum(end <= cut for end in ends[1:])
        stop = "END" if cut in ends else "TORN"
        assert found(data[:cut]) == (bodies[:whole], ends[whole], stop)


@given(noise, st.binary(max_size=20), st.binary(max_size=20), limits)
def test_bytes_around_the_buffer_are_not_read(data, before, after, limits):
    view = memoryview(before + data + after)[len(before) : len(before) + len(data)]
    assert found(view, *limits) == judged(data, *limits)


@pytest.mark.parametrize("after", [b"", b"any bytes after it"])
@pytest.mark.parametrize("size", [-1, -4, -(2**31), 2**31, 2**32 - 1, 2**32 - 4])
def test_a_negative_length_is_corrupt(size, after):
    assert found(one(b"a") + length(size) + after) == ([b"a"], 5, "CORRUPT")


@pytest.mark.parametrize("size", [11, 12, 2**24, 2**31 - 1])
def test_a_length_over_the_maximum_is_corrupt_though_its_bytes_are_not_there(size):
    assert found(one(b"a") + length(size), 0, 10) == ([b"a"], 5, "CORRUPT")


@pytest.mark.parametrize("size", [0, 4])
def test_a_length_under_the_minimum_is_corrupt(size):
    assert found(one(b"12345") + one(bytes(size)), 5, 10) == ([b"12345"], 9, "CORRUPT")


def test_the_limits_themselves_are_allowed():
    data = one(b"12345") + one(b"1234567890")
    assert found(data, 5, 10) == ([b"12345", b"1234567890"], 23, "END")


def test_the_largest_length_there_is_is_torn_and_nothing_is_made_for_it():
    assert found(length(MAX_BODY) + b"a few") == ([], 0, "TORN")


def test_a_length_word_that_is_not_whole_is_torn():
    for size in (1, 2, 3):
        assert found(one(b"a") + length(-1)[:size]) == ([b"a"], 5, "TORN")


def test_an_empty_buffer_is_at_its_end():
    assert found(b"") == ([], 0, "END")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_scanned(kind):
    assert found(kind(one(b"a") + b"\0")) == ([b"a"], 5, "TORN")


def test_a_buffer_with_gaps_or_of_text_is_refused():
    with pytest.raises(BufferError, match="contiguous"):
        scan(memoryview(one(b"abcd"))[::2])
    with pytest.raises(TypeError):
        scan("text")  # type: ignore[arg-type]


# --- the framing ------------------------------------------------------------------------------


def test_a_framing_knows_its_limits():
    framing = NsqFraming(1, 10)
    assert (framing.min_size, framing.max_size, framing.overhead) == (1, 10, 4)


@pytest.mark.parametrize("limits", [(-1, 10), (5, 4), (0, MAX_BODY + 1), (2**40, 2**40)])
def test_limits_that_the_format_cannot_hold_are_refused(limits):
    with pytest.raises(ValueError, match="min_size"):
        NsqFraming(*limits)


# --- columns ----------------------------------------------------------------------------------


def test_a_column_is_two_buffers_that_arrow_takes_as_they_are():
    offsets = struct.pack("=4i", 0, 3, 3, 8)
    assert columns(encode([b"one", b"", b"three"]) + b"?") == (3, b"onethree", offsets, 4, 20, "TORN")


def test_a_column_of_nothing_has_one_offset():
    assert columns(b"") == (0, b"", bytes(4), 4, 0, "END")


def test_a_column_costs_no_object_for_each_message():
    data = encode([b"body"] * 10_000)
    before = sys.getallocatedblocks()
    made = columns(data)
    assert sys.getallocatedblocks() - before < 100
    assert made.records == 10_000


def test_a_false_length_allocates_no_column():
    tracemalloc.start()
    try:
        assert columns(length(2**31 - 1)).stop == "TORN"
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


# --- the read-ahead that delivers columns -----------------------------------------------------


def ahead_of(data: bytes, min_size: int = 0) -> ReadAhead:
    """Load and admit all bytes."""
    fs = RamFS({"/q/data": data})
    ahead = ReadAhead(fs, NsqFraming(min_size, 100), Gate())
    ahead.load(fs.open("/q/data"), 0, len(data))
    ahead.admit(0, len(data))
    return ahead


@given(noise, limits, st.integers(1, 5), st.integers(0, 60))
def test_columns_are_handed_out_within_their_bounds_until_no_record_is_left(data, limits, most, max_bytes):
    ahead = ahead_of(data, limits[0])
    bodies: list[bytes] = []
    while (found := ahead.take_columns(most, max_bytes)) is not None:
        more = rejoined(found)
        assert 1 <= len(more) <= most
        assert len(more) == 1 or sum(4 + len(body) for body in more) <= max_bytes
        bodies += more
    assert (bodies, ahead.position, ahead.why) == judged(data, limits[0])
    assert ahead.records == len(bodies)


def test_no_column_is_handed_out_of_what_is_not_admitted():
    ahead = ahead_of(encode([b"one", b"two"]))
    ahead.admit(0, 7)
    assert ahead.take_columns(0, 100) is None
    assert [ahead.take_columns(9, 100), ahead.take_columns(9, 100)] == [columns(encode([b"one"])), None]

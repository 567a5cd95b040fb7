# The triplet codec against `struct`. Law: the two agree on every input, in both encodings; no byte is read
# past the buffer; END, TORN and CORRUPT are distinguished.

from __future__ import annotations

import struct
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diskq._native.core.message import Message
from diskq._native.stream import codec as stream_codec
from diskq._native.stream.codec import (
    INDEX_ROW_SIZE,
    MAX_KEY,
    MAX_VALUE,
    TIMEINDEX_ROW_SIZE,
    TripletFraming,
    columns,
    count,
    encode,
    index_rows,
    key_hash,
    scan,
    slices,
    timeindex_rows,
)
from tests.reference import triplet_oracle as oracle
from tests.reference.triplet_oracle import Triple, uvarint

# --- the vocabulary ---------------------------------------------------------------------------

in_both_encodings = pytest.mark.parametrize("varuint", [False, True], ids=["fixed", "varuint"])

IN_1968 = -59_958_144_000_000_001
ODD = [
    (b"", 1, b""),
    ("💩".encode(), IN_1968, "日本語".encode()),
    (b"\x00bin\xff", 2**63 - 1, b""),
    (b"", -(2**63), bytes(range(256))),
    (b"k" * 300, 1, b"v" * 20_000),
]
ONE = (b"key", 1_700_000_000_000_000_000, b"value")


def laid_down(triples: list[Triple], varuint: bool) -> bytes:
    return b"".join(oracle.record(*triple, varuint=varuint) for triple in triples)


def found(data: Any, varuint: bool) -> tuple[list[Triple], int, str]:
    """Return the result of `scan`, after checking that every other reader agrees."""
    messages, valid_end, stop = scan(data, 3, 70, varuint)
    triples = [(m.key, m.timestamp_ns, m.value) for m in messages]
    assert [m.position for m in messages] == [(3, 70 + i) for i in range(len(messages))]
    assert count(data, varuint) == (len(messages), valid_end, stop)
    places = slices(data, varuint)
    assert cut_out(places, data) == triples
    assert places[-2:] == (valid_end, stop)
    for wide in (False, True):
        by_column = columns(data, varuint, wide=wide)
        assert rejoined(by_column) == triples
        assert by_column[-3:] == (8 if wide else 4, valid_end, stop)
    return triples, valid_end, stop


def cut_out(found: stream_codec.Slices, data: bytes) -> list[Triple]:
    """Return the bytes at those places."""
    whens, *places = ([number for (number,) in struct.iter_unpack("=q", column)] for column in found[1:6])
    assert [len(numbers) for numbers in (whens, *places)] == [found.records] * 5
    return [
        (bytes(data[key:key_end]), when, bytes(data[value:value_end]))
        for when, key, key_end, value, value_end in zip(whens, *places, strict=True)
    ]


def rejoined(found: stream_codec.StreamColumns) -> list[Triple]:
    """Columns taken apart by `struct`."""
    number = "i" if found.offset_width == 4 else "q"
    timestamps = [when for (when,) in struct.iter_unpack("=q", found.timestamps)]
    keys = [offset for (offset,) in struct.iter_unpack("=" + number, found.key_offsets)]
    values = [offset for (offset,) in struct.iter_unpack("=" + number, found.value_offsets)]
    assert found.records == len(timestamps) == len(keys) - 1 == len(values) - 1
    assert (keys[0], keys[-1]) == (0, len(found.keys))
    assert (values[0], values[-1]) == (0, len(found.values))
    return [
        (found.keys[keys[i] : keys[i + 1]], timestamps[i], found.values[values[i] : values[i + 1]])
        for i in range(found.records)
    ]


timestamps = st.integers(-(2**63), 2**63 - 1)
keys = st.one_of(st.binary(max_size=40), st.text(max_size=10).map(str.encode), st.just(b"k" * 200))
values = st.one_of(st.binary(max_size=40), st.binary(min_size=120, max_size=140))
triples = st.lists(st.tuples(keys, timestamps, values).filter(any), max_size=6)
encodings = st.booleans()

# Lengths near each border, in both encodings, between real records and noise.
lengths = st.sampled_from(
    [0, 1, 4, 20, 127, 128, 2**14, 2**31, 2**32 - 1, 2**32, 2**62, 2**62 + 1, 2**63, 2**64 - 1]
)
pieces = st.one_of(
    st.binary(max_size=30),
    st.binary(min_size=8, max_size=8),
    st.tuples(keys, timestamps, values).map(lambda triple: oracle.record(*triple)),
    st.tuples(keys, timestamps, values).map(lambda triple: oracle.record(*triple, varuint=True)),
    lengths.map(uvarint),
    lengths.map(lambda length: struct.pack("<Q", length)),
    lengths.map(lambda length: struct.pack("<I", length % 2**32)),
    st.integers(1, 12).map(lambda size: b"\xff" * size),
    st.integers(1, 12).map(lambda size: b"\x80" * size + b"\x00"),
)
noise = st.lists(pieces, max_size=8).map(b"".join)

# --- writing ----------------------------------------------------------------------------------


@given(triples, st.integers(0, 2**62), st.integers(0, 2**62), encodings)
@example(ODD, 0, 0, False)
@example(ODD, 12, 345, True)
def test_encode_agrees_with_the_oracle(messages, first_offset, position, varuint):
    data, index, timeindex = encode(messages, first_offset, position, varuint)
    files = oracle.segment(messages, first_offset, varuint=varuint)
    assert (data, timeindex) == (files["data"], files["timeindex"])
    of_the_oracle = list(struct.iter_unpack("<QQQ", files["index"]))
    assert index_rows(index) == [(offset, position + at, size) for offset, at, size in of_the_oracle]


def test_no_messages_make_no_bytes():
    assert encode([]) == (b"", b"", b"")


def test_the_smallest_record_has_twenty_bytes_and_ten_with_varuints():
    assert encode([(b"", 0, b"")]).data == bytes(20)
    assert encode([(b"", 0, b"")], varuint=True).data == bytes(10)


def test_any_iterable_of_triples_will_do():
    assert encode(iter([ONE])) == encode([ONE]) == encode((ONE,))
    assert encode([list(ONE)]) == encode([ONE])  # type: ignore[list-item]


def test_mutable_buffers_are_copied():
    key, value = bytearray(b"abc"), bytearray(b"xyz")
    data = encode([(key, 1, memoryview(value))]).data
    key[:] = value[:] = b"???"
    assert data == oracle.record(b"abc", 1, b"xyz")


@pytest.mark.parametrize("part", ["text", 7, None, [b"a"]])
def test_only_bytes_are_keys_and_values(part):
    with pytest.raises(TypeError, match="is bytes"):
        encode([ONE, (part, 1, b"value")])
    with pytest.raises(TypeError, match="is bytes"):
        encode([ONE, (b"key", 1, part)])


@pytest.mark.parametrize("timestamp", [1.5, None, "now"])
def test_only_whole_numbers_are_timestamps(timestamp):
    with pytest.raises(TypeError):
        encode([ONE, (b"key", timestamp, b"value")])


@pytest.mark.parametrize("timestamp", [2**63, -(2**63) - 1])
def test_a_timestamp_that_the_format_cannot_hold_is_refused(timestamp):
    with pytest.raises(OverflowError):
        encode([ONE, (b"key", timestamp, b"value")])


@pytest.mark.parametrize("message", [(b"key", 1), (b"key", 1, b"value", b"more"), ()])
def test_a_message_has_three_parts(message):
    with pytest.raises(ValueError, match="unpack"):
        encode([ONE, message])


# --- reading ----------------------------------------------------------------------------------


@given(triples, encodings)
@example(ODD, False)
@example(ODD, True)
def test_what_was_written_is_read(messages, varuint):
    data = encode(messages, varuint=varuint).data
    assert found(data, varuint) == (messages, len(data), "END")
    assert oracle.records(data, varuint=varuint) == (messages, len(data), "END")


@given(noise, encodings)
@example(b"", False)
@example(b"", True)
def test_every_reader_agrees_with_struct_on_anything(data, varuint):
    assert found(data, varuint) == oracle.records(data, varuint=varuint)


@in_both_encodings
@pytest.mark.parametrize("messages", [ODD[:4], [ONE] * 3, [(b"k" * 130, IN_1968, b"v" * 130)]])
def test_bytes_cut_anywhere_are_torn_after_the_last_whole_record(messages, varuint):
    data = laid_down(messages, varuint)
    ends = [len(laid_down(messages[:n], varuint)) for n in range(len(messages) + 1)]
    for cut in range(len(data) + 1):
        whole = sum(end <= cut for end in ends[1:])
        stop = "END" if cut in ends else "TORN"
        assert found(data[:cut], varuint) == (messages[:whole], ends[whole], stop), f"cut at {cut}"


@given(noise, st.binary(max_size=40), st.binary(max_size=40), encodings)
def test_bytes_around_the_buffer_are_not_read(data, before, after, varuint):
    view = memoryview(before + data + after)[len(before) : len(before) + len(data)]
    assert found(view, varuint) == oracle.records(data, varuint=varuint)


@given(triples, encodings, st.integers(0, 8))
def test_no_more_records_are_read_than_were_asked_for(messages, varuint, most):
    data = laid_down(messages, varuint)
    expected = messages[:most], len(laid_down(messages[:most], varuint)), "END"
    scanned = scan(data, varuint=varuint, max_records=most)
    assert [(m.key, m.timestamp_ns, m.value) for m in scanned.messages] == expected[0]
    assert scanned[1:] == expected[1:]
    assert count(data, varuint, most) == (len(expected[0]), *expected[1:])
    by_column = columns(data, varuint, most)
    assert (rejoined(by_column), *by_column[-2:]) == expected
    places = slices(data, varuint, most)
    assert (cut_out(places, data), *places[-2:]) == expected


def test_a_message_knows_its_place():
    (message,) = scan(oracle.record(*ONE), partition=2, first_offset=2**40).messages
    assert message == Message(2, 2**40, ONE[1], ONE[0], ONE[2])


@in_both_encodings
def test_an_empty_buffer_is_at_its_end(varuint):
    assert found(b"", varuint) == ([], 0, "END")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_read(kind: Callable[[bytes], Any]):
    data = oracle.record(*ONE)
    assert found(kind(data + b"\0"), False) == ([ONE], len(data), "TORN")


@pytest.mark.parametrize("read", [scan, count, columns, slices, index_rows, timeindex_rows])
def test_a_buffer_with_gaps_or_of_text_is_refused(read: Callable[[Any], Any]):
    with pytest.raises(BufferError, match="contiguous"):
        read(memoryview(oracle.record(*ONE))[::2])
    with pytest.raises(TypeError):
        read("text")


# --- zeros ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [9, 10, 19, 20, 21, 4096])
@pytest.mark.parametrize("varuint", [False, True])
def test_zeros_are_no_record(varuint, size):
    """A power cut leaves them; no program writes a message without a key."""
    whole = encode([ONE], varuint=varuint).data
    stop = "TORN" if size < (10 if varuint else 20) else "CORRUPT"
    assert found(whole + bytes(size), varuint) == ([ONE], len(whole), stop)
    ahead = slices(whole + bytes(size), varuint)
    assert (ahead.records, ahead.valid_end, ahead.stop) == (1, len(whole), stop)
    assert count(whole + bytes(size), varuint) == (1, len(whole), stop)


# --- lengths that make no sense ---------------------------------------------------------------

FIXED_WITH_VALUE = bytes(4) + bytes(8)  # an empty key and a timestamp: the value's length is next
VARUINT_WITH_VALUE = bytes(1) + bytes(8)

ABSURD = [
    # encoding, bytes, why it stops there
    (False, struct.pack("<I", MAX_KEY), "TORN"),
    (False, struct.pack("<I", 2**31) + b"a few", "TORN"),
    (False, FIXED_WITH_VALUE + struct.pack("<Q", MAX_VALUE), "TORN"),
    (False, FIXED_WITH_VALUE + struct.pack("<Q", MAX_VALUE + 1), "CORRUPT"),
    (False, FIXED_WITH_VALUE + struct.pack("<Q", 2**63 - 1), "CORRUPT"),
    (False, FIXED_WITH_VALUE + struct.pack("<Q", 2**63), "CORRUPT"),
    (False, FIXED_WITH_VALUE + struct.pack("<Q", 2**64 - 1), "CORRUPT"),
    (True, uvarint(MAX_KEY), "TORN"),
    (True, uvarint(MAX_KEY + 1), "CORRUPT"),
    (True, uvarint(2**64 - 1), "CORRUPT"),
    (True, b"\xff" * 9 + b"\x02", "CORRUPT"),
    (True, b"\x80" * 10, "CORRUPT"),
    (True, b"\x80" * 9, "TORN"),
    (True, VARUINT_WITH_VALUE + uvarint(MAX_VALUE), "TORN"),
    (True, VARUINT_WITH_VALUE + uvarint(MAX_VALUE + 1), "CORRUPT"),
    (True, VARUINT_WITH_VALUE + uvarint(2**64 - 1), "CORRUPT"),
    (True, VARUINT_WITH_VALUE + b"\xff" * 11, "CORRUPT"),
]

absurd = pytest.mark.parametrize("varuint, data, stop", ABSURD)


@absurd
@pytest.mark.parametrize("after", [b"", b"any bytes after it"])
def test_an_absurd_length_is_torn_or_corrupt_and_what_lies_before_it_is_read(varuint, data, stop, after):
    before = oracle.record(*ONE, varuint=varuint)
    data = before + data + (after if stop == "CORRUPT" else b"")
    assert found(data, varuint) == ([ONE], len(before), stop)
    assert oracle.records(data, varuint=varuint) == ([ONE], len(before), stop)


@absurd
@pytest.mark.parametrize("read", [scan, columns, count, slices])
def test_a_false_length_allocates_nothing(varuint, data, stop, read: Callable[..., Any]):
    tracemalloc.start()
    try:
        assert read(data, varuint=varuint).stop == stop
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_a_length_in_more_bytes_than_needed_is_valid():
    data = b"\x83\x80\x00" + b"key" + bytes(8) + b"\x85\x00" + b"value"
    assert found(data, True) == ([(b"key", 0, b"value")], len(data), "END")
    assert oracle.records(data, varuint=True) == ([(b"key", 0, b"value")], len(data), "END")


def test_records_of_the_other_encoding_are_no_records():
    data = encode([ONE] * 3).data
    assert found(data, True)[0] != [ONE] * 3
    assert found(encode([ONE] * 3, varuint=True).data, False) == ([], 0, "TORN")


# --- columns ----------------------------------------------------------------------------------


def test_columns_are_buffers_that_arrow_takes_as_they_are():
    data = encode([(b"a", -1, b"one"), (b"", 2, b""), (b"ccc", 3, b"three")]).data
    assert columns(data) == (
        3,
        struct.pack("=3q", -1, 2, 3),
        b"accc",
        struct.pack("=4i", 0, 1, 1, 4),
        b"onethree",
        struct.pack("=4i", 0, 3, 3, 8),
        4,
        len(data),
        "END",
    )


def test_columns_of_nothing_have_one_offset():
    assert columns(b"") == (0, b"", b"", bytes(4), b"", bytes(4), 4, 0, "END")


@pytest.mark.parametrize("read", [columns, slices])
def test_columns_and_slices_cost_no_object_for_each_message(read: Callable[[bytes], Any]):
    data = encode([ONE] * 10_000).data
    before = sys.getallocatedblocks()
    made = read(data)
    assert sys.getallocatedblocks() - before < 100
    assert made.records == 10_000


# --- rows -------------------------------------------------------------------------------------


@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 3), max_size=5), st.integers(0, 23))
def test_index_rows_are_three_numbers_and_half_a_row_is_none(rows, torn):
    data = b"".join(oracle.index_row(*row) for row in rows)
    assert index_rows(data + bytes(torn)) == rows
    assert len(data) == INDEX_ROW_SIZE * len(rows)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), timestamps), max_size=5), st.integers(0, 15))
def test_timeindex_rows_are_an_offset_and_a_timestamp_and_half_a_row_is_none(rows, torn):
    data = b"".join(oracle.timeindex_row(*row) for row in rows)
    assert timeindex_rows(data + bytes(torn)) == rows
    assert len(data) == TIMEINDEX_ROW_SIZE * len(rows)


# --- the hash of keys -------------------------------------------------------------------------

VECTORS = [
    (b"", 2166136261),
    (b"a", 84696446),
    (b"aaa", 1184641920),
    (b"bbb", 496612573),
    (b"ccc", 1016571542),
    (b"111", 1976962160),
    (b"test-key", 3258628163),
    (b"customer-00", 2110712102),
    ("日本語".encode(), 3447108339),
    ("💩".encode(), 4093824085),
    (b"hello world", 1418570095),
    (b"0" * 32, 1632656453),
    (b"a/b c", 3374007894),
    (b"\x00bin\xff", 2986537385),
]


@pytest.mark.parametrize("key, hashed", VECTORS)
def test_keys_are_hashed_by_fnv_1(key, hashed):
    assert key_hash(key) == hashed


@given(st.binary(max_size=100))
def test_any_key_has_the_hash_that_the_oracle_gives_it(key):
    assert key_hash(key) == oracle.fnv1(key)


@pytest.mark.parametrize("key", ["text", None, bytearray(b"a"), 7])
def test_only_bytes_are_hashed(key):
    with pytest.raises(TypeError):
        key_hash(key)


# --- the framing ------------------------------------------------------------------------------


def test_a_framing_knows_its_limits():
    framing = TripletFraming(1, 10, 32)
    assert (framing.min_size, framing.max_size, framing.max_key_size) == (1, 10, 32)


def test_the_overhead_is_what_the_smallest_record_takes():
    assert (TripletFraming().overhead, TripletFraming().varuint) == (20, False)
    assert (TripletFraming(varuint=True).overhead, TripletFraming(varuint=True).varuint) == (10, True)


@pytest.mark.parametrize("limits", [(-1, 10), (5, 4), (0, MAX_VALUE + 1)])
def test_sizes_that_the_format_cannot_hold_are_refused(limits):
    with pytest.raises(ValueError, match="min_size"):
        TripletFraming(*limits)


@pytest.mark.parametrize("size", [-1, MAX_KEY + 1])
def test_key_sizes_that_the_format_cannot_hold_are_refused(size):
    with pytest.raises(ValueError, match="max_key_size"):
        TripletFraming(max_key_size=size)

# Columns into records, against `struct`. Law: all rows of a batch are accepted or none; the records are
# those of the oracle, in the partitions that StreamRouter would choose; no byte is read past the buffers.

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diskq._native.stream.codec import TripletFraming
from diskq._native.stream.columns import BinaryColumn, ColumnBatch, ColumnEncoder, NumberColumn, RowError
from tests.reference import triplet_oracle as oracle

try:
    import pyarrow
except ImportError:
    pyarrow = None

# --- the vocabulary ---------------------------------------------------------------------------

NOW = 1_700_000_000_000_000_000
SEED = bytes(range(32))
UUID = re.compile(rb"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")
LONGEST = 2**63 - 1


class Source:
    """Random bytes that are always the same, and how many were asked for."""

    def __init__(self, drawn: bytes = SEED) -> None:
        self.drawn = drawn
        self.asked: list[int] = []

    def __call__(self, n: int) -> bytes:
        self.asked.append(n)
        return self.drawn


def encoder(count: int = 1, framing: TripletFraming | None = None, source: Any = None) -> ColumnEncoder:
    return ColumnEncoder(framing or TripletFraming(), count, source or Source(), lambda: NOW)


def bits(rows: Sequence[Any], before: int) -> bytes | None:
    """Arrow's validity bitmap, lowest bit first; the rows before the slice are null."""
    if None not in rows:
        return None
    numbers = sum((row is not None) << (before + i) for i, row in enumerate(rows))
    return numbers.to_bytes((before + len(rows) + 7) // 8, "little")


def binary(rows: Sequence[bytes | None], width: int = 4, before: int = 0) -> BinaryColumn:
    """A column, a slice of a longer one: `before` rows lie before it."""
    data = b"?" * before
    offsets = list(range(before))
    for row in rows:
        offsets.append(len(data))
        data += row or b""
    packed = struct.pack(f"={len(offsets) + 1}{'i' if width == 4 else 'q'}", *offsets, len(data))
    return BinaryColumn(bits(rows, before), before, packed, width, data + b"more")


def numbers(rows: Sequence[int | None], kind: str, before: int = 0) -> NumberColumn:
    packed = struct.pack(f"={before + len(rows)}{kind}", *[0] * before, *(row or 0 for row in rows))
    return NumberColumn(bits(rows, before), before, packed)


def times(rows: Sequence[int | None], before: int = 0) -> NumberColumn:
    return numbers(rows, "q", before)


def parts(rows: Sequence[int | None], before: int = 0) -> NumberColumn:
    return numbers(rows, "i", before)


def taken(encoder: ColumnEncoder, varuint: bool = False) -> list[list[oracle.Triple]]:
    """Return the waiting records by partition, as the oracle reads them."""
    found = []
    for partition in range(encoder.partition_count):
        size, records = encoder.waiting(partition), encoder.records(partition)
        data, count = encoder.take(partition)
        triples, end, stop = oracle.records(data, varuint=varuint)
        assert (len(data), count) == (size, records) == (end, len(triples))
        assert stop == "END"
        assert encoder.take(partition) == (b"", 0)
        found.append(triples)
    return found


keys = st.one_of(st.none(), st.binary(max_size=12), st.just(b"k" * 200))
values = st.one_of(st.binary(max_size=40), st.binary(min_size=120, max_size=140))
whens = st.one_of(st.none(), st.integers(-(2**63), LONGEST))
rows_of_it = st.lists(st.tuples(keys, whens, values, st.one_of(st.none(), st.integers(0, 2))), max_size=12)
widths = st.sampled_from([4, 8])
slices = st.integers(0, 19)

# --- encoding ---------------------------------------------------------------------------------


@given(rows_of_it, widths, widths, slices, slices, st.booleans())
@example([(None, None, b"v", None)] * 9, 4, 8, 7, 9, False)
def test_rows_go_where_their_keys_belong_as_the_oracle_encodes_them(
    rows, key_width, value_width, before, before_keys, varuint
):
    rows = [(key, when, b"%d: %b" % (i, value), to) for i, (key, when, value, to) in enumerate(rows)]
    made = encoder(3, TripletFraming(varuint=varuint))
    made.add(
        len(rows),
        binary([row[2] for row in rows], value_width, before),
        binary([row[0] for row in rows], key_width, before_keys),
        times([row[1] for row in rows], before),
        parts([row[3] for row in rows], before_keys),
    )
    found = taken(made, varuint)
    made_keys = {value: key for triples in found for key, _, value in triples}
    expected: list[list[oracle.Triple]] = [[], [], []]
    for key, when, value, partition in rows:
        if not key:
            key = made_keys[value]
            assert UUID.fullmatch(key)
        to = oracle.fnv1(key) % 3 if partition is None else partition
        expected[to].append((key, NOW if when is None else when, value))
    assert found == expected


def test_rows_of_a_partition_keep_their_order_and_wait_until_they_are_taken():
    made = encoder(2)
    made.add(3, binary([b"0", b"1", b"2"]), partitions=parts([1, 0, 1]))
    made.add(1, binary([b"3"]), partitions=parts([1]))
    assert made.total == made.waiting(0) + made.waiting(1)
    assert [[value for *_, value in triples] for triples in taken(made)] == [[b"1"], [b"0", b"2", b"3"]]
    assert made.total == 0


def test_what_is_taken_is_what_encode_makes():
    made = encoder()
    made.add(2, binary([b"one", b""]), binary([b"a", b"b"]), times([1, -2]))
    assert made.take(0) == (oracle.record(b"a", 1, b"one") + oracle.record(b"b", -2, b""), 2)


def test_a_batch_can_be_given_as_one():
    made = encoder()
    made.add(*ColumnBatch(1, binary([b"v"]), binary([b"k"]), times([7]), unit=1000))
    assert taken(made) == [[(b"k", 7000, b"v")]]


def test_without_a_timestamp_it_is_now_for_all():
    made = encoder()
    made.add(2, binary([b"v", b"w"]), binary([b"k", b"k"]), times([None, 5]))
    made.add(1, binary([b"x"]), binary([b"k"]))
    assert taken(made) == [[(b"k", NOW, b"v"), (b"k", 5, b"w"), (b"k", NOW, b"x")]]


def test_microseconds_become_nanoseconds_on_both_sides_of_1970():
    made = encoder()
    ends = [LONGEST // 1000, -(2**63 // 1000), -1]
    made.add(3, binary([b""] * 3), binary([b"k"] * 3), times(ends), None, 1000)
    assert [when for _, when, _ in taken(made)[0]] == [when * 1000 for when in ends]


def test_many_rows_are_taken_in():
    made = encoder(5)
    rows = [b"%d" % i * (i % 300) for i in range(5000)]
    made.add(5000, binary(rows), binary(rows), times(range(5000)))
    expected: list[list[oracle.Triple]] = [[] for _ in range(5)]
    found = taken(made)
    for when, row in enumerate(rows):
        if row:
            expected[oracle.fnv1(row) % 5].append((row, when, row))
    assert [[one for one in triples if one[2]] for triples in found] == expected


def test_a_batch_without_rows_is_empty():
    made = encoder()
    nothing = BinaryColumn(None, 0, None, 4, None)
    made.add(0, nothing, nothing, NumberColumn(None, 0, None), NumberColumn(None, 0, None))
    assert taken(made) == [[]]


# --- generated keys ---------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [None, binary([None] * 2000), binary([b""] * 2000)])
def test_a_row_without_a_key_gets_a_random_uuid(keys):
    source = Source()
    made = encoder(1, source=source)
    made.add(2000, binary([b"v"] * 2000), keys)
    found = {key for key, *_ in taken(made)[0]}
    assert len(found) == 2000
    assert all(UUID.fullmatch(key) for key in found)
    assert source.asked == [32]
    assert {digit for key in found for digit in key} == {*b"0123456789abcdef"}


def test_generated_keys_are_equal_only_for_equal_random_bytes():
    """A file system for tests draws the same numbers each time."""
    found = []
    for drawn in (SEED, SEED, SEED[1:] + b"x", bytes(32)):
        made = encoder(source=Source(drawn))
        made.add(2, binary([b"v"] * 2))
        found.append([key for key, *_ in taken(made)[0]])
    assert found[0] == found[1]
    assert len({key for keys in found for key in keys}) == 6


def test_a_wrong_number_of_random_bytes_is_refused():
    with pytest.raises(ValueError, match="32 random bytes"):
        encoder(source=Source(b"few")).add(1, binary([b"v"]))


# --- rows that cannot be messages -------------------------------------------------------------

FINE = ColumnBatch(3, binary([b"0", b"1", b"2"]), binary([b"a", b"b", b"c"]), times([1, 2, 3]))
LIMITS = TripletFraming(1, 10, 8)

REFUSED = [
    (FINE._replace(values=binary([b"0", None, b"2"])), 1, "null value", None, "its value is null"),
    (FINE._replace(values=binary([b"0", b"1", b""])), 2, "value size", 0, "message of 0 bytes: .* 1 to 10"),
    (FINE._replace(values=binary([b"0" * 11, b"1", b""])), 0, "value size", 11, "message of 11 bytes"),
    (FINE._replace(keys=binary([b"a", b"b" * 9, b"c"])), 1, "key size", 9, "key of 9 bytes: at most 8"),
    (FINE._replace(timestamps=times([1, 2, LONGEST]), unit=1000), 2, "timestamp", LONGEST, "1677 and 2262"),
    (FINE._replace(timestamps=times([1, -(2**63), 1]), unit=2), 1, "timestamp", -(2**63), "1677"),
    (FINE._replace(partitions=parts([0, 1, 2])), 2, "partition", 2, "partition 2: the stream has 0 to 1"),
    (FINE._replace(partitions=parts([0, -1, None])), 1, "partition", -1, "partition -1"),
]


@pytest.mark.parametrize("batch, row, reason, number, text", REFUSED)
def test_a_row_that_cannot_be_a_message_is_named_and_its_batch_is_refused(batch, row, reason, number, text):
    made = encoder(2, LIMITS)
    made.add(*FINE)
    with pytest.raises(RowError, match=f"^row {row}: .*{text}") as refused:
        made.add(*batch)
    assert (refused.value.row, refused.value.reason, refused.value.number) == (row, reason, number)
    made.add(*FINE)
    fresh = encoder(2, LIMITS)
    fresh.add(*FINE)
    fresh.add(*FINE)
    assert taken(made) == taken(fresh)


def test_the_first_row_that_cannot_be_a_message_is_the_one_that_is_named():
    with pytest.raises(RowError, match="row 1: "):
        encoder().add(3, binary([b"0", None, None]))


# --- buffers that contradict each other -------------------------------------------------------


def offsets(*numbers: int, width: int = 4) -> BinaryColumn:
    packed = struct.pack(f"={len(numbers)}{'i' if width == 4 else 'q'}", *numbers)
    return BinaryColumn(None, 0, packed, width, b"0123456789")


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize(
    "wrong",
    [(0, 5, 4), (0, 5, 11), (-1, 5, 6), (0, -5, 6), (0, 5, 2**31 - 1), (11,) * 3, (-(2**31), 2, 3)],
)
def test_offsets_out_of_order_or_beyond_the_data_are_refused(wrong, width):
    made = encoder()
    for columns in ((offsets(*wrong, width=width),), (offsets(0, 0, 0), offsets(*wrong, width=width))):
        with pytest.raises(ValueError, match=r"offsets of row [01] are not in order, or beyond the data"):
            made.add(2, *columns)
    assert taken(made) == [[]]


@pytest.mark.parametrize("wrong", [(2**63 - 1, 2**63 - 1, 0), (-(2**63), 0, 1), (0, 2**63 - 1, -(2**63))])
def test_no_offset_is_too_absurd_to_be_refused(wrong):
    with pytest.raises(ValueError, match="offsets of row"):
        encoder().add(2, offsets(*wrong, width=8))


GOOD = binary([b"0", b"1"])


@pytest.mark.parametrize(
    "rows, columns",
    [
        (3, (GOOD,)),
        (2, (GOOD._replace(offset=1),)),
        (2, (GOOD._replace(offset=LONGEST),)),
        (LONGEST, (GOOD,)),
        (2, (GOOD._replace(offsets=None),)),
        (2, (GOOD._replace(offsets=b""),)),
        (2, (GOOD._replace(offset_width=8),)),
        (2, (GOOD._replace(validity=b""),)),
        (2, (GOOD, binary([b"k"]))),
        (2, (GOOD, None, times([1]))),
        (2, (GOOD, None, NumberColumn(None, 1, bytes(16)))),
        (2, (GOOD, None, NumberColumn(b"", 0, bytes(16)))),
        (2, (GOOD, None, None, parts([1]))),
        (9, (binary([b""] * 9)._replace(validity=b"\xff"),)),
        (2, (binary([b"0", b"1"], before=7)._replace(validity=b"\xff"),)),
    ],
)
def test_buffers_that_are_too_short_for_the_rows_are_refused(rows, columns):
    with pytest.raises(ValueError, match="too few"):
        encoder().add(rows, *columns)


@pytest.mark.parametrize(
    "batch, text",
    [
        (ColumnBatch(-1, GOOD), "-1 rows"),
        (ColumnBatch(2, GOOD._replace(offset=-1)), "begin at row -1"),
        (ColumnBatch(2, GOOD._replace(offset_width=2)), "offsets of 2 bytes"),
        (ColumnBatch(2, GOOD, unit=0), "unit of 0"),
    ],
)
def test_invalid_arguments_are_refused(batch, text):
    with pytest.raises(ValueError, match=text):
        encoder().add(*batch)


def test_a_batch_needs_values():
    with pytest.raises(TypeError, match="not None"):
        encoder().add(1, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("partition", [1, 2**32 - 1])
def test_a_missing_partition_is_refused(partition):
    for ask in (encoder().take, encoder().waiting, encoder().records):
        with pytest.raises(IndexError):
            ask(partition)


def test_a_stream_has_at_least_one_partition():
    with pytest.raises(ValueError, match="at least 1"):
        encoder(0)


def test_buffers_are_given_back():
    column = bytearray(b"value")
    encoder().add(1, BinaryColumn(None, 0, struct.pack("=ii", 0, 5), 4, column))
    column += b"grows: no caller holds it any more"


# --- Arrow's own ------------------------------------------------------------------------------


@pytest.mark.skipif(pyarrow is None, reason="pyarrow is not installed")
@given(rows_of_it, st.integers(0, 12), st.booleans())
def test_arrow_s_buffers_are_taken_as_they_are(rows, start, is_large):
    pa: Any = pyarrow
    kind = pa.large_binary() if is_large else pa.binary()

    def bytes_of(column: Any) -> BinaryColumn:
        validity, offsets, data = column.buffers()
        return BinaryColumn(validity, column.offset, offsets, 8 if is_large else 4, data)

    def numbers_of(column: Any) -> NumberColumn:
        validity, data = column.buffers()
        return NumberColumn(validity, column.offset, data)

    sliced = rows[start:]
    arrays = [
        bytes_of(pa.array([row[2] for row in rows], kind)[start:]),
        bytes_of(pa.array([row[0] for row in rows], kind)[start:]),
        numbers_of(pa.array([row[1] for row in rows], pa.int64())[start:]),
        numbers_of(pa.array([row[3] for row in rows], pa.int32())[start:]),
    ]
    of_arrow, ours = encoder(3), encoder(3)
    of_arrow.add(len(sliced), *arrays)  # type: ignore[arg-type]
    ours.add(
        len(sliced),
        binary([row[2] for row in sliced]),
        binary([row[0] for row in sliced]),
        times([row[1] for row in sliced]),
        parts([row[3] for row in sliced]),
    )
    assert taken(of_arrow) == taken(ours)

# Timestamps in buffers, against a Python loop over the rows. Law: the two agree on every input, and no byte
# is read past the buffer.

from __future__ import annotations

import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq._native.stream import codec as stream_codec
from diskq._native.stream import times as timeindex
from diskq._native.stream.codec import TripletFraming
from diskq._native.stream.times import MARK_SIZE, ROWS_IN_A_MARK, SEALED_SIZE
from diskq.storage.checksums import checksum

EARLIEST, LATEST = -(2**63), 2**63 - 1

timestamps = st.integers(EARLIEST, LATEST)
nearby = st.integers(-5, 5)


def rows(times: list[int], first: int = 0) -> bytes:
    return b"".join(struct.pack("<Qq", offset, time) for offset, time in enumerate(times, first))


# --- rows of a timeindex ----------------------------------------------------------------------


@given(st.lists(nearby | timestamps), nearby | timestamps)
def test_the_first_row_from_a_time_on(times, bound):
    judged = next((number for number, time in enumerate(times) if time >= bound), -1)
    assert timeindex.first_from(rows(times), bound) == judged


@pytest.mark.parametrize("bound", [EARLIEST, -1, 0, 1, LATEST])
def test_a_time_is_found_at_every_place(bound):
    for place in range(600):
        times = [bound - 1 if bound > EARLIEST else EARLIEST] * 600
        times[place] = bound
        assert timeindex.first_from(rows(times), bound) == (place if bound > EARLIEST else 0)


def test_half_a_row_is_no_row():
    assert timeindex.first_from(rows([1, 2, 3])[:-1], 3) == -1
    assert not timeindex.counts_up(rows([1, 2, 3])[:-1], 0)
    assert timeindex.survey(rows([1, 2, 3])[:-1], 0, 0) is None


@given(st.lists(nearby, max_size=600), st.integers(0, 2**62), st.none() | st.integers(0, 599))
def test_rows_must_have_consecutive_offsets(times, first, wrong):
    content = bytearray(rows(times, first))
    is_wrong = wrong is not None and wrong < len(times)
    if is_wrong:
        content[wrong * 16] ^= 1
    assert timeindex.counts_up(content, first) is not is_wrong
    assert (timeindex.survey(content, first, 0) is None) is is_wrong


@given(st.lists(timestamps | nearby, min_size=1))
def test_the_least_and_the_greatest(times):
    assert timeindex.extremes(rows(times)) == (min(times), max(times))


def test_no_rows_have_no_extremes():
    with pytest.raises(ValueError, match="no rows"):
        timeindex.extremes(b"")


@given(st.lists(timestamps | nearby, max_size=3 * ROWS_IN_A_MARK), timestamps | nearby)
def test_a_survey_has_running_maxima_at_each_256th(times, floor):
    running = list(accumulate(times, max, initial=floor))
    result = timeindex.survey(rows(times, 7), 7, floor)
    assert result is not None
    assert result.least == min(times, default=LATEST)
    assert result.greatest == running[-1]
    assert result.maxima == running[ROWS_IN_A_MARK::ROWS_IN_A_MARK]


# --- marks ------------------------------------------------------------------------------------


@given(st.lists(timestamps | nearby), timestamps | nearby)
def test_the_first_mark_from_a_time_on(times, bound):
    running = list(accumulate(times, max))
    marks = b"".join(struct.pack("<qII", time, 0, 0) for time in running)
    judged = next((number for number, time in enumerate(running) if time >= bound), len(running))
    assert timeindex.first_mark(marks, bound) == judged
    assert len(marks) == len(times) * MARK_SIZE


# --- sealed segments --------------------------------------------------------------------------


def sealed(base: int, count: int, greatest: int) -> bytes:
    fields = struct.pack("<QQQqqqqI", base, count, 9, 1, 2, 3, greatest, 4)
    return fields + struct.pack("<I", checksum(fields))


CHAIN = sealed(0, 10, 7) + sealed(10, 1, -3) + sealed(11, 4, 9)


def test_sealed_segments_next_to_each_other():
    assert timeindex.sealed_chain(CHAIN, checksum) == ([0, 10, 11, 15], [7, 7, 9])


def test_there_is_no_chain_of_nothing():
    assert timeindex.sealed_chain(b"", checksum) is None


@pytest.mark.parametrize("at", range(3 * SEALED_SIZE))
def test_segments_with_any_wrong_byte_are_not_believed(at):
    content = bytearray(CHAIN)
    content[at] ^= 0x10
    assert timeindex.sealed_chain(content, checksum) is None


@pytest.mark.parametrize("size", [size for size in range(3 * SEALED_SIZE) if size % SEALED_SIZE])
def test_half_a_segment_is_not_believed(size):
    assert timeindex.sealed_chain(CHAIN[:size], checksum) is None


@pytest.mark.parametrize(
    "content",
    [
        sealed(0, 10, 7) + sealed(11, 1, 9),
        sealed(0, 10, 7) + sealed(9, 1, 9),
        sealed(0, 10, 7) + sealed(0, 10, 7),
        sealed(0, 0, 7),
        sealed(0, 2**63, 7),
        sealed(0, 2**62, 7) + sealed(2**62, 2**62, 7) + sealed(2**63, 1, 7),
        sealed(10, 1, 7) + sealed(11, 4, 9),
    ],
    ids=["gap", "overlap", "twice", "empty", "endless", "beyond", "no beginning"],
)
def test_segments_that_do_not_follow_each_other_are_not_believed(content):
    assert timeindex.sealed_chain(content, checksum) is None


# --- records ----------------------------------------------------------------------------------

messages = st.lists(
    st.tuples(st.binary(max_size=300), timestamps, st.binary(max_size=300)).filter(any), max_size=30
)


def read(
    data: bytes,
    index: bytes,
    framing: TripletFraming,
    end_offset: int,
    window: int = 100,
    offset: int = 0,
    position: int = 0,
) -> tuple[bytes, int]:
    """Read everything through windows of that size: return the rows, and where it ends."""
    found, held, start = b"", b"", 0
    for _ in range(10_000):
        result = timeindex.times_of(
            framing, held, start, len(data), index[offset * 24 :], offset, position, end_offset
        )
        found += result.rows
        offset, position = result.next_offset, result.position
        if result.wanted is None:
            return found, position
        start, needed = result.wanted
        assert 0 < needed <= len(data) - start
        held = data[start : start + max(needed, window)]
    raise AssertionError("it goes on for ever")


@pytest.mark.parametrize("varuint", [False, True])
@pytest.mark.parametrize("has_index", [False, True])
@given(messages=messages, window=st.integers(1, 1000))
def test_the_times_of_records_are_what_they_were_made_with(varuint, has_index, messages, window):
    made = stream_codec.encode(messages, 0, 0, varuint)
    framing = TripletFraming(varuint=varuint)
    result = read(made.data, made.index_rows if has_index else b"", framing, len(messages), window)
    assert result == (made.timeindex_rows, len(made.data))


@given(messages=messages, window=st.integers(1, 1000), skipped=st.integers(0, 29))
def test_reading_begins_at_the_given_offset(messages, window, skipped):
    made = stream_codec.encode(messages)
    skipped = min(skipped, len(messages))
    position = sum(20 + len(key) + len(value) for key, _, value in messages[:skipped])
    rows, _ = read(made.data, made.index_rows, FIXED, len(messages), window, skipped, position)
    assert rows == made.timeindex_rows[skipped * 16 :]


FIXED = TripletFraming()


def three() -> stream_codec.Encoded:
    """Three records of 51 bytes."""
    return stream_codec.encode([(b"k", 10, b"a" * 30), (b"k", 20, b"b" * 30), (b"k", 30, b"c" * 30)])


def test_bytes_that_go_diskq_leaves_between_records_are_skipped():
    made = three()
    first, second = (
        stream_codec.encode([(b"k", 10, b"a" * 30)]),
        stream_codec.encode([(b"k", 20, b"b")], 1, 68),
    )
    data = first.data + made.data[:17] + second.data
    rows, _ = read(data, first.index_rows + second.index_rows, FIXED, 2)
    assert rows == first.timeindex_rows + second.timeindex_rows


@pytest.mark.parametrize("at", range(72))
def test_a_row_that_does_not_fit_its_record_is_not_needed(at):
    made = three()
    index = bytearray(made.index_rows)
    index[at] ^= 0xFF
    assert read(made.data, bytes(index), FIXED, 3)[0] == made.timeindex_rows


def test_a_record_that_is_not_whole_has_no_time():
    made = three()
    for size in range(len(made.data)):
        rows, _ = read(made.data[:size], made.index_rows, FIXED, 3)
        assert rows == made.timeindex_rows[: size // 51 * 16]


def test_a_record_that_cannot_be_read_costs_its_own_time_and_no_other():
    made = three()
    data = bytearray(made.data)
    data[51 + 13 : 51 + 21] = b"\xff" * 8  # the length of the second value
    rows, _ = read(bytes(data), made.index_rows, FIXED, 3)
    assert rows == made.timeindex_rows[:16] + made.timeindex_rows[32:]


def test_only_the_beginning_of_a_long_record_is_asked_for():
    made = stream_codec.encode([(b"k", 10, b"a" * 100_000), (b"k", 20, b"b" * 100_000)])
    result = timeindex.times_of(FIXED, made.data[:64], 0, len(made.data), made.index_rows, 0, 0, 2)
    assert result.rows == made.timeindex_rows[:16]
    assert result.wanted == (100_021, 64)


def test_all_of_a_long_key_is_asked_for():
    made = stream_codec.encode([(b"k" * 100_000, 10, b"")])
    result = timeindex.times_of(FIXED, made.data[:64], 0, len(made.data), made.index_rows, 0, 0, 1)
    assert result.wanted == (0, 100_020)


@given(st.binary(max_size=400), st.binary(max_size=200), st.booleans(), st.integers(1, 100))
def test_any_bytes_are_read_to_an_end(data, index, varuint, window):
    index = index[: len(index) // 24 * 24]
    rows, position = read(data, index, TripletFraming(varuint=varuint), len(index) // 24 + 2, window)
    assert len(rows) % 16 == 0
    assert 0 <= position <= len(data)

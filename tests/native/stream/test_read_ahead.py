# The stream's read-ahead. Law: records are admitted as far as index rows agree with them, and each message
# gets the offset after the previous one.

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq._native.core.gate import Gate
from diskq._native.core.message import Message
from diskq._native.stream.codec import TripletFraming, encode
from diskq._native.stream.read_ahead import TripletAhead, find_row
from tests.engine.ram import RamFS

PATH = "/s/data"
ROW = 24

Triple = tuple[bytes, int, bytes]

TRIPLES: list[Triple] = [(b"k%d" % n, n - 3, b"value" * (n % 4)) for n in range(10)]

both_encodings = pytest.mark.parametrize("varuint", [False, True], ids=["fixed", "varuint"])


def loaded(
    triples: Iterable[Triple], *, varuint: bool = False, first: int = 0, size: int = 10**6
) -> tuple[TripletAhead, bytes]:
    """With the records of `triples` loaded, at most `size` bytes, and none admitted; and their index rows."""
    encoded = encode(triples, first, 0, varuint)
    fs = RamFS({PATH: encoded.data})
    gate = Gate()
    gate.left = 10**9
    ahead = TripletAhead(fs, TripletFraming(varuint=varuint), gate)
    ahead.partition = 7
    ahead.next_offset = first
    ahead.load(fs.open(PATH), 0, size)
    return ahead, encoded.index_rows


def messages(triples: Iterable[Triple], first: int = 0) -> list[Message]:
    return [Message(7, offset, time, key, value) for offset, (key, time, value) in enumerate(triples, first)]


@both_encodings
def test_messages_have_their_position(varuint):
    ahead, rows = loaded(TRIPLES, varuint=varuint, first=2**40)
    assert ahead.take() is None, "nothing is admitted"
    assert ahead.admit_rows(rows) == 10
    assert [ahead.take(), ahead.take_now()] == messages(TRIPLES[:2], 2**40)
    assert ahead.take_many(3, 10**6) == messages(TRIPLES[2:5], 2**40 + 2)
    assert ahead.take_some(10, 10**6) == messages(TRIPLES[5:], 2**40 + 5)
    assert (ahead.take(), ahead.next_offset, ahead.records) == (None, 2**40 + 10, 10)


def test_loading_nothing_needs_no_memory():
    """For the sanitizers' build: a copy of no bytes into no memory, found by fuzzing."""
    fs = RamFS({PATH: b""})
    ahead = TripletAhead(fs, TripletFraming(), Gate())
    assert ahead.load(fs.open(PATH), 0, 0) == 0
    assert (ahead.take(), ahead.position) == (None, 0)


@both_encodings
@given(st.data())
def test_rows_agree_up_to_the_record_before_the_first_corrupt_byte(varuint, data):
    ahead, whole = loaded(TRIPLES, varuint=varuint, first=5)
    rotten = bytearray(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    rotten[at] ^= data.draw(st.integers(1, 255))
    held = ahead.admit_rows(bytes(rotten))
    is_large = at % ROW >= 16 and rotten[at] > whole[at]
    assert held in ({max(0, at // ROW - 1), at // ROW} if is_large else {max(0, at // ROW - 1)})
    assert ahead.take_many(100, 10**6) == messages(TRIPLES[:held], 5)


@both_encodings
def test_the_last_of_several_is_held_back_where_the_next_one_is_not_known(varuint):
    ahead, rows = loaded(TRIPLES, varuint=varuint)
    assert ahead.admit_rows(rows, has_more=True) == 9
    ahead, rows = loaded(TRIPLES, varuint=varuint)
    assert ahead.admit_rows(rows[:ROW], has_more=True) == 1


@both_encodings
def test_only_whole_records_of_the_loaded_bytes_are_admitted(varuint):
    sizes = [len(encode([triple], 0, 0, varuint).data) for triple in TRIPLES]
    for size in range(sum(sizes)):
        ahead, rows = loaded(TRIPLES, varuint=varuint, size=size)
        whole = sum(sum(sizes[: n + 1]) <= size for n in range(10))
        held = ahead.admit_rows(rows)
        assert held == (whole - 1 if whole > 1 else whole)
        assert ahead.take_many(100, 10**6) == messages(TRIPLES[:held])


def test_rows_may_lag_behind_by_some_bytes():
    ahead, _ = loaded([(b"", 0, b"fragments"), *TRIPLES])
    fragments = len(encode([(b"", 0, b"fragments")]).data)
    fs_rows = encode(TRIPLES).index_rows
    assert ahead.find(1, len(encode(TRIPLES[:1]).data)) == fragments
    ahead.admit(fragments, fragments)
    assert ahead.admit_rows(fs_rows) == 0
    fs = RamFS({PATH: b"x" * fragments + encode(TRIPLES).data})
    again = TripletAhead(fs, TripletFraming(), Gate())
    again.load(fs.open(PATH), fragments, 10**6)
    assert again.admit_rows(fs_rows, drift=fragments) == 10


@pytest.mark.parametrize("size", [0, 1, 19, 10**6, 2**63, 2**64 - 1])
def test_a_record_that_is_not_there_is_not_found(size):
    ahead, _ = loaded(TRIPLES)
    assert ahead.find(0, size) is None
    assert ahead.find(10**9, 25) is None


@both_encodings
@given(st.integers(-3, 15))
def test_messages_before_an_offset_are_passed_over(varuint, offset):
    ahead, rows = loaded(TRIPLES, varuint=varuint)
    ahead.admit_rows(rows)
    assert ahead.skip_to(offset) == max(0, min(offset, 10))
    assert ahead.next_size == (sum(map(len, TRIPLES[max(0, offset)][::2])) if offset < 10 else 0)
    assert ahead.take_many(100, 10**6) == messages(TRIPLES)[max(0, offset) :]


@both_encodings
@given(st.integers(1, 12), st.integers(0, 300))
def test_columns_hold_as_much_as_they_may_and_one_record_at_least(varuint, max_records, max_bytes):
    ahead, rows = loaded(TRIPLES, varuint=varuint)
    ahead.admit_rows(rows)
    values: list[bytes] = []
    while (columns := ahead.take_columns(max_records, max_bytes)) is not None:
        assert 0 < columns.records <= max_records
        assert columns.records == 1 or columns.valid_end <= max_bytes
        ends = memoryview(columns.value_offsets).cast("i")
        values += [columns.values[ends[n] : ends[n + 1]] for n in range(columns.records)]
        assert ahead.next_offset == len(values)
    assert values == [value for _, _, value in TRIPLES]
    assert ahead.records == 10


def test_at_corrupt_lengths_columns_end_and_say_why():
    ahead, _ = loaded(TRIPLES)
    end = len(encode(TRIPLES).data)
    ahead.admit(0, end - 1, is_verified=True)
    columns = ahead.take_columns(100, 10**6)
    assert columns is not None
    assert columns.records == 9
    assert ahead.take_columns(100, 10**6) is None
    assert (ahead.why, ahead.next_offset) == ("TORN", 9)


@given(
    st.integers(0, 12), st.integers(0, 12), st.integers(0, 400), st.integers(0, 400), st.sampled_from([1, 24])
)
def test_a_row_is_found_by_its_offset_and_its_record(base, offset, position, end, step):
    rows = encode(TRIPLES, base).index_rows
    found = find_row(rows, 0, step, 0, base, offset, position, end)
    places = [
        (int.from_bytes(rows[at : at + 8], "little"), int.from_bytes(rows[at + 8 : at + 16], "little"), at)
        for at in range(0, len(rows) - ROW + 1, step)
    ]
    expected = [
        at for said, place, at in places if offset <= said <= base + at // ROW and position <= place < end
    ]
    assert found == (expected[0] if expected else -1)

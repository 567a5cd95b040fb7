# The sej codec against `struct`. Law: whole records come out as they went in, forwards and backwards; END,
# TORN and CORRUPT are distinguished; no record is invented after damage.

from __future__ import annotations

import pickle
import random
import struct
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq._native.core.message import NULL_TIMESTAMP, JournalMessage
from diskq._native.journal import codec as journal_codec
from diskq.storage.numbers import NO_NUMBER
from tests.reference import sej_oracle as oracle
from tests.reference.sej_oracle import Item

times = st.integers(-(2**63), 2**63 - 1)
items = st.lists(
    st.tuples(st.binary(max_size=127), times, st.integers(0, 255), st.binary(max_size=80)), max_size=8
)
ITEMS: list[Item] = [(b"k%d" % n, n - 3, n, b"value" * (n % 4)) for n in range(10)]


def as_told(messages: list[JournalMessage]) -> list[oracle.Message]:
    return [
        oracle.Message(
            m.offset, NULL_TIMESTAMP if m.timestamp_ns is None else m.timestamp_ns, m.type, m.key, m.value
        )
        for m in messages
    ]


# --- one message ------------------------------------------------------------------------------


def test_a_message_has_a_repr():
    message = JournalMessage(2, 5, 1_500, 7, b"k", b"v")
    assert (message.partition, message.offset, message.type) == (2, 5, 7)
    assert (message.key, message.value, message.position) == (b"k", b"v", (2, 5))
    assert message.timestamp == datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert pickle.loads(pickle.dumps(message)) == message != JournalMessage(2, 5, 1_500, 8, b"k", b"v")


def test_a_message_may_have_no_time():
    message = JournalMessage(0, 0, None, 0, b"", b"")
    assert (message.timestamp, message.timestamp_ns) == (None, None)
    assert message == journal_codec.scan(journal_codec.encode([(b"", None, 0, b"")])).messages[0]


# --- forward, backward, and by column ---------------------------------------------------------


@given(items, st.integers(0, NO_NUMBER - 1024))
def test_records_are_those_of_the_oracle(its, base):
    data = journal_codec.encode(its, base)
    assert data == oracle.encoded(its, base)
    found = journal_codec.scan(data, base)
    assert as_told(found.messages) == oracle.records(data)[0]
    assert (found.valid_end, found.stop) == (len(data), "END")
    assert journal_codec.count(data) == (len(its), len(data), "END")
    back = journal_codec.scan_back(data, base + len(its))
    assert (back.messages[::-1], back.start, back.stop) == (found.messages, 0, "END")


@given(items, st.data())
def test_cut_or_flipped_bytes_give_the_same_as_the_oracle(its, data):
    encoded = bytearray(oracle.encoded(its, 3))
    if encoded and data.draw(st.booleans()):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    messages, end, stop = oracle.records(cut, 3)
    found = journal_codec.scan(cut, 3)
    assert (as_told(found.messages), found.valid_end, found.stop) == (messages, end, stop)
    assert journal_codec.count(cut, 3) == (len(messages), end, stop)
    columns = journal_codec.columns(cut, 3)
    assert (columns.records, columns.valid_end, columns.stop) == (len(messages), end, stop)


@given(items, st.booleans())
def test_columns_hold_what_the_messages_do(its, wide):
    found = journal_codec.columns(journal_codec.encode(its, 9), wide=wide)
    assert found.offset_width == (8 if wide else 4)
    assert found.first_offset == (9 if its else 0)
    letter = "q" if wide else "i"
    keys = struct.unpack(f"={len(its) + 1}{letter}", found.key_offsets)
    values = struct.unpack(f"={len(its) + 1}{letter}", found.value_offsets)
    rows = zip(struct.unpack(f"={len(its)}q", found.timestamps), found.types, strict=True)
    for number, (timestamp, kind) in enumerate(rows):
        key = found.keys[keys[number] : keys[number + 1]]
        assert (key, timestamp, kind) == its[number][:3]
        assert found.values[values[number] : values[number + 1]] == its[number][3]
        has_time = found.time_validity is None or bool(found.time_validity[number // 8] >> number % 8 & 1)
        assert has_time == (timestamp != NULL_TIMESTAMP)
    assert (found.time_validity is not None) == any(item[1] == NULL_TIMESTAMP for item in its)


@pytest.mark.parametrize("offset", [NO_NUMBER, 2**63 - 1, 2**63, 2**64 - 1], ids=hex)
def test_an_offset_past_the_bound_is_corrupt(offset):
    """No offset follows the greatest 64-bit number; found by fuzzing."""
    data = oracle.record(offset, *ITEMS[0])
    assert journal_codec.scan(data) == ([], 0, "CORRUPT")
    assert journal_codec.scan_back(data).stop == "CORRUPT"
    last = oracle.record(NO_NUMBER - 1, *ITEMS[0])
    assert journal_codec.scan(last)[1:] == (len(last), "END")
    with pytest.raises(ValueError, match="offsets are 0 to"):
        journal_codec.encode([(b"", 0, 0, b"")] * 2, NO_NUMBER - 1)


def test_another_offset_than_the_next_is_corrupt():
    data = oracle.encoded(ITEMS[:2], 4) + oracle.encoded(ITEMS[2:3], 7)
    assert journal_codec.scan(data)[1:] == (len(oracle.encoded(ITEMS[:2])), "CORRUPT")
    assert journal_codec.scan(data, 5)[1:] == (0, "CORRUPT")
    assert journal_codec.scan_back(data, 9).stop == "CORRUPT"


def test_no_more_than_the_maximum_are_read():
    data = oracle.encoded(ITEMS)
    assert [m.offset for m in journal_codec.scan(data, max_records=3).messages] == [0, 1, 2]
    assert [m.offset for m in journal_codec.scan_back(data, max_records=3, partition=4).messages] == [9, 8, 7]
    assert journal_codec.columns(data, max_records=3).records == 3


def test_backwards_a_record_that_begins_before_the_buffer_has_its_size():
    data = oracle.encoded(ITEMS)
    last = len(oracle.record(9, *ITEMS[9]))
    assert journal_codec.scan_back(data[-last - 10 :])[1:] == (10, "TORN", len(oracle.record(8, *ITEMS[8])))
    assert journal_codec.scan_back(data[-3:])[1:] == (3, "TORN", 0)
    assert journal_codec.scan_back(data[:-4] + bytes([0, 0, 0, 27]))[2] == "CORRUPT"
    assert journal_codec.boundary(data[-last - 10 :], 10) == (10, 9)


@pytest.mark.parametrize(
    "item, error",
    [
        ((b"k" * 128, 0, 0, b""), ValueError),
        ((b"", 0, 256, b""), ValueError),
        ((b"", 0, -1, b""), ValueError),
        (("text", 0, 0, b""), TypeError),
        ((b"", 0, 0, "text"), TypeError),
    ],
)
def test_what_cannot_be_a_record_is_refused(item, error):
    with pytest.raises(error):
        journal_codec.encode([item])
    with pytest.raises(ValueError, match="offset"):
        journal_codec.encode([], -1)


def test_lengths_that_no_writer_wrote_are_corrupt_and_ask_for_no_memory():
    good = bytearray(oracle.record(0, b"key", 1, 2, b"value"))
    for at, byte in ((17, 0xFF), (21, 0xFF)):  # the key's length, the value's: negative
        rotten = bytearray(good)
        rotten[at] = byte
        assert journal_codec.scan(rotten)[1:] == (0, "CORRUPT")
    good[21] = 0x7F  # 2 GiB of value
    assert journal_codec.scan(good)[1:] == (0, "TORN")
    assert journal_codec.columns(good)[-2:] == (0, "TORN")


def test_random_bytes_are_no_journal():
    rng = random.Random(1)
    for _ in range(2000):
        noise = rng.randbytes(rng.randrange(200))
        assert journal_codec.scan(noise).messages == []
        assert journal_codec.resume(noise, 0, 10**6) is None


# --- after damage -----------------------------------------------------------------------------


def after(*numbers: int) -> int:
    """Return the byte where the record after these begins, if they are the first ones."""
    return len(oracle.encoded(ITEMS[: max(numbers) + 1], 100))


@pytest.mark.parametrize("known", [110, -1], ids=["the end is known", "the end is not known"])
def test_a_flip_anywhere_in_the_framing_costs_one_message(known):
    whole = oracle.encoded(ITEMS, 100)
    size = after(0)
    for at in range(size):
        rotten = bytearray(whole)
        rotten[at] ^= 0x41
        found = journal_codec.scan(rotten, 100)
        if not found.messages:
            may_be_torn = found.stop == "TORN"
            assert journal_codec.resume(rotten, 100, known, may_be_torn) == (size, 101), at


def test_a_hole_costs_what_it_touches():
    whole = oracle.encoded(ITEMS, 100)
    rotten = bytes(after(3)) + whole[after(3) :]
    assert journal_codec.resume(rotten, 100, 110) == (after(3), 104)
    assert journal_codec.resume(rotten, 100) == (after(3), 104)
    assert journal_codec.resume(rotten, 100, may_be_torn=True) is None, "nothing vouches for it"


def test_between_two_holes_the_end_must_be_known():
    whole = bytearray(oracle.encoded(ITEMS, 100))
    whole[: after(1)] = bytes(after(1))
    whole[after(7) : after(9)] = bytes(after(9) - after(7))
    assert journal_codec.resume(whole, 100, 110) == (after(1), 102)
    assert journal_codec.resume(whole, 100) is None


def test_a_torn_message_whose_value_is_a_message_is_torn():
    inner = oracle.encoded(ITEMS[:3], 1001)
    torn = oracle.record(1000, b"", 0, 0, b"x" * 40 + inner + b"more")[:-8]
    assert torn.endswith(inner)
    assert journal_codec.resume(torn, 1000, may_be_torn=True) is None


def test_messages_in_a_broken_value_are_no_messages():
    inner = oracle.encoded(ITEMS[:3], 101)
    rotten = bytearray(oracle.record(100, b"k", 0, 0, b"x" * 40 + inner) + oracle.encoded(ITEMS[:3], 101))
    rotten[0:30] = bytes(30)
    outer = len(rotten) - len(inner)
    assert journal_codec.resume(rotten, 100, 104) == (outer, 101)
    assert journal_codec.resume(rotten, 100) == (outer, 101)


def test_nothing_follows_the_last_one():
    rotten = bytearray(oracle.record(0, b"key", 1, 2, b"value"))
    rotten[-1] ^= 1
    assert journal_codec.resume(rotten, 0, 1) is None
    assert journal_codec.resume(rotten, 0) is None
    assert journal_codec.resume(b"", 0) is None

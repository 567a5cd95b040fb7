# A message of a stream, and its position. Law: it is what was read, and cannot be changed.

from __future__ import annotations

import copy
import gc
import pickle
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq._native.core.message import Message, Position

NOON = 1_700_000_000_123_456_789
MESSAGE = Message(2, 7, NOON, b"key", b"value")

places = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
messages = st.builds(Message, *places, st.integers(-(2**63), 2**63 - 1), st.binary(), st.binary())


def test_a_message_has_a_position_a_time_a_key_and_a_value():
    parts = (MESSAGE.partition, MESSAGE.offset, MESSAGE.timestamp_ns, MESSAGE.key, MESSAGE.value)
    assert parts == (2, 7, NOON, b"key", b"value")


def test_its_position_is_its_place():
    assert MESSAGE.position == Position(2, 7) == (2, 7)
    assert MESSAGE.position.partition == 2
    assert MESSAGE.position.offset == 7


def test_positions_are_in_the_order_of_partition_and_offset():
    assert sorted([Position(1, 0), Position(0, 9), Position(0, 10)]) == [(0, 9), (0, 10), (1, 0)]


# --- time -------------------------------------------------------------------------------------


def test_its_time_is_an_aware_datetime_rounded_down_to_the_microsecond():
    assert MESSAGE.timestamp == datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
    assert MESSAGE.timestamp.utcoffset() == timedelta(0)


def test_a_time_before_1970_is_rounded_down_as_well():
    assert Message(0, 0, -1, b"", b"").timestamp == datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
    in_1968 = datetime(1968, 2, 29, 12, tzinfo=UTC)
    assert Message(0, 0, int(in_1968.timestamp()) * 10**9, b"", b"").timestamp == in_1968


@pytest.mark.parametrize("timestamp_ns", [-(2**63), 2**63 - 1])
def test_the_first_and_the_last_possible_timestamps_are_times(timestamp_ns):
    message = Message(0, 0, timestamp_ns, b"", b"")
    assert message.timestamp_ns == timestamp_ns
    assert message.timestamp.year == (1677 if timestamp_ns < 0 else 2262)


# --- as a value -------------------------------------------------------------------------------


@given(messages)
def test_messages_with_the_same_parts_are_equal(message):
    again = Message(message.partition, message.offset, message.timestamp_ns, message.key, message.value)
    assert again == message
    assert hash(again) == hash(message)
    assert again is not message


@pytest.mark.parametrize(
    "other",
    [
        Message(3, 7, NOON, b"key", b"value"),
        Message(2, 8, NOON, b"key", b"value"),
        Message(2, 7, NOON + 1, b"key", b"value"),
        Message(2, 7, NOON, b"other", b"value"),
        Message(2, 7, NOON, b"key", b"other"),
        (2, 7, NOON, b"key", b"value"),
        None,
    ],
)
def test_any_other_part_makes_another_message(other):
    assert other != MESSAGE


@given(messages)
def test_a_message_that_was_pickled_or_copied_is_the_same(message):
    assert pickle.loads(pickle.dumps(message)) == message
    assert copy.copy(message) == message
    assert copy.deepcopy(message) == message


def test_its_repr_makes_it_again():
    assert eval(repr(MESSAGE)) == MESSAGE


@pytest.mark.parametrize(
    "name", ["partition", "offset", "timestamp_ns", "key", "value", "timestamp", "position"]
)
def test_a_message_cannot_be_changed(name):
    with pytest.raises(AttributeError):
        setattr(MESSAGE, name, 1)
    with pytest.raises(AttributeError):
        MESSAGE.more = 1  # type: ignore[attr-defined]


def test_the_garbage_collector_does_not_walk_it():
    assert not gc.is_tracked(MESSAGE)


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["text", None, bytearray(b"a"), 7])
def test_only_bytes_are_a_key_or_a_value(part):
    with pytest.raises(TypeError):
        Message(0, 0, 0, part, b"")
    with pytest.raises(TypeError):
        Message(0, 0, 0, b"", part)


@pytest.mark.parametrize(
    "partition, offset, timestamp_ns", [(2**31, 0, 0), (0, 2**63, 0), (0, 0, 2**63), (0, 0, -(2**63) - 1)]
)
def test_a_number_that_is_too_large_is_refused(partition, offset, timestamp_ns):
    with pytest.raises(OverflowError):
        Message(partition, offset, timestamp_ns, b"", b"")

# However the pipe cuts the bytes into chunks, the messages are the same.

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq import MessageSizeError
from diskq.cli.core.framing import JOINERS, Frames, LineFraming, Whole, batches
from diskq.cli.core.parsing import CommandError

MOST = 1000

bodies = st.lists(st.binary(max_size=40), max_size=20)
lines = st.lists(st.binary(max_size=40).map(lambda body: body.replace(b"\n", b" ")), max_size=20)


def split(splitter, data, cuts):
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    found, start = [], 0
    for end in ends:
        found += splitter.feed(data[start:end])
        start = end
    return found + list(splitter.finish())


@given(bodies, st.sets(st.integers(0, 400)))
def test_frames_come_back_whole(bodies, cuts):
    assert split(Frames(MOST), JOINERS["length_prefixed"](bodies), cuts) == bodies


@given(lines, st.sets(st.integers(0, 400)))
def test_lines_come_back_whole(bodies, cuts):
    assert split(LineFraming(MOST), JOINERS["lines"](bodies), cuts) == bodies


@given(st.binary(max_size=400), st.sets(st.integers(0, 400)))
def test_whole_is_all_of_it(data, cuts):
    assert split(Whole(MOST), data, cuts) == [data]


@given(bodies, st.integers(1, 5), st.integers(1, 60))
def test_batches_are_in_order_and_within_both_bounds(bodies, most, most_bytes):
    made = list(batches(bodies, most, most_bytes))
    assert [body for batch in made for body in batch] == bodies
    assert all(1 <= len(batch) <= most for batch in made)
    assert all(len(batch) == 1 or sum(map(len, batch)) <= most_bytes for batch in made)


def test_the_last_line_may_lack_its_newline():
    assert split(LineFraming(MOST), b"one\ntwo", []) == [b"one", b"two"]


def test_an_empty_line_is_an_empty_message_and_a_carriage_return_stays():
    assert split(LineFraming(MOST), b"\none\r\n", []) == [b"", b"one\r"]


@pytest.mark.parametrize("make", [LineFraming, Whole])
def test_what_grows_past_the_limit_is_refused_before_it_is_gathered(make):
    splitter = make(10)
    splitter.feed(b"12345")
    with pytest.raises(MessageSizeError):
        splitter.feed(b"678901")


def test_a_frame_past_the_limit_is_refused_after_those_before_it():
    splitter = Frames(10)
    assert splitter.feed(struct.pack(">I3sI", 3, b"abc", 11)) == [b"abc"]
    with pytest.raises(MessageSizeError, match="11 bytes"):
        splitter.finish()


def test_an_end_inside_a_frame_is_reported():
    splitter = Frames(10)
    splitter.feed(struct.pack(">I2s", 3, b"ab"))
    with pytest.raises(CommandError, match="6 bytes into a message"):
        splitter.finish()

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace

import pytest

from diskq.cli.core.parsing import UsageError
from diskq.cli.core.places import Moment, end_of, place, start_of, stop


@pytest.mark.parametrize(
    "text, expected",
    [
        ("oldest", "oldest"),
        ("newest", "newest"),
        ("active", "active"),
        ("active-oldest", "active"),
        ("at-offset", "at-offset"),
        ("0", 0),
        ("4096", 4096),
        ("1970-01-01T00:00:01Z", Moment(1_000_000_000)),
    ],
)
def test_a_place_is_a_word_an_offset_or_a_moment(text, expected):
    assert place(text) == expected


@pytest.mark.parametrize("text", ["", "first", "-5", "1970-01-01", "١"])
def test_what_is_no_place_is_refused(text):
    with pytest.raises(ArgumentTypeError):
        place(text)


@pytest.mark.parametrize("text, expected", [("close", "close"), ("wait", "wait"), ("7", 7)])
def test_a_stop_is_a_word_or_an_offset(text, expected):
    assert stop(text) == expected


@pytest.mark.parametrize("text", ["", "newest", "-5", "1970-01-01T00:00:01Z"])
def test_what_is_no_stop_is_refused(text):
    with pytest.raises(ArgumentTypeError):
        stop(text)


def starting(start=None, start_offset=None, since=None):
    return start_of(Namespace(start=start, start_offset=start_offset, since=since))


def test_three_options_say_one_start():
    assert starting() == "oldest"
    assert starting(start="active") == "active"
    assert starting(start=5) == 5
    assert starting(start_offset=5) == 5
    assert starting(start="at-offset", start_offset=0) == 0
    assert starting(since=7) == Moment(7)


@pytest.mark.parametrize(
    "said",
    [
        {"start": "at-offset"},
        {"start": "oldest", "start_offset": 5},
        {"start": "oldest", "since": 5},
        {"start_offset": 5, "since": 5},
    ],
)
def test_options_that_contradict_each_other_are_refused(said):
    with pytest.raises(UsageError):
        starting(**said)


def test_two_options_say_one_end():
    assert end_of(Namespace(end=None, end_offset=None)) == "close"
    assert end_of(Namespace(end="wait", end_offset=None)) == "wait"
    assert end_of(Namespace(end="at-offset", end_offset=0)) == 0
    with pytest.raises(UsageError):
        end_of(Namespace(end="wait", end_offset=3))

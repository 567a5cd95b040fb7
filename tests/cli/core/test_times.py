from __future__ import annotations

import time
from argparse import ArgumentTypeError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq.cli.core.times import moment, show_moment

SECOND = 1_000_000_000
FOURTH_OF_JULY = 1_372_932_000 * SECOND


@pytest.mark.parametrize(
    "text, expected",
    [
        ("2013-07-04T10:00:00Z", FOURTH_OF_JULY),
        ("2013-07-04t10:00:00z", FOURTH_OF_JULY),
        ("2013-07-04T06:00:00-04:00", FOURTH_OF_JULY),
        ("2013-07-04 06:00 -0400", FOURTH_OF_JULY),
        ("2013-07-04 06:00 America/New_York", FOURTH_OF_JULY),
        ("2013-07-04 10:00 UTC", FOURTH_OF_JULY),
        ("2013-07-04 Asia/Kolkata", FOURTH_OF_JULY - int(15.5 * 3600 * SECOND)),
        ("2013-07-04T10:00:00.000000001Z", FOURTH_OF_JULY + 1),
        ("2013-07-04T10:00:00.5Z", FOURTH_OF_JULY + SECOND // 2),
        ("1372932000000000001", FOURTH_OF_JULY + 1),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("0", 0),
        ("9223372036854776", 9_223_372_036_854_776),  # in microseconds it would be after 2262
        ("-1764158400000000000", -1_764_158_400 * SECOND),
        # It comes twice on that night; the offset says which one it is.
        ("2013-11-03 01:30 -04:00", 1_383_456_600 * SECOND),
        ("2013-11-03 01:30 -05:00", 1_383_460_200 * SECOND),
        ("1677-09-21T00:12:43.145224192Z", -(2**63)),
        ("2262-04-11T23:47:16.854775807Z", 2**63 - 1),
    ],
)
def test_a_moment_is_nanoseconds(text, expected):
    assert moment(text) == expected


@pytest.mark.parametrize("text, ago", [("now", 0), ("-1h", 3600), ("-1h30m", 5400), ("1h30m ago", 5400)])
def test_a_moment_may_be_so_long_ago(text, ago):
    before = time.time_ns()
    assert before <= moment(text) + ago * SECOND <= time.time_ns()


@pytest.mark.parametrize(
    "text, told",
    [
        ("", "a moment is written"),
        ("yesterday", "a moment is written"),
        ("04.07.2013", "a moment is written"),
        ("2013-07-04T10:00:00.Z", "a moment is written"),
        ("٢٠١٣-07-04T10:00:00Z", "a moment is written"),
        ("2013-07-04T10:00:00Z\n", "a moment is written"),
        ("-1week", "a duration is written"),
        ("2013-07-04T10:00:00", "in which time zone"),
        ("2013-07-04", "in which time zone"),
        ("2013-13-04T10:00:00Z", "month must be in 1..12"),
        ("2013-07-04T24:00:00Z", "hour must be in 0..23"),
        ("2013-07-04 06:00 +24:00", "no time zone is that far"),
        ("2013-07-04 06:00 America/Nowhere", "no time zone is called America/Nowhere"),
        ("2013-07-04 06:00 America", "no time zone is called America"),
        ("2013-11-03 01:30 America/New_York", "comes twice in America/New_York"),
        ("2013-03-10 02:30 America/New_York", "does not exist in America/New_York"),
        ("1677-01-01T00:00:00Z", "outside of the years"),
        ("2262-04-11T23:47:16.854775808Z", "outside of the years"),
        ("9" * 5000, "outside of|Exceeds"),
        ("1764158400", "as seconds it is 2025-11-26T12:00:00Z, as nanoseconds 1970-01-01T00:00:01.7641584Z"),
        ("1764158400000", "as milliseconds it is 2025-11-26T12:00:00Z, as nanoseconds 1970"),
        ("1764158400000000", "as microseconds it is 2025-11-26T12:00:00Z, as nanoseconds 1970"),
        ("-3600", "as seconds it is 1969-12-31T23:00:00Z, as nanoseconds 1969"),
        ("-1", "as seconds"),
        ("1764158400.5", "a moment is written"),
        ("1 hour ago", "a duration is written"),
        ("2026-11-26T12:00:00,5Z", "a moment is written"),
        ("20261126T120000Z", "a moment is written"),
        ("2026-11-26 12:00 PST", "no time zone is called PST"),
        ("2026-11-26T23:59:60Z", "second must be in 0..59"),
        ("2026-02-29T00:00Z", "day is out of range"),
        ("Thu, 26 Nov 2026 12:00:00 GMT", "a moment is written"),
    ],
)
def test_what_is_no_moment_or_could_be_two_is_refused(text, told):
    with pytest.raises(ArgumentTypeError, match=told):
        moment(text)


@pytest.mark.parametrize(
    "timestamp, shown",
    [
        (0, "1970-01-01T00:00:00Z"),
        (FOURTH_OF_JULY + 500_000_000, "2013-07-04T10:00:00.5Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (-(2**63), "1677-09-21T00:12:43.145224192Z"),
    ],
)
def test_a_moment_is_shown_as_go_writes_it(timestamp, shown):
    assert show_moment(timestamp) == shown


@given(st.integers(-(2**63), 2**63 - 1))
def test_what_is_shown_is_what_was_meant(timestamp):
    assert moment(show_moment(timestamp)) == timestamp

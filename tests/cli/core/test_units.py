from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from diskq.cli.core.units import duration, show_duration, show_size, size


@pytest.mark.parametrize(
    "text, expected",
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("64MiB", 64 * 1024**2),
        ("64 MiB", 64 * 1024**2),
        ("64mib", 64 * 1024**2),
        ("1.5GiB", 3 * 1024**3 // 2),
        ("2TB", 2 * 1000**4),
    ],
)
def test_a_size_is_bytes(text, expected):
    assert size(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "-1", "1M", "1Mi", "64MiBs", "1.5", "0.1B", "1,5GiB", "1_000", "1e3", " 1", "1\n", "١"],
)
def test_what_is_no_size_or_could_be_two_is_refused(text):
    with pytest.raises(ArgumentTypeError, match="a size is written"):
        size(text)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("0s", 0),
        ("250ms", 0.25),
        ("100us", 100e-6),
        ("2s", 2),
        ("1.5s", 1.5),
        ("10m", 600),
        ("1h30m", 5400),
        ("1d2h3m4s5ms", 86400 + 2 * 3600 + 3 * 60 + 4.005),
    ],
)
def test_a_duration_is_seconds(text, expected):
    assert duration(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "5", "0", "s", "-1s", "30m1h", "1h1h", "1h 30m", "1h30", "1w", "1S", "1e3s", "1.s", "1s\n", "١s"],
)
def test_what_is_no_duration_or_could_be_two_is_refused(text):
    with pytest.raises(ArgumentTypeError, match="a duration is written"):
        duration(text)


@pytest.mark.parametrize(
    "count, expected",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (64 * 1024**2, "64.0 MiB"),
        (5 * 1024**5, "5120.0 TiB"),
    ],
)
def test_a_size_is_shown_in_the_unit_that_suits_it(count, expected):
    assert show_size(count) == expected


@pytest.mark.parametrize(
    "nanoseconds, expected",
    [
        (0, "0s"),
        (1500, "1.5us"),
        (250_000_000, "250ms"),
        (999_999_999, "999.9ms"),
        (1_500_000_000, "1.5s"),
        (59_990_000_000, "59.9s"),
        (60 * 10**9, "1m"),
        (5400 * 10**9, "1h30m"),
        ((2 * 86400 + 4 * 3600 + 5) * 10**9, "2d4h"),
        ((86400 + 30) * 10**9, "1d"),
        (-1_500_000_000, "-1.5s"),
    ],
)
def test_a_duration_is_shown_in_the_units_that_suit_it(nanoseconds, expected):
    assert show_duration(nanoseconds) == expected

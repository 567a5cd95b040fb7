# Names of numbered files. Law: what is made is read back to the same number, and every other name belongs
# to another program.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq.storage.numbered_files import (
    Naming,
    checksum_file_path,
    free_aside,
    private_path,
    set_aside_from,
)
from diskq.storage.numbers import NO_NUMBER
from diskq.testing import CrashFS

NSQ = Naming("q.diskqueue.", 6, ".dat")

names = st.text(st.characters(exclude_characters="/\0"), max_size=12)
namings = st.builds(Naming, names, st.integers(1, 19), names)


@given(namings, st.integers(0, NO_NUMBER - 1))
def test_a_number_comes_back(naming, number):
    assert naming.parse(naming.name(number)) == number


@given(namings, names)
def test_a_name_that_is_read_is_the_one_that_would_be_made(naming, name):
    number = naming.parse(name)
    assert number is None or naming.name(number) == name


@given(namings, st.integers(NO_NUMBER, 2**64))
def test_a_number_past_the_bound_is_not_a_number(naming, number):
    assert naming.parse(naming.name(number)) is None


def test_six_digits_or_more():
    assert NSQ.name(7) == "q.diskqueue.000007.dat"
    assert NSQ.name(1_000_000) == "q.diskqueue.1000000.dat"


@pytest.mark.parametrize(
    "name",
    [
        "q.diskqueue.7.dat",
        "q.diskqueue.0000007.dat",
        "q.diskqueue.-00007.dat",
        "q.diskqueue.+00007.dat",
        "q.diskqueue. 00007.dat",
        "q.diskqueue.00_007.dat",
        "q.diskqueue.٠٠٠٠٠٧.dat",
        "q.diskqueue.000007.dat.bad",
        "q.diskqueue.000007.dat\n",
        "q.diskqueue.000007",
        "q.diskqueue.meta.dat",
        "Q.diskqueue.000007.dat",
        "qq.diskqueue.000007.dat",
        "q.diskqueue..dat",
        "q.diskqueue.dat",
        "q.diskqueue.99999999999999999999.dat",
        "",
    ],
)
def test_every_other_name_belongs_to_another_program(name):
    assert NSQ.parse(name) is None


def test_a_prefix_and_a_suffix_may_not_share_a_character():
    assert Naming("aba", 1, "aba").parse("aba") is None


def test_listed_numbers_ascend_as_numbers():
    fs = CrashFS()
    for number in (1_000_000, 999_999, 3, 20):
        fs.write_durably(f"/d/{NSQ.name(number)}", b"")
    fs.write_durably("/d/q.diskqueue.meta.dat", b"")
    assert NSQ.listed(fs, "/d") == [3, 20, 999_999, 1_000_000]


def test_a_free_name_is_found_for_what_is_set_aside():
    fs = CrashFS()
    fs.write_durably("/d/f", b"")
    assert free_aside(fs, "/d/f") == "/d/f.bad"
    fs.write_durably("/d/f.bad", b"")
    fs.write_durably("/d/f.bad-1", b"")
    assert free_aside(fs, "/d/f") == "/d/f.bad-2"


@pytest.mark.parametrize(
    "name, original",
    [
        ("f.dat.bad", "f.dat"),
        ("f.dat.bad-12", "f.dat"),
        ("f.bad.bad-1", "f.bad"),
        ("jobs.bad.diskqueue.000000.dat", None),
        ("f.bad-", None),
        ("f.badger", None),
        (".bad", None),
    ],
)
def test_a_name_shows_from_which_file_its_bytes_were_set_aside(name, original):
    assert set_aside_from(name) == original


def test_private_files_are_where_no_peer_looks():
    assert private_path("/d", "q.lock") == "/d/.diskq/q.lock"
    assert checksum_file_path("/d", "/d/q.diskqueue.000000.dat") == "/d/.diskq/q.diskqueue.000000.dat.sums"

# The checksum of compiled code. Law: it is that of the library, for every size, and in any number of parts.

from __future__ import annotations

import random

import crc32c as library
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq._native.core.crc32c import crc32c

DATA = random.Random(1).randbytes(70_000)
# Three lanes of 128 bytes, and of 1024, are summed at once.
SIZES = [*range(1200), *range(3050, 3500), 4095, 4096, 4097, 6143, 6144, 6145, 65_536, 69_999]


def test_known_answers():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


@pytest.mark.parametrize("at", range(9))
def test_it_is_the_library_s_for_every_size_and_alignment(at):
    for size in SIZES:
        data = DATA[at : at + size]
        assert crc32c(data) == library.crc32c(data), size


@given(st.lists(st.sampled_from(SIZES), max_size=5), st.integers(0, 2**32 - 1))
def test_parts_in_turn_have_the_checksum_of_the_whole(sizes, start):
    whole, expected, at = start, start, 0
    for size in sizes:
        part = DATA[at % 100 : at % 100 + size]
        whole, expected, at = crc32c(part, whole), library.crc32c(part, expected), at + size
    assert whole == expected

# The checksum of compiled code. Law: it is that of the library, for every size, and in any number of parts,
# by the processor's instruction and by tables.

from __future__ import annotations

import random
from collections.abc import Callable

import crc32c as library
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq._native.core.crc32c import crc32c, crc32c_by_tables

Checksum = Callable[..., int]

DATA = random.Random(1).randbytes(70_000)
# Three lanes of 128 bytes, and of 1024, are summed at once.
SIZES = [*range(1200), *range(3050, 3500), 4095, 4096, 4097, 6143, 6144, 6145, 65_536, 69_999]

each_way = pytest.mark.parametrize("checksum", [crc32c, crc32c_by_tables])


@each_way
def test_known_answers(checksum: Checksum) -> None:
    assert checksum(b"123456789") == 0xE3069283
    assert checksum(b"") == 0
    assert checksum(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


@each_way
@pytest.mark.parametrize("at", range(9))
def test_it_is_the_library_s_for_every_size_and_alignment(checksum: Checksum, at: int) -> None:
    for size in SIZES:
        data = DATA[at : at + size]
        assert checksum(data) == library.crc32c(data), size


@each_way
@given(sizes=st.lists(st.sampled_from(SIZES), max_size=5), start=st.integers(0, 2**32 - 1))
def test_parts_in_turn_have_the_checksum_of_the_whole(
    checksum: Checksum, sizes: list[int], start: int
) -> None:
    whole, expected, at = start, start, 0
    for size in sizes:
        part = DATA[at % 100 : at % 100 + size]
        whole, expected, at = checksum(part, whole), library.crc32c(part, expected), at + size
    assert whole == expected

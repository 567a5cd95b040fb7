# The bytes of a redo log, in all the ways in which they may be wrong. Law: what is read is what was
# written, and of the needed entries the ones before the damage at least; an entry is never altered, and
# what is missing of the durable ones is reported.

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Iterator

import pytest

from diskq.errors import UnsupportedFormatError
from diskq.storage.checksums import checksum
from diskq.storage.log.entries import CHECKSUMS, DATA, Part
from diskq.storage.log.format import RedoContent, read_redo
from diskq.storage.redo_log import RedoLog
from diskq.testing import CrashFS
from tests.sampling import sampled

PLACE = "/d/redo"
NUMBER = 0x0102_0304_0506_0708
HEADER = 4096
SECTOR = 512


def entry(number: int, size: int = 100) -> list[Part]:
    """Entry `number`: one part of data, and one of checksums."""
    data = bytes((number * 7 + at * 13) % 251 + 1 for at in range(size))
    return [Part(0, DATA, 3, 1000 * number, data), Part(0, CHECKSUMS, 3, 24 * number, data[:24])]


class Disk:
    """A disk with one log, of which each entry is synced."""

    def __init__(self, half_size: int = 2048) -> None:
        self.fs = CrashFS()
        self.fs.make_directory_durably("/d")
        self.log = RedoLog(self.fs, PLACE, NUMBER, HEADER + 2 * half_size)
        self.sync()
        self.fs.sync_directory("/d")

    def sync(self) -> None:
        self.fs.sync_files((self.log.handle,))

    def add(self, *numbers: int, size: int = 100) -> None:
        for number in numbers:
            assert self.log.add(entry(number, size))
            self.sync()

    @property
    def content(self) -> bytes:
        return self.fs.files()[PLACE]


def read(content: bytes) -> RedoContent:
    """What is read of a log with this content."""
    fs = CrashFS()
    fs.make_directory("/d")
    fs.write_durably(PLACE, content)
    found = read_redo(fs, PLACE)
    assert found is not None
    return found


def numbers(found: RedoContent) -> list[int]:
    """Which entries were read; all of them are as they were written."""
    seen = []
    for one in found.entries:
        if one.parts:
            number = one.parts[0].position // 1000
            assert list(one.parts) == entry(number, len(one.parts[0].content))
            seen.append(number)
    return seen


# --- what is written is read ----------------------------------------------------------------------


def test_the_entries_of_a_log_are_read_in_order() -> None:
    disk = Disk()
    disk.add(1, 2, 3)
    found = read(disk.content)
    assert numbers(found) == [1, 2, 3]
    assert (found.number, found.unreadable) == (NUMBER, 0)


def test_a_new_log_has_no_entries() -> None:
    assert read(Disk().content) == RedoContent(NUMBER)


@pytest.mark.parametrize("content", [None, b""], ids=["no file", "an empty file"])
def test_where_there_is_none_nothing_is_read(content: bytes | None) -> None:
    fs = CrashFS()
    fs.make_directory("/d")
    if content is not None:
        fs.write_durably(PLACE, content)
    assert read_redo(fs, PLACE) is None


def test_released_entries_are_not_needed() -> None:
    disk = Disk()
    disk.add(1, 2, 3)
    disk.log.release(3)
    disk.add(4)
    assert numbers(read(disk.content)) == [3, 4]


def test_a_log_of_which_nothing_is_needed_says_so_itself() -> None:
    disk = Disk()
    disk.add(1, 2, 3)
    disk.log.release(disk.log.next_sequence)
    assert read(disk.content) == RedoContent(NUMBER)


def test_when_a_half_is_full_the_other_one_is_used_and_both_are_read() -> None:
    disk = Disk(half_size=1000)
    disk.add(1, 2, 3, 4, 5, 6)
    assert numbers(read(disk.content)) == [1, 2, 3, 4, 5, 6]


def test_nothing_that_is_needed_is_written_over() -> None:
    disk = Disk(half_size=1000)
    written = list(itertools.takewhile(lambda n: disk.log.add(entry(n)), range(1, 100)))
    assert 6 <= len(written) < 20
    assert numbers(read(disk.content)) == written


def test_a_half_is_used_again_once_the_last_entry_says_that_nothing_of_it_is_needed() -> None:
    disk = Disk(half_size=1000)
    disk.add(1, 2, 3, 4, 5)
    disk.log.release(4)
    assert disk.log.is_needed
    for number in range(6, 60):
        disk.add(number)
        disk.log.release(disk.log.next_sequence - 2)
        assert numbers(read(disk.content))[-2:] == [number - 1, number]


def test_a_full_log_goes_on_once_it_says_durably_that_nothing_of_it_is_needed() -> None:
    disk = Disk(half_size=1000)
    full = next(n for n in range(1, 100) if not disk.log.add(entry(n)))
    disk.log.release(disk.log.next_sequence)
    assert not disk.log.add(entry(full))
    assert disk.log.needs_sync
    disk.sync()
    disk.log.note_synced(disk.log.next_sequence)
    disk.add(full)
    assert numbers(read(disk.content)) == [full]


def test_a_larger_log_goes_on_with_the_sequence_of_the_one_before() -> None:
    fs = CrashFS()
    fs.make_directory("/d")
    old = RedoLog(fs, PLACE, NUMBER, HEADER + 2000)
    assert old.add(entry(1))
    new = RedoLog(fs, f"{PLACE}.new", NUMBER, HEADER + 4000, sequence=old.next_sequence)
    assert new.add(entry(2))
    fs.rename(f"{PLACE}.new", PLACE)
    found = read_redo(fs, PLACE)
    assert found is not None
    assert [one.sequence for one in found.entries] == [2]


def test_an_independent_reader_finds_the_same() -> None:
    disk = Disk()
    disk.add(1, 2)
    content = disk.content
    header = struct.unpack_from("<8sIIQ64sIIQ20xI", content)
    assert header[:-1] == (b"diskqlog", 1, 2, NUMBER, bytes(64), HEADER, 2, 2048)
    assert header[-1] == checksum(content[:124])
    assert content[HEADER - 128 : HEADER] == content[:128]
    at, found = HEADER, []
    for sequence in (1, 2):
        size, crc, its, seen, floor, check = struct.unpack_from("<IIQQQQ", content, at)
        assert (its, seen, floor, size % 8) == (NUMBER, sequence, 1, 0)
        assert check == checksum(content[at + 8 : at + 32])
        assert crc == checksum(content[at + 8 : at + 32] + content[at + 40 : at + size])
        inside = at + 40
        while inside + 32 <= at + size:
            group, kind, file, position, length = struct.unpack_from("<IIqqI", content, inside)
            found.append(Part(group, kind, file, position, content[inside + 32 : inside + 32 + length]))
            inside += 32 + length
        at += size
    assert found == entry(1) + entry(2)


# --- every order in which a kernel may write the pages of the last entry ---------------------------

# How the log came to be before the last entry is written: with nothing behind it, with entries of an earlier
# round, with a mark under it, in the other half.


def nothing_behind() -> Disk:
    disk = Disk(half_size=8192)
    disk.add(1, 2)
    return disk


def an_earlier_round_behind() -> Disk:
    disk = Disk(half_size=3000)
    for number in range(1, 40):
        disk.add(number, size=130)
        disk.log.release(disk.log.next_sequence - 1)
    return disk


def a_mark_below() -> Disk:
    disk = Disk(half_size=8192)
    disk.add(1, 2, 3)
    disk.log.release(disk.log.next_sequence)
    return disk


def a_durable_mark_below() -> Disk:
    disk = a_mark_below()
    disk.sync()
    return disk


def at_the_beginning_of_the_other_half() -> Disk:
    disk = Disk(half_size=3000)
    number = 0
    while disk.log._half == 0 or disk.log._at + 1500 + 200 < 3000:  # the next one is the first of a half
        number += 1
        disk.add(number)
        disk.log.release(disk.log.next_sequence - 1)
    return disk


def after_a_full_sync_at_the_end_of_a_half() -> Disk:
    disk = at_the_beginning_of_the_other_half()
    disk.log.release(disk.log.next_sequence)
    return disk


STATES = [
    nothing_behind,
    an_earlier_round_behind,
    a_mark_below,
    a_durable_mark_below,
    at_the_beginning_of_the_other_half,
    after_a_full_sync_at_the_end_of_a_half,
]


class LastEntry:
    """A log, before and after its last entry was written; `durable` is what no power cut takes."""

    def __init__(self, disk: Disk, size: int) -> None:
        self.durable = disk.fs.crash().files()[PLACE]
        self.before = disk.content
        assert disk.log.add(entry(900, size))
        self.after = disk.content
        *self.needed, last = numbers(read(self.after))
        assert last == 900
        changed = [at for at in range(len(self.after)) if self.after[at] != self.before[at]]
        self.start, self.end = changed[0], changed[-1] + 1

    def sectors(self) -> list[int]:
        """Those in which what is durable differs from what is there now."""
        every = range(0, len(self.after), SECTOR)
        return [at for at in every if self.after[at : at + SECTOR] != self.durable[at : at + SECTOR]]

    def with_sectors(self, chosen: tuple[int, ...]) -> bytes:
        content = bytearray(self.durable)
        for at in chosen:
            content[at : at + SECTOR] = self.after[at : at + SECTOR]
        return bytes(content)

    def check(self, content: bytes, *, is_whole: bool) -> None:
        found = read(content)
        assert found.unreadable == 0, "a power cut is no damage"
        seen = numbers(found)
        assert seen == sorted(set(seen)), "out of order"
        assert set(seen) >= set(self.needed), "lost"
        if 900 in seen:
            assert content[self.start : self.end] == self.after[self.start : self.end]
            assert seen == [*self.needed, 900]
        else:
            assert not is_whole


def subsets(items: list[int]) -> Iterator[tuple[int, ...]]:
    for size in range(len(items) + 1):
        yield from itertools.combinations(items, size)


@pytest.mark.parametrize("size", [20, 300, 1500])
@pytest.mark.parametrize("state", STATES)
def test_any_of_the_sectors_of_the_last_entry_may_have_been_written(state: object, size: int) -> None:
    assert callable(state)
    last = LastEntry(state(), size)
    changed = last.sectors()
    assert len(changed) <= 8
    for chosen in subsets(changed):
        last.check(last.with_sectors(chosen), is_whole=len(chosen) == len(changed))


@pytest.mark.exhaustive
@pytest.mark.parametrize("state", STATES)
def test_the_last_entry_may_be_torn_at_any_byte(state: object) -> None:
    assert callable(state)
    last = LastEntry(state(), 300)
    for at in range(last.start, last.end):
        for below in (last.durable, last.before):
            last.check(last.after[:at] + below[at:], is_whole=False)
            if at > last.start:  # or its end came first
                last.check(below[: last.start] + below[last.start : at] + last.after[at:], is_whole=False)


@pytest.mark.parametrize("state", STATES)
def test_a_last_entry_that_is_not_whole_is_found_and_is_not_there_before_it_is_begun(state: object) -> None:
    assert callable(state)
    last = LastEntry(state(), 300)
    for whole in (last.durable, last.before, last.after):
        assert read(whole).torn == b""
    for at in range(last.start, last.end):
        found = read(last.after[:at] + bytes([last.after[at] ^ 0x5A]) + last.after[at + 1 :])
        assert found.torn_at == last.start
        assert last.end - last.start <= len(found.torn)
        assert set(numbers(found)) >= set(last.needed)


def test_no_log_in_use_seems_to_have_an_entry_that_is_not_whole() -> None:
    """The bytes of earlier rounds are behind its last entry."""
    for seed in range(30):
        rng = random.Random(seed)
        disk = Disk(half_size=rng.choice([700, 1000, 1400]))
        for number in range(1, 60):
            if not disk.log.add(entry(number, rng.randrange(1, 300))):
                disk.log.release(disk.log.next_sequence)
                disk.sync()
                disk.log.note_synced(disk.log.next_sequence)
            elif rng.random() < 0.3:
                disk.log.release(disk.log.next_sequence - rng.randrange(3))
            assert read(disk.content).torn == b""


def test_entries_of_an_earlier_round_are_never_read_behind_a_torn_one() -> None:
    """Each has the size of the one that is written over it: so they follow each other byte by byte."""
    disk = Disk(half_size=1000)
    disk.add(1)
    for number in range(2, 60):
        disk.log.release(disk.log.next_sequence - 1)
        before = disk.content
        assert disk.log.add(entry(number))
        after = disk.content
        for at in range(0, len(after), SECTOR):
            torn = after[:at] + before[at : at + SECTOR] + after[at + SECTOR :]
            found = read(torn)
            assert found.unreadable == 0
            assert numbers(found)[-2:] in ([number - 1], [number - 2, number - 1], [number - 1, number])
        disk.sync()


# --- damage ---------------------------------------------------------------------------------------


def damaged_everywhere(content: bytes, most: int) -> Iterator[tuple[int, bytes]]:
    for at in sampled(range(len(content)), most):
        for mask in (0x01, 0x80, 0xFF):
            yield at, content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]


def two_halves() -> Disk:
    disk = Disk(half_size=1200)
    disk.add(1, 2, 3)
    disk.log.release(3)
    disk.add(4, 5, 6, 7, 8, 9)
    return disk


def one_half() -> Disk:
    disk = Disk(half_size=2000)
    disk.add(1, 2, 3, 4, 5)
    return disk


@pytest.mark.sampled
@pytest.mark.parametrize("log", [one_half, two_halves, an_earlier_round_behind])
def test_no_flipped_byte_alters_an_entry_and_what_is_missing_is_reported(log: object) -> None:
    assert callable(log)
    content = log().content
    needed = numbers(read(content))
    for at, damaged in damaged_everywhere(content, 1000):
        found = read(damaged)
        seen = numbers(found)
        assert seen == sorted(set(seen)), "out of order"
        # The last one may have been torn by the power cut: it is reported as not whole.
        reported = found.unreadable or (set(seen) >= set(needed[:-1]) and found.torn)
        is_there = set(seen) >= set(needed)
        assert is_there or reported, f"byte {at}: {seen} of {needed}, and nothing is reported"


def test_a_damaged_first_entry_of_a_half_is_reported_though_its_number_is_unknown() -> None:
    content = two_halves().content
    second = HEADER + 1200
    damaged = content[:second] + bytes(40) + content[second + 40 :]
    found = read(damaged)
    assert found.unreadable > 0
    assert numbers(found)[0] == 3


def test_entries_before_and_after_a_damaged_one_are_read() -> None:
    content = bytearray(two_halves().content)
    whole = numbers(read(bytes(content)))
    content[HEADER + 3 * 210] ^= 0xFF
    found = read(bytes(content))
    assert found.unreadable > 0
    assert set(numbers(found)) < set(whole)
    assert numbers(found)[-1] == whole[-1]


def test_a_log_that_ends_early_is_reported() -> None:
    content = two_halves().content
    needed = numbers(read(content))
    for end in range(1, len(content), 13):
        found = read(content[:end])
        assert found.unreadable > 0
        assert max(numbers(found), default=0) <= max(needed)


def test_a_log_of_zeros_is_reported() -> None:
    content = two_halves().content
    assert read(bytes(len(content))) == RedoContent(None, unreadable=len(content))


@pytest.mark.parametrize("copy", [0, 4096 - 512])
def test_one_of_the_two_headers_is_enough(copy: int) -> None:
    content = bytearray(two_halves().content)
    content[copy : copy + 512] = bytes(512)
    assert read(bytes(content)) == read(two_halves().content)


def test_without_both_headers_nothing_is_read_and_that_is_reported() -> None:
    content = bytearray(two_halves().content)
    content[:4096] = bytes(4096)
    assert read(bytes(content)) == RedoContent(None, unreadable=len(content))


def test_an_entry_of_another_log_is_none() -> None:
    """A message may be a copy of a redo log."""
    other = RedoLog(fs := CrashFS(), "/other", NUMBER + 1, HEADER + 2000)
    assert other.add(entry(1))
    assert other.add(entry(2))
    content = bytearray(one_half().content)
    content[HEADER:] = fs.files()["/other"][HEADER:].ljust(len(content) - HEADER, b"\0")
    assert numbers(read(bytes(content))) == []


# --- other versions -------------------------------------------------------------------------------


COPIES = (0, 4096 - 128)


def with_version(content: bytes, version: int, *, is_checked: bool) -> bytes:
    changed = bytearray(content)
    for copy in COPIES:
        changed[copy + 8 : copy + 12] = version.to_bytes(4, "little")
        if is_checked:
            check = checksum(bytes(changed[copy : copy + 124]))
            changed[copy + 124 : copy + 128] = check.to_bytes(4, "little")
    return bytes(changed)


@pytest.mark.parametrize("is_checked", [True, False], ids=["the same header", "another header"])
@pytest.mark.parametrize("version", [2, 9, 0xFFFF_FFFF])
def test_another_version_is_refused_with_a_sentence(version: int, is_checked: bool) -> None:
    content = with_version(two_halves().content, version, is_checked=is_checked)
    with pytest.raises(UnsupportedFormatError, match=r"a log of format version \d+.*supported: version 1"):
        read(content)


def test_a_damaged_version_in_one_of_the_headers_is_damage() -> None:
    content = bytearray(two_halves().content)
    content[8:9] = b"\2"
    assert read(bytes(content)) == read(two_halves().content)

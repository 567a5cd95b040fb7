# Offsets whose messages are gone for good. Law: what is not noted is news.

from __future__ import annotations

from diskq.engine.journal.files import JournalFiles
from diskq.testing import CrashFS
from diskq.tools.gaps import Gap, gaps_as, known_gaps, unknown_parts


def noted(*gaps: Gap, rot: bytes = b"") -> list[Gap]:
    fs = CrashFS()
    files = JournalFiles(fs, "/j")
    fs.make_directory_durably("/j/.diskq")
    fs.write_durably(files.gaps, gaps_as(gaps) + rot)
    return known_gaps(fs, files)


def test_what_was_noted_is_known():
    assert noted(Gap(0, 5, 9), Gap(2, 0, 3)) == [Gap(0, 5, 9), Gap(2, 0, 3)]


def test_gaps_that_touch_are_one():
    assert noted(Gap(0, 9, 12), Gap(0, 5, 9), Gap(1, 12, 13)) == [Gap(0, 5, 12), Gap(1, 12, 13)]


def test_a_rotten_note_is_ignored():
    assert noted(Gap(0, 5, 9), rot=b"x") == []


def test_without_a_note_no_gap_is_known():
    fs = CrashFS()
    assert known_gaps(fs, JournalFiles(fs, "/j")) == []


def test_a_part_that_is_not_noted_is_news():
    known = [Gap(0, 5, 9), Gap(0, 12, 20), Gap(1, 0, 100)]
    assert unknown_parts(Gap(0, 3, 15), known) == [Gap(0, 3, 5), Gap(0, 9, 12)]
    assert unknown_parts(Gap(0, 6, 9), known) == []
    assert unknown_parts(Gap(0, 18, 30), known) == [Gap(0, 20, 30)]

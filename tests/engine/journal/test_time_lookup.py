# From a moment to an offset in a journal. Law: the answer is that of who looks at every message in turn,
# whatever the clocks did.

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from diskq.engine.journal.time_lookup import JournalTimes
from diskq.errors import NotFoundError
from diskq.testing import FaultFS
from tests.engine.journals import ROOT, data, disk, flip, given, items, lay_out, opened
from tests.engine.ram import RamFS
from tests.reference import sej_oracle as oracle
from tests.reference.sej_oracle import Item
from tests.sampling import examples

NULL, LATEST = oracle.NULL_TIME, 2**63 - 1


def at(*times: int) -> list[Item]:
    return [(b"", time, 0, b"value") for time in times]


def looked_through(of: list[Item], bound: int, first: int = 0) -> int | None:
    times = [time for _, time, _, _ in of]
    return next((n for n, time in enumerate(times, first) if time >= bound and time != NULL), None)


times = st.lists(st.one_of(st.sampled_from([NULL, NULL + 1, LATEST]), st.integers(-5, 20)), max_size=14)


@settings(deadline=None, max_examples=examples(80))
@drawn(times, st.sampled_from([0, 70, 10**6]), st.integers(0, 3), st.lists(st.integers(-7, 22), max_size=4))
def test_it_is_what_looking_through_finds(told, size, first, asked):
    fs = RamFS({})
    lay_out(fs, at(*told), size, first)
    with JournalTimes(ROOT, fs=fs) as lookup:
        for bound in (*asked, NULL, NULL + 1, LATEST):
            assert lookup.offset_at_or_after(bound) == looked_through(at(*told), bound, first)
            assert lookup.offset_after(bound - 1) == looked_through(at(*told), max(NULL, bound), first)
        assert lookup.offset_at_or_after(NULL - 5) == looked_through(at(*told), NULL, first)
        assert lookup.offset_after(LATEST) is None


def test_a_moment_is_an_aware_datetime_too():
    fs = RamFS({})
    lay_out(fs, at(*(n * 10**9 for n in range(5))))
    with JournalTimes(ROOT, fs=fs) as lookup:
        assert lookup.offset_at_or_after(datetime.fromtimestamp(3, UTC)) == 3
        assert lookup.offset_after(datetime.fromtimestamp(3, UTC)) == 4
        with pytest.raises(ValueError, match="has no time zone"):
            lookup.offset_after(datetime(1970, 1, 1))


def test_a_lookup_by_time_is_exact_in_long_segments():
    rising = [1000 * n - (n % 90) * 700 for n in range(20_000)]
    fs = RamFS({})
    lay_out(fs, at(*rising), 250_000)
    with JournalTimes(ROOT, fs=fs) as lookup:
        for bound in range(0, 20_000_000, 1_234_567):
            assert lookup.offset_at_or_after(bound) == looked_through(at(*rising), bound)


def test_a_complete_segment_is_read_once():
    fs = FaultFS(disk())
    lay_out(fs.inner, at(*range(1000)), 5_000)
    with JournalTimes(ROOT, fs=fs) as lookup:
        lookup.offset_at_or_after(5000)
        fs.calls.clear()
        for bound in (999, 500, 7):
            assert lookup.offset_at_or_after(bound) == bound
        opened_again = {call.path for call in fs.calls if call.verb == "open"}
    assert len(opened_again) == 3


def test_what_is_written_meanwhile_is_found():
    fs = RamFS({})
    with opened(fs, segment_size=100) as journal, JournalTimes(ROOT, fs=fs) as lookup:
        for number in range(30):
            assert lookup.offset_at_or_after(number) is None
            journal.append(b"value", timestamp=number)
            assert lookup.offset_at_or_after(number) == number
            assert lookup.offset_at_or_after(number // 2) == number // 2


def test_segments_may_go_at_any_time():
    fs = disk()
    lay_out(fs, at(*range(20)), 100)
    bases = sorted(int(name[:16], 16) for name in oracle.files(at(*range(20)), 100))
    with JournalTimes(ROOT, fs=fs) as lookup:
        assert lookup.offset_at_or_after(2) == 2
        fs.unlink(data(bases[0]))
        fs.unlink(data(bases[1]))
        assert lookup.offset_at_or_after(2) == bases[2]
        assert lookup.offset_at_or_after(15) == 15


def test_a_torn_message_is_not_there_and_damage_is_passed_over():
    fs = disk()
    with opened(fs) as journal:
        for time in range(9):
            journal.append(b"value" * 900, timestamp=time, durability="synced")
    flip(fs, data(), 4526 * 3 + 100)
    fs.write_durably(data(), fs.read(data()) + oracle.record(9, b"", 99, 0, b"torn")[:-1])
    with JournalTimes(ROOT, fs=fs) as lookup:
        assert [lookup.offset_at_or_after(time) for time in (2, 3, 4, 9)] == [2, 4, 4, None]


def test_there_must_be_a_journal(tmp_path):
    with pytest.raises(NotFoundError):
        JournalTimes(tmp_path)
    fs = disk()
    with opened(fs):
        assert JournalTimes(ROOT, fs=fs).offset_at_or_after(0) is None


def test_messages_without_a_time_are_earlier_than_any_moment():
    fs = disk()
    with opened(fs) as journal:
        journal.append_many(given(items(7)))
    with JournalTimes(ROOT, fs=fs) as lookup:
        assert lookup.offset_at_or_after(NULL) == 0
        assert lookup.offset_at_or_after(1_700_000_000_000_000_006) is None

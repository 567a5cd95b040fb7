# Several logs as one, by time: which message comes next, and what delays no other log.

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from diskq.engine.log.reader import SkippedBytes
from diskq.engine.log.time_order import UNTIMED, Lane, TimeOrder


class Said(NamedTuple):
    """A message with a time."""

    offset: int
    timestamp_ns: int | None


class Log:
    """Messages with these times, from offset 0; reading the ones in `broken` fails once each."""

    def __init__(self, times: Sequence[int | None], broken: set[int] | None = None) -> None:
        self.losses: list[SkippedBytes] = []
        self.position = 0
        self.is_closed = False
        self._messages = [Said(offset, when) for offset, when in enumerate(times)]
        self._broken = broken or set()

    def read_many(self, max_messages: int, max_bytes: int) -> list[Said]:
        if self.position in self._broken:
            self._broken.remove(self.position)
            raise OSError(5, "the disk says no")
        some = self._messages[self.position : self.position + min(max_messages, 2)]
        self.position += len(some)
        return some

    def close(self) -> None:
        self.is_closed = True


def order(*logs: Log, limit: int = 100, most_back: int | None = None) -> TimeOrder[Said]:
    return TimeOrder([Lane(index, log, limit) for index, log in enumerate(logs)], most_back=most_back)


def times(of: TimeOrder[Said]) -> list[tuple[int, int]]:
    """Return the time that each message gets, and its offset."""
    found = []
    while (time := of.peek()) is not None:
        found.append((time, of.read().offset))
    return found


def test_the_earliest_of_all_logs_comes_next():
    merged = order(Log([1, 4, 6]), Log([2, 3, 7]), Log([]), Log([5]))
    assert [time for time, _ in times(merged)] == [1, 2, 3, 4, 5, 6, 7]


def test_of_equal_times_the_first_log_is_first_and_each_stays_in_order():
    assert times(order(Log([1, 1]), Log([1]))) == [(1, 0), (1, 1), (1, 0)]


@pytest.mark.parametrize(
    "said, most_back, expected",
    [
        ([5, 3, 6], None, [5, 5, 6]),
        ([5, None, 6], None, [5, 5, 6]),
        ([None, 5], None, [UNTIMED, 5]),
        ([5, 9000, 6, 7], None, [5, 9000, 9000, 9000]),
        ([5, 9000, 6, 7], 10, [5, 9000, 6, 7]),
        ([5, 4, 6], 10, [5, 5, 6]),
    ],
    ids=["a step back", "no time", "none at first", "the far future", "the far future, cut", "little, cut"],
)
def test_times_that_step_back_or_are_missing(said, most_back, expected):
    assert [time for time, _ in times(order(Log(said), most_back=most_back))] == expected


def test_nothing_is_read_after_the_limit():
    merged = order(Log([1, 2, 3, 4, 5]), limit=3)
    assert merged.left == 3
    assert times(merged) == [(1, 0), (2, 1), (3, 2)]
    assert (merged.position, merged.left) == ({0: 3}, 0)


def test_what_could_not_be_read_is_read_when_it_is_asked_for_again():
    merged = order(Log([1, 2, 3], broken={0, 2}), Log([4]))
    with pytest.raises(OSError, match="says no"):
        merged.peek()
    assert (merged.peek(), merged.read().offset, merged.peek(), merged.read().offset) == (1, 0, 2, 1)
    with pytest.raises(OSError, match="says no"):
        merged.peek()
    assert times(merged) == [(3, 2), (4, 0)]


def test_closing_it_closes_the_readers():
    logs = Log([1]), Log([2])
    with order(*logs):
        pass
    assert all(log.is_closed for log in logs)

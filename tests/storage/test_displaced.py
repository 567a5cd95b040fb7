# Messages that the next open appends again. Law: they are not lost; and others are not called saved for them.

from __future__ import annotations

import pytest

from diskq.storage.log.entries import DATA, Displaced, Part
from diskq.storage.log.replay import not_displaced
from diskq.storage.repairs import Repair, RepairKind

# Four messages of one byte each, which belong at byte 100.
FOUR = Displaced("/q/data", Part(0, DATA, 1, 100, b"abcd"))


@pytest.mark.parametrize(
    "path, kept, dropped, lost, left",
    [
        ("/q/data", 100, 4, 4, 0),
        ("/q/data", 100, 50, 6, 2),
        ("/q/data", 102, 50, 4, 2),
        ("/q/data", 90, 20, 5, 1),
        ("/q/data", 90, 0, 5, 1),  # the bytes were gone before: nobody knows how many
        ("/q/data", 90, 10, 3, 3),  # all before theirs
        ("/q/other", 100, 4, 4, 4),
        ("/q/data", 100, 4, 0, 0),
    ],
)
def test_what_is_lost_is_what_is_not_appended_again(
    path: str, kept: int, dropped: int, lost: int, left: int
) -> None:
    repair = Repair(
        path=path, kind=RepairKind.LOST, kept=kept, dropped=dropped, reason="of this test", records=lost
    )
    (found,) = not_displaced([repair], [FOUR], len)
    assert found.records == left


def test_an_unknown_number_stays_unknown() -> None:
    repair = Repair(
        path="/q/data", kind=RepairKind.LOST, kept=100, dropped=4, reason="of this test", records=None
    )
    assert list(not_displaced([repair], [FOUR], len)) == [repair]

# Opening a store of very many messages. Law: it is read in pieces, each for one compiled call, which lets no
# other thread run; so the longest pause of the others does not grow with the store.

from __future__ import annotations

import pytest

from diskq.engine.priority.store import PriorityStore
from diskq.testing import CrashFS

MOST_AT_ONCE = 256 * 1024


class MeasuredDisk(CrashFS):
    """Notes how many bytes each read of a file returns."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        data = super().pread(handle, size, offset)
        self.sizes.append(len(data))
        return data


@pytest.mark.parametrize("has_snapshot", [False, True], ids=["the log", "a snapshot"])
def test_no_more_than_a_quarter_mib_is_read_at_once_of(has_snapshot: bool) -> None:
    disk = MeasuredDisk()
    disk.make_directory_durably("/jobs")
    with PriorityStore("/jobs", fs=disk) as store:
        for number in range(20):
            store.put_many(store.queue(), [b"%d" % number + b"." * 1000] * 50, number % 3)
        if has_snapshot:
            store.snapshot()
    disk.sizes.clear()
    with PriorityStore("/jobs", fs=disk) as store:
        assert store.info(store.queue()).stored == 1000
    assert sum(disk.sizes) > 1_000_000
    assert max(disk.sizes) <= MOST_AT_ONCE

# One call of the file system fails, of each kind of call and at each place. Law: a caller that gets an error
# can go on, and at the end nothing is open or locked; the next open works in the same process, and finds
# everything that was acknowledged, and nothing that was refused, also after a power cut.
#
# A sample of the calls of each sort fails here, once with EIO and once with one of the other errors in turn:
# eight for a store with a write-ahead log and eight without, twenty for a kind that has none; in `make test`
# four, with EIO. With DISKQ_EVERY_FAULT=1 each call fails with each error, which takes some minutes.

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.contract.faults import errors, faults
from tests.contract.kinds import Kind, engines
from tests.contract.lives import FIRST, NEXT, Life, after, disk, killed

pytestmark = [pytest.mark.slow, pytest.mark.sampled, pytest.mark.usefixtures("quiet_log")]


def _stores() -> Iterator[tuple[Kind, bool]]:
    """(kind, with a write-ahead log)."""
    for kind in engines():
        yield kind, False
        if kind.has_wal:
            yield kind, True


stores = pytest.mark.parametrize(
    "kind, wal",
    list(_stores()),
    ids=lambda it: it.name if isinstance(it, Kind) else "wal" * it or "plain",
)


def failing(begin: Callable[[], Life], acts: str, errors: tuple[int, ...]) -> list[str]:
    kind = begin().kind
    most, is_in_threads = 6 if kind.has_wal else 14, kind.name == "threaded spool"
    return faults(begin, lambda life: life.run(acts), errors, most, is_in_threads=is_in_threads)


@stores
@errors
def test_one_failed_call_in_the_life_of_a_new_store(kind: Kind, wal: bool, errors: tuple[int, ...]) -> None:
    assert failing(lambda: Life(kind, disk(), wal=wal), FIRST, errors) == []


@pytest.mark.exhaustive
@stores
@errors
def test_one_failed_call_in_the_life_of_a_store_that_a_killed_process_left(
    kind: Kind, wal: bool, errors: tuple[int, ...]
) -> None:
    left = killed(kind, wal=wal)
    assert failing(lambda: after(left), NEXT, errors) == []

# One call of the file system fails, of each kind of call and at each place. Law: whoever is told of an error
# can go on, and at the end nothing is open and nothing locked; the next open works in the same process, and
# finds everything that was acknowledged, and nothing that was refused, after a power cut too.
#
# Here a sample of the calls of each sort fails once with EIO and once with one of the other errors, in turn:
# eight where the store has a slate and eight where it has none, twenty for a kind that knows of none. With
# DISKQ_EVERY_FAULT=1 each fails with each of them: for some minutes.

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.contract.kinds import Kind, engines
from tests.contract.lives import FIRST, NEXT, Life, after, disk, killed
from tests.sampling import IS_FULL, sampled

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet_log")]

OTHERS = (errno.ENOSPC, errno.EMFILE, errno.EACCES, errno.EINTR)
ERRORS = [(each,) for each in (errno.EIO, *OTHERS)] if IS_FULL else [(errno.EIO,), OTHERS]


TRIED_AGAIN = {"unlink", "close", "truncate"}
"""What fails there is done later, or was done all the same."""


def _stores() -> Iterator[tuple[Kind, bool]]:
    """(kind, with a slate)."""
    for kind in engines():
        yield kind, False
        if kind.has_slate:
            yield kind, True


def _called(errors: tuple[int, ...]) -> str:
    return errno.errorcode[errors[0]] if len(errors) == 1 else "others"


stores = pytest.mark.parametrize(
    "kind, slate",
    list(_stores()),
    ids=lambda it: it.name if isinstance(it, Kind) else "slate" * it or "plain",
)
errors = pytest.mark.parametrize("errors", ERRORS, ids=_called)


def faults(begin: Callable[[], Life], acts: str, errors: tuple[int, ...]) -> list[str]:
    """What goes wrong when a call fails, for each call of that life in turn."""
    whole = begin()
    whole.run(acts)
    assert whole.errors == []
    census = Counter(call.verb for call in whole.fs.calls)
    whole.check(power_cut=True)
    wrong = []
    heard: dict[str, bool] = {}
    most = 8 if whole.kind.has_slate else 20
    calls = [(verb, nth) for verb, count in census.items() for nth in sampled(range(1, count + 1), most)]
    for number, (verb, nth) in enumerate(calls):
        error = errors[number % len(errors)]
        life = begin()
        fault = life.fs.fail(verb, nth, error)
        try:
            life.run(acts)
            assert fault.hits
            heard[verb] = heard.get(verb, False) or bool(life.errors)
            life.check(power_cut=error == errno.EIO and number % 3 == 0)
        except Exception as failure:  # all of them are wanted
            what = str(failure).splitlines()
            wrong.append(f"{verb} {nth} {errno.errorcode[error]}: {type(failure).__name__} {what[:1]}")
    unheard = {verb for verb, was_heard in heard.items() if not was_heard} - TRIED_AGAIN
    return wrong + [f"{verb}: errors that nobody hears of" for verb in sorted(unheard) if errno.EIO in errors]


@stores
@errors
def test_one_failed_call_in_the_life_of_a_new_store(kind: Kind, slate: bool, errors: tuple[int, ...]) -> None:
    assert faults(lambda: Life(kind, disk(), slate=slate), FIRST, errors) == []


@stores
@errors
def test_one_failed_call_in_the_life_of_a_store_that_a_killed_process_left(
    kind: Kind, slate: bool, errors: tuple[int, ...]
) -> None:
    left = killed(kind, slate=slate)
    assert faults(lambda: after(left), NEXT, errors) == []

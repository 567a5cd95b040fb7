"""One call of the file system fails in a run of a program, for each call in turn, or for a sample of them.

A program is begun anew for each: it has the disk (`fs`), goes on after errors and keeps them (`errors`), and
`check` compares what the calls returned with what exists at the end.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import pytest

from diskq.testing import CrashFS, FaultFS
from tests.sampling import IS_EXHAUSTIVE, IS_FULL, first, sampled

__all__ = ["TRIED_AGAIN", "Program", "errors", "faults"]

OTHERS = (errno.ENOSPC, errno.EMFILE, errno.EACCES, errno.EINTR)
ERRORS = [(each,) for each in (errno.EIO, *OTHERS)] if IS_FULL else [(errno.EIO,), OTHERS]
TRIED_AGAIN = {"unlink", "close", "truncate"}
"""What fails there is done later, or was done all the same."""


def _called(errors: tuple[int, ...]) -> str:
    return errno.errorcode[errors[0]] if len(errors) == 1 else "others"


errors = pytest.mark.parametrize("errors", first(1, ERRORS), ids=_called)
"""In a sample: EIO, and in `make test-all` the others in turn. With DISKQ_EVERY_FAULT=1 each by itself."""


class Program(Protocol):
    errors: list[Exception]

    @property
    def fs(self) -> FaultFS[CrashFS]: ...

    def check(self, *, power_cut: bool = False) -> None: ...


P = TypeVar("P", bound=Program)


def faults(
    begin: Callable[[], P],
    run: Callable[[P], Any],
    errors: tuple[int, ...],
    most: int,
    *,
    is_in_threads: bool = False,
    unheard: set[str] = TRIED_AGAIN,
) -> list[str]:
    """Return what goes wrong when a call fails, for at most `most` calls of each verb.

    In `make test` two calls of each.

    A program that works in threads does not always make the same calls: the call that was to fail may not
    come. Errors of `unheard` verbs need not be reported.
    """
    whole = begin()
    run(whole)
    assert whole.errors == []
    census = Counter(call.verb for call in whole.fs.calls)
    whole.check(power_cut=True)
    most = most if IS_EXHAUSTIVE else min(most, 2)
    wrong = []
    heard: dict[str, bool] = {}
    calls = [(verb, nth) for verb, count in census.items() for nth in sampled(range(1, count + 1), most)]
    for number, (verb, nth) in enumerate(calls):
        error = errors[number % len(errors)]
        program = begin()
        fault = program.fs.fail(verb, nth, error)
        try:
            run(program)
            assert fault.hits or is_in_threads
            heard[verb] = heard.get(verb, False) or bool(program.errors)
            program.check(power_cut=error == errno.EIO and number % 3 == 0)
        except Exception as failure:  # all of them are wanted
            what = str(failure).splitlines()
            wrong.append(f"{verb} {nth} {errno.errorcode[error]}: {type(failure).__name__} {what[:1]}")
    silent = {verb for verb, was_heard in heard.items() if not was_heard} - unheard
    return wrong + [f"{verb}: errors that are not reported" for verb in sorted(silent) if errno.EIO in errors]

# Errors in another process. Law: what a worker of `multiprocessing` or of a process pool raises arrives as
# what it was, with its text and its fields.

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq import errors
from diskq.engine.queue.queue_errors import QueueEmptyError, QueueFullError
from diskq.engine.queue.snapshot import OtherQueueError
from diskq.spark.errors import DiskqSparkError
from diskq.spark.java import JavaNotFoundError

# What a parameter of a constructor is given, by its type.
GIVEN: dict[str, Any] = {
    "str": "clicks",
    "Code": "DISKQ_LOCKED",
    "int": 7,
    "int | None": 5,
    "float | None": 2.5,
    "bool": True,
    "object": ("a", 1),
    "list[str]": ["a", "b"],
    "Mapping[str, int]": {"key": 3},
    "Sequence[Any]": [b"1", b"2"],
    "Iterable[int] | int | None": (1, 2),
}


ELSEWHERE = (QueueEmptyError, QueueFullError, OtherQueueError, DiskqSparkError, JavaNotFoundError)
ERRORS: list[type[Exception]] = [
    *(getattr(errors, name) for name in errors.__all__ if name != "DiskqError"),
    *ELSEWHERE,
]


def made(kind: type[Exception]) -> Exception:
    """One of its kind, each of whose fields differs from its default."""
    positional, named = [], {}
    for parameter in inspect.signature(kind).parameters.values():
        value = GIVEN[parameter.annotation]
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            positional.append(value)
    error = kind(*positional, **named)
    error.add_note("in a worker")
    return error


def described(error: BaseException) -> tuple[Any, ...]:
    of_system = (error.errno, error.strerror, error.filename) if isinstance(error, OSError) else ()
    return type(error), str(error), error.args, vars(error), of_system


def subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_all_errors_are_tried_here() -> None:
    known = {kind for kind in subclasses(diskq.DiskqError) if kind.__module__.startswith("diskq.")}
    assert known <= set(ERRORS)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: str(kind.__name__))
def test_an_error_is_the_same_after_pickling_and_copying(kind: type[Exception]) -> None:
    error = made(kind)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert described(pickle.loads(pickle.dumps(error, protocol))) == described(error)
    assert described(copy.copy(error)) == described(error)


def _open_missing(path: Path) -> None:
    diskq.Queue(path, "q", create=False)


def test_an_error_of_a_pools_worker_is_raised_where_its_result_is_wanted(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        opening = pool.submit(_open_missing, tmp_path / "missing")
        with pytest.raises(diskq.NotFoundError, match="create=False") as refused:
            opening.result(timeout=60)
        assert refused.value.kind == "queue"

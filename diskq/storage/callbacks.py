# Functions that a caller passes in. Law: an async function where a plain one is called, or the reverse, is
# refused with a TypeError that names it. A coroutine that is never awaited does nothing, and its work for a
# message would be taken for done.

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar

__all__ = ["check_async", "check_awaitable", "check_plain", "check_result", "text_of"]

F = TypeVar("F")
R = TypeVar("R")


def check_plain(parameter: str, function: F) -> F:
    """Return `function`. Raises TypeError if it, given as `parameter`, cannot be called or is async."""
    if not callable(function):
        raise TypeError(f"{parameter} is a function, got {function!r}")
    if _is_async(function):
        name = _name(function)
        raise TypeError(f"{parameter} is called without await, and {name} is async: give a plain one")
    return function


def check_result(parameter: str, function: Any, result: R) -> R:
    """Return `result`. Raises TypeError if it is awaitable, so that the function turned out to be async."""
    if isinstance(result, Awaitable):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"{parameter} is called without await, and {_name(function)} returned {type(result).__name__}: "
            "give a plain function"
        )
    return result


def check_async(parameter: str, function: Any) -> None:
    """Raise TypeError if `function`, given as `parameter`, cannot be called."""
    if not callable(function):
        raise TypeError(f"{parameter} is an async function, got {function!r}")


def check_awaitable(parameter: str, function: Any, result: Any) -> Awaitable[Any]:
    """Return `result`. Raises TypeError if it is not awaitable, so that the function is not async."""
    if not isinstance(result, Awaitable):
        raise TypeError(
            f"{parameter} is an async function, and {_name(function)} returned {type(result).__name__}: "
            "define it with async def"
        )
    return result


def text_of(given: object) -> str:
    """Return `str(given)`, or a text that says so if that fails."""
    try:
        return str(given)
    except Exception as failure:
        return f"<{type(given).__name__}, whose str() failed: {type(failure).__name__}>"


def _is_async(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    its_call = getattr(type(function), "__call__", None)  # noqa: B004 (the object may not be a function)
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in (function, its_call)
    )


def _name(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    if name is None:
        return f"an object of {type(function).__qualname__}"
    return f"{getattr(function, '__module__', None) or '?'}.{name}"

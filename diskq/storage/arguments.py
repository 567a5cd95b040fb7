# Arguments of the wrong type. Law: the public call that is given one raises TypeError before anything is
# changed, and its text names the argument and what it should be.

from __future__ import annotations

from operator import index
from typing import Any

__all__ = ["check_is", "whole_number"]


def check_is(name: str, value: object, kind: type[Any] | tuple[type[Any], ...], what: str) -> None:
    """Raise TypeError if the argument `name` is not of this kind; `what` says what it should be."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {what}, got {type(value).__name__}")


def whole_number(name: str, value: object) -> int:
    """Return an int. Raises TypeError for what is none, also a bool."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is a whole number, got {type(value).__name__}")
    return index(value)

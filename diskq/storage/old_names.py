# Former names of public calls. Law: a former name works for one release, warns, and is not listed: `dir`,
# `help` and the reference show one name for each call.
#
# A former name is a descriptor of its own. A `__getattr__` would be shorter, and doubles the time of every
# attribute look-up in its class, `put` and `get` included.

from __future__ import annotations

import warnings
from abc import ABCMeta
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

__all__ = ["HasOldNames", "old_name"]

C = TypeVar("C", bound=Callable[..., Any])


def old_name(call: C) -> C:
    """Return `call` under the name that it is assigned to: for the body of a class that `HasOldNames`.

    Each use emits a DeprecationWarning, at the line of the caller.
    """
    return cast(C, _OldName(call.__name__))


class _OldName:
    def __init__(self, new: str) -> None:
        self._new = new
        self._old = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name

    def __get__(self, instance: object | None, owner: type) -> Any:
        message = f"{owner.__name__}.{self._old} is now {self._new}; the next release removes the old name"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(owner if instance is None else instance, self._new)


class _HidingOldNames(ABCMeta):
    def __dir__(cls) -> list[str]:
        return _without_old_names(cls, super().__dir__())


class HasOldNames(metaclass=_HidingOldNames):
    """A class some of whose calls have a former name."""

    def __dir__(self) -> list[str]:
        return _without_old_names(type(self), super().__dir__())


def _without_old_names(kind: type, names: Iterable[str]) -> list[str]:
    old = {name for each in kind.__mro__ for name, found in vars(each).items() if isinstance(found, _OldName)}
    return [name for name in names if name not in old]

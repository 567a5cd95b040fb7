# Deliberate breakages, to see whether the tests bite. Law: one textual change to a module's source,
# installed in place and taken back, whatever happens between.
#
# Nothing is imported anew: the running functions get the changed code, so everybody who imported them,
# or holds an object of a changed class, runs it. Constants of the module and of its classes change too,
# but not where another module has imported them by name.

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

__all__ = ["Mutation"]


@dataclass(frozen=True, slots=True)
class Mutation:
    """In the source of `module` (a name, Python, not Cython), `old` is `new` instead."""

    module: str
    old: str
    new: str
    by: Hashable = None
    """What is known to catch it: its test tries that first."""

    def __str__(self) -> str:
        return f"{self.module}: {' '.join(self.old.split())!r} -> {' '.join(self.new.split())!r}"

    @contextmanager
    def installed(self) -> Iterator[None]:
        """For the duration of the `with` block.

        Raises ValueError where `old` is not in the source exactly once, or nothing would change.
        """
        module = importlib.import_module(self.module)
        source = inspect.getsource(module)
        if source.count(self.old) != 1:
            raise ValueError(f"{self.module} has {self.old!r} {source.count(self.old)} times, not once")
        mutant = types.ModuleType(self.module)
        mutant.__dict__.update(__file__=module.__file__, __package__=module.__package__)
        mutated = source.replace(self.old, self.new)
        exec(compile(mutated, module.__file__ or "", "exec", dont_inherit=True), mutant.__dict__)
        with ExitStack() as undo:
            if not _install(module, mutant, module.__name__, undo.callback):
                raise ValueError(f"{self}: no function and no constant would change")
            yield


def _install(target: object, source: object, module: str, undo: Callable[..., object]) -> int:
    """Make `target`, a module or a class, behave as `source`. Returns how many things changed."""
    changes = 0
    for name, new in list(vars(source).items()):
        old = vars(target).get(name)
        if isinstance(new, type):
            if new.__module__ == module and isinstance(old, type):
                changes += _install(old, new, module, undo)
        elif functions := _functions(new, module):
            for before, after in zip(_functions(old, module), functions, strict=True):
                changes += _install_function(before, after, undo)
        elif _is_plain(new) and not name.startswith("__") and (type(old), old) != (type(new), new):
            undo(setattr, target, name, old)
            setattr(target, name, new)
            changes += 1
    return changes


def _functions(value: object, module: str) -> list[types.FunctionType]:
    """The functions of our own that `value` is, or is made of."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        return [f for part in (value.fget, value.fset, value.fdel) for f in _functions(part, module)]
    if not isinstance(value, types.FunctionType):
        return []
    inner = _functions(getattr(value, "__wrapped__", None), module)
    return inner or ([value] if value.__globals__.get("__name__") == module else [])


def _install_function(old: types.FunctionType, new: types.FunctionType, undo: Callable[..., object]) -> int:
    parts = ("__code__", "__defaults__", "__kwdefaults__")
    changed = [part for part in parts if getattr(old, part) != getattr(new, part)]
    for part in changed:
        undo(setattr, old, part, getattr(old, part))
        setattr(old, part, getattr(new, part))
    return len(changed)


def _is_plain(value: object) -> bool:
    """True if it is the same thing wherever it was made. A class of the mutant is not the original's."""
    if isinstance(value, tuple | frozenset):
        return all(_is_plain(item) for item in value)
    return isinstance(value, bool | bytes | float | int | str | types.NoneType)

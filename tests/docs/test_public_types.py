# What pyright says of the types of diskq's public names: what editors show, and what strict programs need.

from __future__ import annotations

import importlib
import inspect
from functools import cache

import pytest

from tests.type_checkers import Declared, verified_types
from tests.vocabulary import PACKAGES, not_installed

DECLARED = cache(verified_types)


@cache
def public_classes() -> set[str]:
    """The classes that programs meet, and diskq's own bases of them, by their full names."""
    found = set()
    for package in set(PACKAGES) - set(not_installed()):
        home = importlib.import_module(package)
        for name in home.__all__:
            public = getattr(home, name)
            if inspect.isclass(public):
                found |= {f"{each.__module__}.{each.__qualname__}" for each in public.__mro__}
    return {name for name in found if name.startswith("diskq.")}


def is_public(declared: Declared) -> bool:
    owner = declared.name.rpartition(".")[0]
    return owner in public_classes() or owner in PACKAGES


@pytest.mark.slow
def test_nothing_is_of_an_unknown_type() -> None:
    assert [each.name for each in DECLARED() if each.is_unknown] == []


@pytest.mark.slow
def test_each_public_name_says_its_type_itself() -> None:
    """A checker may infer another type for what has no annotation, and shows that one."""
    public = [each for each in DECLARED() if is_public(each)]
    assert len(public) > 1000
    assert [(each.name, each.complaints) for each in public if each.complaints] == []

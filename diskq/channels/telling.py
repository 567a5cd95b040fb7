# What statistics have in common. Law: they are cheap, and told in any thread: no system call is made, nothing
# that another thread changes is gone through, and a number that counts since the open never falls.
#
# The numbers of one call are of moments next to each other: each was true, all together need not have been.

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

__all__ = ["fields_of"]


def fields_of(kind: type[Any], *others: type[Any]) -> Callable[[object], dict[str, Any]]:
    """A function that gives the fields of a dataclass that these have in common, as arguments for another."""
    of_others = [{field.name for field in dataclasses.fields(other)} for other in others]
    names = tuple(
        field.name for field in dataclasses.fields(kind) if all(field.name in each for each in of_others)
    )
    values = operator.attrgetter(*names)

    def fields(statistics: object) -> dict[str, Any]:
        return dict(zip(names, values(statistics), strict=True))

    return fields

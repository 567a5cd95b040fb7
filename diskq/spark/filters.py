# Which messages a query asks for, by its filters on partition, offset, topic and time. Law: a filter that is
# not returned to Spark is applied exactly; one that only narrows the search is returned, and Spark applies it
# as well.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

__all__ = ["Wanted"]

_FIRST, _LAST = -(2**63), 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NANOS_IN_A_MICROSECOND = 1000


@dataclass
class _Numbers:
    """The integers from `low` to `high`, both included, and in `only` if it is not None."""

    low: int = _FIRST
    high: int = _LAST
    only: frozenset[int] | None = None

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high and (self.only is None or number in self.only)

    def narrow(self, each: Filter) -> bool:
        """Keep those that pass this filter. False, with no change, if it is not a filter on integers."""
        if isinstance(each, In):
            if not all(type(value) is int for value in each.value):
                return False
            values = frozenset(each.value)
            self.only = values if self.only is None else self.only & values
            return True
        value = getattr(each, "value", None)
        if type(value) is not int:
            return False
        if isinstance(each, (EqualTo, EqualNullSafe)):
            self.low, self.high = max(self.low, value), min(self.high, value)
        elif isinstance(each, (GreaterThan, GreaterThanOrEqual)):
            self.low = max(self.low, value + isinstance(each, GreaterThan))
        elif isinstance(each, (LessThan, LessThanOrEqual)):
            self.high = min(self.high, value - isinstance(each, LessThan))
        else:
            return False
        return True


@dataclass
class Wanted:
    """The wanted messages: all at first; each filter leaves fewer."""

    partitions: _Numbers = field(default_factory=_Numbers)
    numbers: _Numbers = field(default_factory=_Numbers)
    topics: frozenset[str] | None = None
    from_moment: int | None = None
    """The earliest wanted time (ns since 1970)."""

    def narrow(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Apply these filters. Yields those that Spark must apply as well."""
        for each in filters:
            if not self._takes(each):
                yield each

    def _takes(self, each: Filter) -> bool:
        column = getattr(each, "attribute", None)
        if isinstance(each, IsNotNull):
            return column in (("topic",), ("partition",), ("offset",))
        if column == ("partition",):
            return self.partitions.narrow(each)
        if column == ("offset",):
            # Ranges of offsets are read, not sets.
            return self.numbers.narrow(each) and not isinstance(each, In)
        if column == ("topic",):
            return self._narrow_topics(each)
        if column == ("timestamp",) and isinstance(each, (EqualTo, GreaterThan, GreaterThanOrEqual)):
            self._begin_at(each.value, is_after=isinstance(each, GreaterThan))
        return False

    def _narrow_topics(self, each: Filter) -> bool:
        values = each.value if isinstance(each, In) else (getattr(each, "value", None),)
        if not isinstance(each, (In, EqualTo, EqualNullSafe)) or not all(isinstance(v, str) for v in values):
            return False
        found = frozenset(values)
        self.topics = found if self.topics is None else self.topics & found
        return True

    def _begin_at(self, moment: Any, *, is_after: bool) -> None:
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            return
        micros = (moment - _EPOCH) // _MICROSECOND + is_after
        # The column is rounded down, so comparing with the nanoseconds is exact.
        nanos = micros * _NANOS_IN_A_MICROSECOND
        self.from_moment = nanos if self.from_moment is None else max(self.from_moment, nanos)

    # --- for planning -----------------------------------------------------------------------------

    def topic(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics

    def partition(self, number: int) -> bool:
        return number in self.partitions

    def offsets(self, start: int, end: int) -> tuple[int, int]:
        """Return the wanted part of these offsets."""
        numbers = self.numbers
        low, high = numbers.low, numbers.high
        if numbers.only is not None:
            low = max([low, min(numbers.only, default=_LAST)])
            high = min([high, max(numbers.only, default=_FIRST)])
        return max(start, low), min(end, high + 1)

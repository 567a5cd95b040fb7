# What became of what was acknowledged. Law: who judges knows what was said and what came out, and nothing
# else.

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from tests.torture.messages import number_of
from tests.torture.tracing import Ran

__all__ = ["COUNTS", "Tally", "judge"]

_EXAMPLES = 3
_LONGEST = 240
_PLACE = re.compile(r"/\S*?/case-\d+/?")  # where the case lay is another place each time


@dataclass(slots=True)
class Tally:
    """One system in one rig."""

    cases: int = 0
    acknowledged: int = 0
    lost: int = 0
    """Acknowledged messages that did not come, of all cases."""
    cases_with_loss: int = 0
    altered: int = 0
    """Messages that came and that nobody put: other bytes, or a number that was not tried."""
    again: int = 0
    """Messages that came twice, or after they were taken."""
    unordered: int = 0
    """Cases in which what came was not in the order of the puts."""
    refused: int = 0
    """Opens or readings that raised: nothing of it was to be had."""
    hung: int = 0
    """Seconds went by, or the process died."""
    unreported: int = 0
    """An fsync failed, and nobody was told."""
    examples: list[str] = field(default_factory=list)
    note: str = ""

    def __add__(self, other: Tally) -> Tally:
        """Of both together: their counts; examples and notes are of one alone."""
        return Tally(*(getattr(self, count) + getattr(other, count) for count in COUNTS))

    def tell(self, what: str) -> None:
        if len(self.examples) < _EXAMPLES:
            self.examples.append(_PLACE.sub("", what)[:_LONGEST])


COUNTS = tuple(each.name for each in fields(Tally) if each.default == 0)


def judge(
    tally: Tally,
    said: Iterable[tuple[str, str]],
    read: Ran,
    tried: Iterable[int],
    where: str,
    *,
    tells_losses: bool = True,
    is_ordered: bool = True,
) -> bool:
    """Count one case: what was `said` before it, and what was `read` after. True: nothing was wrong.

    `tells_losses`: where bytes were damaged on purpose they are counted, and no examples. `is_ordered`: the
    order of their numbers is that of the puts.
    """
    acknowledged, taken, beginning = _story(said)
    tally.cases += 1
    tally.acknowledged += len(acknowledged)
    if not isinstance(read.answer, list):
        if read.answer in ("hung", "crashed"):
            tally.hung += 1
        else:
            tally.refused += 1
        tally.tell(f"{where}: {read.answer}")
        return False
    numbers = [number_of(body) for body in read.answer]
    known = set(tried)
    whole = [number for number in numbers if number is not None and number in known]
    wrong = len(numbers) - len(whole)
    counted = Counter(whole)
    missing = sorted(acknowledged - taken - counted.keys())
    if beginning and missing and missing[0] == min(acknowledged - taken):
        missing = missing[1:]  # in the hands of whoever was killed
    first = list(counted)
    tally.altered += wrong
    tally.lost += len(missing)
    tally.cases_with_loss += bool(missing)
    tally.again += sum(counted.values()) - len(counted) + len(taken & counted.keys())
    is_unordered = is_ordered and first != sorted(first)
    tally.unordered += is_unordered
    if missing and tells_losses:
        tally.tell(f"{where}: {len(missing)} of {len(acknowledged)} lost: {missing[:6]}")
    if wrong:
        tally.tell(f"{where}: {wrong} that were never put")
    if is_unordered:
        tally.tell(f"{where}: in the order {first[:8]}")
    return not (missing or wrong or is_unordered)


def _story(said: Iterable[tuple[str, str]]) -> tuple[set[int], set[int], bool]:
    """What was acknowledged, what was taken, and whether one was being taken."""
    acknowledged: set[int] = set()
    taken: set[int] = set()
    beginning = False
    for word, rest in said:
        if word == "a":
            acknowledged.add(int(rest))
        elif word == "b":
            beginning = True
        elif word == "t":
            beginning = False
            if rest.lstrip("-").isdigit():
                taken.add(int(rest))
    return acknowledged, taken, beginning

# What a spool promised, held against what both ends saw. Law: the destination's record is the witness; of
# the senders it is believed what they were told, not what they did.
#
# A number is handed to a spool once in all its runs: the next run begins behind the last one that the
# run before may have handed over. So a message that comes twice was delivered twice, whoever was killed.

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.soak.destination import Request
from tests.soak.spool_sender import BATCH, message

__all__ = ["BrokenPromise", "Figures", "Run", "judged"]


class BrokenPromise(AssertionError):
    """The spool did not do what it is for."""


@dataclass(slots=True)
class Run:
    """One sender, from its start to its end, by the lines that it said."""

    number: int
    sending: list[range] = field(default_factory=list)
    sent: list[range] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    """The requests that it knows were answered, in order."""
    is_finished: bool = False

    def hear(self, line: str) -> None:
        word, *numbers = line.split()
        if word in ("sending", "sent"):
            getattr(self, word).append(range(*map(int, numbers)))
        elif word == "answered":
            self.answered.append(int(numbers[0]))
        elif word == "finished":
            self.is_finished = True


@dataclass(slots=True)
class Figures:
    sent: int
    """The spool said that it has them."""
    arrived: int
    """More than `sent`: the spool had them, and was killed before it could say so."""
    kills: int
    requests: Counter[str]
    """How many met which fate at the destination."""
    repeated_by_kills: int
    """Messages that came again because a sender was killed before it could remember the answer,"""
    repeated_by_doubt: int
    """and because their answer never came, though the destination had kept them."""

    def __str__(self) -> str:
        fates = ", ".join(f"{count} {fate}" for fate, count in self.requests.most_common())
        return (
            f"{self.sent} sent, {self.arrived} arrived, none lost, all in order; {self.kills} kills, "
            f"{self.repeated_by_kills} repeated by them and {self.repeated_by_doubt} by doubt; "
            f"{self.requests.total()} requests that came through: {fates}"
        )


def judged(runs: Sequence[Run], requests: Sequence[Request]) -> Figures:
    """Raises BrokenPromise at the first thing that is not as it was promised."""
    arrived = _first_arrivals(runs, requests)
    sent = [number for run in runs for part in run.sent for number in part]
    for number in sent:
        if number not in arrived:
            raise BrokenPromise(f"message {number} was accepted, and never arrived")
    for run in runs:
        for part in run.sending[len(run.sent) :]:
            there = [number in arrived for number in part]
            if there != sorted(there, reverse=True):
                raise BrokenPromise(f"of {part.start} to {part.stop - 1} some in the middle are gone")
    by_kills, by_doubt = _repeated({run.number: run for run in runs}, requests)
    return Figures(
        sent=len(sent),
        arrived=len(arrived),
        kills=sum(not run.is_finished for run in runs),
        requests=Counter(request.fate for request in requests),
        repeated_by_kills=by_kills,
        repeated_by_doubt=by_doubt,
    )


def _first_arrivals(runs: Sequence[Run], requests: Sequence[Request]) -> set[int]:
    """What arrived; all of it was sent, and as it was sent, and came in order."""
    handed_over = {number for run in runs for part in run.sending for number in part}
    arrived: set[int] = set()
    last = -1
    for request in requests:
        if len(request.bodies) > BATCH:
            raise BrokenPromise(f"{len(request.bodies)} messages in one batch")
        for number in map(_number, request.bodies):
            if number not in handed_over:
                raise BrokenPromise(f"message {number} arrived, and nobody sent it")
            if number in arrived:
                continue
            if number < last:
                raise BrokenPromise(f"message {number} arrived after message {last}")
            arrived.add(number)
            last = number
    return arrived


def _number(body: bytes) -> int:
    if not body[:10].isdigit() or message(int(body[:10])) != body:
        raise BrokenPromise(f"this arrived, and is no message that anybody sent: {body!r}")
    return int(body[:10])


def _repeated(runs: dict[int, Run], requests: Sequence[Request]) -> tuple[int, int]:
    """Return how many messages came again, by kills and by doubt; there is no third reason.

    A sender that was answered, and goes on, does not ask again. One that is killed may have forgotten the
    last answer, and no other.
    """
    came: dict[int, Request] = {}
    by_kills = by_doubt = 0
    # As they were asked: what a sender left behind on its way may come after what the next one asks.
    for request in sorted(requests, key=lambda request: (request.run, request.number)):
        for body in request.bodies:
            number = int(body[:10])
            before = came.get(number)
            came[number] = request
            if before is None:
                continue
            run = runs[before.run]
            if before.number not in run.answered:
                by_doubt += 1
            elif before.run != request.run and run.answered[-1] == before.number and not run.is_finished:
                by_kills += 1
            else:
                raise BrokenPromise(
                    f"message {number} was delivered in request {before.run}.{before.number}, the sender "
                    f"was told so, and it came again in {request.run}.{request.number}"
                )
    return by_kills, by_doubt

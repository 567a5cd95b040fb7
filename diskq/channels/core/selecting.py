# `select`: the next message of several receivers. Law: a call takes one message or none, and holds nothing.
#
# So receivers may be used in any other way between two calls, and by other tasks during one. This relies on
# racing.py: a receiver that loses keeps its message. Fairness needs to know when each receiver was served
# last; that is kept in a weak dictionary, and goes away with the receiver.

from __future__ import annotations

from itertools import count
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import outcome
import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.event_loops.seam import running_event_loop
from diskq.channels.core.racing import Race, Receiver, Taken, keeps_its_own
from diskq.storage.log_events import Log

__all__ = ["select", "select_nowait"]

log = Log("reading")

T = TypeVar("T")

_turns = count(1)
_last_turn: WeakKeyDictionary[Receiver[Any], int] = WeakKeyDictionary()


@enable_ki_protection
async def select(*receivers: Receiver[T]) -> tuple[Receiver[T], T]:
    """Return the next message of one of the receivers, as a pair (receiver, message).

    `receiver, message = await select(a, b)` waits until one of them has a message; the other receivers keep
    theirs. If several have one, the receiver that was served longest ago is chosen. Receivers that have
    ended are skipped; raises EndOfChannel when all have ended. An error of a receiver is raised unchanged.
    This is a checkpoint; `Cancelled` means: nothing was taken.

    Accepts disk queues, their work, stream consumers, merges, Trio's memory channels, and any receiver with
    a `receive_if` like theirs. Raises TypeError for any other receiver, which could lose a message when two
    receivers have one at the same moment: wrap it with `merge(it)`, which keeps that message.
    """
    for receiver in receivers:
        if not keeps_its_own(receiver):
            raise TypeError(
                f"{receiver!r} cannot be stopped from handing over a message when another receiver has won: "
                "select diskq.merge(it), which keeps it"
            )
    await running_event_loop().checkpoint()
    while True:
        try:
            return select_nowait(*receivers)
        except trio.WouldBlock:
            pass
        if taken := await Race(receivers).run():
            return _only(taken)


@enable_ki_protection
def select_nowait(*receivers: Receiver[T]) -> tuple[Receiver[T], T]:
    """Do as `select`, with any receivers, without waiting; raises trio.WouldBlock if none has a message."""
    have_ended = True
    for receiver in sorted(receivers, key=lambda receiver: _last_turn.get(receiver, 0)):
        try:
            message = receiver.receive_nowait()
        except trio.WouldBlock:
            have_ended = False
        except trio.EndOfChannel:
            pass
        except BaseException:
            _note_turn(receiver)  # so that the others get their turn as well
            raise
        else:
            _note_turn(receiver)
            return receiver, message
    if have_ended:
        raise trio.EndOfChannel
    raise trio.WouldBlock


def _note_turn(receiver: Receiver[Any]) -> None:
    _last_turn[receiver] = next(_turns)


def _only(taken: list[Taken]) -> tuple[Receiver[Any], Any]:
    """Return the message. Errors of other receivers are logged; their next caller gets them again."""
    taken.sort(key=lambda each: isinstance(each[1], outcome.Error))
    for receiver, other in taken[1:]:
        assert isinstance(other, outcome.Error), "one gives a message, the others keep theirs"
        log.report(
            "receive_failed",
            "%s failed while another receiver had a message: %s",
            repr(receiver),
            other.error,
            error=other.error,
        )
    receiver, first = taken[0]
    _note_turn(receiver)
    return receiver, first.unwrap()

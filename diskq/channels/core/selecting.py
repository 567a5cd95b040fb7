# The next message of whichever receiver has one. Law: a call takes one message, or none, and holds nothing.
#
# So receivers may be used in any other way between two calls, and by others during one. What makes it
# possible is in racing: a receiver that loses keeps its message. Fairness needs a memory, of when each
# receiver was served last; that is beside the receivers, and goes with them.

from __future__ import annotations

from itertools import count
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import outcome
import trio
from trio.lowlevel import checkpoint, enable_ki_protection

from diskq.channels.core.racing import Race, Receiver, Taken, keeps_its_own
from diskq.storage.log_events import Log

__all__ = ["select", "select_nowait"]

log = Log("reading")

T = TypeVar("T")

_turns = count(1)
_last_turn: WeakKeyDictionary[Receiver[Any], int] = WeakKeyDictionary()


@enable_ki_protection
async def select(*receivers: Receiver[T]) -> tuple[Receiver[T], T]:
    """The next message of whichever receiver has one, behind that receiver.

    `receiver, message = await select(a, b)` waits until one has, and leaves the others' messages theirs.
    Where several have one, it is the turn of the one that was served longest ago.
    Receivers that have ended are passed over; raises EndOfChannel when all have. What a receiver raises
    comes out as it is. A checkpoint; `Cancelled` means: nothing was taken.

    Takes disk queues, their work, streams' consumers, merges, Trio's memory channels, and what has
    `receive_if` as they have. Raises TypeError for any other receiver, as one message of two would be lost
    now and then: `merge(it)` makes one that keeps it.
    """
    for receiver in receivers:
        if not keeps_its_own(receiver):
            raise TypeError(
                f"{receiver!r} cannot be stopped from handing over a message when another receiver has won: "
                "select diskq.merge(it), which keeps it"
            )
    await checkpoint()
    while True:
        try:
            return select_nowait(*receivers)
        except trio.WouldBlock:
            pass
        if taken := await Race(receivers).run():
            return _only(taken)


@enable_ki_protection
def select_nowait(*receivers: Receiver[T]) -> tuple[Receiver[T], T]:
    """As `select`, of any receivers; raises trio.WouldBlock where none has a message for us now."""
    have_ended = True
    for receiver in sorted(receivers, key=lambda receiver: _last_turn.get(receiver, 0)):
        try:
            message = receiver.receive_nowait()
        except trio.WouldBlock:
            have_ended = False
        except trio.EndOfChannel:
            pass
        except BaseException:
            _note_turn(receiver)  # the others are to be heard as well
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
    """The message. An error beside it is logged: who asks that receiver next meets it again."""
    taken.sort(key=lambda each: isinstance(each[1], outcome.Error))
    for receiver, beside in taken[1:]:
        assert isinstance(beside, outcome.Error), "one gives a message, the others keep theirs"
        log.report(
            "receive_failed",
            "%s failed while another receiver had a message: %s",
            repr(receiver),
            beside.error,
            error=beside.error,
        )
    receiver, first = taken[0]
    _note_turn(receiver)
    return receiver, first.unwrap()

# Places in a stream as people name them: words, offsets and moments. Law: options that contradict each other
# are refused.

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, Literal

from diskq.cli.core.parsing import UsageError, number
from diskq.cli.core.times import moment

__all__ = ["Moment", "Place", "Stop", "end_of", "place", "start_of", "stop"]

Word = Literal["oldest", "newest", "active"]


@dataclass(frozen=True, slots=True)
class Moment:
    """A place by time: after all messages that are not later, in the order of offsets."""

    timestamp_ns: int


Place = Word | int | Moment
"""An int is an offset."""
Stop = Literal["close", "wait"] | int

_AT_OFFSET = "at-offset"  # go-diskq's word: another option says which
_STARTS: dict[str, Word] = {
    "oldest": "oldest",
    "newest": "newest",
    "active": "active",
    "active-oldest": "active",  # go-diskq's word
}
_STOPS: dict[str, Stop] = {"close": "close", "wait": "wait"}


def place(text: str) -> Place | str:
    """Return where to begin. An argparse type."""
    if text in _STARTS or text == _AT_OFFSET:
        return _STARTS.get(text, text)
    if text.isascii() and text.removeprefix("-").isdigit():
        return number(text)
    try:
        return Moment(moment(text))
    except argparse.ArgumentTypeError as failure:
        if any(c.isdigit() for c in text):
            raise
        words = ", ".join(_STARTS)
        raise argparse.ArgumentTypeError(
            f"{words}, {_AT_OFFSET}, an offset or a time, not {text!r}"
        ) from failure


def stop(text: str) -> Stop | str:
    """Return where to stop. An argparse type."""
    if text in _STOPS or text == _AT_OFFSET:
        return _STOPS.get(text, text)
    if text.isascii() and text.isdigit():
        return number(text)
    raise argparse.ArgumentTypeError(f"close, wait, {_AT_OFFSET} or an offset, not {text!r}")


def start_of(args: argparse.Namespace) -> Place:
    """Return what --start, --start-offset and --since say. Raises UsageError if they contradict."""
    if args.since is not None:
        if args.start is not None or args.start_offset is not None:
            raise UsageError("--since says where to begin: leave --start and --start-offset out")
        return Moment(args.since)
    found: Place | None = _either(args.start, args.start_offset, "--start")
    return "oldest" if found is None else found


def end_of(args: argparse.Namespace) -> Stop:
    """Return what --end and --end-offset say. Raises UsageError if they contradict each other."""
    found: Stop | None = _either(args.end, args.end_offset, "--end")
    return "close" if found is None else found


def _either(said: Any, offset: int | None, name: str) -> Any:
    if said == _AT_OFFSET:
        if offset is None:
            raise UsageError(f"{name} at-offset: at which? Add {name}-offset")
        return offset
    if said is not None and offset is not None:
        raise UsageError(f"{name} and {name}-offset contradict each other: leave one of them out")
    return said if offset is None else offset

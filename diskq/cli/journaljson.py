# A journal's message as one line of JSON. Law: JSON has no bytes, so key and value are base64.

from __future__ import annotations

import json
from binascii import b2a_base64

from diskq.cli.moments import show_moment
from diskq.messages import JournalMessage

__all__ = ["ABOUT", "as_json", "time_of"]

ABOUT = "offset, time, type, and key and value in base64"


def as_json(message: JournalMessage) -> bytes:
    """One line, without its newline."""
    told = {
        "offset": message.offset,
        "timestamp": time_of(message.timestamp_ns),
        "type": message.type,
        "key": b2a_base64(message.key, newline=False).decode(),
        "value": b2a_base64(message.value, newline=False).decode(),
    }
    return json.dumps(told, separators=(",", ":")).encode()


def time_of(nanoseconds: int | None) -> str | None:
    """A message's time for people and programs; None: it has none."""
    return None if nanoseconds is None else show_moment(nanoseconds)

# A message as one line of JSON, with go-diskq's names for its parts. Law: what `read` writes `write`
# takes, and the message is the same.
#
#   {"PartitionKey":"k","TimestampUTC":"2013-07-04T10:00:00Z","Data":"aGVsbG8=","PartitionIndex":0,"Offset":5}
#
# JSON has no bytes. `Data` is base64; a key is text, and where it is none `PartitionKeyBase64`, which
# go-diskq does not have, tells it beside what can be shown of it.

from __future__ import annotations

import argparse
import json
from binascii import b2a_base64
from functools import lru_cache
from typing import Any

from diskq.cli.jsonfields import bytes_of, text_of
from diskq.cli.moments import moment, show_moment
from diskq.cli.parsing import CommandError
from diskq.messages import Message

__all__ = ["ABOUT", "Fields", "as_json", "fields_of"]

Fields = tuple[bytes | None, bytes, int | None]
"""Key, value and timestamp in nanoseconds; None where the line does not tell."""

ABOUT = "key, time, partition and offset; Data is base64"

_EXAMPLE = '{"PartitionKey": "k", "TimestampUTC": "2013-07-04T10:00:00Z", "Data": "aGVsbG8="}'


def as_json(message: Message) -> bytes:
    """One line, without its newline."""
    return b'{%b,"TimestampUTC":"%b","Data":"%b","PartitionIndex":%d,"Offset":%d}' % (
        _key_as_json(message.key),
        show_moment(message.timestamp_ns).encode(),
        b2a_base64(message.value, newline=False),
        message.partition,
        message.offset,
    )


@lru_cache(4096)
def _key_as_json(key: bytes) -> bytes:
    told = {"PartitionKey": key.decode(errors="replace")}
    if told["PartitionKey"].encode() != key:
        told["PartitionKeyBase64"] = b2a_base64(key, newline=False).decode()
    return json.dumps(told, separators=(",", ":"))[1:-1].encode()


def fields_of(line: bytes, number: int) -> Fields:
    """What is to be written of the `number`th line. Its partition and offset are the new stream's to give.

    Raises CommandError, naming the line, for what is no message.
    """
    try:
        told = json.loads(line)
        if not isinstance(told, dict):
            raise ValueError("it is no object")
        if unknown := told.keys() - _KNOWN:
            raise ValueError(f"it has {min(unknown)!r}, which no message has")
        if "Data" not in told:
            raise ValueError("it has no Data")
        return _key(told), bytes_of(told, "Data") or b"", _timestamp(told)
    except (ValueError, RecursionError, argparse.ArgumentTypeError) as failure:
        raise CommandError(f"line {number} is no message: {failure}; one is {_EXAMPLE}") from None


_KNOWN = {"PartitionKey", "PartitionKeyBase64", "TimestampUTC", "Data", "PartitionIndex", "Offset"}


def _key(told: dict[str, Any]) -> bytes | None:
    key = bytes_of(told, "PartitionKeyBase64")
    if key is None and (text := text_of(told, "PartitionKey")) is not None:
        key = text.encode()
    return key


def _timestamp(told: dict[str, Any]) -> int | None:
    text = text_of(told, "TimestampUTC")
    return None if text is None else moment(text)

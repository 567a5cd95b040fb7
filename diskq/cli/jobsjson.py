# A message of a priority queue as one line of JSON. Law: what `receive` writes `send` takes, and the
# message is the same, but for its id, which its new queue gives.
#
#   {"queue":"mail","id":7,"priority":5,"data":"aGVsbG8="}

from __future__ import annotations

import json
from binascii import b2a_base64
from typing import NamedTuple

from diskq.cli.jsonfields import bytes_of, text_of
from diskq.cli.parsing import CommandError
from diskq.engine.priority import PriorityRecord

__all__ = ["ABOUT", "Job", "as_json", "job_of"]

ABOUT = "queue, id, priority, and data in base64"

_EXAMPLE = '{"queue": "mail", "priority": 5, "data": "aGVsbG8="}'
_KNOWN = {"queue", "id", "priority", "data"}


class Job(NamedTuple):
    """What a line says; None where it says nothing."""

    queue: str | None
    priority: int | None
    data: bytes


def as_json(record: PriorityRecord) -> bytes:
    """One line, without its newline."""
    return b'{"queue":%b,"id":%d,"priority":%d,"data":"%b"}' % (
        json.dumps(record.queue).encode(),
        record.id,
        record.priority,
        b2a_base64(record.payload, newline=False),
    )


def job_of(line: bytes, number: int) -> Job:
    """What the `number`th line says. Raises CommandError, naming the line, for what is no message."""
    try:
        told = json.loads(line)
        if not isinstance(told, dict):
            raise ValueError("it is no object")
        if unknown := told.keys() - _KNOWN:
            raise ValueError(f"it has {min(unknown)!r}, which no message has")
        data = bytes_of(told, "data")
        if data is None:
            raise ValueError("it has no data")
        priority = told.get("priority")
        if priority is not None and type(priority) is not int:
            raise ValueError("its priority is no whole number")
        return Job(text_of(told, "queue"), priority, data)
    except (ValueError, RecursionError) as failure:
        raise CommandError(f"line {number} is no message: {failure}; one is {_EXAMPLE}") from None

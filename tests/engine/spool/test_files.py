# A spool's state: what diskq cannot have written is not believed, even if its checksum agrees.

from __future__ import annotations

import json

import pytest

from diskq.engine.queue.files import QueuePosition
from diskq.engine.spool.files import SpoolState
from diskq.storage.checksums import CHECK_SIZE, checked

WHOLE = SpoolState(is_open=True, tail=QueuePosition(0, 8))


def with_field(name: str, value: str) -> bytes:
    fields = json.loads(WHOLE.render()[:-CHECK_SIZE])
    return checked(json.dumps({**fields, name: "?"}).replace('"?"', value).encode() + b"\n")


def test_a_state_is_read_as_it_was_written() -> None:
    assert SpoolState.parse(WHOLE.render()) == WHOLE


@pytest.mark.parametrize(
    "name, value",
    [
        ("status", "[]"),
        ("status", "5"),
        ("tail", "[Infinity, 0]"),
        ("epochs", "[" * 2000 + "]" * 2000),
        ("times", "[[0, 0, 1" + "0" * 400 + "]]"),
    ],
    ids=["status-list", "status-number", "tail-infinite", "nested-deeply", "time-too-large"],
)
def test_a_state_that_is_no_state_is_none(name: str, value: str) -> None:
    assert SpoolState.parse(with_field(name, value)) is None

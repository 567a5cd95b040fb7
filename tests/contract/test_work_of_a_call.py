# What a call costs, counted in the calls that it makes. Law: it does not depend on how the caller says what
# it wants, nor on what is open and idle beside it.

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from diskq.options import Durability
from tests.contract.counting import counted
from tests.contract.kinds import ChannelKind, channels
from tests.contract.lives import PATH, crash_disk

MANY = 50
LONG = {"checkpoint_slice": 1000.0, "sync_every": 1 << 30, "sync_timeout": 1000.0}
"""No slice and no period ends in the middle of what is counted."""

each_word = pytest.mark.parametrize("word", ["memory", "written"])


async def _calls_of(act: Callable[[], Awaitable[object]]) -> int:
    """How many calls `MANY` acts are, after some that are not counted."""
    for _ in range(5):
        await act()
    with counted() as calls:
        for _ in range(MANY):
            await act()
    return calls.count


def _acts(kind: ChannelKind, handle: Any, how: dict[str, Any]) -> dict[str, Callable[[], Awaitable[object]]]:
    """Each call of a handle that takes a durability, with the words of `how`."""

    async def acknowledge() -> None:
        await handle.send(b"x")
        await handle.ack(await handle.receive(), **how)

    acts: dict[str, Callable[[], Awaitable[object]]] = {
        "send": lambda: handle.send(b"x", **how),
        "send_many": lambda: handle.send_many([b"x", b"y"], **how),
    }
    return acts | ({"ack": acknowledge} if kind.name == "priority" else {})


@pytest.mark.parametrize("kind", channels(), ids=str)
@each_word
async def test_to_spell_out_the_default_durability_costs_nothing(kind: ChannelKind, word: Durability) -> None:
    async with kind.open(PATH, fs=crash_disk(), durability=word, **LONG) as channel:
        plain = _acts(kind, channel.handle, {})
        spelled = _acts(kind, channel.handle, {"durability": word})
        for name, act in plain.items():
            assert await _calls_of(spelled[name]) <= 1.1 * await _calls_of(act), name

# A spool against a model of it: several lives, in each of which it is sent to, fails, is cancelled, killed or
# closed, by chance. Law: the model knows what was accepted and what the destination said, nothing of files.

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

import diskq
from diskq.testing import CrashFS
from tests.channels.rig import blocked
from tests.channels.spools import dead_letters_in, opened, spool_disk

LIVES = 6
MOST_ATTEMPTS = 4


@dataclass
class Model:
    """Messages are numbers, from 0 on."""

    sent: int = 0
    accepted: set[int] = field(default_factory=set)
    delivered: list[int] = field(default_factory=list)
    """Each time that one was."""
    again: set[int] = field(default_factory=set)
    """Were dead letters, and are sent again."""
    purged: set[int] = field(default_factory=set)
    letters: set[int] = field(default_factory=set)
    """May have become dead letters. A power cut may undo that, and then they come again, after later ones."""
    tried: list[int] = field(default_factory=list)
    """Each time that one was handed to the destination."""
    ids: dict[str, int] = field(default_factory=dict)
    has_power_cuts: bool = False


class Chance:
    """A destination that answers by chance; when its process is dead it says nothing any more."""

    def __init__(self, model: Model, rng: random.Random) -> None:
        self._model = model
        self._rng = rng
        self._before: set[int] = set()
        self.is_dead = False

    async def __call__(self, batch: diskq.Batch) -> None:
        if self.is_dead:
            await trio.sleep_forever()
        model, rng, numbers = self._model, self._rng, [int(body) for body in batch]
        for id_, number in zip(batch.ids, numbers, strict=True):
            assert model.ids.setdefault(id_, number) == number, "two messages have one id"
        assert batch.attempts == 1 or not self._before or set(numbers) <= self._before, "another batch"
        self._before = set(numbers)
        model.tried += numbers
        if batch.attempts >= MOST_ATTEMPTS:
            model.letters.update(numbers)
        await self._answer(numbers, rng.random(), rng.random() * 10)
        if not self.is_dead:
            model.delivered += numbers
            self._before = set()

    async def _answer(self, numbers: list[int], choice: float, seconds: float) -> None:
        if choice < 0.2:
            raise ConnectionError("down")
        if choice < 0.3:
            raise diskq.Retry(after=seconds)
        if choice < 0.4:
            await trio.sleep_forever()
        if choice < 0.6:
            await trio.sleep(seconds)
        if refused := [place for place, number in enumerate(numbers) if number % 7 == 3]:
            self._model.letters.update(numbers[place] for place in refused)
            raise diskq.Permanent("no", refused)


async def act(spool: diskq.SpoolChannel, model: Model, rng: random.Random) -> None:
    choice = rng.random()
    if choice < 0.5:
        numbers = range(model.sent, model.sent + rng.randrange(1, 12))
        model.sent = numbers.stop
        await spool.send_many([b"%d" % number for number in numbers], durability="synced")
        model.accepted.update(numbers)
    elif choice < 0.6:
        with trio.CancelScope() as scope:
            scope.cancel()
            await spool.send(b"%d" % 10**9)
    elif choice < 0.8:
        await trio.sleep(rng.random() * 60)
    elif choice < 0.85:
        spool.pause()
    elif choice < 0.9:
        spool.resume()
    else:
        letters = await spool.dead_letters.list()
        chosen = rng.sample(letters, min(2, len(letters)))
        ids = [letter.id for letter in chosen]
        if rng.random() < 0.5:
            model.again.update(int(letter.body) for letter in chosen)
            await spool.dead_letters.replay(ids)
        else:
            model.purged.update(int(letter.body) for letter in chosen)
            await spool.dead_letters.purge(ids)


async def live(disk: CrashFS, model: Model, rng: random.Random) -> CrashFS:
    """One process. Returns the disk that it leaves to the next one."""
    options: dict[str, Any] = {
        "max_messages": rng.randrange(1, 8),
        "max_attempts": rng.choice([None, None, MOST_ATTEMPTS]),
        "deliver_timeout": 20.0,
        "pause_after": rng.choice([None, 3]),
        "drain_timeout": rng.choice([0.0, 5.0]),
        "queue": diskq.QueueOptions(segment_size=200, sync_every=rng.choice([3, 50])),
    }
    far_end = Chance(model, rng)
    with trio.CancelScope() as scope:
        async with opened(disk, far_end, **options) as spool:
            for _ in range(rng.randrange(2, 12)):
                await act(spool, model, rng)
            end = rng.random()
            if end < 0.6:
                await blocked()
                far_end.is_dead = True
                if end < 0.4 or not model.has_power_cuts:
                    return disk.kill()
                return disk.crash(rng)
            if end < 0.8:
                scope.cancel()
    return disk


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_every_message_arrives_in_order_or_is_a_letter(seed, autojump_clock):
    await live_and_die(seed)


async def live_and_die(seed: int) -> None:
    """Some lives, and then one in which everything is delivered; is all as the model says?"""
    rng, model, disk = random.Random(seed), Model(has_power_cuts=seed % 2 > 0), spool_disk()
    for _ in range(LIVES):
        disk = await live(disk, model, rng)

    async def take_all(batch: diskq.Batch) -> None:
        model.tried += map(int, batch)
        model.delivered += map(int, batch)

    async with opened(disk, take_all) as spool:
        await spool.drained()
        assert spool.statistics().depth == 0
    letters = [int(letter.body) for letter in dead_letters_in(disk)]

    assert len(set(letters)) == len(letters) or model.again
    assert model.accepted <= {*model.delivered, *letters, *model.purged}, "lost"
    assert {*model.delivered, *letters} <= set(range(model.sent)), "invented"
    once = [number for number in model.delivered if number not in model.again]
    if not model.has_power_cuts:
        assert once == sorted(set(once)), "delivered twice, or out of order"
    assert in_order(number for number in model.delivered if number not in {*model.again, *model.letters})
    assert in_order(number for number in model.tried if number not in model.again)


def in_order(numbers: Iterable[int]) -> bool:
    """True if each number comes for the first time after all smaller ones."""
    first = list(dict.fromkeys(numbers))
    return first == sorted(first)

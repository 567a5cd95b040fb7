# Spools that live and die by chance, more often than the suite has time for.
#
# The suite takes one of each; `make soak` as many as DISKQ_SOAK_SPOOL_LIVES says (200).

from __future__ import annotations

import os

import pytest

from tests.channels.spool.test_stateful import live_and_die
from tests.crash.test_spool import crash

LIVES = int(os.environ.get("DISKQ_SOAK_SPOOL_LIVES", "1"))

SEEDS = range(1_000, 1_000 + LIVES)


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_happens_every_message_arrives_in_order_or_is_a_letter(seed, autojump_clock):
    await live_and_die(seed)


@pytest.mark.parametrize("seed", SEEDS[:: max(1, LIVES // 20)])
def test_whatever_the_power_interrupts_the_promises_hold(seed):
    crash(seed, every=1 if LIVES > 1 else 9, seeds=2, again=1)

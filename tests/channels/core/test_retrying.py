# What is logged of retries: ours once, and nothing of stamina's; everybody else's as it was.

from __future__ import annotations

import logging

import pytest
import stamina

import diskq
from tests.channels.spools import PATH, Destination, spool_disk


@pytest.fixture(autouse=True)
def _plain_hooks(caplog):
    """As without any logging set up, and without structlog."""
    stamina.instrumentation.set_on_retry_hooks([stamina.instrumentation.LoggingOnRetryHook])
    caplog.set_level(logging.INFO)
    yield
    stamina.instrumentation.set_on_retry_hooks(None)


async def test_a_spools_retries_are_logged_once_and_by_us(autojump_clock, caplog):
    far_end = Destination(*[diskq.Retry("away")] * 4)
    async with diskq.open_spool(PATH, far_end, fs=spool_disk()) as spool:
        await spool.send(b"x")
        await spool.drained()
    assert [(record.name, record.diskq_event) for record in caplog.records] == [
        ("diskq.spool", "delivery_failed"),
        ("diskq.spool", "delivery_resumed"),
    ]
    failed, resumed = caplog.records
    assert (failed.diskq_path, str(failed.diskq_error)) == (PATH, "away")
    assert (failed.levelno, resumed.levelno) == (logging.WARNING, logging.INFO)
    assert resumed.diskq_failures == 4


def test_others_retries_are_logged_as_they_were(caplog):
    tries = []

    @stamina.retry(on=ValueError, attempts=2, wait_initial=0, wait_jitter=0)
    def again():
        tries.append(1)
        if len(tries) < 2:
            raise ValueError("no")

    again()
    assert [record.name for record in caplog.records] == ["stamina"]

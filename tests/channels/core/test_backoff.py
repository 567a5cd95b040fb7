# Waits before retries, and what is logged and printed of them. Law: one record for each kind of failure, and
# nothing on the program's stdout, whatever it has installed.

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import diskq
from diskq.storage.backoff import backoff
from tests.channels.spools import PATH, Destination, spool_disk


def test_a_wait_doubles_up_to_its_limit() -> None:
    options = diskq.SpoolOptions(backoff_initial=0.1, backoff_max=1.0, backoff_jitter=0)
    waits = [backoff(failures, options) for failures in (1, 2, 3, 4, 5, 6, 10**6)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1, 1, 1])


def test_jitter_only_adds_and_not_beyond_the_limit() -> None:
    options = diskq.SpoolOptions(backoff_initial=1.0, backoff_max=1.5, backoff_jitter=1.0)
    waits = [backoff(1, options) for _ in range(200)]
    assert min(waits) >= 1
    assert max(waits) == 1.5
    assert len(set(waits)) > 10


def test_nothing_of_a_retry_is_on_stdout_where_structlog_is_installed(tmp_path: Path) -> None:
    """Its presence alone makes retry libraries print a line for each retry."""
    (tmp_path / "structlog.py").write_text(
        "class Logger:\n    def __getattr__(self, name):\n        return lambda *args, **more: print(args)\n"
        "def get_logger(*args):\n    return Logger()\n"
    )
    program = """
import diskq, trio
failures = [diskq.Retry("away")] * 2
async def deliver(batch):
    if failures:
        raise failures.pop()
async def main():
    async with diskq.open_spool("spool", deliver, backoff_initial=0.001, backoff_jitter=0) as spool:
        await spool.send(b"x")
        await spool.drained()
trio.run(main)
print("delivered")
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, cwd=tmp_path, check=True
    )
    assert done.stdout == "delivered\n"


async def test_a_spools_retries_are_logged_once_and_by_us(autojump_clock, caplog):
    caplog.set_level(logging.INFO)
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

# A spool whose destination is down half the time, answers 5xx, hangs, resets connections and answers twice,
# while the process that has the spool is killed again and again. Law: what was accepted arrives at least
# once, in order, as it was; and twice only where nobody could know better.
#
# The suite kills 5 times within 5,000 messages; `make soak` as DISKQ_SOAK_SPOOL_MESSAGES and
# DISKQ_SOAK_SPOOL_KILLS say: 50 times within 100,000.

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.soak.destination import requests
from tests.soak.spool_history import Run, judged

MESSAGES = int(os.environ.get("DISKQ_SOAK_SPOOL_MESSAGES", "5000"))
KILLS = int(os.environ.get("DISKQ_SOAK_SPOOL_KILLS", "5"))
SEED = int(os.environ.get("DISKQ_SOAK_SPOOL_SEED", "20"))

ROOT = Path(__file__).parents[2]
LAST_RUN = 60.0 + MESSAGES / 500
"""Seconds in which the run that nobody kills has delivered the rest."""


@contextmanager
def started(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """One of the programs of this directory. It is killed at the end of the block."""
    command = [sys.executable, "-m", f"tests.soak.{program}", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> Iterator[str]:
    """Its lines, until it ends."""
    assert process.stdout is not None
    return iter(process.stdout.readline, "")


def hear(run: Run, process: subprocess.Popen[str], moment: Moment) -> None:
    """All that it says, until it ends or `moment` has come, which kills it."""
    timer, count = threading.Timer(moment.seconds, process.kill), 0
    for line in said(process):
        if line == "ready\n":
            timer.start()
        run.hear(line)
        count += line.split()[0] == moment.word
        if count == moment.times:
            process.kill()
    timer.cancel()


class Moment(NamedTuple):
    """So many seconds after a sender began to open its spool, or when it has said a word so many times."""

    seconds: float
    word: str = ""
    times: int = 1


def moment_to_kill(rng: random.Random) -> Moment:
    """Any time from the open on, or right behind an act: an answer that is not remembered yet, a send."""
    if rng.random() < 0.5:
        return Moment(rng.uniform(0, 0.6))
    word, most = rng.choice([("answered", 15), ("sending", 12)])
    return Moment(1.5, word, rng.randrange(1, most))


@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * KILLS + 2 * LAST_RUN)
def test_what_a_spool_accepted_arrives_whatever_happens(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    record, spool = tmp_path / "record", tmp_path / "spool"
    runs: list[Run] = []
    first, began = 0, time.monotonic()
    with started("destination", SEED, record) as far_end:
        port = int(next(said(far_end)))
        for number in range(KILLS + 1):
            is_last = number == KILLS
            goal = MESSAGES * (number + 1) // (KILLS + 1)
            if is_last:  # what was handed over and never accepted is not counted
                goal = first + MESSAGES - sum(len(part) for run in runs for part in run.sent)
            run = Run(number)
            runs.append(run)
            how = "finish" if is_last else "wait"
            with started("spool_sender", spool, port, number, first, goal, how) as sender:
                hear(run, sender, Moment(LAST_RUN) if is_last else moment_to_kill(rng))
            first = max([first, *(part.stop for part in run.sending)])
    figures = judged(runs, list(requests(record)))
    print(f"\n{figures}; {time.monotonic() - began:.0f} s")
    assert runs[-1].is_finished
    assert (figures.sent, figures.kills) == (MESSAGES, KILLS)
    assert len(figures.requests) > 5, "the destination was too kind to prove anything"

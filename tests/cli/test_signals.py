# Signals that end a command. Law: SIGTERM and SIGHUP are what Ctrl-C is, for every verb that goes on: exit
# code 130, and nothing is lost.

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import diskq
from diskq.engine.journal.journal import Journal
from diskq.engine.priority.store import PriorityStore
from diskq.engine.spool.files import SPOOL
from tests.cli.conftest import drain, fill, start, until
from tests.cli.forked import Forks

FOLLOWERS = [
    "queue receive ./data q --follow",
    "stream tail ./stream -f",
    "stream read ./stream --end wait",
    "stream read ./stream --end wait --group g",
    "priority receive ./priority --follow",
    "spool status ./spool --follow --json --interval 10ms",
    "spool status ./spool --follow --interval 10ms",
    "top ./data --json --interval 10ms",
    "hub serve ./hub --listen localhost:0",
]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


@pytest.fixture
def at(tmp_path: Path) -> Path:
    for name in ("data", "spool", "hub"):
        (tmp_path / name).mkdir()
    fill(tmp_path / "data", b"one", b"two")
    fill(tmp_path / "spool", b"one", name=SPOOL)
    with diskq.Stream(tmp_path / "stream", diskq.StreamOptions(partition_count=1)) as stream:
        stream.append(b"one", b"k")
    with Journal(tmp_path / "journal") as journal:
        journal.append(b"one")
    with PriorityStore(tmp_path / "priority") as store:
        store.put(store.queue(""), b"one", 1)
    return tmp_path


@pytest.mark.parametrize("ignored", [[], [signal.SIGINT]], ids=["", "in the background"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("words", FOLLOWERS)
def test_a_verb_that_goes_on_ends_as_at_ctrl_c(
    forks: Forks, at: Path, words: str, number: signal.Signals, ignored: list[signal.Signals]
):
    source, sink = os.pipe()
    with open("/dev/null", "r+b") as nothing:
        argv = [str(at / word) if word.startswith("./") else word for word in words.split()]
        pid = forks.start(argv, {0: nothing.fileno(), 1: sink, 2: nothing.fileno()}, ignored=ignored)
    os.close(sink)
    assert os.read(source, 1)  # it is at work
    os.kill(pid, number)
    assert forks.code() == 130
    os.close(source)


def test_what_is_ignored_stays_ignored(forks: Forks, at: Path):
    source, sink = os.pipe()
    argv = ["top", str(at / "data"), "--json", "--interval", "10ms"]
    ignored = [signal.SIGHUP, signal.SIGINT]
    with open("/dev/null", "r+b") as nothing:
        pid = forks.start(argv, {0: nothing.fileno(), 1: sink, 2: nothing.fileno()}, ignored=ignored)
    os.close(sink)
    for number in ignored:
        assert os.read(source, 4096)
        os.kill(pid, number)
        assert os.read(source, 4096)
    os.kill(pid, signal.SIGTERM)
    assert forks.code() == 130
    os.close(source)


@pytest.mark.slow
def test_a_command_is_killed_with_the_spool_run_that_started_it(tmp_path: Path):
    out = tmp_path / "out"
    (tmp_path / "spool").mkdir()
    fill(tmp_path / "spool", b"one", name=SPOOL)
    # The shell and what it starts, in the background, too.
    command = f"sleep 60 & echo $$ > {out}.new; mv {out}.new {out}; sleep 60 | cat"
    with start("spool", "run", tmp_path / "spool", "--exec", command) as process:
        until(out.exists)
        process.kill()
        group = int(out.read_text())
        until(lambda: not is_group(group))
    assert drain(tmp_path / "spool", SPOOL) == [b"one"]


def is_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True

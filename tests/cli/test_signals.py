# Signals that end a command. Law: SIGTERM and SIGHUP are what Ctrl-C is, for every verb that goes on: exit
# code 130, and nothing is lost.

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

import diskq
from diskq.engine.journal.journal import Journal
from diskq.engine.priority.store import PriorityStore
from diskq.engine.spool.files import SPOOL
from diskq.storage.fs import OsFileSystem
from diskq.tools.stores import stores_below
from diskq.tools.verify.verification import verify
from tests.cli.conftest import Run, drain, fill, start, until
from tests.cli.forked import Forks
from tests.sampling import first

FOLLOWERS = [
    "queue receive ./data q --follow",
    "stream read ./stream --end wait --group g",
    "journal tail ./journal -f",
    "stream replay ./stream",
    "stream tail ./stream -f",
    "stream read ./stream --end wait",
    "journal replay ./journal",
    "priority receive ./priority --follow",
    "spool status ./spool --follow --json --interval 10ms",
    "spool status ./spool --follow --interval 10ms",
    "top ./data --json --interval 10ms",
    "hub serve ./hub --listen localhost:0",
]

SENDERS = [
    "journal send ./journal",
    "priority send ./priority",
    "queue send ./data q",
    "stream send ./stream",
    "spool send ./spool",
]

CHANGES = [
    "queue clear ./data q --yes",
    "journal reset ./journal --reader r --to oldest",
    "priority create ./priority mail",
    "priority snapshot ./priority",
]

WAITING = [
    "journal send ./journal x --wait 1h",
    "priority send ./priority x --wait 1h",
    "priority receive ./priority --follow",
]

HOUR = 3600 * 10**9  # nanoseconds


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
    with diskq.Stream(tmp_path / "stream", options=diskq.StreamOptions(partition_count=1)) as stream:
        stream.append(b"one", b"k", 10**18)
        stream.append(b"two", b"k", 10**18 + HOUR)  # a replay waits for it
    with Journal(tmp_path / "journal") as journal:
        journal.append(b"one", timestamp=10**18)
        journal.append(b"two", timestamp=10**18 + HOUR)
    with PriorityStore(tmp_path / "priority") as store:
        store.put(store.queue(""), b"one", 1)
    return tmp_path


@pytest.mark.parametrize("ignored", [[], [signal.SIGINT]], ids=["", "in the background"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("words", first(4, FOLLOWERS))
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


@pytest.mark.parametrize("words", first(2, SENDERS))
def test_what_was_sent_is_kept_and_counted_when_a_sender_is_ended(forks: Forks, at: Path, words: str):
    store = at / words.split()[2].removeprefix("./")
    before = messages_in(store)
    source, sink = os.pipe()
    argv = [str(at / word) if word.startswith("./") else word for word in words.split()]
    with (at / "err").open("wb") as err, open("/dev/null", "wb") as nothing:
        pid = forks.start(argv, {0: source, 1: nothing.fileno(), 2: err.fileno()})
    os.close(source)
    os.write(sink, b"a\nb\nthe start of a line")
    until(lambda: messages_in(store) == before + 2)  # it waits for more
    os.kill(pid, signal.SIGTERM)
    assert forks.code() == 130
    os.close(sink)
    assert (at / "err").read_text().splitlines()[-1] == "diskq: 2 sent"
    assert messages_in(store) == before + 2


@pytest.mark.parametrize(
    "words", first(2, [*(f"{words} --durability synced --batch 1" for words in SENDERS), *CHANGES])
)
def test_a_verb_that_is_ended_in_the_middle_of_a_sync_ends_as_at_ctrl_c(
    run: Run, at: Path, tmp_path_factory: pytest.TempPathFactory, words: str
):
    name = words.split()[2].removeprefix("./")
    before = messages_in(at / name)
    for number in count(1):
        copy = tmp_path_factory.mktemp("copy") / "at"
        shutil.copytree(at, copy)
        argv = [str(copy / word) if word.startswith("./") else word for word in words.split()]
        with signal_in_sync(number, signal.SIGTERM) as has_come:
            done = run(*argv, stdin=b"a\nb\n")
        if not has_come:
            break
        assert done.code == 130, done.notes
        assert all(verify(found).verdict == "clean" for found in stores_below(str(copy / name)))
        if "send" in argv:
            assert done.notes[-1] == f"diskq: {messages_in(copy / name) - before} sent"
    assert (done.code, number > 1) == (0, True)


@pytest.mark.parametrize("words", first(1, WAITING))
def test_a_verb_that_waits_for_a_store_that_is_open_ends_as_at_ctrl_c(forks: Forks, at: Path, words: str):
    argv = [str(at / word) if word.startswith("./") else word for word in words.split()]
    with (
        Journal(at / "journal"),
        PriorityStore(at / "priority"),
        open("/dev/null", "r+b") as nothing,
    ):
        pid = forks.start(argv, dict.fromkeys(range(3), nothing.fileno()))
        until(lambda: catches(pid, signal.SIGTERM) and is_asleep(pid))
        os.kill(pid, signal.SIGTERM)
        assert forks.code() == 130


def catches(pid: int, number: signal.Signals) -> bool:
    caught = int(status_of(pid)["SigCgt"], 16)
    return bool(caught >> number - 1 & 1)


def is_asleep(pid: int) -> bool:
    return status_of(pid)["State"].startswith("S")


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@contextmanager
def signal_in_sync(wanted: int, number: signal.Signals) -> Iterator[list[int]]:
    """Let a signal come in the sync of files with this number; the list is not empty if it has come."""
    has_come: list[int] = []
    sync_files = OsFileSystem.sync_files
    syncs = count(1)

    def sync(fs: OsFileSystem, handles: Sequence[int]) -> None:
        sync_files(fs, handles)
        if next(syncs) == wanted:
            has_come.append(number)
            signal.raise_signal(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OsFileSystem, "sync_files", sync)
        yield has_come


def messages_in(store: Path) -> int:
    return sum(verify(found).messages or 0 for found in stores_below(str(store)))


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

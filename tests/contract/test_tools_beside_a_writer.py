# `verify` and `info` beside a process that writes. Law: nothing that it writes, rolls, consumes or removes
# while they look is called damage, a crash's rest, or what the next open will repair.
#
# The writer acts before chosen calls of the file system: at each one, or at every second or third, so that it
# comes between any two reads.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from diskq.testing import CrashFS
from diskq.tools import report
from diskq.tools.info import info
from diskq.tools.stores import Store
from diskq.tools.verify.verification import verify
from tests.contract.kinds import NAME, Kind, Opened, body, engines

PATH = "/q"
MOST_ACTS = 20
"""So that a look that follows the writer ends."""
TURNS = [(1, 0), (1, 30), (2, 15), (5, 2), (9, 4)]
"""At every so many-th call, from that one on."""

kinds = pytest.mark.parametrize("kind", engines("leases", "threaded spool"), ids=str)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer acts between calls: there is nothing to wait for."""
    monkeypatch.setattr(report, "_MOMENT", 0)


class Interleaved:
    """A file system on whose calls another process acts first."""

    native = False

    def __init__(self, below: CrashFS, act: Callable[[], None], every: int, first: int) -> None:
        self._below, self._act = below, act
        self._calls, self._every = -first, every
        self.acted = 0

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._below, name)

        def call(*args: Any, **more: Any) -> Any:
            self._calls += 1
            if self._calls >= 0 and self._calls % self._every == 0 and self.acted < MOST_ACTS:
                self.acted += 1
                self._act()
            return called(*args, **more)

        return call


class Writer:
    """Another process at work in files of some 1,000 bytes, or in one large file."""

    def __init__(self, kind: Kind, engine: Opened) -> None:
        self.kind, self.engine, self.sent = kind, engine, 0

    def send(self, count: int, size: int) -> None:
        for _ in range(count):
            self.engine.put(body(self.sent, size))
            self.sent += 1
        self.engine.flush()

    def append(self) -> None:
        self.send(1, 60)

    def roll(self) -> None:
        self.send(3, 400)

    def roll_and_sync(self) -> None:
        self.roll()
        self.engine.sync()

    def remove(self) -> None:
        """Roll, consume, or remove what retention does not keep, and snapshot."""
        self.send(6, 400)
        if self.kind.name == "stream":
            self.engine.engine.vacuum()
        if self.kind.name == "priority":
            self.engine.engine.snapshot()
        if self.engine.takes:
            for _ in range(5):
                self.engine.take()
        self.engine.sync()


def store(kind: Kind) -> Store:
    names = {"leases": "queue", "priority": "jobs"}
    return Store(names.get(kind.name, kind.name), PATH, NAME if kind.name == "queue" else None)  # type: ignore[arg-type]


def beside(kind: Kind, act: str, every: int, first: int, *, small: bool = True) -> tuple[Writer, Interleaved]:
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    options = dict(kind.small) if small else {}
    if kind.name == "stream":
        options["retention_max_bytes"] = 6000
    writer = Writer(kind, kind.open(PATH, fs=fs, wal=True, **options))
    writer.send(9, 400)
    return writer, Interleaved(fs, getattr(writer, act), every, first)


@kinds
@pytest.mark.parametrize("act", ["append", "roll", "roll_and_sync", "remove"])
def test_verify_raises_no_alarm_whenever_another_process_acts(kind: Kind, act: str) -> None:
    for every, first in TURNS:
        writer, fs = beside(kind, act, every, first)
        with writer.engine:
            found = verify(store(kind), fs=fs)
            alarms = [each for each in found.findings if each.severity != "note" or "removes it" in each.what]
            assert alarms == [], (every, first)
            assert found.messages <= writer.sent


@kinds
@pytest.mark.parametrize("act", ["append", "roll", "remove"])
@pytest.mark.parametrize("small", [True, False], ids=["small files", "one file"])
def test_info_says_nothing_of_a_next_open_whenever_another_process_acts(
    kind: Kind, act: str, small: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    for every, first in TURNS:
        writer, fs = beside(kind, act, every, first, small=small)
        with writer.engine:
            found = info(store(kind), fs=fs)
            assert (found.next_open, found.leftovers) == ([], []), (every, first)
            assert found.facts.get("next_open", "ok") == "ok"
    assert capfd.readouterr().err == ""

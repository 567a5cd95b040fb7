# Killed directories: what nothing was done to is all there; and that the rig bites.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sampling import first
from tests.torture.killed import ids, main
from tests.torture.killed_cases import DAMAGES, Killed, load, make
from tests.torture.killed_judging import Verdict, judge
from tests.torture.killed_kinds import KINDS, Seen
from tests.torture.killed_making import TEMPLATES, Template
from tests.torture.messages import message

SOME = ("queue/taken", "journal/rolls-slice")
# One of each kind, in which what a template can do is done.
_BRIEF = ["queue/acks", "stream/three", "journal/shards", "store/taken", "spool/taken"]
_OTHERS = [name for name in TEMPLATES if name not in _BRIEF]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Killed]:
    return _Made(tmp_path_factory.mktemp("killed"))


class _Made(dict[str, Killed]):
    """Each is made when a test asks for it."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __missing__(self, name: str) -> Killed:
        make([name], self._place)
        self[name] = load(name, self._place)
        return self[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", first(len(_BRIEF), _BRIEF + _OTHERS))
def test_after_a_kill_all_that_was_acknowledged_is_there_and_no_loss_is_reported(
    tmp_path: Path, killed: dict[str, Killed], name: str
) -> None:
    verdict = judge(killed[name], f"{name}:none:0", 1, tmp_path)
    assert verdict.faults == {}, verdict.notes
    assert not verdict.refused


# --- the rig bites ----------------------------------------------------------------------------------

Changed = Callable[[Seen], object]


def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, killed: Killed, change: Changed) -> Verdict:
    """With a diskq whose opens give something else."""
    kind = killed.kind

    def read(files: Path, how: Template, takes: bool) -> Seen:
        seen = kind.read(files, how, takes)
        change(seen)
        return seen

    monkeypatch.setitem(KINDS, killed.how.kind, replace(kind, read=read))
    return judge(killed, f"{killed.name}:none:0", 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize(
    "change, faults",
    [
        (lambda seen: seen.numbers.pop(), {"silent", "false clean"}),
        (lambda seen: seen.add(message(7)[:-1] + b"x"), {"altered"}),
        (lambda seen: seen.add(b""), {"altered"}),
        (lambda seen: seen.add(message(10**7)), {"altered"}),
        (lambda seen: setattr(seen, "seconds", 2.5), {"slow"}),
    ],
    ids=["lost", "altered", "empty", "invented", "slow"],
)
def test_what_is_lost_altered_or_late_is_caught(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed: dict[str, Killed],
    name: str,
    change: Changed,
    faults: set[str],
) -> None:
    verdict = judged(monkeypatch, tmp_path, killed[name], change)
    assert faults <= set(verdict.faults)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", ["queue/taken", "stream/slice", "journal/rolls-slice", "store/taken"])
def test_what_a_peer_wrote_and_does_not_come_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: dict[str, Killed], name: str
) -> None:
    kind = killed[name].kind

    def read(files: Path, how: Template, takes: bool) -> Seen:
        seen = kind.read(files, how, takes)
        seen.numbers = [number for number in seen.numbers if number < 10**6]
        return seen

    monkeypatch.setitem(KINDS, killed[name].how.kind, replace(kind, read=read))
    verdicts = [judge(killed[name], f"{name}:peer:{number}", 1, tmp_path) for number in range(3)]
    assert any("peer's" in verdict.faults for verdict in verdicts)


def test_the_same_seed_gives_the_same_cases() -> None:
    one, two = (list(ids(list(TEMPLATES), 500, 3, list(DAMAGES))) for _ in range(2))
    assert one == two
    assert {case.split(":")[1] for case in one} == set(DAMAGES)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_command_runs_a_case_and_tells_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--only", "store/plain:none:3", "--templates", str(tmp_path / "made")]) == 0
    assert "store/plain:none:3: nothing" in capsys.readouterr().out

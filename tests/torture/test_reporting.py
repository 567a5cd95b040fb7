# What the table of losses says, and what it keeps.

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.torture.__main__ import main as torture
from tests.torture.judging import Tally
from tests.torture.promises import DOCUMENTS
from tests.torture.reporting import Measured, at_a_glance, broken, by_rig, in_all, load, save
from tests.torture.systems import SYSTEMS


def measured(depth: int = 100, **rigs: Tally) -> Measured:
    return Measured("1.0", "abcdef", depth, 1, {"cores": 2}, rigs)


def cells(table: str, start: str) -> list[str]:
    """Of the row that begins so."""
    (row,) = [line for line in table.splitlines() if line.startswith(f"| {start}")]
    return row.strip("| ").split(" | ")


LOSS = Tally(cases=10, acknowledged=90, lost=7, cases_with_loss=3)


# --- what is bold -----------------------------------------------------------------------------------


def test_a_loss_is_bold_where_the_documents_promise_that_there_is_none() -> None:
    results = {"persist-queue file": measured(kill=LOSS, power=LOSS)}
    row = cells(at_a_glance(results), "persist-queue file 1.0")
    assert row[2:4] == ["**7 in 3 of 10**", "7 in 3 of 10"]
    assert cells(by_rig(results), "persist-queue file")[1:] == ["**7 lost**", "7 lost (no promise)"]


def test_bytes_that_rot_may_be_missed_and_may_not_come_altered() -> None:
    ours = SYSTEMS["queue"]
    assert broken(ours, "rot", Tally(lost=4, refused=2)) == []
    assert broken(ours, "rot", Tally(altered=1)) == ["1 altered"]


def test_a_failed_sync_that_was_not_reported_counts_against_a_system_that_reports_them() -> None:
    assert broken(SYSTEMS["queue"], "errors", Tally(unreported=1)) == ["1 unreported"]
    assert broken(SYSTEMS["sqlite3"], "errors", Tally(unreported=1)) == []


def test_each_peer_is_judged_by_words_of_its_own() -> None:
    assert DOCUMENTS.keys() == {name for name, each in SYSTEMS.items() if not each.is_ours}
    assert all('"' in each.says for each in DOCUMENTS.values())


# --- what is added up -------------------------------------------------------------------------------


def test_all_of_a_system_is_added_up_with_what_rotted_apart() -> None:
    results = {"queue": measured(kill=LOSS, power=Tally(cases=5, refused=2), rot=Tally(cases=8, altered=1))}
    assert " ".join(cells(in_all(results), "diskq queue 1.0")[1:]) == "15 90 7 0 2 8 0 0 1 0"
    assert cells(at_a_glance(results), "diskq queue 1.0")[-2:] == ["**1**", "**2**"]


def test_all_of_ours_are_one_row_more(tmp_path: Path) -> None:
    results = {"queue": measured(kill=LOSS), "jobs": measured(kill=LOSS), "sqlite3": measured(kill=LOSS)}
    row = cells(at_a_glance(results), "diskq 1.0, all kinds")
    assert (row[1], row[2]) == ("20", "**14 in 6 of 20**")
    assert "all kinds" not in at_a_glance({"queue": measured(kill=LOSS)})


# --- what is kept -----------------------------------------------------------------------------------


def test_what_was_saved_is_loaded_again(tmp_path: Path) -> None:
    results = {"queue": measured(kill=LOSS), "sqlite3": measured(depth=7, rot=Tally(examples=["here"]))}
    save(tmp_path, results)
    assert load(tmp_path) == results


def test_rendering_takes_new_words_and_no_new_counts(tmp_path: Path) -> None:
    save(tmp_path, {"queuelib": measured(kill=LOSS)})
    path = tmp_path / "torture.json"
    path.write_text(path.read_text().replace("fsync", "what was believed"))
    (tmp_path / "torture.md").unlink()
    assert torture(["--render", str(tmp_path)]) == 0
    told = json.loads(path.read_text())["systems"]["queuelib"]
    assert told["says"] == DOCUMENTS["queuelib"].says
    assert told["rigs"]["kill"]["lost"] == 7
    assert DOCUMENTS["queuelib"].says in (tmp_path / "torture.md").read_text()


def test_there_is_nothing_to_render_where_nothing_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        torture(["--render", str(tmp_path)])
    assert "no torture.json with a result is there" in capsys.readouterr().err


def test_counts_of_another_depth_commit_or_machine_stand_in_no_row_together() -> None:
    assert measured().is_of_one_run_with(measured())
    assert not measured().is_of_one_run_with(measured(depth=7))

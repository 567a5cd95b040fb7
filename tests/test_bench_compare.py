# Two runs beside each other: which ratios the second one gives again, by a rule that knows what chance does.

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.compare import WIDER, Comparison, Pair, compare
from benchmarks.floors import Row
from benchmarks.harness import Result, Spread
from tests import bench_runs as benchruns

ABOUT = benchruns.ABOUT | {"rounds": 3}


def pair(old: list[float], new: list[float]) -> Pair:
    return Pair("queue", "one", Row("row", "a", "b"), Spread.of(old), Spread.of(new))


def results(directory: Path, *ratios: list[float], **about: object) -> Path:
    """A directory as `--out` leaves it: rows called 0, 1, ... of these ratios, an empty one not measured."""
    found = []
    for number, each in enumerate(ratios):
        row = Row(str(number), "a", "b")
        reading = {"rate": Spread.of(each or [1.0]), "cpu_us": Spread.of([1.0])}
        ratio = Spread.of(each) if each else None
        found.append(
            Result("one", row, ours=reading, peer=reading, ratio=ratio, missing="" if each else "none")
        )
    directory.mkdir()
    as_json = {**ABOUT, **about, "rows": [result.as_json() for result in found]}
    (directory / "results.json").write_text(json.dumps(as_json))
    return directory


# --- the rule ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "new, verdict",
    [
        ([2.1, 2.4, 9.0], "within"),
        ([1.0, 2.0, 2.9], "within"),
        ([2.9, 3.2, 3.4], "overlapping"),
        ([3.0 * WIDER, 3.5, 3.6], "overlapping"),
        ([3.4, 3.5, 3.6], "apart"),
        ([1.5, 1.6, 2.0 / WIDER], "overlapping"),
        ([1.5, 1.6, 1.7], "apart"),
    ],
)
def test_a_row_is_judged_by_the_spread_that_the_old_run_stated(new, verdict):
    assert pair([2.0, 2.5, 3.0], new).verdict == verdict


def test_a_row_beside_itself_is_within():
    assert pair([2.0], [2.0]).verdict == "within"


def test_medians_are_told_by_their_quotient():
    assert pair([2.0, 4.0, 5.0], [1.0, 2.0, 9.0]).quotient == 0.5


@pytest.mark.parametrize("rounds, chance", [(5, 2 / 252), (3, 2 / 20), (1, 1.0)])
def test_what_chance_sets_apart_is_counted_by_the_orders_that_rounds_can_have(rounds, chance):
    assert pair([1.0] * rounds, [1.0] * rounds).chance == pytest.approx(chance)


def test_of_the_same_thing_measured_twice_no_more_are_apart_than_chance_allows():
    draw = random.Random(1)

    def rounds() -> list[float]:
        return [draw.lognormvariate(0, 0.5) for _ in range(5)]

    found = Comparison([pair(rounds(), rounds()) for _ in range(5_000)])
    assert len(found.apart) <= 1.2 * sum(each.chance for each in found.pairs)


def test_half_as_fast_is_apart_where_rounds_differ_by_a_tenth():
    assert pair([1.9, 2.0, 2.1], [0.95, 1.0, 1.05]).verdict == "apart"


# --- two directories -----------------------------------------------------------------------------------


def test_each_row_that_both_have_a_ratio_of_is_compared(tmp_path):
    old = results(tmp_path / "old", [1.0, 2.0], [1.0, 2.0], [])
    new = results(tmp_path / "new", [1.0, 2.0], [5.0, 6.0], [1.0, 2.0], [1.0])
    found = compare(old, new)
    assert [each.row.name for each in found.pairs] == ["0", "1"]
    assert [each.row.name for each in found.apart] == ["1"]
    assert any("2 ratios only in the new one" in note for note in found.notes)
    assert "2 ratios: 1 within, 0 overlapping, 1 apart." in found.text()


def test_runs_of_another_scale_or_commit_say_so(tmp_path):
    old = results(tmp_path / "old", [1.0, 2.0])
    new = results(tmp_path / "new", [1.0, 2.0], scale="quick", commit="ba9876543210")
    text = compare(old, new).text()
    assert "scale full, then quick" in text
    assert "commit 0123456789ab, then ba9876543210" in text


def test_a_benchmark_that_only_one_has_is_named(tmp_path):
    old = results(tmp_path / "old", [1.0])
    new = results(tmp_path / "new", [1.0], benchmark="stream")
    text = compare(old, new).text()
    assert f"queue: only in {old}" in text
    assert f"stream: only in {new}" in text
    assert "No row has a ratio in both." in text


# --- the command ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ratio, arguments, code", [(2.0, ["--check"], 0), (9.0, ["--check"], 1), (9.0, [], 0)]
)
def test_what_is_apart_is_an_exit_code_where_that_is_asked_for(tmp_path, capsys, ratio, arguments, code):
    old, new = results(tmp_path / "old", [2.0, 2.0]), results(tmp_path / "new", [ratio, ratio])
    assert main(["compare", str(old), str(new), *arguments]) == code
    assert "new/old" in capsys.readouterr().out


def test_a_check_of_nothing_is_not_passed(tmp_path):
    old = results(tmp_path / "old", [])
    assert main(["compare", str(old), str(old), "--check"]) == 1


@pytest.mark.parametrize("made", [False, True], ids=["none", "empty"])
def test_a_directory_without_results_is_refused(tmp_path, capsys, made):
    if made:
        (tmp_path / "new").mkdir()
    with pytest.raises(SystemExit):
        main(["compare", str(results(tmp_path / "old", [1.0])), str(tmp_path / "new")])
    assert str(tmp_path / "new") in capsys.readouterr().err

# Two runs beside each other: which rows the second one gives again, by a rule that knows what chance does,
# and by the present names of rows.

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.compare import WIDER, Comparison, Pair, compare, results_of
from benchmarks.floors import RAW, Row, calls, go_bound
from benchmarks.harness import Result, Spread
from benchmarks.renamed import MEASURED, Key, note_of, present
from benchmarks.report import Report
from tests import bench_runs as benchruns

ABOUT = benchruns.ABOUT | {"rounds": 3}


def pair(old: list[float], new: list[float]) -> Pair:
    return Pair("queue", "one", Row("row", "a", "b"), Spread.of(old), Spread.of(new))


def results(directory: Path, *ratios: list[float], **about: object) -> Path:
    """A directory as `--out` leaves it: rows called 0, 1, ... of these ratios, an empty one not measured."""
    found = []
    for number, each in enumerate(ratios):
        row = Row(str(number), f"a{number}", f"b{number}")
        missing = Result("one", row, missing="none")
        found.append(result(row, each) if each else missing)
    return written(directory, *found, **about)


def result(row: Row, values: list[float], section: str = "one") -> Result:
    ours = {row.figure: Spread.of(values), "cpu_us": Spread.of([1.0] * len(values))}
    if not row.peer:
        return Result(section, row, ours=ours)
    peer = {row.figure: Spread.of([1.0] * len(values)), "cpu_us": Spread.of([1.0] * len(values))}
    return Result(section, row, ours=ours, peer=peer, ratio=Spread.of(values))


def written(directory: Path, *found: Result, **about: object) -> Path:
    Report({**ABOUT, **about}, list(found)).write(directory)
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


def test_a_row_without_a_peer_is_compared_by_its_figure(tmp_path):
    rows = Row("fast", "a", reaches=1.0), Row("small", "b", at_most=9.0, figure="open_ms")
    old = written(tmp_path / "old", *(result(row, [2.0, 2.1, 2.2]) for row in rows))
    new = written(tmp_path / "new", *(result(row, [1.0, 1.05, 1.1]) for row in rows))
    assert {each.row.name: each.quotient for each in compare(old, new).pairs} == {"fast": 0.5, "small": 2.0}


def test_what_is_zero_in_both_is_as_good():
    row = Row("open", "a", at_most=9.0, figure="rss_mib")
    none = Spread.of([0.0])
    assert Pair("queue", "one", row, none, none).quotient == 1.0


def test_rows_that_became_slower_come_first(tmp_path):
    old, new = results(tmp_path / "old", [2.0], [2.0]), results(tmp_path / "new", [9.0], [0.5])
    text = compare(old, new).text()
    assert text.index("## Apart: slower") < text.index("## Apart: faster") < text.index("## Every row")


def test_half_as_fast_is_apart_where_rounds_differ_by_a_tenth():
    assert pair([1.9, 2.0, 2.1], [0.95, 1.0, 1.05]).verdict == "apart"


# --- two directories -----------------------------------------------------------------------------------


def test_each_row_that_both_have_measured_is_compared(tmp_path):
    old = results(tmp_path / "old", [1.0, 2.0], [1.0, 2.0], [])
    new = results(tmp_path / "new", [1.0, 2.0], [5.0, 6.0], [1.0, 2.0], [1.0])
    found = compare(old, new)
    assert [each.row.name for each in found.pairs] == ["0", "1"]
    assert [each.row.name for each in found.apart] == ["1"]
    assert [line for line in found.alone if f"{new}: queue, one, 3, against b3" in line]
    assert "2 rows, 2 of them ratios: 1 within, 0 overlapping, 1 apart." in found.text()


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
    assert "No row is measured in both." in text


# --- names and measurements that have changed ------------------------------------------------------------


@pytest.mark.parametrize(
    "old, new",
    [
        (
            Key("queue", "any", "FifoQueue.take", "LMDB: get"),
            Key("queue", "any", "Queue.get", "LMDB: get"),
        ),
        (
            Key("journal", "any", "async for", "a journal in Go of our own writing, Scan"),
            Key("journal", "any", "async for", go_bound("Scan")),
        ),
        (
            Key(
                "stream",
                "Durable: each send returns after its sync",
                "synced, 1 task, against a raw loop",
                "raw fdatasync",
            ),
            Key("durable", "One producer: 100 B, each send returns after its sync", "stream, 1 task", RAW),
        ),
        (Key("queue", "any", "send", "go put"), Key("queue", "any", "send", "go put")),
    ],
    ids=["a name", "a peer", "moved", "none"],
)
def test_a_row_is_found_by_its_present_name(old, new):
    assert present(old) == new


def test_a_row_that_was_renamed_is_compared(tmp_path):
    row = Row("FifoQueue.take", "Queue: get", "LMDB: get")
    old = written(tmp_path / "old", result(row, [2.0, 2.0]))
    new = written(tmp_path / "new", result(replace(row, name="Queue.get"), [2.0, 2.0]))
    found = compare(old, new)
    assert [each.row.name for each in found.pairs] == ["Queue.get"]
    assert found.alone == []


def test_a_row_that_moved_to_another_benchmark_is_compared(tmp_path):
    before = Row("synced, 1 task, against a raw loop", "synced 1", "raw fdatasync")
    after = Row("queue, 1 task", "queue 1", RAW)
    durable = "100 B, each send returns after its sync"
    old = written(tmp_path / "old", result(before, [2.0], f"Durable: {durable}"))
    new = written(tmp_path / "new", result(after, [2.0], f"One producer: {durable}"), benchmark="durable")
    assert [each.row for each in compare(old, new).pairs] == [after]


def test_a_row_that_is_measured_otherwise_says_so():
    key = Key("stream", "Receiving", "async for", calls("Consumer"))
    assert "4 or 5, not 6" in note_of(key, 1, MEASURED)
    assert note_of(key, MEASURED, MEASURED) == ""
    assert note_of(replace(key, peer=calls("Read")), 1, MEASURED) == ""


def test_each_row_of_the_report_that_new_ones_are_compared_with_has_its_place():
    try:
        recorded = results_of("969f1e4")
    except FileNotFoundError:
        pytest.skip("the history is not here")
    known = {
        Key(name, section.title, row.name, row.peer)
        for name, benchmark in BENCHMARKS.items()
        for section in benchmark.SECTIONS
        for row in section.rows
    }
    for name, report in recorded.items():
        for each in report.results:
            assert present(Key(name, each.section, each.row.name, each.row.peer)) in known


# --- the command ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ratio, arguments, code", [(2.0, ["--check"], 0), (9.0, ["--check"], 1), (9.0, [], 0)]
)
def test_what_is_apart_is_an_exit_code_where_that_is_asked_for(tmp_path, capsys, ratio, arguments, code):
    old, new = results(tmp_path / "old", [2.0, 2.0]), results(tmp_path / "new", [ratio, ratio])
    assert main(["compare", str(old), str(new), *arguments]) == code
    assert "as good" in capsys.readouterr().out


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

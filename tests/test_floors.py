# The floors of benchmarks/floors.py, and that the benchmarks measure every one of them.
#
# Whether they are reached is `python -m benchmarks queue --check`, at full length on a quiet
# machine. Here the harness runs once with next to nothing to do, and of its figures only those
# are believed that no noise can turn round.

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import (
    bench_convert,
    bench_durable,
    bench_fsync,
    bench_hub,
    bench_journal,
    bench_loops,
    bench_priority,
    bench_queue,
    bench_spool,
    bench_stream,
    bench_sweep,
    bench_table,
    bench_threads,
    bench_top,
    bench_verify,
    harness,
)
from benchmarks.floors import (
    CONVERT,
    DURABLE,
    FIGURES,
    FSYNC,
    HUB,
    JOURNAL,
    LOOPS,
    PRIORITY,
    QUEUE,
    SPOOL,
    STREAM,
    TABLE,
    THREADS,
    TOP,
    VERIFY,
    Row,
    Section,
)
from benchmarks.harness import Result, Scale, Spread
from benchmarks.report import Report
from tests import bench_runs as benchruns

SMOKE = Scale("smoke", 0.004)
BENCHMARKS = (
    bench_queue,
    bench_stream,
    bench_journal,
    bench_spool,
    bench_priority,
    bench_hub,
    bench_convert,
    bench_verify,
    bench_durable,
    bench_fsync,
    bench_table,
    bench_loops,
    bench_threads,
    bench_top,
)
TABLES = (
    QUEUE,
    STREAM,
    JOURNAL,
    SPOOL,
    PRIORITY,
    HUB,
    CONVERT,
    VERIFY,
    DURABLE,
    FSYNC,
    TABLE,
    LOOPS,
    THREADS,
    TOP,
)
# What next to nothing of it may not be seen of.
UNCERTAIN = ("rss_mib", "record_bytes", "cpu_ms", "core_percent")
ROWS = [row for table in TABLES for section in table for row in section.rows]


# --- the table ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [*TABLES, bench_sweep.SECTIONS])
def test_each_row_is_one_of_a_kind(table):
    rows = [(section.title, row.name, row.peer) for section in table for row in section.rows]
    assert len(set(rows)) == len(rows)


def test_each_figure_is_known():
    assert {row.figure for row in ROWS} <= FIGURES.keys()


def test_a_floor_that_is_a_ratio_has_a_peer():
    assert all(row.peer for row in ROWS if row.at_least is not None)


def test_what_is_not_the_peer_does_not_go_by_its_name():
    for section in (*STREAM, *JOURNAL):
        for row in section.rows:
            assert not row.peer or "alone" in row.peer or "a bound" in row.peer or "raw" in row.peer


@pytest.mark.parametrize("benchmark", [*BENCHMARKS, bench_sweep], ids=lambda module: module.__name__)
def test_what_is_measured_is_what_the_rows_name(benchmark):
    named = {
        reading.partition(": ")[0]
        for section in benchmark.SECTIONS
        for row in section.rows
        for reading in (row.ours, row.peer)
        if reading
    }
    assert benchmark.measurements(SMOKE).keys() == named


# --- judging -----------------------------------------------------------------------------------------


class Dummy:
    """A measurement that tells what it was told, round by round."""

    def __init__(self, figure: str, *values: float) -> None:
        self.rounds = [{"": {figure: value, "cpu_us": 1.0}} for value in values]

    def measure(self, directory: Path) -> harness.Readings:
        return self.rounds.pop(0)

    def describe(self) -> dict[str, object]:
        return {}


class Absent(Dummy):
    def measure(self, directory: Path) -> harness.Readings:
        raise harness.MissingError("it is not installed")


def judged(directory: Path, row: Row, **measurements: Dummy) -> Result:
    rounds = max(len(dummy.rounds) for dummy in measurements.values())
    (result,) = harness.run([Section("one", (row,))], measurements, rounds=rounds, directory=directory)
    return result


def test_the_median_of_the_rounds_ratios_is_judged(tmp_path):
    row = Row("row", "a", "b", at_least=2.0)
    result = judged(tmp_path, row, a=Dummy("rate", 100, 300, 90), b=Dummy("rate", 10, 100, 90))
    assert result.ratio == Spread.of([10.0, 3.0, 1.0])
    assert result.is_reached is True


def test_the_directory_of_the_queues_is_made(tmp_path):
    judged(tmp_path / "of" / "mine", Row("row", "a", "b"), a=Dummy("rate", 1), b=Dummy("rate", 1))
    assert list((tmp_path / "of" / "mine").iterdir()) == []


def test_less_is_better_where_the_figure_is_a_duration(tmp_path):
    row = Row("row", "a", "b", at_least=1.0, figure="p50_us")
    result = judged(tmp_path, row, a=Dummy("p50_us", 4.0), b=Dummy("p50_us", 2.0))
    assert result.ratio is not None
    assert result.ratio.median == 0.5
    assert result.is_reached is False


@pytest.mark.parametrize("value, is_reached", [(50.0, True), (50.1, False)])
def test_a_bound_is_judged_by_itself(tmp_path, value, is_reached):
    row = Row("row", "a", at_most=50.0, figure="open_ms")
    assert judged(tmp_path, row, a=Dummy("open_ms", value)).is_reached is is_reached


@pytest.mark.parametrize("value, is_reached", [(1.5, True), (1.4, False)])
def test_a_bound_of_what_is_better_when_more_is_a_least(tmp_path, value, is_reached):
    row = Row("row", "a", reaches=1.5, figure="gb_s")
    assert judged(tmp_path, row, a=Dummy("gb_s", value)).is_reached is is_reached


def test_without_a_floor_nothing_is_judged(tmp_path):
    assert judged(tmp_path, Row("row", "a", "b"), a=Dummy("rate", 1), b=Dummy("rate", 2)).is_reached is None


def test_what_is_missing_has_not_reached_its_floor_and_says_why(tmp_path):
    row = Row("row", "a", "b", at_least=2.0)
    result = judged(tmp_path, row, a=Dummy("rate", 1), b=Absent("rate"))
    assert result.is_reached is False
    assert "it is not installed" in Report(ABOUT, [result]).text()


ABOUT = benchruns.ABOUT | {"benchmark": "smoke", "scale": "smoke", "commit": "none"}


# --- measuring ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Every row of all benchmarks, in one round."""
    measured = []
    with harness.forking():
        for benchmark in BENCHMARKS:
            measured += harness.run(
                benchmark.SECTIONS,
                benchmark.measurements(SMOKE),
                rounds=1,
                directory=tmp_path_factory.mktemp("benchmarks"),
            )
    return measured


def measured(results: list[Result], table: tuple[Section, ...], name: str, figure: str) -> float:
    titles = {section.title for section in table}
    found = next(result for result in results if result.section in titles and result.row.name == name)
    return found.ours[figure].median


def test_every_row_is_measured_or_says_what_is_missing(results):
    assert [result.row for result in results] == ROWS
    for result in results:
        if not result.missing:
            assert result.ours[result.row.figure].median > 0 or result.row.figure in UNCERTAIN
            assert result.ours["cpu_us"].median > 0 or result.row.figure in ("cpu_ms", "core_percent")
            assert (result.ratio is not None) == bool(result.row.peer)


def test_only_peers_are_missing(results):
    for result in results:
        assert not result.missing or result.row.peer


@pytest.mark.interop
def test_go_is_not_missing_where_it_is_required(results):
    missing = {result.missing for result in results if result.row.peer.startswith("go")} - {""}
    if missing and os.environ.get("DISKQ_REQUIRE_GO") != "1":
        pytest.skip(missing.pop())
    assert not missing


@pytest.mark.parametrize("module", ["works", "stream_works"])
def test_a_batch_is_less_work_than_one_by_one(module, tmp_path):
    # Not by the clock: a few milliseconds of a busy machine say nothing. Nor in one short run, whose caches
    # others may have emptied: the least of four says what it takes.
    batches: dict[int, list[float]] = {0: [], 100: []}
    with harness.forking():
        for number in range(4):
            for batch, costs in batches.items():
                place = tmp_path / f"{number} {batch}"
                place.mkdir()
                work = harness.Work("send", {"count": 30_000, "batch": batch}, module=module)
                costs.append(work.measure(place)[""]["cpu_us"])
    assert min(batches[100]) < min(batches[0])


@pytest.mark.parametrize("kind", ["queue", "stream", "journal"])
def test_tasks_that_wait_for_the_disk_share_a_sync(results, kind):
    # Nor this: the processor time of a sync is spent once for all that share it.
    together = measured(results, DURABLE, f"{kind}, 16 tasks", "cpu_us")
    assert 3 * together < measured(results, DURABLE, f"{kind}, 1 task", "cpu_us")


def test_a_report_is_written(results, tmp_path):
    report = Report(ABOUT | {"measurements": {}}, results)
    names = {path.name for path in report.write(tmp_path)}
    assert {"smoke.json", "smoke.md"} <= names
    assert all(row.name in report.text() for row in ROWS)
    assert all(row.name in report.markdown() for row in ROWS)

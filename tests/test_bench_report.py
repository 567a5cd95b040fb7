# The report of all benchmarks: it is made of JSON alone, each floor has its row in it, and each that is
# missed a reason. And the sweep, its peers and the machine's limits are measured once, with next to
# nothing to do.

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import bench_sweep, gaps, harness, peers, saved, servers, summary
from benchmarks.__main__ import QUICK_RESULTS, parse
from benchmarks.curves import curves
from benchmarks.floors import FIGURES, QUEUE, Row, Section, reason_of
from benchmarks.harness import Result, Scale, Spread
from benchmarks.limits import Act, Limit
from benchmarks.report import Report
from tests import bench_runs as benchruns

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
SMOKE = Scale("smoke", 0.001)
ABOUT = benchruns.ABOUT | {"benchmark": "sweep", "rounds": 2}


def at(*rates: float) -> dict[str, Spread]:
    return {"rate": Spread.of(rates), "cpu_us": Spread.of([1.0] * len(rates))}


def told(row: Row, *, section: str = "Durable: producers: 16", ours: float = 90.0) -> Result:
    return Result(
        section, row, ours=at(ours, ours), peer=at(30.0, 45.0), ratio=Spread.of([ours / 30, ours / 45])
    )


def rendered(directory: Path, *results: Result, **about: object) -> str:
    Report(ABOUT | about, list(results)).write(directory)
    return summary.render(summary.read(directory))


# --- out of JSON ---------------------------------------------------------------------------------------


def test_a_report_is_read_back_as_it_was_written():
    row = Row("queue", "queue @ 16", "Redis @ 16", at_least=9.0, reason="because")
    absent = Result("one", replace(row, peer="NATS @ 16"), missing="nats-server is not installed")
    report = Report(ABOUT | {"measurements": {"queue @ 16": {"count": 3}}}, [told(row), absent])
    assert Report.read(saved.text_of(report.about, report.results)) == report


def test_a_reading_is_written_once_however_many_rows_compare_with_it():
    rows = [Row("queue", "queue @ 16", f"{peer} @ 16") for peer in ("Redis", "LMDB", "RocksDB")]
    text = saved.text_of(ABOUT, [told(row) for row in rows])
    assert len(json.loads(text)["readings"]) == 4


def test_figures_are_written_with_six_digits_and_without_what_follows_from_others():
    result = Result("one", Row("row", "a"), ours=at(1_234_567.89) | {"seconds": Spread.of([0.1])})
    ((_, _, figures),) = json.loads(saved.text_of(ABOUT, [result]))["readings"]
    assert figures == {"rate": [1_234_570], "cpu_us": [1]}


def test_a_report_of_an_earlier_version_is_read():
    spread = {"median": 90.0, "least": 80.0, "most": 100.0, "quartiles": [85.0, 95.0], "each": [80.0, 100.0]}
    ratio = spread | {"each": [2.0, 4.0]}
    row = {"section": "one", "name": "send", "ours": {"rate": spread}, "peer": "go put", "at_least": 2.0}
    row |= {"against": {"rate": spread}, "ratio": ratio, "missing": "", "is_reached": True}
    (result,) = Report.read(json.dumps(ABOUT | {"rows": [row]})).results
    assert result.row == Row("send", "send", "go put", at_least=2.0)
    assert result.ours["rate"] == Spread.of([80.0, 100.0])
    assert result.ratio == Spread.of([2.0, 4.0])


def test_the_results_in_the_tree_are_less_than_a_megabyte_of_json():
    sizes = {path.name: path.stat().st_size for path in RESULTS.glob("*.json")}
    assert sum(sizes.values()) < 1_000_000, sizes


def test_the_report_is_made_of_what_lies_there_alone(tmp_path):
    Report(ABOUT, [told(Row("queue", "queue @ 16", "Redis @ 16"))]).write(tmp_path)
    paths = summary.write(tmp_path)
    assert tmp_path / "report.md" in paths
    text = (tmp_path / "report.md").read_text()
    assert "commit" in text
    assert "0123456789ab" in text
    assert "How fast durable" in text
    assert "| Redis | 2.50 x (2.00..3.00) |" in text


def test_how_long_a_run_took_is_told(tmp_path):
    row = Row("queue", "queue @ 16", "Redis @ 16")
    times = {"began": "2026-01-02T03:04:05+00:00", "ended": "2026-01-02T03:06:10+00:00"}
    assert "| 2026-01-02T03:04:05+00:00 | 2:05 |" in rendered(tmp_path, told(row), **times)


def test_the_measurements_that_took_longest_are_named(tmp_path):
    row = Row("queue", "queue @ 16", "Redis @ 16")
    text = rendered(tmp_path, told(row), took={"Redis @ 16": 75.2, "queue @ 16": 3.4})
    assert "Redis @ 16 (sweep) 1:15, queue @ 16 (sweep) 0:03." in text


def test_a_rates_range_is_told_in_the_unit_of_its_median(tmp_path):
    fast, slow = (
        Result("Conversion", Row("queue into journal", name, reaches=300_000), ours=at(*rates))
        for name, rates in (
            ("fast", (1_948_957, 2_280_000, 2_411_858)),
            ("slow", (299_000, 310_000, 1_200_000)),
        )
    )
    text = rendered(tmp_path, fast, slow)
    assert "| 2.28 M/s | 1.95..2.41 |" in text
    assert "| 310 k/s | 299..1200 |" in text


def test_no_results_are_told_as_such(tmp_path):
    assert "No results lie here" in summary.render(summary.read(tmp_path))


def test_a_quick_run_is_marked(tmp_path):
    row = Row("queue", "queue @ 16", "Redis @ 16")
    assert "Quick, and no evidence" in rendered(tmp_path, told(row), scale="quick")


def test_what_was_not_there_is_told(tmp_path):
    absent = Result(
        "Durable: producers: 16",
        Row("queue", "queue @ 16", "NATS @ 16"),
        missing="nats-server is not installed",
    )
    text = rendered(tmp_path, told(Row("queue", "queue @ 16", "Redis @ 16")), absent)
    assert "Not measured: nats-server is not installed." in text


def test_a_share_of_the_limit_is_of_one_round():
    found = curves(
        [told(Row("queue", "queue @ 16", "limit fdatasync @ 16"), ours=15.0)], "Durable: producers"
    )
    assert found.ratio("queue", "limit fdatasync", "16") == Spread.of([15 / 30, 15 / 45])


@pytest.mark.parametrize(
    "arguments, out",
    [
        ([], RESULTS),
        (["report"], RESULTS),
        (["--quick"], QUICK_RESULTS),
        (["--only", "Durable"], None),
        (["queue"], None),
    ],
    ids=["all", "the report", "quick", "a part", "one"],
)
def test_only_a_whole_run_takes_the_place_of_the_results(arguments, out):
    assert parse(arguments).out == out


# --- the floors in it ----------------------------------------------------------------------------------


def test_each_floor_of_the_results_has_a_row_in_the_report():
    reports = summary.read(RESULTS)
    text = summary.render(reports)
    rows = [line for line in text.splitlines() if line.endswith(("| reached |", "| MISSED |"))]
    assert len(rows) == sum(result.row.has_floor for report in reports for result in report.results)


def test_each_floor_that_is_missed_in_full_has_a_reason():
    for report in summary.read(RESULTS):
        for result in report.missed if report.about["scale"] == "full" else []:
            assert reason_of(result.section, result.row), (report.about["benchmark"], result.row.name)


def test_a_reason_is_told_beside_what_is_missed(tmp_path):
    section = next(section for section in QUEUE if any(row.reason for row in section.rows))
    row = next(row for row in section.rows if row.reason)
    text = rendered(tmp_path, told(row, section=section.title, ours=1.0), benchmark="queue")
    assert row.reason in text


def test_a_floor_that_is_missed_for_no_known_reason_says_so(tmp_path):
    text = rendered(tmp_path, told(Row("new", "a", "b", at_least=1e9)))
    assert "no reason is stated" in text


# --- the gaps to the limit -----------------------------------------------------------------------------


def test_each_gap_is_of_readings_that_the_sweep_takes_in_one_section():
    taken = {
        (section.title, reading)
        for section in bench_sweep.SECTIONS
        for row in section.rows
        for reading in (row.ours, row.peer)
    }
    for gap in gaps.GAPS:
        assert {(gap.section, gap.ours), (gap.section, gap.limit)} <= taken
    assert len({gap.path for gap in gaps.GAPS}) == len(gaps.GAPS)


def test_each_hot_path_is_held_against_its_limit():
    paths = " ".join(gap.path for gap in gaps.GAPS)
    for word in ("send", "send_many", "receive", "receive_many", "columns", "synced", "journal", "priority"):
        assert word in paths


def test_each_path_that_reaches_less_than_half_of_its_limit_has_a_reason():
    swept = [result for report in summary.read(RESULTS) for result in report.results]
    for each in gaps.reached(swept):
        assert each.gap.reason or not each.needs_reason, each.gap.path


@pytest.mark.parametrize("ours, is_told", [(10.0, True), (90.0, False)])
def test_a_reason_is_told_where_less_than_half_is_reached(tmp_path, ours, is_told):
    gap = next(gap for gap in gaps.GAPS if gap.section == "Durable: producers: 16")
    text = rendered(tmp_path, told(Row("queue", gap.ours, gap.limit), section=gap.section, ours=ours))
    assert f"| {gap.path} |" in text
    assert (gap.reason in text) is is_told


# --- the sweep -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["64 KiB", "1 MiB"])
def test_every_system_writes_as_many_bytes_of_large_messages(point):
    taken = bench_sweep.measurements(Scale("full", 1.0))
    counts = {name: each.describe()["count"] for name, each in taken.items() if name.endswith(f"@ {point}")}
    assert len(counts) >= 15
    assert set(counts.values()) == {128 * 2**20 // bench_sweep.SIZES[point]}


# --- measured once -------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["write", "writev", "sync", "read", "memcpy"])
def test_a_limit_is_measured(tmp_path, act: Act):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (figures,) = (
        Limit(act, 200, size=100, batch=10 if act in ("writev", "sync") else 1).measure(tmp_path).values()
    )
    assert figures["count"] == 200
    assert figures["rate"] > 0


@pytest.mark.parametrize("peer", [peer for peer in peers.PEERS if peer != "Queue"])
def test_a_peer_gives_back_what_it_was_given(tmp_path, peer):
    try:
        readings = peers.measure(str(tmp_path), peer=peer, count=20)
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")
    assert readings.keys() == {"put", "get"}


@pytest.mark.parametrize("peer", ["sqlite3", "LMDB", "RocksDB", "Redis"])
def test_a_peer_is_scanned_from_its_first_message_to_its_last(tmp_path, peer):
    try:
        peers.fill(str(tmp_path), peer=peer, count=1_003)
        assert peers.scan(str(tmp_path), peer=peer, count=1_003)["count"] == 1_003
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(ModuleNotFoundError) as missing:
        servers.program("no-such-server")
    assert missing.value.name == "no-such-server"


def test_a_measurement_that_fails_costs_no_other(tmp_path):
    class Failing:
        def measure(self, directory: Path) -> harness.Readings:
            raise RuntimeError("the disk is full")

        def describe(self) -> dict[str, object]:
            return {}

    row = Row("row", "a", "b")
    (result,) = harness.run(
        [Section("one", (row,))],
        {"a": Failing(), "b": Failing()},
        rounds=1,
        directory=tmp_path,
        goes_on=True,
    )
    assert "the disk is full" in result.missing


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_sweep_is_measured_and_answers_every_question(tmp_path):
    wanted = (
        *("To the page cache: 16 B", "Each path: 100 B", "In batches: 100 at once", "Durable: producers: 16"),
        *("Reading: 100 B", "Backlog: 10 k"),
    )
    sections = [section for section in bench_sweep.SECTIONS if section.title in wanted]
    results = harness.run(sections, bench_sweep.measurements(SMOKE), rounds=1, directory=tmp_path)
    assert all(result.missing or result.ours[result.row.figure].median > 0 for result in results)
    text = summary.render([Report(ABOUT, results)])
    assert all(question.title in text for question in summary.QUESTIONS)
    assert all(question.figure in FIGURES for question in summary.QUESTIONS)
    assert {"priority send", "journal columns"} <= {each.gap.path for each in gaps.reached(results)}

# The picture and the table of everything at a glance: made of what was measured, and of nothing else.

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench_queue, bench_sweep, overview, summary
from benchmarks.floors import Row
from benchmarks.harness import Result, Scale, Spread
from benchmarks.report import Report
from tests import bench_runs as benchruns

ABOUT = benchruns.ABOUT | {
    "began": "2026-01-02T03:04:05+00:00",
    "machine": benchruns.ABOUT["machine"] | {"file_system": "ext4"},
}


def at(rate: float, cpu: float = 2.0) -> dict[str, Spread]:
    return {"rate": Spread.of([rate]), "cpu_us": Spread.of([cpu])}


def result(ours: str, rate: float, peer: str, other: float) -> Result:
    return Result("one", Row("row", ours, peer), at(rate), at(other), Spread.of([rate / other]))


SENT = result("channel: put", 2e6, "queuelib: put", 5e5)
ABSENT = Result("one", Row("row", "channel: put", "NATS: put"), missing="nats-server is not installed")


def report(*results: Result, **about: object) -> Report:
    return Report(ABOUT | about, list(results))


def text_of(*reports: Report, drawn: frozenset[str] = frozenset()) -> str:
    return "\n".join(overview.markdown(overview.glance(reports), set(drawn)))


def test_each_question_is_answered_by_readings_that_are_taken():
    taken = {"queue": bench_queue, "sweep": bench_sweep}
    for asked in overview.ASKED:
        measured = taken[asked.benchmark].measurements(Scale("smoke", 0.001))
        names = [asked.reading_of(system).partition(": ")[0] for system in overview.SYSTEMS]
        assert names[0] in measured
        assert names[1] in measured or not asked.go
        assert sum(name in measured for name in names) >= (5 if asked.peer else 2), asked.title


def test_a_system_stands_where_it_was_measured_and_nowhere_else():
    text = text_of(report(SENT, ABSENT))
    assert "|  | send | send: processor time |" in text
    assert "| **diskq** | **2.0 M/s** | **2.00 µs** |" in text
    assert "| queuelib | 500 k/s | 2.00 µs |" in text
    assert "NATS" not in text


def test_a_question_that_we_have_not_answered_is_not_asked():
    assert text_of(report(result("other", 1.0, "queuelib: put", 1.0))) == ""


def test_a_figure_of_a_quick_run_is_marked_where_it_stands():
    durable = result("queue @ 256", 9e4, "go-diskqueue @ 256", 1e3)
    text = text_of(report(SENT), report(durable, benchmark="sweep", scale="quick"))
    assert "|  | send | durable, 256 producers* | send: processor time |" in text
    assert "a quick run, and no evidence" in text


def test_what_was_measured_in_full_has_no_such_mark():
    assert "quick" not in text_of(report(SENT))


def test_the_table_says_when_at_what_and_on_what():
    assert "queue 2026-01-02 at 0123456789ab; one, 1 cores, ext4" in text_of(report(SENT))


def test_it_is_the_first_section_of_the_report(tmp_path):
    report(SENT).write(tmp_path)
    text = summary.render(summary.read(tmp_path))
    assert text.index("## At a glance") < text.index("## What ran")


@pytest.mark.parametrize("results", [(SENT,), (SENT, ABSENT)], ids=["all", "one is missing"])
def test_the_picture_is_drawn_twice_as_wide_as_it_is_shown(tmp_path: Path, results: tuple[Result, ...]):
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    overview.draw(overview.glance([report(*results)]), tmp_path / overview.PICTURE)
    with image.open(tmp_path / overview.PICTURE) as drawn:
        assert drawn.width == 1700

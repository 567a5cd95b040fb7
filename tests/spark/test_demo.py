# The demo's part on Spark, on a small input, in the session of this run.

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

EXAMPLES = Path(__file__).parents[2] / "examples"

DAYS, FLIGHTS = 4, 90


@pytest.fixture
def demo() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        yield importlib.import_module("pipeline_demo")
    for path in EXAMPLES.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Departures of three airports through some days; one in ten was cancelled."""
    lines = ["year,month,day,dep_time,sched_dep_time,dep_delay,origin"]
    for number in range(DAYS * FLIGHTS):
        day, flight = divmod(number, FLIGHTS)
        hour, minute = 5 + flight // 6, flight % 6 * 10
        left = "NA,{0},NA" if number % 10 == 9 else "{0},{0},0"
        time = left.format(hour * 100 + minute)
        lines.append(f"2013,7,{day + 1},{time},{('EWR', 'JFK', 'LGA')[number % 3]}")
    path = tmp_path / "flights.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.exhaustive
@pytest.mark.spark
@pytest.mark.slow
def test_the_pipeline_shows_what_it_says(demo, spark, source, tmp_path, capsys):
    trio.run(demo.stream_demo.write, source, None, tmp_path / "departures")
    out = demo.Plain()
    assert demo.pipeline(spark, source, None, tmp_path / "departures", tmp_path, out)
    told = capsys.readouterr().out
    assert "in table and stream are 360 rows, 360 different" in told
    assert "the third: 0 rows" in told
    assert "100% of them under checksums: clean" in told
    assert told.endswith("Every row is there once, every hour is right, and nothing was done twice.\n")
    if "matplotlib is missing" not in told:
        assert (tmp_path / "departures.png").read_bytes().startswith(b"\x89PNG")


def test_without_spark_it_is_left_out_with_a_sentence(demo, source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    assert demo.demo(source, None, tmp_path, demo.Plain())
    assert "pyspark is missing: .venv/bin/pip install -e '.[demo]'\n" in capsys.readouterr().out

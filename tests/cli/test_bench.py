# `diskq bench`: every engine is measured and reported, for people and for programs; no file is left.

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from diskq.cli.bench import bench
from diskq.cli.bench.works import ENGINES, WORKS, run_engine
from tests.cli.conftest import start, until
from tests.sampling import first

SMALL = bench.Scale(rounds=2, seconds=0.001, file_size=2**20, sync_seconds=0.0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less of the same: how exact it is, is not what is asked here."""
    monkeypatch.setattr(bench, "QUICK", SMALL)


@pytest.mark.parametrize("engine", first(2, ENGINES))
async def test_every_engine_does_all_the_work(tmp_path, engine):
    found = await run_engine(engine, str(tmp_path), 100, 0.001)
    assert tuple(found) == WORKS
    assert all(reading.rate > 0 and reading.cpu >= 0 for reading in found.values())


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small")
def test_programs_get_every_figure_with_its_spread(run, tmp_path):
    done = run("bench", tmp_path, "--quick", "--json", "--size", "10", "--size", "2KiB")
    told = json.loads(done.out)
    assert done.code == 0
    assert told["rounds"] == 2
    assert {(each["engine"], each["size"]) for each in told["rates"]} == {
        (engine, size) for engine in ENGINES for size in (10, 2048)
    }
    figures = [*told["limits"].values(), *(each["rate"] for each in told["rates"])]
    assert all(0 < figure["low"] <= figure["median"] <= figure["high"] for figure in figures)
    assert {each["producers"] for each in told["rates"] if each["work"] == "synced"} == {1, 16, 64}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small")
def test_people_get_tables_and_only_what_a_killed_run_has_left_is_left_and_reported(run, tmp_path):
    data = tmp_path / "data"
    left = data / ".diskq-bench-old"
    left.mkdir(parents=True)
    done = run("bench", data, "--quick")
    lines = done.out.decode().splitlines()
    assert done.code == 0
    assert sum(line.split()[:1] == ["journal"] for line in lines) == len(WORKS)
    assert any(line.startswith("fdatasync, p99") for line in lines)
    assert list(data.iterdir()) == [left]
    assert f"{left} is from a killed run" in done.notes[0]


@pytest.mark.parametrize("words", [["--size", "0"], ["--size", "17MiB"], ["--size", "much"]], ids=" ".join)
def test_sizes_that_make_no_sense_are_refused(run, tmp_path, words):
    assert run("bench", tmp_path, *words).code == 2


def test_a_directory_that_is_not_there_is_refused(run, tmp_path):
    done = run("bench", tmp_path / "nowhere")
    assert (done.code, done.notes) == (1, [f"diskq: error: {tmp_path}/nowhere: no such directory"])


@pytest.mark.parametrize("number", first(1, [signal.SIGINT, signal.SIGTERM]), ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, number: signal.Signals):
    with start("bench", tmp_path) as process:
        until(lambda: any(tmp_path.glob(".diskq-bench-*/work/*")))
        process.send_signal(number)
        assert process.wait() == 130
    assert list(tmp_path.iterdir()) == []

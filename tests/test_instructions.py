# The gate that no noise moves: how it compares, and that the paths it counts are still walked.

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from benchmarks import hot_paths as hotpaths
from benchmarks.hot_paths import PATHS
from benchmarks.instructions import RECORDED, TOLERANCE, compare


def test_a_path_that_has_become_longer_is_reported():
    lines, worse = compare({"send": 1100, "receive": 1000}, {"send": 1000, "receive": 1000})
    assert worse == ["send"]
    assert lines[1].split() == ["send", "1,100", "1,000", "+10.0%"]


def test_a_compiler_of_another_year_is_no_regression():
    assert compare({"send": int(1000 * (1 + TOLERANCE))}, {"send": 1000})[1] == []


def test_what_was_never_recorded_has_nothing_to_be_compared_with():
    lines, worse = compare({"send": 1000}, {})
    assert (lines[1].split(), worse) == (["send", "1,000", "-", "-"], [])


def test_every_path_is_recorded():
    assert all(counts.keys() == PATHS.keys() for counts in json.loads(RECORDED.read_text()).values())


@pytest.mark.parametrize("name", PATHS)
def test_each_path_lies_between_two_marks(name: str, tmp_path: Path, monkeypatch):
    marks = []
    monkeypatch.setattr(hotpaths, "mark", lambda: marks.append(trio.current_time()))
    trio.run(PATHS[name], str(tmp_path), 200)
    assert len(marks) == 2

"""Ten times as many segments, and files, are at most twelve times the work of an updater, and of readers."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from diskq.tables.reading import read_arrow
from diskq.tables.table import Table, open_table
from tests.growth.meter import MeteredDisk, Work, growth, work
from tests.growth.stores import MAKERS

FEW, MANY = 10, 100

ACTS: dict[str, Callable[[Table, MeteredDisk], object]] = {
    "updating again": lambda table, disk: table.update(),
    "listing": lambda table, disk: table.files(),
    "compacting": lambda table, disk: table.compact(),
    "reading": lambda table, disk: read_arrow(table.path, table=table, fs=disk).read_all(),
}


@pytest.mark.parametrize("what", ["segments of a stream", "segments of a journal"])
def test_ten_times_as_many_segments_are_at_most_twelve_times_the_work(what: str, tmp_path: Path) -> None:
    disk = MeteredDisk()
    counts: dict[str, list[Work]] = {"making": [], **{act: [] for act in ACTS}}
    for count in (FEW, MANY):
        path = tmp_path / str(count)
        path.mkdir()
        MAKERS[what](disk, os.fspath(path), count)
        table = open_table(path, tmp_path / "lake", fs=disk)
        counts["making"].append(work(table.update, disk))
        assert len(table.files()) >= count - 1
        for name, act in ACTS.items():
            if name == "reading":
                table = open_table(path, tmp_path / f"lake {count}", fs=disk)
                table.update()
            counts[name].append(work(partial(act, table, disk), disk))
    for name, found in counts.items():
        grown = growth(*found)
        assert max(grown.values(), default=0) <= 1.2 * MANY / FEW, (name, grown)

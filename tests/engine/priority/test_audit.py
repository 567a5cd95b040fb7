# Inspecting a store without opening it: its contents are reported, and nothing changes.

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from diskq.engine.priority.audit import inspect_store, read_commands
from tests.engine.stores import ROOT, disk, opened, segment, written
from tests.reference import taskflux_oracle as oracle

GOLDEN = Path(__file__).parents[2] / "golden/taskflux"
CASES = {case["id"]: case for case in json.loads((GOLDEN / "manifest.json").read_text())["cases"]}

COMMANDS = [
    oracle.create("q", 2, 9, None, (-3, 3)),
    oracle.add("q", 1, b"one"),
    oracle.remove("q", 1),
    oracle.delete("q"),
]


def test_a_store_in_use_is_audited_and_not_touched():
    fs = disk()
    with opened(fs, soft_limit=60, snapshot_segments=99) as store:
        for number in range(4):
            store.put(store.queue(), bytes(10), number)
        store.snapshot()
        for number in range(3):
            store.put(store.queue(), bytes(10), number)
        before = fs.files()
        report = inspect_store(ROOT, fs=fs)
        assert fs.files() == before
    assert report.is_sound
    assert [(each.lsn, each.records, each.is_covered) for each in report.segments] == [
        (2, 2, True),
        (4, 2, False),
        (6, 1, False),
    ]
    assert report.snapshot is not None
    assert (report.snapshot.lsn, report.snapshot.queues) == (3, {"": 4})


def test_commands_are_listed_one_by_one():
    fs = written(disk(), {5: COMMANDS}, snapshot=oracle.snapshot(4, 1, {"": oracle.Queue()}))
    told = [
        (each.lsn, each.kind, each.queue, each.priority, each.body, each.id)
        for each in read_commands(ROOT, 5, fs=fs)
    ]
    assert told == [
        (5, "create", "q", None, None, None),
        (6, "add", "q", 1, b"one", None),
        (7, "remove", "q", None, None, 1),
        (8, "delete", "q", None, None, None),
    ]
    offsets = [each.offset for each in read_commands(ROOT, 5, fs=fs)]
    assert offsets == [record.offset for record in oracle.records(fs.read(segment(5)))]


def test_a_record_larger_than_a_window_is_listed():
    large = [oracle.add("", 0, bytes(size)) for size in (5, 3_000_000, 7, 1_048_576, 1)]
    fs = disk()
    with opened(fs) as store:
        for size in (5, 3_000_000, 7, 1_048_576, 1):
            store.put(store.queue(), bytes(size))
    assert [len(each.body or b"") for each in read_commands(ROOT, 0, fs=fs)] == [
        len(one) - 14 for one in large
    ]


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_what_is_refused_and_what_is_torn_is_not_sound(case, tmp_path):
    if not case["files"]:
        return
    root = tmp_path / "store"
    shutil.copytree(GOLDEN / "cases" / case["id"], root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    report = inspect_store(root)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    expected = case["diskq"]
    cut = {"tail_truncated", "segment_reinitialised", "snapshot_ignored"} & set(expected.get("warnings", ()))
    assert report.is_sound == (expected["outcome"] != "refused" and not cut)
    if expected["outcome"] != "refused" and "log_behind_snapshot" not in expected["warnings"]:
        assert report.segments[-1].next_lsn == expected["last_lsn"] + 1
        assert report.segments[-1].end == expected["next_offset"]


def test_where_there_is_no_store_is_said():
    with pytest.raises(FileNotFoundError):
        inspect_store("/nowhere", fs=disk())

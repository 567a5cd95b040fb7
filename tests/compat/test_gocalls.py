"""The program that makes go-diskq's system calls alone: its files are those that there would be."""

from pathlib import Path

import pytest

from benchmarks.systemcalls import GoCalls
from diskq.engine.stream import Stream
from diskq.options import StreamOptions
from tests.compat.conftest import built

pytestmark = pytest.mark.interop

KEY, VALUE = "user-042", bytes(100)
COUNT, SEGMENT = 1000, 10_000  # a segment is left after 79 messages of 128 bytes


@pytest.fixture(scope="module")
def calls() -> GoCalls:
    return built(GoCalls.build)


def sizes(directory: Path) -> dict[str, int]:
    files = [path for path in (directory / "parts").rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.stat().st_size for path in files}


@pytest.mark.parametrize("producers", [1, 16])
def test_push_leaves_files_of_the_names_and_sizes_of_a_stream_of_ours(calls, tmp_path, producers):
    report = calls.bench(
        "push", tmp_path / "theirs", count=COUNT, segment_size=SEGMENT, producers=producers, sync=True
    )
    with Stream(tmp_path / "ours", StreamOptions(partition_count=1, segment_size=SEGMENT)) as stream:
        stream.append_many([VALUE] * COUNT, KEY)
    assert sizes(tmp_path / "theirs") == sizes(tmp_path / "ours")
    assert report["count"] == COUNT
    assert report["rate"] > 0


def test_partitions_take_turns(calls, tmp_path):
    calls.bench("push", tmp_path, count=9, partitions=3)
    assert {name: size for name, size in sizes(tmp_path).items() if name.endswith(".data")} == {
        f"parts/00000{partition}/{0:020}.data": 3 * 128 for partition in range(3)
    }


@pytest.mark.parametrize("act", ["read", "consume"])
def test_reading_goes_over_the_ends_of_segments(calls, tmp_path, act):
    assert calls.bench(act, tmp_path, count=COUNT, segment_size=SEGMENT)["count"] == COUNT


@pytest.mark.parametrize("act", ["lookup", "latency", "across"])
def test_what_is_timed_one_by_one_has_a_median(calls, tmp_path, act):
    report = calls.bench(act, tmp_path, count=10, segment_size=10_000_000)
    assert 0 < report["p50_us"] <= report["max_us"]


def test_an_act_that_fails_says_why(calls, tmp_path):
    with pytest.raises(RuntimeError, match='no act "pull"'):
        calls.bench("pull", tmp_path)

"""The programs in Go that peers are measured by: their files are those that there would be."""

from pathlib import Path

import pytest

from benchmarks.system_calls import GoCalls, GoJournal
from diskq import Journal, JournalReader
from diskq.engine.stream.stream import Stream
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
    with Stream(tmp_path / "ours", options=StreamOptions(partition_count=1, segment_size=SEGMENT)) as stream:
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


# --- the bound written in Go: the work that sej cannot do without ---------------------------------------


@pytest.fixture(scope="module")
def in_go() -> GoJournal:
    return built(GoJournal.build)


def test_what_the_journal_in_go_writes_we_read(in_go, tmp_path):
    assert in_go.bench("append", tmp_path, count=COUNT)["count"] == COUNT
    with JournalReader(tmp_path) as reader:
        messages = reader.read_many(COUNT + 1)
    assert [message.offset for message in messages] == list(range(COUNT))
    assert {(message.key, message.value) for message in messages} == {(KEY.encode(), VALUE)}


def test_what_we_write_the_journal_in_go_scans_to_its_end(in_go, tmp_path):
    with Journal(tmp_path) as journal:
        journal.append_many([(KEY.encode(), VALUE)] * COUNT)
    assert in_go.bench("scan", tmp_path, count=COUNT)["rate"] > 0


def test_the_journal_in_go_counts_what_it_scans(in_go, tmp_path):
    in_go.bench("append", tmp_path, count=COUNT)
    with pytest.raises(RuntimeError, match="1000 messages instead of 1001"):
        in_go.bench("scan", tmp_path, count=COUNT + 1)


def test_the_journal_in_go_finds_a_length_that_does_not_agree(in_go, tmp_path):
    in_go.bench("append", tmp_path, count=COUNT)
    file = tmp_path / "jnl" / f"{0:016x}.jnl"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(RuntimeError, match="do not agree"):
        in_go.bench("scan", tmp_path, count=COUNT)

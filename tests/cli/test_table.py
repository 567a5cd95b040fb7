# `diskq stream table` and `diskq journal table`: what a person types, and what comes of it.

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import diskq
from tests.cli.conftest import start

NOUNS = ["stream", "journal"]


def append(path: Path, numbers: range) -> None:
    with diskq.Stream(path, options=diskq.StreamOptions(partition_count=1, segment_size=300)) as its:
        its.append_many([(b"key", b"value %d" % number * 5, 1000 + number) for number in numbers])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A stream with several complete segments."""
    append(tmp_path / "clicks", range(40))
    return tmp_path / "clicks"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def ranges(lake: Path) -> list[str]:
    return sorted(file.stem for file in lake.glob("topic=clicks/partition=0/*.parquet"))


@pytest.mark.parametrize("noun", NOUNS)
def test_the_verb_has_help_with_examples_and_defaults(run, noun):
    done = run(noun, "table", "--help")
    assert done.code == 0
    assert f"examples:\n  diskq {noun} table".encode() in done.out
    assert done.out.count(b"(default: ") >= 7


def test_each_new_file_is_a_line(run, path, lake):
    done = run("stream", "table", path, "--into", lake)
    assert done.code == 0
    lines = done.out.decode().splitlines()
    assert lines[0].startswith("partition=0 offset=0..")
    assert [line.rpartition("/")[2].removesuffix(".parquet") for line in lines] == ranges(lake)
    assert f"{len(lines)} files, " in done.notes[-1]


def test_a_second_run_does_nothing_twice(run, path, lake):
    run("stream", "table", path, "--into", lake)
    before = ranges(lake)
    done = run("stream", "table", path, "--into", lake)
    assert (done.code, done.out) == (0, b"")
    assert "nothing new: the table has" in done.notes[-1]
    assert ranges(lake) == before


def test_json_is_for_programs(run, path, lake):
    done = run("stream", "table", path, "--into", lake, "--json")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [f"{its['first_offset']:020d}-{its['next_offset']:020d}" for its in found] == ranges(lake)
    assert {its["partition"] for its in found} == {0}
    assert all(Path(its["path"]).exists() for its in found)


def test_a_journal_is_a_table_too(run, tmp_path, lake):
    with diskq.Journal(tmp_path / "web", options=diskq.JournalOptions(segment_size=300)) as journal:
        for number in range(40):
            journal.append(b"value %d" % number * 5)
    done = run("journal", "table", tmp_path / "web", "--into", lake, "--topic", "all web")
    assert done.code == 0
    assert diskq.open_table(tmp_path / "web", lake, topic="all web").files()


def test_options_are_those_of_the_table(run, path, lake):
    done = run("stream", "table", path, "--into", lake, "--compression", "none", "--compact", "1MiB")
    assert "joined into 1" in done.notes[-1]
    assert len(ranges(lake)) == 1
    (file,) = diskq.open_table(path, lake).files()
    import pyarrow.parquet as pq

    assert pq.ParquetFile(file.path).metadata.row_group(0).column(1).compression == "UNCOMPRESSED"


def test_until_ends_the_table_before_a_moment(run, path, lake):
    run("stream", "table", path, "--into", lake, "--until", "1970-01-01T00:00:00.000001020Z")
    nanos = diskq.open_table(path, lake).dataset().to_table().column("timestampNanos").to_pylist()
    assert 1010 < max(nanos) < 1020


def test_until_and_follow_contradict_each_other(run, path, lake):
    done = run("stream", "table", path, "--into", lake, "--until", "now", "--follow")
    assert done.code == 2
    assert "leave one of them out" in done.notes[-1]


def test_failures_are_one_line(run, path, lake, tmp_path):
    run("stream", "table", path, "--into", lake)
    done = run("stream", "table", tmp_path / "nothing", "--into", lake)
    assert (done.code, len(done.notes)) == (1, 1)
    assert "there is no stream and no journal here" in done.notes[0]
    (tmp_path / "lake/topic=clicks/partition=0/part-0.parquet").write_bytes(b"")
    done = run("stream", "table", path, "--into", lake)
    assert done.code == 1
    assert "'part-0.parquet' is not a file of this table" in done.notes[0]
    done = run("stream", "table", ".", "--into", lake)
    assert done.code == 2
    assert "give one as topic" in done.notes[-1]


def test_follow_goes_on_with_new_segments_until_it_is_interrupted(path, lake):
    with start("stream", "table", path, "--into", lake, "--follow", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith(b"partition=0 offset=0..")
        append(path, range(40, 80))
        while not re.match(rb"partition=0 offset=6\d\.\.", process.stdout.readline()):
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    files = diskq.open_table(path, lake).files()
    assert files[-1].next_offset > 60


def test_vacuum_keeps_what_the_table_lacks(run, path, lake):
    run("stream", "table", path, "--into", lake, "--until", "1970-01-01T00:00:00.000001020Z")
    end = diskq.open_table(path, lake).ends()[0]
    limits = ["--max-bytes", "1", "--keep-for-table", lake]
    done = run("stream", "vacuum", path, *limits, "--dry-run")
    assert f"oldest={end}" in done.out.decode()
    assert diskq.open_table(path, lake).ends()[0] == end
    done = run("stream", "vacuum", path, *limits)
    end = diskq.open_table(path, lake).ends()[0]
    assert f"oldest={end}" in done.out.decode()
    assert diskq.read_arrow(path, table=lake).read_all().num_rows == 40


def test_vacuum_removes_nothing_for_the_table_of_another_stream(run, path, lake, tmp_path):
    run("stream", "table", path, "--into", lake)
    path.rename(tmp_path / "old")
    append(path, range(50))
    done = run("stream", "vacuum", path, "--max-bytes", "1", "--keep-for-table", lake)
    assert done.code == 1
    assert "is not a table of" in done.notes[-1]
    assert diskq.read_arrow(path).read_all().num_rows == 50


def test_without_pyarrow_it_says_what_to_install(path, lake, tmp_path):
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError('no', name='pyarrow')")
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from diskq.cli import main; sys.exit(main())"
    command = [
        sys.executable,
        "-c",
        program,
        str(tmp_path),
        "stream",
        "table",
        str(path),
        "--into",
        str(lake),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "tables need pyarrow: pip install 'diskqueue[arrow]'" in done.stderr

# Commands that read print the same before a writer has opened a store after a power cut, and after it. They
# put into the files what the redo log alone has, as all readers do.

from __future__ import annotations

import json
from pathlib import Path

import pytest

import diskq
from tests.tools.damaged import digest
from tests.tools.power_cuts import lost, on_disk

LOOKS = {
    "stream": [
        ["stream", "read", "PATH"],
        ["stream", "tail", "PATH", "-n", "5"],
        ["stream", "read", "PATH", "--since", "2020-01-01T00:00:00Z"],
        ["stream", "lookup", "PATH", "-p", "0", "--at", "2020-01-01T00:00:00Z"],
    ],
    "journal": [
        ["journal", "read", "PATH"],
        ["journal", "tail", "PATH", "-n", "5"],
        ["journal", "offset", "PATH"],
        ["journal", "count", "PATH"],
        ["journal", "read", "PATH", "--start", "2020-01-01T00:00:00Z"],
    ],
}


MESSAGES = (".data", ".index", ".timeindex", ".jnl", ".sums")


def files_but_for_messages(path: Path) -> dict[str, str]:
    """The log, the state, the lock and all else, each with its digest."""
    return {name: its for name, its in digest(path).items() if not name.endswith(MESSAGES)}


@pytest.mark.parametrize("kind, words", [(kind, words) for kind, looks in LOOKS.items() for words in looks])
def test_a_command_sees_what_is_in_the_log_alone(run, tmp_path, kind, words):
    path = tmp_path / "store"
    on_disk(lost(kind), path)
    before = files_but_for_messages(path)
    line = [str(path) if word == "PATH" else word for word in words]
    early = run(*line)
    assert files_but_for_messages(path) == before
    assert run("checkpoint", path).code == 0
    late = run(*line)
    assert (early.code, early.out, early.notes) == (late.code, late.out, late.notes)
    assert early.out


def test_a_queue_has_its_end_where_it_is_after_an_open(run, tmp_path):
    path = tmp_path / "store"
    on_disk(lost("queue"), path)
    early = run("queue", "info", path, "events", "--json")
    assert run("checkpoint", path).code == 0
    late = run("queue", "info", path, "events", "--json")
    ends = [line for line in early.out.splitlines() if b'"write"' in line]
    assert ends == [line for line in late.out.splitlines() if b'"write"' in line]


def test_stream_stats_count_them(run, tmp_path):
    path = tmp_path / "store"
    cut = lost("stream")
    on_disk(cut, path)
    early = json.loads(run("stream", "stats", path, "--json").out)
    assert early["TotalOffsets"] == len(cut.synced)
    assert run("checkpoint", path).code == 0
    late = json.loads(run("stream", "stats", path, "--json").out)
    assert {**early, "InUse": False} == late


async def test_an_offset_is_found_by_its_time_without_a_reader(tmp_path):
    on_disk(lost("stream"), tmp_path)
    assert await diskq.offset_after(tmp_path, 0, 0) == 0

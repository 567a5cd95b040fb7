# Long runs, of several processes. Law: nothing lost, nothing repeated, nothing left open.
#
# The suite runs them briefly. `make soak` runs them for as long as the promise is worth: 100 runs of
# 1,000 rolls each, and a minute of retention.

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq.engine.stream.stream import Stream

WORKERS = Path(__file__).parent / "workers.py"

RUNS = int(os.environ.get("DISKQ_SOAK_RUNS", "1"))
SECONDS = float(os.environ.get("DISKQ_SOAK_SECONDS", "3"))

ROLLS = int(os.environ.get("DISKQ_SOAK_ROLLS", "100"))
MESSAGES = 23 * ROLLS // 2  # they fill at least so many segments of 1 KiB


def start(name: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(WORKERS), name, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def told(process: subprocess.Popen[str], seconds: float = 120) -> Any:
    """What it said at its end. One that works until then ends now."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(60 + 60 * RUNS)
@pytest.mark.parametrize("mode", ["paced", "burst"])
def test_tailing_from_another_process_over_many_rolls(tmp_path, mode):
    for run in range(RUNS):
        path = tmp_path / f"stream-{run}"
        Stream(path, options=diskq.StreamOptions(partition_count=1, segment_size=1024)).close()
        consumer = start("consume", path, MESSAGES)
        assert consumer.stdout is not None
        assert json.loads(consumer.stdout.readline()) == {"is_ready": True}
        assert told(start("produce", path, MESSAGES, mode)) == {"sent": MESSAGES}
        result = told(consumer)
        assert result.get("received") == MESSAGES, result
        assert result["more_files"] <= 3, result  # those of the segment that is read, and of no other
        assert len(list((path / "parts" / "000000").glob("*.data"))) > ROLLS


@pytest.mark.slow
@pytest.mark.timeout(240 + 2 * SECONDS)
def test_retention_beside_a_producer_and_four_readers(tmp_path):
    path, bound = tmp_path / "stream", 1024 * 1024
    Stream(path, options=diskq.StreamOptions(partition_count=1, segment_size=64 * 1024)).close()
    with ExitStack() as stack:

        def beside(name: str, *arguments: object) -> subprocess.Popen[str]:
            process = stack.enter_context(start(name, *arguments))
            stack.callback(process.kill)
            return process

        producer, vacuum = beside("write", path), beside("vacuum", path, bound)
        readers = [beside("read_for", path, SECONDS, pause) for pause in (0, 0, 0.05, 0.3)]
        results = [told(reader, SECONDS + 120) for reader in readers]
        sent, kept = told(producer)["sent"], told(vacuum)
    assert all("wrong" not in result and result["received"] for result in results), results
    assert results[-1]["overtaken"], "it was not slow enough to be overtaken"
    # The bound is of complete data files; beside them lie rows and checksums, and what is written to.
    assert kept["most"] < 4 * bound, (kept, sent)

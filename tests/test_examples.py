# The examples are run as they stand: what a newcomer copies works.

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_quickstart_runs_and_runs_again(tmp_path):
    for _ in range(2):
        command = [sys.executable, str(EXAMPLES / "quickstart.py")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == [
            "b'survives a crash of this process'",
            "[b'survives a power cut', b'one', b'two', b'three']",
        ]


def test_the_streams_example_runs_and_runs_again(tmp_path):
    for _ in range(2):
        command = [sys.executable, str(EXAMPLES / "streams.py")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        *read, first_after = done.stdout.splitlines()
        # Each partition's come in order; the group does not get the first run's again.
        assert [line for line in read if "ada" in line] == [
            "b'ada' b'a key decides on the partition'",
            "b'ada' b'any time will do'",
            "b'ada' b'one'",
        ]
        assert [line for line in read if "grace" in line] == ["b'grace' b'two'"]
        assert first_after == "0"

# `make torture` does all its parts.

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = [
    *("pytest", "tests.torture", "tests.torture.killed"),
    *("tests.torture.peer_first", "tests.torture.real_disks", "tests.torture.truth"),
    *("tests.torture.fuzz", "tests.torture.leaks"),
]

made = pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")


def make(venv: Path, *settings: str, failing: str = "none of them") -> tuple[int, list[str]]:
    """Return its status, and the parts that were run by a Python that only says so."""
    python = venv / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"""#!/bin/sh\necho ran "$2" >> {venv}/ran\ntest "$2" != "{failing}"\n""")
    python.chmod(0o755)
    rule = re.search(r"^torture:(.*)##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert rule
    there = [f"--old-file={venv}/stamps/{name}" for name in re.findall(r"STAMPS\)/(\w+)", rule[1])]
    command = ["make", "torture", f"VENV={venv}", *settings, *there]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    ran = [line.split()[1] for line in (venv / "ran").read_text().splitlines()]
    # The README's table is written after one of the parts.
    return ended.returncode, [module for module in ran if module != "scripts.readme_table"]


@made
@pytest.mark.parametrize("failing", PARTS)
def test_a_part_that_fails_stops_no_other_and_is_not_forgotten(tmp_path: Path, failing: str) -> None:
    status, ran = make(tmp_path, "QUICK=", failing=failing)
    assert ran == PARTS
    assert status != 0


@made
def test_the_quick_one_leaves_the_tests_out(tmp_path: Path) -> None:
    assert make(tmp_path, "QUICK=1") == (0, PARTS[1:])

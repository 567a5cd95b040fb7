# The physical limit: what this machine does with the same bytes, without a queue. Law: a program in C, so
# that no interpreter is in it, measured in the same rounds as what is held against it.

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness import TIMEOUT, MissingError, Readings
from benchmarks.stopwatch import reading

__all__ = ["Act", "Limit"]

SOURCE = Path(__file__).with_name("limits.c")
PROGRAM = SOURCE.parent.parent / ".cache" / "limits"

Act = Literal["write", "writev", "sync", "read", "memcpy"]


@dataclass(frozen=True, slots=True)
class Limit:
    """`write`: one write(2) each. `writev`: one for `batch`. `sync`: the same, and fdatasync of a file that
    grows. `read`: by the MiB, from the page cache. `memcpy`: by the MiB, in memory that no cache holds."""

    act: Act
    count: int
    size: int = 100
    batch: int = 1

    def measure(self, directory: Path) -> Readings:
        numbers = map(str, (self.count, self.size, self.batch))
        done = subprocess.run(
            [_built(), self.act, directory, *numbers],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{self}: {done.stderr.strip()}")
        answer = json.loads(done.stdout)
        return {"": reading(answer["count"], max(answer["seconds"], 1e-9), answer["cpu_seconds"])}

    def describe(self) -> dict[str, Any]:
        return {"c": f"limits {self.act}", "count": self.count, "size": self.size, "batch": self.batch}


def _built() -> Path:
    """The program, compiled anew where its source is newer."""
    if not PROGRAM.exists() or PROGRAM.stat().st_mtime < SOURCE.stat().st_mtime:
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            raise MissingError("a C compiler is not installed")
        PROGRAM.parent.mkdir(exist_ok=True)
        made = PROGRAM.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-O2", "-Wall", "-o", made, SOURCE], check=True)
        made.replace(PROGRAM)
    return PROGRAM

# The lower bound of go-diskq's time: its system calls alone, made by a Go program of this project
# (benchmarks/gocalls) that does nothing between them; and a journal in Go (benchmarks/gojournal), which does.
#
# Neither go-diskq nor sej is in these benchmarks. A ratio to its calls is a floor of the ratio to it.

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.compat.golang import build

__all__ = ["GoCalls", "GoJournal"]


class GoCalls:
    _source: ClassVar[str] = "gocalls"

    def __init__(self, program: Path) -> None:
        self.program = program

    @classmethod
    def build(cls) -> Self:
        """Raises GoUnavailableError."""
        return cls(build(Path(__file__).with_name(cls._source)))

    def bench(self, what: str, directory: Path, timeout: float = 600, **options: Any) -> dict[str, Any]:
        """Do one act, timed in the Go process itself (its main.go has the flags).

        Returns `count`, `seconds`, `rate` (per second), `cpu_seconds`, and latencies in `..._us`.
        """
        flags = [_flag(name, value) for name, value in {"dir": directory, **options}.items()]
        done = subprocess.run(
            [self.program, what, *flags], capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{what}: {done.stderr.strip()}")
        report: dict[str, Any] = json.loads(done.stdout)
        return report


class GoJournal(GoCalls):
    """A writer and a scanner of sej's format, of our own writing: the least of its work, not it."""

    _source = "gojournal"


def _flag(name: str, value: Any) -> str:
    return f"--{name.replace('_', '-')}={str(value).lower() if isinstance(value, bool) else value}"

# What stands beside streams and journals, as neither go-diskq nor sej is in these benchmarks: their system
# calls alone, made by a Go program of this project (benchmarks/gocalls) that does nothing between them; and a
# bound written in Go (benchmarks/gojournal), which does the least work that sej's files ask for.
#
# Law: neither is the peer. A ratio to the calls is about the least that the ratio to the peer is.

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
    """A bound, not sej: a writer and a scanner of its format that do the least of its work."""

    _source = "gojournal"


def _flag(name: str, value: Any) -> str:
    return f"--{name.replace('_', '-')}={str(value).lower() if isinstance(value, bool) else value}"

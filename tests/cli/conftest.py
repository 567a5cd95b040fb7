from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diskq import FifoQueue
from diskq.cli import main

PROGRAM = str(Path(sys.executable).with_name("diskq"))


@dataclass(frozen=True)
class Done:
    """How a command ended. `notes` are the lines on stderr."""

    code: int
    out: bytes
    notes: list[str]


Run = Callable[..., Done]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`diskq` within this process, with `stdin` to read."""

    def run(*argv: object, stdin: bytes = b"") -> Done:
        source = tmp_path / "stdin"
        source.write_bytes(stdin)
        with source.open() as file:
            monkeypatch.setattr("sys.stdin", file)
            try:
                code = main([*map(str, argv)])
            except SystemExit as exit:  # by argparse
                code = int(exit.code or 0)
        out, err = capfdbinary.readouterr()
        return Done(code, out, err.decode().splitlines())

    return run


def program(*argv: object, **options: Any) -> Done:
    """`diskq` as a process."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "check": False} | options
    done: Any = subprocess.run([PROGRAM, *map(str, argv)], **options)
    return Done(done.returncode, done.stdout or b"", (done.stderr or b"").decode().splitlines())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    return directory


def fill(directory: Path, *bodies: bytes, name: str = "q") -> None:
    with FifoQueue(directory, name) as queue:
        queue.put_many(bodies)


def drain(directory: Path, name: str = "q") -> list[bytes]:
    with FifoQueue(directory, name) as queue:
        return queue.take_many(queue.depth)

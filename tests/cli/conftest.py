from __future__ import annotations

import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diskq import Queue
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
    with Queue(directory, name) as queue:
        queue.put_many(bodies)


def drain(directory: Path, name: str = "q") -> list[bytes]:
    with Queue(directory, name) as queue:
        return queue.get_many(queue.depth)


# --- programs at work -----------------------------------------------------------------------------


_LONGEST_END = 60.0
"""Seconds that a program has to end after its block."""


@contextmanager
def start(*argv: object, stderr: int = subprocess.PIPE, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """`diskq` as a process that goes on, and ends with the block at the latest.

    One that does not end by itself after the block fails the test, with the stacks of its threads.
    """
    environ = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    command = [PROGRAM, *map(str, argv)]
    with subprocess.Popen(command, stderr=stderr, env=environ, **streams) as process:
        try:
            yield process
            _check_end(process)
        except BaseException:
            process.kill()
            raise


def _check_end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    try:
        process.wait(_LONGEST_END)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        stacks = b"" if process.stderr is None or process.stderr.closed else process.stderr.read()
        pytest.fail(f"{process.args!r} goes on after its block:\n{stacks.decode(errors='replace')}")


def until(condition: Callable[[], bool]) -> None:
    """Another process makes it true: there is nothing to wait on but time."""
    while not condition():
        time.sleep(0.01)


def frames(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


class Terminal:
    """A terminal's two ends: programs have `outer`, we have the other."""

    def __enter__(self) -> Terminal:
        self.inner, self.outer = pty.openpty()
        termios.tcsetwinsize(self.outer, (24, 120))
        return self

    def read_until(self, text: str) -> str:
        seen = ""
        while text not in seen:
            seen += os.read(self.inner, 4096).decode()
        return seen

    def type(self, text: str) -> None:
        os.write(self.inner, text.encode())

    def __exit__(self, *_: object) -> None:
        os.close(self.inner)
        os.close(self.outer)

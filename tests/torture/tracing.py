# A system in a child process, and strace on that child. Law: what is counted begins with the fork, so the
# n-th call is the system's n-th and not the interpreter's. strace counts each call by its name, in each
# thread by itself.

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CHANGING", "Call", "Ran", "Tamed", "calls_of", "can_trace"]

CHANGING = (
    "openat", "write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate", "truncate", "fallocate",
    "fsync", "fdatasync", "rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat",
    "mkdir", "mkdirat", "rmdir",
)  # fmt: skip
"""What changes a disk, or makes it durable."""
_MOVING = ("read", "lseek", "close", "dup", "dup2", "dup3", "copy_file_range", "sendfile")
_SEEN = ",".join(CHANGING + _MOVING)

LIMIT = 20
"""Seconds, after which a child hangs."""


@dataclass(frozen=True, slots=True)
class Call:
    """One system call, as strace wrote it down when it returned."""

    thread: int
    name: str
    arguments: str
    result: int
    tail: str
    """What stands behind the `=`."""


@dataclass(slots=True)
class Ran:
    """What a child did."""

    said: list[tuple[str, str]]
    status: int
    answer: Any = None
    """Of a reading: the bodies, or how it was refused."""

    @property
    def hung(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGALRM

    @property
    def crashed(self) -> bool:
        """It died, and not by our hand."""
        ours = (signal.SIGALRM, signal.SIGKILL)
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) not in ours


class Tamed:
    """A process that forks a child of one system for each thing that is asked of it."""

    def __init__(self, system: str, scratch: Path) -> None:
        self._scratch = Path(tempfile.mkdtemp(dir=scratch))  # others may share the room
        self._numbers = itertools.count()
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.torture.worker", str(theirs.fileno()), system]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self._channel = ours
        self._lines = ours.makefile("r")

    def __enter__(self) -> Tamed:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._channel.close()
        self._process.wait()

    def produce(self, directory: Path, first: int, count: int, **more: Any) -> Ran:
        """Put so many messages. `take_every`: take one after each so many; `inject`, `log`: as strace wants
        it; `kill_after`: seconds after which the child is killed."""
        inject, log, kill_after = (
            more.pop("inject", None),
            more.pop("log", None),
            more.pop("kill_after", None),
        )
        request = {"verb": "produce", "first": first, "count": count, **more}
        with self._traced(inject, log) if inject or log else contextlib.nullcontext():
            return self._ask(directory, request, kill_after)

    def consume(self, directory: Path, *, restarted: bool = False, limit: int = LIMIT) -> Ran:
        """Read all that is there, as the next process does."""
        answer = self._scratch / f"answer-{next(self._numbers)}"
        request = {"verb": "consume", "answer": str(answer), "restarted": restarted, "limit": limit}
        ran = self._ask(directory, request, None)
        ran.answer = "hung" if ran.hung else "crashed"
        if answer.exists():
            if not ran.hung and not ran.crashed:
                ran.answer = pickle.loads(answer.read_bytes())
            answer.unlink()
        return ran

    def begin(self, directory: Path, first: int, count: int) -> Path:
        """As `produce`, and another may begin before `end` has its answer."""
        said = self._scratch / f"said-{next(self._numbers)}"
        request = {"verb": "produce", "first": first, "count": count, "directory": str(directory)}
        self._send({**request, "said": str(said), "limit": LIMIT})
        return said

    def end(self, said: Path) -> Ran:
        self._lines.readline()
        return Ran(_lines_of(said), int(self._lines.readline()))

    def _ask(self, directory: Path, request: dict[str, Any], kill_after: float | None) -> Ran:
        said = self._scratch / f"said-{next(self._numbers)}"
        self._send({"limit": LIMIT, **request, "directory": str(directory), "said": str(said)})
        child = int(self._lines.readline())
        if kill_after is not None:
            _kill_when_said(child, said, kill_after)
        return self._answer(said)

    def _answer(self, said: Path) -> Ran:
        status = int(self._lines.readline())
        return Ran(_lines_of(said), status)

    def _send(self, request: dict[str, Any]) -> None:
        self._channel.sendall(json.dumps(request).encode() + b"\n")

    @contextlib.contextmanager
    def _traced(self, inject: str | None, log: Path | None) -> Iterator[None]:
        if log is not None:
            command = ["strace", "-f", "-y", "-xx", "-s", "1000000", "-o", str(log), "-e", f"trace={_SEEN}"]
        else:
            assert inject is not None
            command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={inject.split(':')[0]}"]
        command += ["-e", f"inject={inject}"] if inject else []
        strace = subprocess.Popen([*command, "-p", str(self._process.pid)], stderr=subprocess.DEVNULL)
        status = Path(f"/proc/{self._process.pid}/status")
        while f"TracerPid:\t{strace.pid}\n" not in status.read_text():
            if strace.poll() is not None:
                raise OSError("strace may not trace here")
            time.sleep(0.0005)
        try:
            yield
        finally:
            strace.send_signal(signal.SIGINT)
            strace.wait()


def _kill_when_said(child: int, said: Path, seconds: float) -> None:
    until = time.monotonic() + LIMIT / 2
    while not (said.exists() and said.stat().st_size) and time.monotonic() < until:
        time.sleep(0.0005)
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def _lines_of(said: Path) -> list[tuple[str, str]]:
    if not said.exists():
        return []
    text = said.read_text()
    said.unlink()
    parts = (line.partition(" ") for line in text.splitlines())
    return [(word, rest) for word, _, rest in parts]


def can_trace() -> bool:
    """True if strace is installed and may attach to a child process."""
    if shutil.which("strace") is None:
        return False
    with subprocess.Popen(["sleep", "60"]) as child:
        command = ["strace", "-o", os.devnull, "-p", str(child.pid)]
        strace = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 30
            status = Path(f"/proc/{child.pid}/status")
            while strace.poll() is None and time.monotonic() < until:
                if f"TracerPid:\t{strace.pid}\n" in status.read_text():
                    return True
                time.sleep(0.001)
            return False
        finally:
            child.kill()
            strace.kill()
            strace.wait()


# --- what strace wrote ------------------------------------------------------------------------------

_WHOLE = re.compile(r"^(\d+) +(\w+)\((.*)\) += (-?\d+)(.*)$", re.DOTALL)
_BEGUN = re.compile(r"^(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")


def calls_of(log: Path) -> list[Call]:
    """The calls in the order in which they returned. One that did not return was not made."""
    calls: list[Call] = []
    begun: dict[tuple[str, str], str] = {}
    for line in log.read_text().splitlines():
        if found := _BEGUN.match(line):
            begun[found[1], found[2]] = found[3]
            continue
        if found := _RESUMED.match(line):
            line = f"{found[1]} {found[2]}({begun.pop((found[1], found[2]), '')}{found[3]}"
        if whole := _WHOLE.match(line):
            calls.append(Call(int(whole[1]), whole[2], whole[3], int(whole[4]), whole[5]))
    return calls

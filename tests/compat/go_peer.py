"""go-diskqueue on the other side of a directory, for tests and benchmarks.

    peer = GoPeer.build()                        # raises GoUnavailableError without Go
    peer.put(directory, "events", [b"one", b"two"], sync_every=1)
    assert peer.get(directory, "events").bodies == [b"one", b"two"]
    peer.bench("put", directory, size=100, count=400_000)["rate"]

Each call is a process of its own (gopeer/*.go), so each opens the queue and closes it again.
Options are the program's flags with underscores, the same in every call: `max_bytes_per_file`,
`min_msg`, `max_msg` (bytes), `sync_every`, `sync_timeout` (seconds), and per command what
`gopeer nsq COMMAND --help` lists, such as `abandon=True` (exit without Close) or `idle` (ms).
"""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compat.golang import build

Option = bool | int | float | str


class GoPeerError(Exception):
    """The Go program refused or failed; the text is its one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutReport:
    count: int
    depth: int
    warnings: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GetReport:
    """`stalled`: the depth said that there was more, and nothing came.

    `warnings` is what go-diskqueue logged at level WARNING and above, `files` what was in the
    directory afterwards (size by name).
    """

    bodies: list[bytes]
    depth_at_open: int
    depth_at_close: int
    stalled: bool
    warnings: list[str]
    files: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoReport:
    version: str
    depth: int
    warnings: list[str]
    files: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyReport:
    depth_at_open: int
    depth_at_close: int
    warnings: list[str]
    files: dict[str, int]


class GoPeer:
    def __init__(self, program: Path) -> None:
        self.program = program

    @classmethod
    def build(cls, modfile: str = "go.mod") -> GoPeer:
        """With go-diskqueue v1.1.0; with v1.0.0 by `go.v1.0.0.mod`."""
        return cls(build(Path(__file__).with_name("gopeer"), modfile=modfile))

    def put(self, directory: Path, name: str, bodies: Iterable[bytes], **options: Option) -> PutReport:
        out, _ = self._run("put", directory, options | {"name": name}, stdin=_frames(bodies))
        return PutReport(**json.loads(out))

    def get(self, directory: Path, name: str, **options: Option) -> GetReport:
        """All messages, or `count=` of them."""
        return self._take("get", directory, name, options)

    def peek(self, directory: Path, name: str, **options: Option) -> GetReport:
        """The next `count=` messages (default 1). The directory stays as it is."""
        return self._take("peek", directory, name, options)

    def empty(self, directory: Path, name: str, **options: Option) -> EmptyReport:
        out, _ = self._run("empty", directory, options | {"name": name})
        return EmptyReport(**_with_files(json.loads(out)))

    def info(self, directory: Path, name: str, **options: Option) -> InfoReport:
        """The depth that go-diskqueue sees at open. The directory stays as it is."""
        out, _ = self._run("info", directory, options | {"name": name})
        return InfoReport(**_with_files(json.loads(out)))

    def bench(self, what: str, directory: Path, timeout: float = 600, **options: Option) -> dict[str, Any]:
        """Measure `put`, `get`, `putget`, `latency` or `syncput` in the Go process itself.

        What is returned is the median round of `repeat_open=` (`rate` in messages per second,
        `seconds`, `cpu_seconds`; latencies in `..._us`), the `options` used and all `rounds`.
        """
        out, _ = self._run("bench", directory, options, verb=[what], timeout=timeout)
        report: dict[str, Any] = json.loads(out)
        return report

    def _take(self, command: str, directory: Path, name: str, options: dict[str, Option]) -> GetReport:
        out, err = self._run(command, directory, options | {"name": name})
        report = _with_files(json.loads(err))
        bodies = _bodies(out)
        assert report.pop("count") == len(bodies)
        return GetReport(bodies=bodies, **report)

    def _run(
        self,
        command: str,
        directory: Path,
        options: dict[str, Option],
        *,
        verb: Iterable[str] = (),
        stdin: bytes = b"",
        timeout: float = 120,
    ) -> tuple[bytes, bytes]:
        flags = [_flag(name, value) for name, value in {"dir": str(directory), **options}.items()]
        done = subprocess.run(
            [self.program, "nsq", command, *verb, *flags],
            input=stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode != 0:
            raise GoPeerError(done.stderr.decode(errors="replace").strip())
        return done.stdout, done.stderr


def _flag(name: str, value: Option) -> str:
    if isinstance(value, bool):
        value = str(value).lower()
    elif name == "sync_timeout":
        value = f"{value}s"
    return f"--{name.replace('_', '-')}={value}"


def _with_files(report: dict[str, Any]) -> dict[str, Any]:
    return report | {"files": {file["name"]: file["size"] for file in report["files"]}}


def _frames(bodies: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


def _bodies(stream: bytes) -> list[bytes]:
    bodies, at = [], 0
    while at < len(stream):
        (size,) = struct.unpack_from(">I", stream, at)
        bodies.append(stream[at + 4 : at + 4 + size])
        at += 4 + size
    return bodies

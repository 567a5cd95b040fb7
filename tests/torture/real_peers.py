"""The programs whose files diskq shares, as writers that come first after a crash.

    for peer in real_peers(list(PEERS)):            # those that are there
        peer.write(directory, 30, "PEER", dies=False)
        peer.read(copy of the directory)

go-diskqueue is a module of the Go proxy, and built here. The proxy has neither go-diskq nor sej:
`DISKQ_PEER_GO_DISKQ` and `DISKQ_PEER_SEJ` name programs that write and read with them:

    PROGRAM write DIRECTORY COUNT PREFIX close|die      messages "PREFIX 0", "PREFIX 1" ...; `die`: no close
    PROGRAM read DIRECTORY                              each message in hex, on a line of its own
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.compat.go_peer import GoPeer, GoPeerError
from tests.compat.golang import GoUnavailableError

__all__ = ["PEERS", "Peer", "PeerError", "real_peers"]

PEERS = {"go-diskqueue": "queue", "go-diskq": "stream", "sej": "journal"}
"""The peers, and diskq's kind with the same files."""

_PROGRAMS = {"go-diskq": "DISKQ_PEER_GO_DISKQ", "sej": "DISKQ_PEER_SEJ"}
QUEUE = "events"
_AT_MOST = 5
"""Seconds for one run of a peer."""


class PeerError(Exception):
    """The peer refused: what it printed."""


@dataclass(frozen=True)
class Peer:
    """The program of one peer."""

    name: str
    kind: str
    program: Path

    def write(self, directory: Path, count: int, prefix: str, *, dies: bool) -> None:
        """Write messages `PREFIX 0` and so on, and close or exit without closing. Raises PeerError."""
        if self.name == "go-diskqueue":
            bodies = [b"%s %d" % (prefix.encode(), number) for number in range(count)]
            try:
                GoPeer(self.program).put(directory, QUEUE, bodies, abandon=dies)
            except GoPeerError as refusal:
                raise PeerError(str(refusal)) from None
            return
        self._run("write", str(directory), str(count), prefix, "die" if dies else "close")

    def read(self, directory: Path) -> list[bytes]:
        """Return what the peer itself still reads; it may change the directory. Raises PeerError."""
        if self.name == "go-diskqueue":
            try:
                return GoPeer(self.program).get(directory, QUEUE).bodies
            except GoPeerError as refusal:
                raise PeerError(str(refusal)) from None
        return [bytes.fromhex(line) for line in self._run("read", str(directory)).split()]

    def _run(self, *arguments: str) -> str:
        command = [str(self.program), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_AT_MOST, check=False)
        except subprocess.TimeoutExpired as endless:
            if arguments[0] != "read":
                raise PeerError(f"no end after {_AT_MOST} s") from None
            return _whole_lines(endless.stdout or b"")
        if done.returncode != 0 and arguments[0] != "read":
            raise PeerError(done.stderr.decode().strip()[-300:])
        return _whole_lines(done.stdout)  # a reader that meets damage has printed what came before it


def _whole_lines(printed: bytes) -> str:
    return printed[: printed.rfind(b"\n") + 1].decode()


def real_peers(names: list[str]) -> Iterator[Peer | str]:
    """Yield the peers that are there, and of each other one why it is left out, in a sentence."""
    for name in names:
        try:
            program = GoPeer.build().program if name == "go-diskqueue" else _named(_PROGRAMS[name])
        except GoUnavailableError as reason:
            yield f"{name}: left out: {reason}"
        else:
            yield Peer(name, PEERS[name], program)


def _named(variable: str) -> Path:
    program = os.environ.get(variable)
    if not program:
        raise GoUnavailableError(f"{variable} names no program")
    if shutil.which(program) is None:
        raise GoUnavailableError(f"{variable} names {program}, which is no program that can be run")
    return Path(program).absolute()

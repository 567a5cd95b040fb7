# A killed directory, and what is done to it. Law: the same directory, case and seed do the same.

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from diskq.storage.repairs import Repair, RepairKind
from tests.torture.dying import DyingDisk
from tests.torture.killed_kinds import KINDS, Kind, beside
from tests.torture.killed_making import TEMPLATES, Template
from tests.torture.killed_peers import Written

__all__ = ["DAMAGES", "Done", "File", "Killed", "damage", "load", "make"]

_THEIRS = 10**6
"""A peer's numbers begin here."""
_PEERS = 40

DAMAGES: dict[str, int] = {
    "none": 1,
    "flip": 12,
    "empty": 4,
    "remove": 4,
    "cut": 4,
    "zeros": 2,
    "garbage": 2,
    "peer": 8,
    "ours": 3,
    "die": 3,
    "peer+die": 4,
    "peer+flip": 3,
    "peer+empty": 2,
    "peer+remove": 2,
}
"""What is done to a directory, and how often. `ours` is diskq as another writer, which does not see `.diskq`;
behind a peer only what its program does not read is damaged, as nothing vouches for what it wrote. `die`: an
open of diskq is killed, too, before one of its calls."""

# --- what was killed --------------------------------------------------------------------------------


class File(NamedTuple):
    path: str
    content: bytes | None
    """None: a directory."""
    link: str | None
    """The other name of the same file."""


@dataclass(frozen=True)
class Killed:
    """A directory as a killed process left it."""

    name: str
    how: Template
    files: list[File]
    sent: frozenset[int]
    tried: frozenset[int]
    consumed: frozenset[int]

    @property
    def kind(self) -> Kind:
        return KINDS[self.how.kind]

    def lay(self, directory: Path) -> None:
        directory.mkdir()
        for path, content, link in self.files:
            if content is None:
                (directory / path).mkdir()
            elif link is not None:
                os.link(directory / link, directory / path)
            else:
                (directory / path).write_bytes(content)


def make(names: Sequence[str], place: Path) -> None:
    """By processes of their own: each is killed."""
    place.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in names if not (place / name / "life.json").exists()]
    if wanted:
        for name in wanted:
            shutil.rmtree(place / name, ignore_errors=True)
        subprocess.run(
            [sys.executable, "-m", "tests.torture.killed_making", str(place), *wanted],
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )


def load(name: str, place: Path) -> Killed:
    told = json.loads((place / name / "life.json").read_text())
    root = place / name / "files"
    files, names = [], dict[int, str]()
    for path in sorted(root.rglob("*")):
        own = str(path.relative_to(root))
        inode = path.stat().st_ino
        if path.is_dir():
            files.append(File(own, None, None))
        else:
            files.append(File(own, path.read_bytes(), names.get(inode)))
            names.setdefault(inode, own)
    sent, tried, consumed = (frozenset(told[word]) for word in ("sent", "tried", "consumed"))
    return Killed(name, TEMPLATES[name], files, sent, tried, consumed)


# --- what is done to it -----------------------------------------------------------------------------


@dataclass
class Done:
    what: str
    written: Written
    hits_peer_files: bool
    """True if a file is damaged that the peer reads."""
    hides_ours: bool
    """True if the peer wrote, and then the checksums are damaged that tell which records are ours."""
    repairs: list[Repair]
    """What an open in between reported."""


def damage(killed: Killed, files: Path, group: str, rng: random.Random) -> Done:
    """Do it. All of it is told by `rng`."""
    who, _, how = group.rpartition("+") if "+" in group else (group, "", "")
    written, told = Written([], [], ""), []
    if who in ("peer", "ours"):
        numbers = [_THEIRS + number for number in range(rng.randint(1, _PEERS))]
        if who == "peer" and killed.kind.peer is not None:
            written = killed.kind.peer(files, numbers, rng)
        else:
            beside(files, lambda place: killed.kind.ours(place, killed.how, numbers, None))
            written = Written(numbers, [], f"diskq without .diskq appends {len(numbers)}")
        told.append(written.what)
    else:
        how = group
    is_hit = is_hidden = False
    repairs: list[Repair] = []
    if how == "die":
        what, repairs = _die(killed, files, rng.randint(1, 40))
        told.append(what)
    elif how and how != "none":
        paths = sorted(str(path.relative_to(files)) for path in files.rglob("*") if path.is_file())
        if who == "peer":
            paths = [path for path in paths if not killed.kind.has_peer_files(path)]
        if how in ("flip", "cut", "empty"):
            paths = [path for path in paths if (files / path).stat().st_size]
        if paths:
            path = rng.choice(paths)
            is_hit = killed.kind.has_peer_files(path)
            is_hidden = who == "peer" and path.endswith(("wal", ".sums"))
            told.append(_hurt(files / path, how, rng) + f" {path}")
    return Done(", then ".join(told) or "nothing", written, is_hit, is_hidden, repairs)


class _Told(logging.Handler):
    """Writes each repair that is logged into a pipe, at once: what was told before a kill was told."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        its = vars(record)
        if its.get("diskq_event") == "repair":
            told = Repair(
                path=its["diskq_path"],
                kind=RepairKind(its["diskq_kind"]),
                kept=its["diskq_offset"],
                dropped=its["diskq_dropped_bytes"],
                reason=its["diskq_reason"],
                records=its.get("diskq_count"),
                saved_as=its.get("diskq_saved_as"),
            )
            os.write(self._pipe, pickle.dumps(told))


def _die(killed: Killed, files: Path, nth: int) -> tuple[str, list[Repair]]:
    """Open it in a process that is killed, if it makes so many calls; returns what it told until then."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            logging.disable(logging.NOTSET)
            logger = logging.getLogger("diskq")
            logger.addHandler(_Told(writing))
            logger.propagate = False
            killed.kind.ours(files, killed.how, [], DyingDisk(nth))
            os.write(writing, pickle.dumps(None))
        finally:
            os._exit(1)
    os.close(writing)
    repairs: list[Repair] = []
    end = "killed at"
    with open(reading, "rb") as pipe, contextlib.suppress(EOFError):
        while (told := pickle.load(pipe)) is not None:
            repairs.append(told)
        end = "whole before"
    os.waitpid(child, 0)
    return f"an open and close were {end} call {nth}", repairs


def _hurt(path: Path, how: str, rng: random.Random) -> str:
    if how == "remove":
        path.unlink()
        return "removed"
    content = path.read_bytes()
    used = len(content.rstrip(b"\0"))
    at = rng.randrange(min(len(content), used + 16) if content and rng.random() < 0.8 else len(content) or 1)
    if how == "flip":
        mask = rng.choice((0xFF, 1 << rng.randrange(8)))
        damaged, what = (
            content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :],
            f"byte {at} ^ {mask:#04x} of",
        )
    elif how == "empty":
        damaged, what = b"", "emptied"
    elif how == "cut":
        damaged, what = content[:at], f"cut to {at} of {len(content)} bytes,"
    elif how == "zeros":
        count = rng.choice((1, 4, 24, 512, 4096))
        damaged, what = content + bytes(count), f"{count} zeros behind"
    else:
        count = rng.choice((1, 7, 100, 5000))
        damaged, what = content + rng.randbytes(count), f"{count} bytes of garbage behind"
    path.write_bytes(damaged)
    before = time.time() - 3600
    os.utime(path, (before, before))
    return what

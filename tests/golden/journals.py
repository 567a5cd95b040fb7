# The journals that sej left, for whoever wants one: its directory to work on, and its own account.

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from diskq.messages import JournalMessage

__all__ = ["JOURNALS", "Told", "case", "every_journal", "golden_journal", "told_of"]

HERE = Path(__file__).parent / "sej"
JOURNALS = sorted(path.name for path in HERE.iterdir() if path.is_dir() and path.name != "shards")

every_journal = pytest.mark.parametrize("name", JOURNALS)


class Told(NamedTuple):
    """A message, as the accounts tell of it: of the value its length and hash."""

    offset: int
    timestamp_ns: int | None
    type: int
    key: bytes
    size: int
    sha256: str


@dataclass(frozen=True)
class Case:
    """One golden journal, or several: shards."""

    name: str
    manifest: dict[str, Any]

    @property
    def files(self) -> dict[str, tuple[int, str]]:
        """Of each file its size and hash."""
        return _files(self.manifest["files"])

    @property
    def files_after(self) -> dict[str, tuple[int, str]]:
        """The same, when sej had opened it, twice if need be, and closed it."""
        return _files(self.manifest["go_reopen"]["files_after"])

    @property
    def put(self) -> list[Told]:
        """Every message that was appended, in that order."""
        return [_told(message) for message in self.manifest["put"]]

    @property
    def shards(self) -> dict[int, list[Told]]:
        """The same, by the shard that each went to."""
        found: dict[int, list[Told]] = {}
        for message in self.manifest["put"]:
            found.setdefault(message["shard"], []).append(_told(message))
        return found

    @property
    def next_offset(self) -> int:
        """Where sej goes on, when it has repaired what it finds."""
        (told,) = [value for value in self.manifest["go_reopen"].values() if isinstance(value, dict)]
        return int(told["next_offset"])

    @property
    def scanned(self) -> list[Told]:
        """What sej's own scanner found."""
        return [_told(message) for message in self.manifest["go_scan"].get("messages", [])]

    @property
    def offsets(self) -> dict[str, int]:
        return dict(self.manifest.get("offsets", {}))


def case(name: str) -> Case:
    return Case(name, json.loads((HERE / name / "manifest.json").read_text(encoding="utf-8")))


def golden_journal(name: str, directory: Path) -> Path:
    """A copy of it, in `directory`: the files lie in the repository, and nobody opens them there."""
    return Path(shutil.copytree(HERE / name / "data", directory / name))


def told_of(messages: Iterable[JournalMessage]) -> list[Told]:
    """What an account would tell of messages."""
    return [
        Told(m.offset, m.timestamp_ns, m.type, m.key, len(m.value), hashlib.sha256(m.value).hexdigest())
        for m in messages
    ]


def _files(told: list[dict[str, Any]]) -> dict[str, tuple[int, str]]:
    return {file["path"]: (file["size"], file["sha256"]) for file in told}


def _told(message: dict[str, Any]) -> Told:
    return Told(
        message["offset"],
        message["ts_ns"],
        message["type"],
        bytes.fromhex(message["key_hex"]),
        message["len"],
        message["sha256"],
    )

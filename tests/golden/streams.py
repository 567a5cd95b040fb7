# The streams that go-diskq left, for whoever wants one: its directory to work on, and its own account.

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

__all__ = ["STREAMS", "Lookup", "Told", "case", "every_stream", "golden_stream", "hash_vectors", "told_of"]

HERE = Path(__file__).parent / "diskq"
STREAMS = sorted(path.name for path in HERE.iterdir() if path.is_dir())

every_stream = pytest.mark.parametrize("name", STREAMS)


class Told(NamedTuple):
    """A message, as the accounts tell of it: of the value its length and hash."""

    partition: int
    offset: int
    timestamp_ns: int
    key: bytes
    size: int
    sha256: str


class Lookup(NamedTuple):
    """What GetOffsetAfter answered to a question. None: not found."""

    partition: int
    when: int
    offset: int | None


@dataclass(frozen=True)
class Case:
    """One golden stream."""

    name: str
    manifest: dict[str, Any]

    @property
    def files(self) -> dict[str, tuple[int, str]]:
        """Of each file its size and hash."""
        return {file["path"]: (file["size"], file["sha256"]) for file in self.manifest["files"]}

    @property
    def settings(self) -> dict[str, int]:
        return dict(self.manifest["go"]["MaybeReadOptions"]["options"])

    @property
    def segments(self) -> dict[int, list[int]]:
        """The base offsets in each partition."""
        partitions = self.manifest["go"]["partitions"]
        return {int(name): list(told["segments"]) for name, told in partitions.items()}

    @property
    def pushed(self) -> list[Told]:
        """Every message that was pushed, in that order."""
        return [_told(message) for message in self.manifest["put"]]

    @property
    def messages(self) -> dict[int, list[Told]]:
        """What a correct reader finds: all that was pushed and not vacuumed away."""
        found: dict[int, list[Told]] = {partition: [] for partition in self.segments}
        for message in self.pushed:
            if message.offset >= self.segments[message.partition][0]:
                found[message.partition].append(message)
        return found

    @property
    def found_by_the_peer(self) -> dict[int, list[Told]]:
        """What go-diskq itself found: less, where it meets its own damage."""
        partitions = self.manifest["go"]["partitions"]
        return {
            int(name): [_told(message) for message in told["Read"] or []] for name, told in partitions.items()
        }

    @property
    def lookups(self) -> list[Lookup]:
        """What GetOffsetAfter answered; 0 in a segment of one message, wherever that begins."""
        return [
            Lookup(asked["partition"], asked["after_ns"], asked["offset"] if asked["found"] else None)
            for asked in self.manifest.get("GetOffsetAfter", [])
        ]

    @property
    def statistics(self) -> dict[str, Any]:
        """What GetStats told."""
        return dict(self.manifest["go"]["GetStats"])


def case(name: str) -> Case:
    return Case(name, json.loads((HERE / name / "manifest.json").read_text(encoding="utf-8")))


def golden_stream(name: str, directory: Path) -> Path:
    """A copy of the stream, in `directory`: the files lie in the repository, and nobody opens them there."""
    return Path(shutil.copytree(HERE / name / "data", directory / name))


def hash_vectors() -> list[tuple[bytes, int]]:
    """Keys, and their hashes according to Go."""
    vectors = json.loads((HERE / "hash_vectors.json").read_text(encoding="utf-8"))
    return [(bytes.fromhex(vector["key_hex"]), vector["fnv1_32"]) for vector in vectors]


def told_of(messages: Iterable[tuple[int, int, int, bytes, bytes]]) -> list[Told]:
    """What an account would tell of messages: partition, offset, timestamp, key, value."""
    return [
        Told(partition, offset, timestamp_ns, key, len(value), hashlib.sha256(value).hexdigest())
        for partition, offset, timestamp_ns, key, value in messages
    ]


def _told(message: dict[str, Any]) -> Told:
    return Told(
        message["partition"],
        message["offset"],
        message["ts_ns"],
        bytes.fromhex(message["key_hex"]),
        message["len"],
        message["sha256"],
    )

# The private files of a spool: what they are called, and what they say. Law: none of them holds a message,
# and whichever of them is lost or rotten, no message is: some may be delivered again.
#
#     spool.note    where the head is and how often its batch was tried: overwritten in place for each
#                   batch, without a sync, so that it outlives the process and costs next to nothing
#     spool.state   everything else: replaced when something changes, at most about once a second
#
# Format: docs/format/spool.md.

from __future__ import annotations

import dataclasses
import json
import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from diskq.engine.queue.files import QueuePosition
from diskq.storage.barrier import Replacement
from diskq.storage.checksums import checksum
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path, join
from diskq.storage.numbered_files import private_path
from diskq.storage.small_file import CHECK_SIZE, checked, is_checked, read_small

__all__ = [
    "DEAD",
    "SPOOL",
    "Note",
    "SpoolFiles",
    "SpoolState",
    "SpoolStatus",
    "Trace",
    "read_note",
    "read_state",
    "spool_status",
]

SPOOL, DEAD = "spool", "dead"
"""The queues in a spool's directory: what waits to be delivered, and what never will be."""

VERSION = 1
# More than a state of ours ever takes.
_LARGEST_STATE = 64 * 1024 * 1024
_NOTE = struct.Struct("<8sqqqqqqqqII")
_MAGIC = b"dqspool\x01"
# So much of a message is enough to tell it from another at the same place.
_TRACED = 1024


class SpoolFiles:
    """The paths of one spool in its directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.private = join(path, private_path("", "").strip("/"))
        self.note = private_path(path, f"{SPOOL}.note")
        self.state = private_path(path, f"{SPOOL}.state")

    def state_as(self, state: SpoolState) -> Replacement:
        return Replacement(self.state, state.render(), lambda number: f"{self.state}.{number}.tmp")

    def leftovers(self, fs: FileSystem) -> list[str]:
        """Temporary files that a crash left."""
        start = f"{SPOOL}.state."
        names = fs.list_directory(self.private)
        return [
            join(self.private, name) for name in names if name.startswith(start) and name.endswith(".tmp")
        ]


# --- the note -------------------------------------------------------------------------------------


class Trace(NamedTuple):
    """What tells a message from another one at the same place."""

    size: int
    check: int

    @classmethod
    def of(cls, body: bytes) -> Trace:
        return cls(len(body), checksum(body[:_TRACED]))


class Note(NamedTuple):
    """Where the head of a spool is, and what is known of the batch there."""

    head: QueuePosition
    """Just behind the last message that has left."""
    trace: Trace
    """That message's; of size -1 where none has."""
    end: QueuePosition
    """Just behind the last message of the batch that is being tried."""
    items: int
    """How many messages the batch has; 0: none is being tried."""
    attempts: int
    """How often it was tried, the try that is under way included."""

    excused: int
    """Of these, such as failed because of messages that are dead letters by now."""

    def pack(self) -> bytes:
        numbers = (*self.head, self.trace.size, *self.end, self.items, self.attempts, self.excused)
        row = _NOTE.pack(_MAGIC, *numbers, self.trace.check, 0)[:-4]
        return row + checksum(row).to_bytes(4, "little")

    @classmethod
    def unpack(cls, row: bytes) -> Note | None:
        """None for bytes that are no note, or a torn or rotten one."""
        if len(row) != _NOTE.size or checksum(row[:-4]) != int.from_bytes(row[-4:], "little"):
            return None
        magic, file, byte, size, end_file, end_byte, items, attempts, excused, check, _ = _NOTE.unpack(row)
        if magic != _MAGIC:
            return None
        head, end = QueuePosition(file, byte), QueuePosition(end_file, end_byte)
        return cls(head, Trace(size, check), end, items, attempts, excused)


def read_note(fs: FileSystem, files: SpoolFiles) -> Note | None:
    """None where there is none, or none that can be believed. Raises OSError."""
    return Note.unpack(read_small(fs, files.note, _NOTE.size) or b"")


# --- the state ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStatus:
    """A spool as it described itself last. For people: nothing is decided by it."""

    written_at: float = 0.0
    """When, in seconds since the Unix epoch."""
    depth: int = 0
    """Messages that wait to be delivered."""
    bytes: int = 0
    """On disk, the dead letters not among them."""
    accepted_at: float | None = None
    """When the oldest of them was accepted, in seconds since the Unix epoch; None: there is none."""
    delivered: int = 0
    """Since it was opened, as the next two."""
    buried: int = 0
    """Messages that became dead letters."""
    failed_tries: int = 0
    dead_letters: int = 0
    """How many there are."""
    failures: int = 0
    """In a row, to this moment."""
    attempts: int = 0
    """Tries of the first batch so far."""
    last_error: str | None = None
    """What the last failure said; None where the last try was a success, or there was none."""
    is_paused: bool = False
    """By hand, or because too many tries in a row failed."""
    next_try_at: float | None = None
    """Not before then, in seconds since the Unix epoch; None: at once, or when it is resumed."""
    arrival_rate: float = 0.0
    """Messages accepted a second, of late."""
    delivery_rate: float = 0.0
    """Messages delivered a second, of late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolState:
    """What a spool remembers from one process to the next, beside its messages."""

    is_open: bool
    """Was it being used when this was written? Then positions behind `tail` may have been given out."""
    tail: QueuePosition
    """Where the next message was to be."""
    epochs: tuple[tuple[QueuePosition, str], ...] = ()
    """From each place on, the first part of the messages' ids."""
    times: tuple[tuple[QueuePosition, float], ...] = ()
    """From each place on, messages were accepted at this time or later (seconds since the Unix epoch)."""
    buried: tuple[QueuePosition, ...] = ()
    """Messages of the first batch that are dead letters already: the places just behind them."""
    status: SpoolStatus = field(default_factory=SpoolStatus)

    def render(self) -> bytes:
        content = {
            "version": VERSION,
            "is_open": self.is_open,
            "tail": self.tail,
            "epochs": [[*place, name] for place, name in self.epochs],
            "times": [[*place, seconds] for place, seconds in self.times],
            "buried": self.buried,
            "status": dataclasses.asdict(self.status),
        }
        return checked(json.dumps(content, ensure_ascii=True).encode() + b"\n")

    @classmethod
    def parse(cls, content: bytes) -> SpoolState | None:
        """None for bytes that no spool wrote, and for those of a later version."""
        if not is_checked(content, len(content) - CHECK_SIZE):
            return None
        try:
            found = json.loads(content[:-CHECK_SIZE])
            if found["version"] != VERSION:
                return None
            return cls(
                is_open=bool(found["is_open"]),
                tail=QueuePosition(*map(int, found["tail"])),
                epochs=tuple((QueuePosition(int(f), int(b)), str(name)) for f, b, name in found["epochs"]),
                times=tuple((QueuePosition(int(f), int(b)), float(at)) for f, b, at in found["times"]),
                buried=tuple(QueuePosition(int(f), int(b)) for f, b in found["buried"]),
                status=_status(found["status"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None


def _status(found: dict[str, Any]) -> SpoolStatus:
    """What is known by now of the fields there are."""
    known = {field.name for field in dataclasses.fields(SpoolStatus)}
    return SpoolStatus(**{name: value for name, value in found.items() if name in known})


def read_state(fs: FileSystem, files: SpoolFiles) -> SpoolState | None:
    """None where there is none, or none that can be believed. Raises OSError."""
    return SpoolState.parse(read_small(fs, files.state, _LARGEST_STATE) or b"")


def spool_status(path: AnyPath, *, fs: FileSystem | None = None) -> SpoolStatus | None:
    """What the spool at `path` last said of itself, whoever has it open: files are read, none is taken.

    While it is in use that is at most about a second old. None: nothing that could be read. Raises OSError.
    """
    state = read_state(fs or OsFileSystem(), SpoolFiles(as_path(path)))
    return None if state is None else state.status

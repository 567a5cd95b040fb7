# The private files of a spool: their names, and their content. Law: none of them holds a message, and if one
# of them is lost or rotten, no message is lost: some may be delivered again.
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

from diskq.engine.queue.files import QueueFiles, QueuePosition
from diskq.errors import NotFoundError
from diskq.storage.barrier import Replacement, read_small
from diskq.storage.checksums import CHECK_SIZE, checked, checksum, is_checked
from diskq.storage.directories import make_directories
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path, join
from diskq.storage.numbered_files import private_path
from diskq.storage.slots import slots_in

__all__ = [
    "ADOPTING",
    "DEAD",
    "SPOOL",
    "Note",
    "SpoolFiles",
    "SpoolState",
    "SpoolStatus",
    "Trace",
    "is_left_behind",
    "make_or_find",
    "read_note",
    "read_state",
    "spool_status",
]

SPOOL, DEAD = "spool", "dead"
"""The queues in a spool's directory: the messages to be delivered, and the dead letters."""

ADOPTING = 5.0
"""Seconds between two looks of a process for slots of dead ones."""

VERSION = 1
# More than a state that diskq wrote ever takes.
_LARGEST_STATE = 64 * 1024 * 1024
_NOTE = struct.Struct("<8sqqqqqqqqII")
_MAGIC = b"dqspool\x01"
# The part of a message whose checksum identifies it among messages at the same place, in bytes.
_TRACED = 1024


def make_or_find(fs: FileSystem, path: str, *, create: bool, slots: bool = False) -> None:
    """Make a spool's directory; without `create`, raise NotFoundError if there is no spool, or no slot."""
    if create:
        make_directories(fs, path)
    elif not (slots_in(fs, path) if slots else QueueFiles(fs, path, SPOOL).exist()):
        raise NotFoundError.with_create_false("spool", path)


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
        """Return temporary files that a crash left."""
        start = f"{SPOOL}.state."
        names = fs.list_directory(self.private)
        return [
            join(self.private, name) for name in names if name.startswith(start) and name.endswith(".tmp")
        ]


# --- the note -------------------------------------------------------------------------------------


class Trace(NamedTuple):
    """The size and checksum that identify a message among those at the same place."""

    size: int
    check: int

    @classmethod
    def of(cls, body: bytes) -> Trace:
        return cls(len(body), checksum(body[:_TRACED]))


class Note(NamedTuple):
    """Where the head of a spool is, and the state of the batch there."""

    head: QueuePosition
    """The place just after the last message that has left."""
    trace: Trace
    """That message's trace; of size -1 if no message has left."""
    end: QueuePosition
    """The place just after the last message of the batch that is being tried."""
    items: int
    """The number of messages in the batch; 0: none is being tried."""
    attempts: int
    """How often it was tried, the present try included."""

    excused: int
    """The number of tries that failed because of messages that are dead letters by now."""

    def pack(self) -> bytes:
        numbers = (*self.head, self.trace.size, *self.end, self.items, self.attempts, self.excused)
        row = _NOTE.pack(_MAGIC, *numbers, self.trace.check, 0)[:-4]
        return row + checksum(row).to_bytes(4, "little")

    @classmethod
    def unpack(cls, row: bytes) -> Note | None:
        """Parse a note. None for bytes that are none, or a torn or rotten one."""
        if len(row) != _NOTE.size or checksum(row[:-4]) != int.from_bytes(row[-4:], "little"):
            return None
        magic, file, byte, size, end_file, end_byte, items, attempts, excused, check, _ = _NOTE.unpack(row)
        if magic != _MAGIC:
            return None
        head, end = QueuePosition(file, byte), QueuePosition(end_file, end_byte)
        return cls(head, Trace(size, check), end, items, attempts, excused)


def read_note(fs: FileSystem, files: SpoolFiles) -> Note | None:
    """Return the note; None if there is none, or none that can be believed. Raises OSError."""
    return Note.unpack(read_small(fs, files.note, _NOTE.size) or b"")


# --- the state ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStatus:
    """The last status that a spool wrote. For people: nothing is decided by it."""

    written_at: float = 0.0
    """The time of this status, in seconds since the Unix epoch."""
    depth: int = 0
    """Messages that wait to be delivered."""
    bytes: int = 0
    """Bytes on disk, without the dead letters."""
    accepted_at: float | None = None
    """When the oldest of them was accepted, in seconds since the Unix epoch; None if there is none."""
    delivered: int = 0
    """Messages delivered since it was opened; the next two count since then, too."""
    buried: int = 0
    """Messages that became dead letters."""
    failed_tries: int = 0
    dead_letters: int = 0
    """The number of dead letters there are."""
    failures: int = 0
    """Failures in a row, up to this moment."""
    attempts: int = 0
    """Tries of the first batch so far."""
    last_error: str | None = None
    """The text of the last failure; None if the last try was a success, or there was none."""
    is_paused: bool = False
    """True if it was paused by a call, or because too many tries in a row failed."""
    next_try_at: float | None = None
    """The next try is not before this time (Unix, seconds); None: at once, or when it is resumed."""
    arrival_rate: float = 0.0
    """Messages accepted a second, recently."""
    delivery_rate: float = 0.0
    """Messages delivered a second, recently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolState:
    """What a spool remembers from one process to the next, apart from its messages."""

    is_open: bool
    """True if it was in use when this was written. Then positions after `tail` may have been used."""
    tail: QueuePosition
    """The place of the next message."""
    epochs: tuple[tuple[QueuePosition, str], ...] = ()
    """The first part of the messages' ids, from each place on."""
    times: tuple[tuple[QueuePosition, float], ...] = ()
    """From each place on, messages were accepted at this time or later (seconds since the Unix epoch)."""
    buried: tuple[QueuePosition, ...] = ()
    """Messages of the first batch that are dead letters already: the places just after them."""
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
        """Parse a state. None for bytes that no spool wrote, and for a later version's."""
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
    """Return the status. Fields that this version does not know are left out."""
    known = {field.name for field in dataclasses.fields(SpoolStatus)}
    return SpoolStatus(**{name: value for name, value in found.items() if name in known})


def read_state(fs: FileSystem, files: SpoolFiles) -> SpoolState | None:
    """Return the state; None if there is none, or none that can be believed. Raises OSError."""
    return SpoolState.parse(read_small(fs, files.state, _LARGEST_STATE) or b"")


def is_left_behind(fs: FileSystem, path: str) -> bool:
    """True if the spool at `path` has messages, or may have, unless a process has it open. Raises OSError."""
    state = read_state(fs, SpoolFiles(path))
    return state is not None and (state.is_open or state.status.depth > 0)


def spool_status(path: AnyPath, *, fs: FileSystem | None = None) -> SpoolStatus | None:
    """Return the last status that the spool at `path` wrote, also while it is in use: files are only read.

    While it is in use the status is up to about a second old. None if nothing could be read. Raises OSError.
    """
    state = read_state(fs or OsFileSystem(), SpoolFiles(as_path(path)))
    return None if state is None else state.status

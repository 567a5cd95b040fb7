# Samples of a store at one moment. Law: what its files do not show is None, never a made-up value.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from diskq.storage.fs import FileSystem
from diskq.storage.lock import Holder
from diskq.storage.numbered_files import set_aside_from
from diskq.storage.status_file import StatusNote, read_status
from diskq.tools.stores import Store

__all__ = ["Aside", "Sample", "SamplePart", "own_status"]

# What seldom changes is looked for once in this many samples.
_SELDOM = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePart:
    """A reader of a stream or a journal, or one queue of a store."""

    name: str
    lag: int | None
    """Messages that the reader has not processed, or that the queue of a store holds."""
    done: int | None = None
    """A counter: its growth is the number of messages that were processed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A store at one moment. Sizes in bytes.

    `messages_in`, `messages_out`, `bytes_in` and `bytes_out` are counters: only their differences have a
    meaning.
    """

    store: Store
    at: float
    """Seconds, on a clock that never steps."""
    holder: str | None = None
    """The process that has it open, in words; None: none, or not known."""
    messages_in: int | None = None
    bytes_in: int | None = None
    messages_out: int | None = None
    """Messages consumed; of a stream or a journal, by all its readers together."""
    bytes_out: int | None = None
    depth: int | None = None
    """Messages in the store."""
    is_exact: bool = True
    """True if `depth` is exact; else it is about right."""
    oldest_ns: int | None = None
    """The time of the oldest message, in nanoseconds since 1970;"""
    is_oldest_exact: bool = True
    """or else the time at which its file was last written."""
    size: int = 0
    """All files."""
    segments: int = 0
    """Files of messages."""
    in_flight: int | None = None
    """Messages of a spool whose delivery is being tried."""
    dead_letters: int | None = None
    """Dead letters of a spool."""
    parts: tuple[SamplePart, ...] = ()
    problems: tuple[str, ...] = ()
    """What the next open will repair, and files of bytes that could not be read, set aside."""
    status: StatusNote | None = None
    """The status of the process that writes it; None: it is a peer's, or has no status (yet)."""


# --- shared by several kinds ----------------------------------------------------------------------


def own_status(fs: FileSystem, path: str, holder: Holder | None, is_open: bool | None) -> StatusNote | None:
    """Return the holder's status, if it is the holder that wrote it. Raises OSError."""
    if holder is None or is_open is False:
        return None
    note = read_status(fs, path)
    return note if note is not None and note.pid == holder.pid else None


class Aside:
    """Files of bytes that could not be read, set aside by repairs. They are looked for now and then."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._samples = 0
        self._found: tuple[str, ...] = ()

    def names(self, directories: Iterable[str]) -> tuple[str, ...]:
        """Return those in the directories, sorted; a directory need not exist. Raises OSError."""
        if self._samples % _SELDOM == 0:
            there = [path for path in directories if self._fs.size_of(path) is not None]
            names = [name for path in there for name in self._fs.list_directory(path)]
            self._found = tuple(sorted(name for name in names if set_aside_from(name) is not None))
        self._samples += 1
        return self._found

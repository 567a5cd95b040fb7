# What is seen of a thing at one moment. Law: what its files do not tell is None, never a made-up value.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from diskq.storage.fs import FileSystem
from diskq.storage.lock import Holder
from diskq.storage.status_file import StatusNote, read_status
from diskq.tools.stores import Store

__all__ = ["Aside", "Sample", "SamplePart", "own_status"]

# What seldom changes is looked for with each so many samples.
_SELDOM = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePart:
    """Who reads a stream or a journal, or one queue of a store."""

    name: str
    lag: int | None
    """Messages that it has not processed; of a queue of a store, those that it holds."""
    done: int | None = None
    """A counter: by so much as it grew, so many messages were processed meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A thing at one moment. Sizes in bytes.

    `messages_in`, `messages_out`, `bytes_in` and `bytes_out` are counters: only their differences say
    something.
    """

    store: Store
    at: float
    """Seconds, on a clock that never steps."""
    holder: str | None = None
    """Who has it, in words; None: nobody, or nobody knows."""
    messages_in: int | None = None
    bytes_in: int | None = None
    messages_out: int | None = None
    """Of a stream or a journal what all its readers together processed."""
    bytes_out: int | None = None
    depth: int | None = None
    """Messages that are there."""
    is_exact: bool = True
    """Else `depth` is about right."""
    oldest_ns: int | None = None
    """When the oldest message there is from, in nanoseconds since 1970;"""
    is_oldest_exact: bool = True
    """or else when the file was written last that holds it."""
    size: int = 0
    """All files."""
    segments: int = 0
    """Files of messages."""
    in_flight: int | None = None
    """Of a spool: messages whose delivery is being tried."""
    dead_letters: int | None = None
    """Of a spool."""
    parts: tuple[SamplePart, ...] = ()
    problems: tuple[str, ...] = ()
    """What the next open will mend, and files of bytes that could not be read, set aside."""
    status: StatusNote | None = None
    """What the process that writes it says of itself; None: it is a peer's, or says nothing (yet)."""


# --- what several kinds have ----------------------------------------------------------------------


def own_status(fs: FileSystem, path: str, holder: Holder | None, is_open: bool | None) -> StatusNote | None:
    """What the holder says of itself, if it is he who said it. Raises OSError."""
    if holder is None or is_open is False:
        return None
    note = read_status(fs, path)
    return note if note is not None and note.pid == holder.pid else None


class Aside:
    """Files of bytes that nobody could read, set aside by repairs. They are looked for now and then."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._samples = 0
        self._found: tuple[str, ...] = ()

    def names(self, directories: Iterable[str]) -> tuple[str, ...]:
        """Those in the directories, sorted; a directory need not be there. Raises OSError."""
        if self._samples % _SELDOM == 0:
            there = [path for path in directories if self._fs.size_of(path) is not None]
            names = [name for path in there for name in self._fs.list_directory(path)]
            self._found = tuple(sorted(name for name in names if ".bad" in name))
        self._samples += 1
        return self._found

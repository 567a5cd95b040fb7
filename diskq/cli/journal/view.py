# A journal as its files show it. Law: read only: no lock is taken, no file is made or changed.

from __future__ import annotations

import os

from diskq.cli.core.directories import check_directory
from diskq.cli.core.parsing import CommandError
from diskq.cli.core.places import Moment, Place
from diskq.engine.journal.reader import JournalReader
from diskq.engine.journal.time_lookup import JournalTimes
from diskq.errors import NotFoundError

__all__ = ["JOURNALS_OWN", "check_journal", "file_at", "is_a_journal", "offset_at"]

JOURNALS_OWN = {"jnl", "jnl.lck", "ofs", ".diskq"}
"""Names that an interrupted first open leaves."""


def is_a_journal(path: str) -> bool:
    with JournalReader(path) as reader:
        try:
            return bool(reader.files.bases())
        except NotFoundError:
            return False


def check_journal(path: str, advice: str = "") -> None:
    """Raises CommandError unless there is a journal in the directory `path`."""
    check_directory(path, advice)
    if not is_a_journal(path):
        raise CommandError(f"{path}: there is no journal here{advice}")


def offset_at(path: str, place: Place | str) -> int:
    """Return the offset of a place; of a moment, that of the first message that is not earlier.

    Raises CommandError for a place that journals do not have, OSError.
    """
    if isinstance(place, Moment):
        with JournalTimes(path) as times:
            found = times.offset_at_or_after(place.timestamp_ns)
        place = "newest" if found is None else found
    if isinstance(place, int):
        return place
    with JournalReader(path) as reader:
        if place == "oldest":
            return reader.first_offset()
        if place == "newest":
            return reader.next_offset()
        if place == "active":
            return reader.files.bases()[-1]
    raise CommandError(f"{place} is no place in a journal: say oldest, newest, an offset or a time")


def file_at(path: str) -> tuple[str, int, int | None]:
    """Return the journal of a segment's file, its first offset, and the next file's; None if it is the last.

    Raises CommandError if it is no file of a journal, OSError.
    """
    journal = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    check_journal(journal)
    with JournalReader(journal) as reader:
        bases = reader.files.bases()
        for number, base in enumerate(bases):
            if reader.files.data(base) == os.path.abspath(path):
                return journal, base, bases[number + 1] if number + 1 < len(bases) else None
    raise CommandError(f"{path}: no file of the journal {journal}")

"""The words in which the tests of journals' channels speak, beside those of `rig`."""

from __future__ import annotations

from typing import Any

import trio

from diskq.channels.journal.scanner import JournalScanner, open_scanner
from diskq.channels.journal.writer import open_journal
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader import JournalReader
from diskq.messages import JournalMessage
from diskq.options import JournalOptions
from diskq.storage.fs import AnyPath, FileSystem
from diskq.testing import CrashFS
from tests.channels.rig import DIRECTORY

JOURNAL = f"{DIRECTORY}/j"
TURNS = 1000


def writing(fs: FileSystem, path: AnyPath = JOURNAL, **options: Any) -> open_journal:
    return open_journal(path, fs=fs, **options)


def scanning(fs: FileSystem, path: AnyPath = JOURNAL, **how: Any) -> open_scanner:
    return open_scanner(path, fs=fs, **how)


def elsewhere(fs: FileSystem, path: AnyPath = JOURNAL, **options: Any) -> Journal:
    """A writer that no scanner of this run hears of but by the files."""
    return Journal(path, options=JournalOptions(**options), fs=fs)


def filled(fs: FileSystem, count: int, path: AnyPath = JOURNAL, **options: Any) -> None:
    """Make a journal of numbered messages, and close it in order."""
    with elsewhere(fs, path, **options) as journal:
        journal.append_many([b"%d" % number for number in range(count)])


def stored(fs: CrashFS) -> list[JournalMessage]:
    """Return what another process reads while no writer is open."""
    with JournalReader(JOURNAL, fs=fs.copy()) as reader:
        reader.seek_oldest()
        return reader.read_many(10**9)


def recovered(fs: CrashFS) -> list[JournalMessage]:
    """Return what the next writer finds, which puts in place what only the redo log holds."""
    disk = fs.copy()
    elsewhere(disk).close()
    return stored(disk)


def values(messages: list[JournalMessage]) -> list[bytes]:
    return [message.value for message in messages]


def drain(scanner: JournalScanner) -> list[JournalMessage]:
    """Everything that can be received at once."""
    messages = []
    while True:
        try:
            messages.append(scanner.receive_nowait())
        except trio.WouldBlock:
            return messages


async def rest(scanner: trio.abc.ReceiveChannel[JournalMessage]) -> list[JournalMessage]:
    """Everything up to the end."""
    return [message async for message in scanner]

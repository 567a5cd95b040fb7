# Waiting for what another process does to files. Law: who is told looks for himself, and looks once more
# when everything is watched; now and then he looks unasked.
#
# What stands on a write-ahead log is written through a mapping, of which no kernel tells. Its owner writes it
# to the files soon, unless he is killed before.

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from diskq.channels.core.watch import listen
from diskq.storage.fs import FileSystem, OsFileSystem

__all__ = ["UNASKED", "FileSystem", "until"]

UNASKED = 5.0
"""Seconds between looks that no change has asked for."""


async def until(
    look: Callable[[], bool],
    watched: Callable[[FileSystem], tuple[Iterable[str], Iterable[str]]],
) -> None:
    """Return when `look` says so: it is asked now, and when something changes.

    `watched` tells, anew before each look, in which directories names may change, and in which files bytes.
    Raises what both raise. `Cancelled` leaves nothing behind.
    """
    fs = OsFileSystem()
    told = trio.Event()

    def notice(path: str | None) -> bool:
        told.set()
        return False

    listener = listen(fs, notice)
    before: set[str] = set()
    try:
        while True:
            told = trio.Event()
            directories, files = map(set, watched(fs))
            for path in before - directories - files:
                listener.remove(path)
            for path in directories:
                listener.add_directory(path)
            for path in files:
                listener.add_file(path)
            before = directories | files
            if look():
                return
            listener.begin_to_wait()
            with trio.move_on_after(UNASKED):
                await told.wait()
            listener.end_waiting()
    finally:
        listener.close()

# Waiting for what another process does to files. Law: a notification only causes a look; there is one more
# look after everything is watched, and one every few seconds without a notification.
#
# What is in a write-ahead log was written through a mapping, for which the kernel sends no notification. Its
# owner writes it to the files soon, unless it is killed before.

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from diskq.channels.core.watch import listen
from diskq.storage.fs import FileSystem, OsFileSystem

__all__ = ["UNASKED", "FileSystem", "until"]

UNASKED = 5.0
"""Seconds until a look without a notification."""


async def until(
    look: Callable[[], bool],
    watched: Callable[[FileSystem], tuple[Iterable[str], Iterable[str]]],
) -> None:
    """Return when `look` returns true. It is called now, and after each change.

    `watched` is called before each look. It returns directories in which names may change, and files in which
    bytes may change. Raises what both raise. `Cancelled` leaves no watch.
    """
    fs = OsFileSystem()
    changed = trio.Event()

    def notice(path: str | None) -> bool:
        changed.set()
        return False

    listener = listen(fs, notice)
    before: set[str] = set()
    try:
        while True:
            changed = trio.Event()
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
                await changed.wait()
            listener.end_waiting()
    finally:
        listener.close()

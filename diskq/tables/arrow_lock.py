# The right to change a table where files have no locks. Law: an updater first puts an object of its own, and
# then lists all of them; so of two at least one sees the other, and gives up before it has changed anything.
# Possibly both do.
#
# That needs no more than what object stores promise: what was put is in the next list. An updater removes its
# object at the end. What a killed one has left counts for a minute: one that lives renews its object while it
# works, and stops when it is gone. So two are at work only if one of them has stood still for a minute, and
# it stops within seconds.

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.fs

from diskq.errors import LockedError
from diskq.storage.fs import FileSystem, base_name, join
from diskq.storage.lock import Holder

__all__ = ["ArrowLock"]

EXPIRY = 60.0
"""Seconds after which an object that was not renewed counts no more. Clocks differ by less."""
_RENEWAL = 10.0
_NAME = re.compile(r"[0-9]{1,19}\.lock")


class ArrowLock:
    """An object in `directory` that says who changes the table."""

    def __init__(
        self,
        arrow: Any,
        local: FileSystem,
        directory: str,
        guarded: str,
        put: Callable[[Any, str], None],
    ) -> None:
        """Take the lock. `put` puts the content of a file whole, or nothing.

        Raises LockedError, with `guarded` and the holder, if another process has it; OSError.
        """
        self._arrow = arrow
        self._local = local
        self._directory = directory
        self._guarded = guarded
        self._put = put
        self._path = join(directory, f"{local.unique_number()}.lock")
        self._since = local.wall_clock()
        self._renewed = 0.0
        # One that waits for the lock looks again and again: it puts nothing while another is at work.
        self._check_others()
        self._write()
        try:
            self._check_others()
        except BaseException:
            with suppress(OSError):
                self.release()
            raise

    def renew(self) -> None:
        """Show that the holder is alive, if it is time to. Raises LockedError if it was taken for dead."""
        if self._local.monotonic() - self._renewed < _RENEWAL:
            return
        if not self._is_there(self._path):
            advice = f"this one stood still for more than {EXPIRY:.0f} s and lost its lock: start again"
            raise LockedError(self._guarded, "another process", advice)
        self._write()

    def release(self) -> None:
        """Remove the object. Raises OSError."""
        with suppress(FileNotFoundError):
            self._arrow.delete_file(self._path)

    def _is_there(self, path: str) -> bool:
        found: bool = self._arrow.get_file_info(path).type != pa.fs.FileType.NotFound
        return found

    def _write(self) -> None:
        me, now = self._local.identity(), self._local.wall_clock()
        content = {"pid": me.pid, "host": me.host, "since": self._since, "renewed": now}
        self._renewed = self._local.monotonic()
        self._put(pa.BufferReader(json.dumps(content).encode()), self._path)

    def _check_others(self) -> None:
        """Remove what others have left. Raises LockedError if one of them is at work."""
        now = self._local.wall_clock()
        there = self._arrow.get_file_info(pa.fs.FileSelector(self._directory, allow_not_found=True))
        for info in there:
            if not _NAME.fullmatch(info.base_name) or info.base_name == base_name(self._path):
                continue
            try:
                holder, renewed = self._read(info)
            except OSError:
                if self._is_there(info.path):
                    raise
                continue  # it was released: not every file system says so while it reads
            if now - renewed < EXPIRY:
                advice = f"it is removed {EXPIRY:.0f} s after the end of one that was killed ({info.path})"
                raise LockedError(self._guarded, str(holder), advice)
            with suppress(FileNotFoundError):
                self._arrow.delete_file(info.path)

    def _read(self, info: Any) -> tuple[Holder, float]:
        """Return who holds it, and when that was last said. Raises OSError."""
        with self._arrow.open_input_file(info.path) as file:
            content = file.read()
        try:
            found = json.loads(content)
            since = datetime.fromtimestamp(found["since"], UTC).isoformat(timespec="seconds")
            return Holder(pid=int(found["pid"]), host=str(found["host"]), since=since), float(
                found["renewed"]
            )
        except (ValueError, LookupError, TypeError, OverflowError):
            # It is being put, by a file system that shows a file while it grows; or was, by a killed process.
            put = info.mtime
            return Holder(), self._local.wall_clock() if put is None else put.timestamp()

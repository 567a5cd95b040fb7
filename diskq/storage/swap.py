# Replacing several files together. Law: before the plan is durable nothing is changed; after it everything
# will be; the old content of replaced or removed files is durable elsewhere before that.
#
# A repair rewrites files that belong together: records, their checksums, and what points at them. The new
# files are made in a directory of their own, with a plan that says which file each of them replaces. If the
# repair is killed after the plan is durable, the next process with the lock finishes it: every open does so
# before it reads.
#
# The plan is text: a line that names it, a line of JSON, and their checksum. Paths are relative to the root.

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from diskq.storage.barrier import Barrier, Replacement, read_small, write_all
from diskq.storage.checksums import CHECK_SIZE, checked, is_checked
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, directory_of, join
from diskq.storage.numbered_files import free_aside, private_path
from diskq.storage.repairs import keep_copy

__all__ = ["Swap", "finish_swap"]

_HEAD = b"diskq swap 1\n"
_PLAN = "plan"
# Bytes. Far more than the plan of a repair ever has.
_LARGEST_PLAN = 64 * 1024 * 1024
_MOST_OPEN = 64

Writer = Callable[[FileSystem, int], None]
"""A function that writes a file's content, given the file system and a handle."""


class Swap:
    """Replacements, removals and copies to be made together. For the owner of the lock of `root`'s store."""

    def __init__(self, fs: FileSystem, root: str, name: str) -> None:
        self._fs = fs
        self._root = root
        self._name = name
        self._directory = private_path(root, name)
        self._installs: list[tuple[str, Writer]] = []
        self._removals: list[str] = []
        self._copies: list[tuple[str, str, int, int | None]] = []
        self._asides: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._installs or self._removals)

    def install(self, path: str, write: Writer | bytes) -> None:
        """Plan a file with that content at `path`."""
        if isinstance(write, bytes):
            content = write
            self._installs.append((path, lambda fs, handle: _write(fs, handle, content)))
        else:
            self._installs.append((path, write))

    def remove(self, path: str) -> None:
        """Plan that the file at `path` is removed."""
        self._removals.append(path)

    def keep(self, path: str, aside_base: str, start: int = 0, end: int | None = None) -> str:
        """Plan a copy of bytes start:end of the file at `path`, `aside_base.bad`, and return its path."""
        self._copies.append((path, aside_base, start, end))
        aside = free_aside(self._fs, aside_base, self._asides)
        self._asides.add(aside)
        return aside

    def carry_out(self) -> None:
        """Carry out the plan durably. Raises OSError, also for a full disk: then nothing is changed."""
        fs = self._fs
        finish_swap(fs, self._root, self._name)
        fs.make_directory(self._directory)
        self._clear()
        made: list[str] = []
        try:
            for path, aside_base, start, end in self._copies:
                handle = fs.open(path)
                try:
                    made.append(keep_copy(fs, handle, aside_base, start, end))
                finally:
                    fs.close(handle)
            plan = self._write_files()
            Barrier(directories=(directory_of(self._directory), self._directory)).execute(fs)
            if not Barrier(replacements=(plan,)).execute(fs):
                number = next(iter(FULL_DISK_ERRNOS))
                raise OSError(number, "no space for the plan of the repair", self._directory)
        except OSError:
            if fs.size_of(plan_path(self._directory)) is None:
                with contextlib.suppress(OSError):
                    self._clear()
                    Barrier(removals=tuple(made)).execute(fs)
            raise
        finish_swap(fs, self._root, self._name)

    def _clear(self) -> None:
        """Remove the files of a repair that was killed before its plan was durable."""
        fs, directory = self._fs, self._directory
        Barrier(removals=tuple(join(directory, name) for name in fs.list_directory(directory))).execute(fs)

    def _write_files(self) -> Replacement:
        """Write the new files durably, and return the plan, which is not written yet."""
        fs = self._fs
        installs: list[tuple[str, str]] = []
        handles: list[int] = []
        try:
            for number, (path, write) in enumerate(self._installs):
                name = f"{number}.new"
                handle = fs.open(join(self._directory, name), write=True, create=True, exclusive=True)
                handles.append(handle)
                write(fs, handle)
                installs.append((name, self._named(path)))
                if len(handles) >= _MOST_OPEN:
                    closing, handles = tuple(handles), []
                    Barrier(files=closing, closing=closing).execute(fs)
        except BaseException:
            Barrier(closing=tuple(handles)).execute(fs)
            raise
        Barrier(files=tuple(handles), closing=tuple(handles)).execute(fs)
        plan = {"installs": installs, "removals": [self._named(path) for path in self._removals]}
        content = checked(_HEAD + json.dumps(plan).encode() + b"\n")
        directory = self._directory
        return Replacement(
            plan_path(directory), content, lambda number: join(directory, f"plan.{number}.tmp")
        )

    def _named(self, path: str) -> str:
        return path[len(self._root.rstrip("/")) + 1 :]


def finish_swap(fs: FileSystem, root: str, name: str) -> bool:
    """Carry out an existing plan. For the owner of the lock. False: there is none.

    Raises OSError; then it must be called again.
    """
    directory = private_path(root, name)
    plan_file = plan_path(directory)
    if fs.size_of(plan_file) is None:
        return False
    # The process that wrote the plan may have been killed before it was durable.
    Barrier(directories=(directory,)).execute(fs)
    plan = _read(fs, plan_file)
    installs = [(join(directory, new), join(root, path)) for new, path in plan["installs"]]
    removals = [join(root, path) for path in plan["removals"]]
    Barrier(installs=tuple((new, path) for new, path in installs if fs.size_of(new) is not None)).execute(fs)
    Barrier(removals=tuple(removals)).execute(fs)
    touched = [directory, *(directory_of(path) for path in removals)]
    Barrier(directories=tuple(dict.fromkeys(touched)), removals=(plan_file,)).execute(fs)
    # A plan that a power cut brings back would remove files that were created with the same names since.
    Barrier(directories=(directory,)).execute(fs)
    return True


def plan_path(directory: str) -> str:
    return join(directory, _PLAN)


def _read(fs: FileSystem, path: str) -> dict[str, Any]:
    """Return the plan at `path`; an empty one if it is corrupt, by bit rot, since it was written whole."""
    content = read_small(fs, path, _LARGEST_PLAN) or b""
    end = len(content) - CHECK_SIZE
    if end < len(_HEAD) or not content.startswith(_HEAD) or not is_checked(content, end):
        return {"installs": [], "removals": []}
    plan: dict[str, Any] = json.loads(content[len(_HEAD) : end])
    return plan


def _write(fs: FileSystem, handle: int, content: bytes) -> None:
    write_all(fs, handle, content, 0)

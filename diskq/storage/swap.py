# Files that take their places together. Law: before the plan is durable nothing is changed, behind it all of
# it will be; what is replaced, or removed, is durable elsewhere before that.
#
# A repair writes files anew that belong to each other: records, their checksums, what points at them. They
# are made in a directory of their own, beside a plan of who takes whose place. Who is killed behind the plan
# is finished by whoever has the lock next: by every open, before it reads.
#
# The plan is text: a line that names it, a line of JSON, and their checksum. Paths are from the root on.

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from diskq.storage.barrier import Barrier, Replacement, write_all
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, directory_of, join
from diskq.storage.numbered_files import free_aside, private_path
from diskq.storage.repairs import keep_copy
from diskq.storage.small_file import CHECK_SIZE, checked, is_checked, read_small

__all__ = ["Swap", "finish_swap"]

_HEAD = b"diskq swap 1\n"
_PLAN = "plan"
# Far more than a repair of a partition ever names.
_LARGEST_PLAN = 64 * 1024 * 1024
_MOST_OPEN = 64

Writer = Callable[[FileSystem, int], None]
"""Writes a file's content, given the file system and a handle."""


class Swap:
    """What is to take whose place. For who has the lock of what lies at `root`, in which it has a `name`."""

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
        """A file with that content is to be at `path`."""
        if isinstance(write, bytes):
            content = write
            self._installs.append((path, lambda fs, handle: _write(fs, handle, content)))
        else:
            self._installs.append((path, write))

    def remove(self, path: str) -> None:
        """There is to be no file at `path`."""
        self._removals.append(path)

    def keep(self, path: str, aside_base: str, start: int = 0, end: int | None = None) -> str:
        """Keep bytes start:end of the file at `path` in a new file `aside_base.bad`. Returns its path."""
        self._copies.append((path, aside_base, start, end))
        aside = free_aside(self._fs, aside_base, self._asides)
        self._asides.add(aside)
        return aside

    def carry_out(self) -> None:
        """Do it, durably. Raises OSError where the disk is full, among others: nothing is changed then."""
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
                raise OSError(number, "no room for the plan of the repair", self._directory)
        except OSError:
            if fs.size_of(plan_path(self._directory)) is None:
                with contextlib.suppress(OSError):
                    self._clear()
                    Barrier(removals=tuple(made)).execute(fs)
            raise
        finish_swap(fs, self._root, self._name)

    def _clear(self) -> None:
        """What a repair left that was killed before its plan was there."""
        fs, directory = self._fs, self._directory
        Barrier(removals=tuple(join(directory, name) for name in fs.list_directory(directory))).execute(fs)

    def _write_files(self) -> Replacement:
        """Make the files, durable each; and what is to say who takes whose place."""
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
        told = {"installs": installs, "removals": [self._named(path) for path in self._removals]}
        content = checked(_HEAD + json.dumps(told).encode() + b"\n")
        directory = self._directory
        return Replacement(
            plan_path(directory), content, lambda number: join(directory, f"plan.{number}.tmp")
        )

    def _named(self, path: str) -> str:
        return path[len(self._root.rstrip("/")) + 1 :]


def finish_swap(fs: FileSystem, root: str, name: str) -> bool:
    """Carry out what was begun, if something was. For who has the lock. False: there was nothing.

    Raises OSError; it is to be done again then.
    """
    directory = private_path(root, name)
    plan = plan_path(directory)
    if fs.size_of(plan) is None:
        return False
    # Who was killed may have died before it was durable.
    Barrier(directories=(directory,)).execute(fs)
    told = _read(fs, plan)
    installs = [(join(directory, new), join(root, path)) for new, path in told["installs"]]
    removals = [join(root, path) for path in told["removals"]]
    Barrier(installs=tuple((new, path) for new, path in installs if fs.size_of(new) is not None)).execute(fs)
    Barrier(removals=tuple(removals)).execute(fs)
    touched = [directory, *(directory_of(path) for path in removals)]
    Barrier(directories=tuple(dict.fromkeys(touched)), removals=(plan,)).execute(fs)
    # A plan that a power cut brings back would remove files that were made by the same name since.
    Barrier(directories=(directory,)).execute(fs)
    return True


def plan_path(directory: str) -> str:
    return join(directory, _PLAN)


def _read(fs: FileSystem, plan: str) -> dict[str, Any]:
    """What the plan says; nothing, where it rotted: it was written whole."""
    content = read_small(fs, plan, _LARGEST_PLAN) or b""
    end = len(content) - CHECK_SIZE
    if end < len(_HEAD) or not content.startswith(_HEAD) or not is_checked(content, end):
        return {"installs": [], "removals": []}
    told: dict[str, Any] = json.loads(content[len(_HEAD) : end])
    return told


def _write(fs: FileSystem, handle: int, content: bytes) -> None:
    write_all(fs, handle, content, 0)

# Stores after a power cut that has left messages in the redo log alone, on a disk in memory.

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diskq.storage.checksums import checksum
from diskq.storage.fs import FileSystem, OsFileSystem, join
from diskq.storage.state import HEAD_SIZE, LastWriter
from diskq.testing import CrashFS
from diskq.tools.stores import Store, stores_at
from tests.contract.kinds import ENGINES, Kind, Opened

__all__ = [
    "KINDS",
    "OPTIONS",
    "PATH",
    "Lost",
    "as_another",
    "as_version_2",
    "content",
    "in_this_boot",
    "lock_of",
    "log_of",
    "lost",
    "on_disk",
    "overwrite",
]

PATH = "/store"
KINDS = ("queue", "stream", "journal", "spool")
"""Those with a redo log."""

OPTIONS: dict[str, dict[str, Any]] = {"stream": {"partition_count": 2}}
"""The options with which each kind is opened here."""


@dataclass
class Lost:
    """A store that the power was cut from."""

    kind: Kind
    disk: CrashFS
    store: Store
    synced: list[bytes]
    """Messages that were synced, in the order of their sends."""

    def opened(self) -> Opened:
        return self.kind.open(PATH, fs=self.disk, **OPTIONS.get(self.kind.name, {}))

    def after_an_open(self) -> list[bytes]:
        """All messages, read from a copy of the disk after a writer had it open."""
        copy = self.disk.copy()
        self.kind.open(PATH, fs=copy, **OPTIONS.get(self.kind.name, {})).close()
        return self.kind.read(PATH, fs=copy)


def lost(
    kind: str,
    count: int = 20,
    *,
    seed: int | None = None,
    unsynced: int = 0,
    closed_after: int = 0,
    is_killed: bool = False,
    is_restart: bool = True,
    has_boot_id: bool = True,
    **options: Any,
) -> Lost:
    """A store to which `count` messages were sent, each synced, and then some that were not.

    Without `seed` the disk has exactly what was durable; each seed is another power cut. After the first
    `closed_after` messages the store was closed and opened again. With `is_killed` only the process has
    ended; without `is_restart` only the disk went away. Without `has_boot_id` the system has none.
    """
    disk = CrashFS()
    disk.has_boot_id = has_boot_id
    disk.make_directory(PATH)
    disk.sync_directory("/")
    engine = ENGINES[kind]
    opened = engine.open(PATH, fs=disk, **{**OPTIONS.get(kind, {}), **options})
    bodies = [b"%04d" % number * (3 + number % 5) for number in range(count + unsynced)]
    for number, body in enumerate(bodies):
        if closed_after and number == closed_after:
            opened.close()
            opened = engine.open(PATH, fs=disk, **{**OPTIONS.get(kind, {}), **options})
        opened.put(body, "synced" if number < count else "written")
    rng = None if seed is None else random.Random(seed)
    after = disk.kill() if is_killed else disk.crash(rng, is_restart=is_restart)
    (store,) = stores_at(PATH, fs=after)
    return Lost(engine, after, store, bodies[:count])


def log_of(store: Store) -> str:
    """The path of its redo log."""
    name = {"queue": f"{store.name}.redo", "spool": "spool.redo"}.get(store.kind, "redo")
    return join(store.path, ".diskq", name)


def lock_of(store: Store) -> str:
    """The path of its lock file."""
    names = {"queue": f".diskq/{store.name}.lock", "spool": ".diskq/spool.lock", "journal": "jnl.lck"}
    return join(store.path, *names.get(store.kind, ".diskq/stream.lock").split("/"))


def as_version_2(disk: FileSystem, path: str) -> None:
    """Let a redo log be of a format that no version of diskq has written yet."""
    _change_header(disk, path, 8, b"\2")


def as_another(disk: FileSystem, path: str) -> None:
    """Let a redo log be one that no store here has written."""
    _change_header(disk, path, 16, b"another\0")


def _change_header(disk: FileSystem, path: str, at: int, new: bytes) -> None:
    handle = disk.open(path)
    head = bytearray(disk.pread(handle, 128, 0))
    disk.close(handle)
    head[at : at + len(new)] = new
    head[124:128] = checksum(bytes(head[:124])).to_bytes(4, "little")
    for copy_at in (0, 4096 - 128):
        overwrite(disk, path, bytes(head), copy_at)


def overwrite(disk: FileSystem, path: str, data: bytes, at: int = 0) -> None:
    """Change bytes of a file."""
    handle = disk.open(path, write=True)
    disk.pwrite(handle, data, at)
    disk.close(handle)


def content(disk: CrashFS, path: str = PATH) -> dict[str, bytes]:
    """All files below `path`, with what is in them."""
    try:
        names = disk.list_directory(path)
    except NotADirectoryError:
        handle = disk.open(path)
        found = {path: disk.pread(handle, disk.size(handle), 0)}
        disk.close(handle)
        return found
    return {file: its for name in names for file, its in content(disk, join(path, name)).items()}


def on_disk(cut: Lost, path: Path) -> Store:
    """The same store on the real disk, at `path`: the machine was restarted since."""
    for file, its in content(cut.disk).items():
        target = path / file.removeprefix(f"{PATH}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(its)
    return cut.store._replace(path=str(path))


def in_this_boot(store: Store) -> None:
    """Let the state of a store on the real disk say that the machine has run on since."""
    name = {"queue": f"{store.name}.queue.state", "spool": "spool.queue.state"}.get(store.kind, "state")
    path = Path(join(store.path, ".diskq", name))
    content = path.read_bytes()
    left = LastWriter.parse(content[:HEAD_SIZE])
    assert left is not None
    here = replace(left, boot_id=OsFileSystem().identity().boot_id)
    path.write_bytes(here.render() + content[HEAD_SIZE:])

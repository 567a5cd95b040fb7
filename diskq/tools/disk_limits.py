# The limits of a disk and a machine, and the kind of disk. Law: measured through the file system layer that
# the engines use, on a file of its own; a figure that looks too good to be true gets a warning.

from __future__ import annotations

import math
import os.path
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from diskq.storage.barrier import Barrier
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path, join

__all__ = [
    "DiskLimits",
    "Mount",
    "Spread",
    "measure_limits",
    "mount_in",
    "mount_of",
    "quantile",
    "spread_of",
    "warnings_of",
]

_CHUNK = 1024 * 1024  # bytes
_RECORD = 100  # bytes, of a write that is synced
_MOST_SYNCS = 2000

# --- what was measured several times --------------------------------------------------------------


class Spread(NamedTuple):
    """The spread of a value over several rounds."""

    median: float
    low: float
    high: float


def spread_of(values: Sequence[float]) -> Spread:
    """Return the spread of `values`. Raises ValueError if there are none."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Spread(median, min(ordered), max(ordered))


def quantile(values: Sequence[float], part: float) -> float:
    """Return the quantile by nearest rank: one of the values."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


# --- limits ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """The result of one round. Rates are bytes per second."""

    memcpy: float
    """Copying in memory."""
    write: float
    """Writing into the page cache, which survives a kill, but not a power cut."""
    write_synced: float
    """Writing into the page cache and syncing to stable storage."""
    read: float
    """Reading from the page cache."""
    syncs: tuple[float, ...]
    """Seconds that each fdatasync took after a write of 100 bytes."""


def measure_limits(directory: AnyPath, *, size: int = 64 * _CHUNK, seconds: float = 0.5) -> DiskLimits:
    """Measure one round, with a file of `size` bytes (at least 1 MiB) in `directory`, which must exist.

    The syncs take `seconds`. At the end the file exists and is empty. Raises OSError.
    """
    disk = OsFileSystem()
    chunk = bytes(bytearray(range(256)) * (_CHUNK // 256))
    count = max(1, size // _CHUNK)
    handle = disk.open(join(as_path(directory), "limits"), write=True, create=True)
    try:
        barrier = Barrier(files=(handle,))
        disk.truncate(handle, 0)
        barrier.execute(disk)
        began = perf_counter()
        for number in range(count):
            disk.pwrite(handle, chunk, number * _CHUNK)
        written = perf_counter()
        barrier.execute(disk)
        synced = perf_counter()
        for number in range(count):
            disk.pread(handle, _CHUNK, number * _CHUNK)
        read = perf_counter()
        syncs = _syncs(disk, handle, count * _CHUNK, seconds)
    finally:
        disk.truncate(handle, 0)
        disk.close(handle)
    total = count * _CHUNK
    return DiskLimits(
        memcpy=_memcpy(chunk, count),
        write=total / (written - began),
        write_synced=total / (synced - began),
        read=total / (read - synced),
        syncs=tuple(syncs),
    )


def _syncs(disk: FileSystem, handle: int, end: int, seconds: float) -> list[float]:
    """Return the time of each sync, at least one; writes append, as a queue does."""
    record, barrier, found = b"x" * _RECORD, Barrier(files=(handle,)), list[float]()
    last = perf_counter() + seconds
    while not found or (len(found) < _MOST_SYNCS and perf_counter() < last):
        disk.pwrite(handle, record, end + len(found) * _RECORD)
        began = perf_counter()
        barrier.execute(disk)
        found.append(perf_counter() - began)
    return found


def _memcpy(chunk: bytes, count: int) -> float:
    target = memoryview(bytearray(len(chunk) * 16))
    began = perf_counter()
    for number in range(count):
        at = number % 16 * len(chunk)
        target[at : at + len(chunk)] = chunk
    return count * len(chunk) / (perf_counter() - began)


# --- what kind of disk ----------------------------------------------------------------------------


class Mount(NamedTuple):
    """The mount that a directory is on. `kind` is the file system's type, or "unknown"."""

    kind: str
    path: str


_MOUNTS = "/proc/self/mounts"
_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_LAYERED = {"overlay", "aufs"}
_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"} | {
    "smb3",
    "smbfs",
    "vboxsf",
    "virtiofs",
}

# No disk, and no flash, answers in less than this; only memory does.
_TOO_FAST = 10e-6
# Only disks whose cache survives a power cut answer in less than this.
_VERY_FAST = 60e-6


def mount_of(path: AnyPath) -> Mount:
    """Return the mount that `path` is on; its kind is known on Linux only."""
    disk = OsFileSystem()
    try:
        handle = disk.open(_MOUNTS)
    except OSError:
        return Mount("unknown", "")
    try:
        text = b""
        while more := disk.pread(handle, _CHUNK, len(text)):
            text += more
    finally:
        disk.close(handle)
    return mount_in(text.decode(errors="surrogateescape"), os.path.realpath(as_path(path)))


def mount_in(mounts: str, path: str) -> Mount:
    """Return the nearest mount above an absolute path, from the lines of /proc/self/mounts."""
    best = Mount("unknown", "")
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best.path):  # a later one hides an earlier one
            best = Mount(kind, point)
    return best


def warnings_of(mount: Mount, median_sync: float) -> list[str]:
    """Return warnings for readers of the figures. `median_sync` is in seconds."""
    found = []
    if mount.kind in _MEMORY:
        found.append(f"{mount.path} is {mount.kind}, which is memory: nothing on it survives a restart")
    elif mount.kind in _LAYERED:
        found.append(
            f"{mount.path} is {mount.kind}, a container's own layer, which goes away with the container: "
            "messages belong on a volume"
        )
    elif mount.kind in _NETWORK or mount.kind.startswith("fuse"):
        found.append(
            f"{mount.path} is {mount.kind}, which is not this machine's disk: whether a sync is one, and a "
            "lock a lock, is its server's to say"
        )
    micros = median_sync * 1e6
    if mount.kind in _MEMORY:
        pass
    elif median_sync < _TOO_FAST:
        found.append(
            f"half of all syncs take less than {micros:.1f} µs, which no disk can: something does not pass "
            "fdatasync on, and a power cut will lose what was acknowledged"
        )
    elif median_sync < _VERY_FAST:
        found.append(
            f"half of all syncs take less than {micros:.0f} µs: only disks that keep their cache in a power "
            "cut do that; if this is none of them, something does not pass fdatasync on"
        )
    return found

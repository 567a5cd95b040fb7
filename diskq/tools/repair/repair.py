# Mending what is damaged. Law: what is to be done is found by the code that does it, over files that stay as
# they are; nothing is cut, replaced or removed of which there is no durable copy; and whoever is killed on
# the way leaves what was there, or what is to be.
#
# What an open mends is mended by an open. Beyond that, what keeps a thing from being whole is taken out of
# it: how, is its format's business (queue.py, log.py, priority.py).

from __future__ import annotations

from dataclasses import dataclass

from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.storage.overlay import OverlayFS
from diskq.storage.repairs import Repair
from diskq.tools.repair.journal import repair_journal
from diskq.tools.repair.priority import repair_jobs
from diskq.tools.repair.queue import repair_queue
from diskq.tools.repair.spool import repair_spool
from diskq.tools.repair.stream import repair_stream
from diskq.tools.stores import Store
from diskq.tools.verify.verification import verify

__all__ = ["Repairs", "mend", "repair"]

# What one round lays open the next one mends; more than a few there never are.
_MOST_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """What was done, or would be."""

    store: Store
    repairs: tuple[Repair, ...]
    is_applied: bool

    @property
    def lost(self) -> int:
        """Messages that are not there any more, as far as they can be counted."""
        return sum(repair.records or 0 for repair in self.repairs)


def repair(
    store: Store, *, apply: bool = False, take_over: bool = False, fs: FileSystem | None = None
) -> Repairs:
    """Make the thing whole, if `apply`; else tell what that would do, and change nothing.

    Where there is nothing to do nothing is touched. `take_over`: of a stream whose owner file a go-diskq
    producer has left behind, which does not run. Raises LockedError where somebody has it, DiskFullError
    (it is then as it was), DiskqError, OSError.
    """
    disk = fs or OsFileSystem()
    planned = _planned(disk, store, take_over)
    if not apply:
        return Repairs(store=store, repairs=tuple(planned), is_applied=False)
    done: list[Repair] = []
    if not planned and verify(store, fs=disk).verdict != "clean":
        done += mend(disk, store, take_over=take_over)  # what an open mends, and does not tell
    for _ in range(_MOST_ROUNDS):
        if not planned:
            break
        done += mend(disk, store, take_over=take_over)
        planned = _planned(disk, store, take_over)
    return Repairs(store=store, repairs=tuple(done), is_applied=True)


def _planned(disk: FileSystem, store: Store, take_over: bool) -> list[Repair]:
    with OverlayFS(disk, locks=True) as overlay:
        return mend(overlay, store, take_over=take_over, is_dry=True)


def mend(fs: FileSystem, store: Store, *, take_over: bool = False, is_dry: bool = False) -> list[Repair]:
    """Make the thing whole in `fs`, in one round; with `is_dry` only as far as an open does. What was done.

    Raises as `repair`.
    """
    path = store.path
    if store.kind == "jobs":
        return repair_jobs(fs, path)
    if store.kind == "stream":
        return repair_stream(fs, path, is_dry=is_dry, take_over=take_over)
    if store.kind == "journal":
        return repair_journal(fs, path, is_dry=is_dry)
    if store.kind == "spool":
        return repair_spool(fs, path, is_dry=is_dry)
    return repair_queue(fs, path, store.name, is_dry=is_dry)

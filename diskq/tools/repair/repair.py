# Repairs a damaged store. Law: the plan is made by the code that carries it out, over an overlay of files
# that do not change; nothing is cut, replaced or removed without a durable copy; and a killed repair leaves
# the old state or the new one.
#
# What an open repairs is left to an open. Beyond that, damaged parts are taken out of the store: how, is in
# the module of its format (queue.py, log.py, priority.py).

from __future__ import annotations

from dataclasses import dataclass

from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.storage.overlay import OverlayFS
from diskq.storage.repairs import Repair
from diskq.tools.repair.journal import repair_journal
from diskq.tools.repair.priority import repair_priority
from diskq.tools.repair.queue import repair_queue
from diskq.tools.repair.spool import repair_spool
from diskq.tools.repair.stream import repair_stream
from diskq.tools.stores import Store
from diskq.tools.verify.verification import verify

__all__ = ["Repairs", "repair", "repair_in"]

# One round may uncover more damage, which the next one repairs; a few rounds are always enough.
_MOST_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """What a repair did, or would do."""

    store: Store
    repairs: tuple[Repair, ...]
    is_applied: bool

    @property
    def lost(self) -> int:
        """Messages that are lost, as far as they can be counted."""
        return sum(repair.records or 0 for repair in self.repairs)


def repair(
    store: Store, *, apply: bool = False, take_over: bool = False, fs: FileSystem | None = None
) -> Repairs:
    """Make the store whole, if `apply`; else return what that would do, and change nothing.

    A whole store is not touched. `take_over`: a stream's owner file was left by a go-diskq producer that does
    not run any more. Raises LockedError if a process has the store open, DiskFullError (the store is then as
    before), DiskqError, OSError.
    """
    disk = fs or OsFileSystem()
    planned = _planned(disk, store, take_over)
    if not apply:
        return Repairs(store=store, repairs=tuple(planned), is_applied=False)
    done: list[Repair] = []
    if not planned and verify(store, fs=disk).verdict != "clean":
        done += repair_in(disk, store, take_over=take_over)  # what an open repairs without a report
    for _ in range(_MOST_ROUNDS):
        if not planned:
            break
        done += repair_in(disk, store, take_over=take_over)
        planned = _planned(disk, store, take_over)
    return Repairs(store=store, repairs=tuple(done), is_applied=True)


def _planned(disk: FileSystem, store: Store, take_over: bool) -> list[Repair]:
    with OverlayFS(disk, locks=True) as overlay:
        return repair_in(overlay, store, take_over=take_over, is_dry=True)


def repair_in(fs: FileSystem, store: Store, *, take_over: bool = False, is_dry: bool = False) -> list[Repair]:
    """Repair the store in `fs`, in one round; with `is_dry` only as an open does. Returns what was done.

    Raises as `repair`.
    """
    path = store.path
    if store.kind == "jobs":
        return repair_priority(fs, path)
    if store.kind == "stream":
        return repair_stream(fs, path, is_dry=is_dry, take_over=take_over)
    if store.kind == "journal":
        return repair_journal(fs, path, is_dry=is_dry)
    if store.kind == "spool":
        return repair_spool(fs, path, is_dry=is_dry)
    return repair_queue(fs, path, store.name, is_dry=is_dry)

# Repairs a store of priority queues. Law: its log ends at the first damage; going on after it would invent a
# state.

from __future__ import annotations

from diskq.engine.priority.view import repair_store
from diskq.storage.fs import FileSystem
from diskq.storage.repairs import Repair

__all__ = ["repair_priority"]


def repair_priority(fs: FileSystem, path: str) -> list[Repair]:
    """Repair the store, which may be one in an overlay. Raises LockedError, DiskqError, OSError."""
    return list(repair_store(path, fs=fs).repairs)

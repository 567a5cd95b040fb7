# What a kind supplies to its writer. Law: the writer decides when, in which order, and what an error means;
# the format says what and where, and promises nothing by itself.
#
# A fifth kind is this protocol, a codec, its file names and a recovery. What every kind does alike is in
# writer.py.

from __future__ import annotations

from typing import Any, Protocol

from diskq.options import Durability
from diskq.storage.barrier import Replacement

__all__ = ["Format", "SyncOptions"]


class SyncOptions(Protocol):
    """What the writer wants to know of an engine's options."""

    @property
    def sync_every(self) -> int: ...

    @property
    def sync_timeout(self) -> float:
        """Seconds."""

    @property
    def max_unsynced(self) -> int:
        """Bytes."""

    @property
    def durability(self) -> Durability: ...


class Format(Protocol):
    """What only one kind knows. Unless it says so, a call raises nothing."""

    # --- counted since the open -------------------------------------------------------------------

    @property
    def passed(self) -> int:
        """Records that the sync policy counts: accepted, and consumed where that is to be durable, too."""

    @property
    def accepted_bytes(self) -> int:
        """Bytes of records accepted, less those that a sync is not for."""

    @property
    def waiting_bytes(self) -> int:
        """Of those, accepted and not yet written."""

    # --- writing ----------------------------------------------------------------------------------

    def open_gates(self, left: int, unsynced: int) -> None:
        """Let `left` records pass each gate without asking; or fewer. So many bytes are unsynced now."""

    @property
    def is_flushed(self) -> bool:
        """True if all that was accepted is in the page cache, with all that belongs to it."""

    def flush(self) -> None:
        """Write what was accepted and waits to be written. Raises OSError, DiskFullError."""

    def cut_back(self) -> None:
        """Drop what a failed write left behind the last whole record. Raises OSError."""

    @property
    def failure(self) -> OSError | None:
        """What kept a checksum from being written, so that nothing more can be promised."""

    # --- syncing ----------------------------------------------------------------------------------

    def gather(self, full: bool) -> None:
        """Have written what a sync is to cover. Raises OSError, which is final, and DiskFullError."""

    def wants_metadata(self, full: bool) -> bool:
        """True if the sync that is being prepared is to write the metadata: where recovery begins."""

    def settle(self, with_metadata: bool) -> tuple[int, ...]:
        """Handles to be synced, data before what tells of it. Raises OSError, LockedError: both are final."""

    def metadata(self) -> tuple[Replacement, ...]:
        """Small files that tell where recovery begins once what is written now is durable."""

    def state(self) -> Any:
        """What `completed` is to know of this moment."""

    def completed(self, state: Any, is_replaced: bool) -> None:
        """A sync is complete, and what was written at `state` is durable; the metadata, if `is_replaced`."""

    # --- closing ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Sync for the last time. Raises DiskFullError, StorageFailedError."""

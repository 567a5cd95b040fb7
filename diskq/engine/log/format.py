# What a kind supplies to its writer. Law: the writer decides when, in which order, and what an error means;
# the format says what and where, and promises nothing by itself.
#
# A further kind needs this protocol, a codec, its file names and a recovery. What every kind does alike is in
# writer.py.

from __future__ import annotations

from typing import Any, Protocol

from diskq.options import Durability, SyncTo
from diskq.storage.barrier import Replacement

__all__ = ["Format", "LoggedOptions", "SyncOptions"]


class SyncOptions(Protocol):
    """The options of an engine that the writer reads."""

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


class LoggedOptions(SyncOptions, Protocol):
    """Those of an engine with a redo log."""

    @property
    def sync_to(self) -> SyncTo: ...

    @property
    def redo_log_size(self) -> int:
        """Bytes."""


class Format(Protocol):
    """What only one kind knows. A call raises nothing unless its docstring says so."""

    # --- counted since the open -------------------------------------------------------------------

    @property
    def passed(self) -> int:
        """The records that the sync policy counts: accepted, and consumed if that is to be durable, too."""

    @property
    def accepted_bytes(self) -> int:
        """The bytes of records accepted, less those that need no sync."""

    @property
    def written_bytes(self) -> int:
        """The part of `accepted_bytes` that is in the page cache."""

    # --- writing ----------------------------------------------------------------------------------

    def open_gates(self, left: int, unsynced: int) -> None:
        """Let at most `left` records pass each gate without asking. `unsynced` bytes are unsynced now.

        Raises the OSError that kept a checksum from being written: nothing more can be promised.
        """

    @property
    def is_flushed(self) -> bool:
        """True if all that was accepted is in the page cache, with its index entries and checksums."""

    def flush(self) -> None:
        """Write everything accepted that is not yet written. Raises OSError, DiskFullError."""

    def flush_records(self) -> bool:
        """Write the accepted records. True: what recovery can make again from them still waits, for `flush`.

        Raises as `flush`.
        """

    def cut_back(self) -> None:
        """Cut off what a failed write left after the last whole record. Raises OSError."""

    # --- syncing ----------------------------------------------------------------------------------

    def gather(self, full: bool) -> None:
        """Write everything that a sync is to cover. Raises OSError, which is final, and DiskFullError."""

    def wants_metadata(self, full: bool) -> bool:
        """True if the sync that is being prepared is to write the metadata: where recovery begins."""

    def settle(self, with_metadata: bool) -> tuple[int, ...]:
        """Return the handles to sync, data before what describes it. Raises OSError, LockedError: final."""

    def metadata(self) -> tuple[Replacement, ...]:
        """Return the small files that say where recovery begins once what is written now is durable."""

    def state(self) -> Any:
        """Return what `completed` needs to know of this moment."""

    is_log: bool
    """True if its files are a log themselves: a sync of what `settle` returns stands in for a redo log."""

    follows_log: bool
    """True if `logged` is to be called."""

    def logged(self, state: Any) -> None:
        """Note that all records written at `state` are durable, perhaps in the redo log only."""

    def completed(self, state: Any, is_replaced: bool) -> None:
        """Note that all written at `state` is durable; the metadata, too, if `is_replaced`."""

    # --- closing ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Sync for the last time. Raises DiskFullError, StorageFailedError."""

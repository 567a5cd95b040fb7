# What a reader leaves out after a writer was killed is noted for the person who reads.

from __future__ import annotations

from diskq.cli.core.terminal import note
from diskq.tools.last_slice import has_last_slice
from diskq.tools.stores import Store

__all__ = ["note_last_slice"]


def note_last_slice(store: Store) -> None:
    """Note that messages of a killed writer are in the store's write-ahead log alone. Raises OSError."""
    if has_last_slice(store):
        where = "are in its write-ahead log alone"
        note(f"the last messages of a killed writer {where}: `diskq checkpoint {store.path}` adds them here")

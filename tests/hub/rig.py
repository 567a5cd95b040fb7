# The words of the hub's tests: messages, requests as bytes, a store on a disk in memory, journals' bytes.

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diskq._native.hub import wire as hubwire
from diskq._native.journal import codec as journal_codec
from diskq.engine.journal.journal import Journal
from diskq.hub.store import HubStore, Range
from diskq.messages import NULL_TIMESTAMP, JournalMessage
from diskq.options import HubOptions, JournalOptions
from diskq.storage.fs import FileSystem

ROOT = "/hub"
SOON = 60.0  # seconds


def message(offset: int, size: int = 20) -> JournalMessage:
    """Return message `offset`, which contains its number."""
    key = b"" if offset % 3 == 2 else b"key-%d" % (offset % 5)
    timestamp = None if offset % 7 == 6 else 1_700_000_000_000_000_000 + offset
    return JournalMessage(
        0, offset, timestamp, offset % 256, key, (b"%08d|" % offset * (size // 9 + 1))[:size]
    )


def messages(first: int, end: int, size: int = 20) -> list[JournalMessage]:
    return [message(offset, size) for offset in range(first, end)]


def items(batch: Sequence[JournalMessage]) -> list[tuple[bytes, int, int, bytes]]:
    return [
        (each.key, NULL_TIMESTAMP if each.timestamp_ns is None else each.timestamp_ns, each.type, each.value)
        for each in batch
    ]


def records(batch: Sequence[JournalMessage]) -> bytes:
    """The bytes that a journal has for them."""
    return journal_codec.encode(items(batch), batch[0].offset if batch else 0)


def put_request(batch: Sequence[JournalMessage], client: bytes = b"web1", journal: bytes = b"log") -> bytes:
    first = batch[0].offset if batch else 0
    return hubwire.put_request(
        client, journal, journal_codec.columns(records(batch), first) if batch else None
    )


def store(fs: FileSystem, **options: Any) -> HubStore:
    return HubStore(ROOT, HubOptions(**options), fs)


def put(store: HubStore, batch: Sequence[JournalMessage], **more: Any) -> Range:
    return store.put(put_request(batch, **more), allows=anybody, timeout=SOON)


def get(store: HubStore, offset: int = 0, client: bytes = b"web1") -> list[JournalMessage]:
    columns, _ = store.get(hubwire.get_request(client, b"log", offset), allows=anybody, timeout=SOON)
    return hubwire.messages(hubwire.get_response(columns), hubwire.OF_GET)


def anybody(_: str) -> bool:
    return True


def write_journal(path: Path, batch: Sequence[JournalMessage], segment_size: int = 1 << 30) -> None:
    with Journal(path, options=JournalOptions(segment_size=segment_size)) as journal:
        journal.append_encoded(records(batch))


def bytes_of(path: Path) -> bytes:
    """Return all records of a journal, one segment after the other."""
    return b"".join(file.read_bytes() for file in sorted((path / "jnl").glob("*.jnl")))

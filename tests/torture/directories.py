# Whole things of which one file is any bytes at all. Law: whoever looks, opens or reads gets messages, or one
# of our errors. Where bytes were changed in their places, or the end is missing, which is what disks do, no
# message is one that nobody sent. (Bytes that moved are somebody's writing: a peer's have no checksums.)

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from diskq import Journal, JournalOptions, PriorityStore, Queue, QueueOptions, Stream, StreamOptions
from diskq.errors import DiskqError
from diskq.storage.fs import FileSystem
from diskq.tools.convert.sources import open_reading
from diskq.tools.stores import stores_at
from diskq.tools.verify.verification import verify
from tests.engine.ram import RamFS
from tests.torture.decoders import Decoder
from tests.torture.vouching import voucher_of

__all__ = ["directories"]

ROOT = "/store"
SENT = [b"message %05d " % number + b"x" * (number % 90) for number in range(120)]
KEYS = [b"key %d" % (number % 7) for number in range(len(SENT))]

# --- what is whole ----------------------------------------------------------------------------------


def _queue(fs: FileSystem) -> None:
    options = QueueOptions(segment_size=3000)
    with Queue(ROOT, "events", options=options, fs=fs) as queue:
        queue.put_many(SENT)
        for _ in range(5):
            queue.get()


def _stream(fs: FileSystem, encoding: str = "fixed") -> None:
    options = StreamOptions(partition_count=2, segment_size=2000, encoding=encoding)  # type: ignore[arg-type]
    with Stream(ROOT, options=options, fs=fs) as stream:
        stream.append_many(list(zip(KEYS, SENT, strict=True)))


def _journal(fs: FileSystem) -> None:
    with Journal(ROOT, options=JournalOptions(segment_size=3000), fs=fs) as journal:
        journal.append_many(list(zip(KEYS, SENT, strict=True)))


def _store(fs: FileSystem, *, snapshot: bool) -> None:
    with PriorityStore(ROOT, fs=fs) as store:
        for number, body in enumerate(SENT):
            store.put_many(store.queue(), [body], [number % 5])
            if snapshot and number == 60:
                store.snapshot()


class _Kind(NamedTuple):
    made: Callable[[FileSystem], None]
    opened: Callable[[FileSystem], None]
    """Opened by whoever writes to it, who mends it, and closed."""


def _open_queue(fs: FileSystem) -> None:
    with Queue(ROOT, "events", fs=fs):
        pass


def _open_stream(fs: FileSystem) -> None:
    with Stream(ROOT, fs=fs):
        pass


def _open_journal(fs: FileSystem) -> None:
    with Journal(ROOT, fs=fs):
        pass


def _open_store(fs: FileSystem) -> None:
    with PriorityStore(ROOT, fs=fs):
        pass


STORES = {
    "queue": _Kind(_queue, _open_queue),
    "stream": _Kind(_stream, _open_stream),
    "stream, varuint": _Kind(partial(_stream, encoding="varuint"), _open_stream),
    "journal": _Kind(_journal, _open_journal),
    "store": _Kind(partial(_store, snapshot=False), _open_store),
    "store, snapshot": _Kind(partial(_store, snapshot=True), _open_store),
}

# --- what is asked of it ----------------------------------------------------------------------------

KNOWN = frozenset(SENT)


def check(kind: str, files: dict[str, bytes], path: str, data: bytes) -> None:
    """`path` is any bytes: as they are, and with checksums that are right, which no disk makes of them."""
    before = files[path]
    _check(kind, {**files, path: data}, must_be_known=len(data) == len(before) or before.startswith(data))
    vouch = voucher_of(path, before)
    if vouch is not None and (vouched := vouch(data)) != data:
        _check(kind, {**files, path: vouched}, must_be_known=False)


def _check(kind: str, files: dict[str, bytes], *, must_be_known: bool) -> None:
    """Look at all of it, read it as it lies, have it opened, and read it then."""
    fs = RamFS(files)
    for store in stores_at(ROOT, fs=fs):
        with contextlib.suppress(DiskqError):
            verify(store, fs=fs)
    _read(fs, must_be_known=must_be_known)
    with contextlib.suppress(DiskqError):
        STORES[kind].opened(fs)
        _read(fs, must_be_known=must_be_known)


def _read(fs: FileSystem, *, must_be_known: bool) -> None:
    for store in stores_at(ROOT, fs=fs):
        with contextlib.suppress(DiskqError), open_reading(store, fs=fs) as reading:
            for batch in reading.batches():
                invented = [value for value in batch.values if must_be_known and value not in KNOWN]
                assert not invented, f"{len(invented)} messages that nobody sent: {invented[:3]}"


def directories() -> dict[str, Decoder]:
    """A decoder for each file of each thing."""
    found = {}
    for kind, store in STORES.items():
        fs = RamFS({})
        fs.make_directory(ROOT)
        store.made(fs)
        files = fs.files()
        for path, content in sorted(files.items()):
            if content:
                name = f"{kind}: {path.removeprefix(ROOT)}"
                found[name] = Decoder([content], partial(check, kind, files, path))
    return found

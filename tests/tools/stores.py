# The words of the tests of tools: things of every kind, made of the same messages by the engines.

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from diskq._native.stream import codec as stream_codec
from diskq.engine.journal.journal import Journal
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.stream.stream import Stream
from diskq.messages import NULL_TIMESTAMP
from diskq.options import PriorityOptions, StreamOptions
from diskq.storage.fs import FileSystem
from diskq.tools.convert.field_mapping import FORMATS, Format
from diskq.tools.convert.sources import LinesFile, Source, entries
from diskq.tools.entries import Entry, EntryBatch
from diskq.tools.json_lines import to_lines
from diskq.tools.stores import stores_at

__all__ = ["FORMATS", "HAS", "at", "found", "made", "told_by"]

# The fields that a message of each format has besides its value, as its writer gave them.
HAS: dict[Format, tuple[str, ...]] = {
    "nsq": ("queue",),
    "triplet": ("key", "timestamp_ns", "partition"),
    "sej": ("key", "timestamp_ns", "type"),
    "taskflux": ("priority", "queue"),
    "jsonl": ("key", "timestamp_ns", "type", "priority", "queue", "partition"),
}
PARTITIONS = 3


def made(fs: FileSystem, kind: Format, path: str, messages: Iterable[Entry]) -> Source | list[Source]:
    """A thing that holds them, in the order in which its format hands them out: `told_by` says which."""
    messages = told_by(kind, messages)
    if kind == "jsonl":
        handle = fs.open(path, write=True, create=True)
        fs.pwrite(handle, to_lines(EntryBatch.of(messages)), 0)
        fs.close(handle)
        return LinesFile(path)
    fs.make_directory(path)
    if kind == "nsq":
        for name, group in groupby(messages, lambda message: message.queue or ""):
            with Queue(path, name, fs=fs) as queue:
                queue.put_many(message.value for message in group)
    elif kind == "triplet":
        with Stream(path, options=StreamOptions(partition_count=PARTITIONS), fs=fs) as stream:
            for message in messages:
                encoded = stream_codec.encode(
                    [(message.key or b"", message.timestamp_ns or 0, message.value)]
                )
                stream.steps.accept_encoded(message.partition or 0, encoded.data)
    elif kind == "sej":
        with Journal(path, fs=fs) as journal:
            journal.append_many(
                (m.key, m.value, NULL_TIMESTAMP if m.timestamp_ns is None else m.timestamp_ns, m.type or 0)
                for m in messages
            )
    else:
        with PriorityStore(path, options=PriorityOptions(preallocate=False), fs=fs) as store:
            for name, group in groupby(messages, lambda message: message.queue or ""):
                its = store.create_queue(name) if name else store.queue()
                some = list(group)
                store.put_many(its, [m.value for m in some], [m.priority or 0 for m in some])
    return list(stores_at(path, fs=fs))


def told_by(kind: Format, messages: Iterable[Entry]) -> list[Entry]:
    """What a format keeps of them, in the order in which it hands them out."""
    kept = [Entry(m.value, **{name: getattr(m, name) for name in HAS[kind]}) for m in messages]
    if kind == "nsq":
        kept.sort(key=lambda message: message.queue or "")
    elif kind == "triplet":
        kept.sort(key=lambda message: message.partition or 0)
    elif kind == "taskflux":
        kept.sort(key=lambda message: (message.queue or "", message.priority or 0))
    return kept


def found(fs: FileSystem, source: Source | list[Source], *names: str) -> list[Entry]:
    """What is there, of each message its value and these fields."""
    sources = source if isinstance(source, list) else [source]
    return [
        Entry(entry.value, **{name: getattr(entry, name) for name in names})
        for each in sources
        for entry in entries(each, fs=fs)
    ]


def at(fs: FileSystem, kind: Format, path: str) -> list[Source]:
    """What a conversion has made."""
    return [LinesFile(path)] if kind == "jsonl" else list(stores_at(path, fs=fs))

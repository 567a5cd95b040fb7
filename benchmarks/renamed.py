# What rows were called before, and which of them were measured otherwise. Law: a run of any commit can be set
# beside a new one, row by row: who renames a row, moves it, or measures it in another way, says so here.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.floors import DURABLE, RAW, calls, go_bound, go_synced

__all__ = ["MEASURED", "Key", "note_of", "present"]

MEASURED = 2
"""How rows are measured, as a number: it grows with `_CHANGES`. A run without it is of 1."""


@dataclass(frozen=True, slots=True)
class Key:
    """Which row it is, in all runs."""

    benchmark: str
    section: str
    name: str
    peer: str = ""


# --- names ---------------------------------------------------------------------------------------------

_QUEUE_DURABLE = "Durable: 100 B, each send returns after its sync"
_STREAM_DURABLE = "Durable: each send returns after its sync"
_ONE, _SIXTEEN, _MANY = (section.title for section in DURABLE)

_TEXTS = {
    "FifoQueue.take": "Queue.get",
    "FifoQueue.get": "Queue.get",
    "FifoQueue.put": "Queue.put",
    "FifoQueue.put, never synced": "Queue.put, never synced",
    "The backlog: 100 sent, received and acknowledged, while so many stay": (
        "The backlog: 100 sent, received and acknowledged, while N stay"
    ),
    "a journal in Go of our own writing, buffered Append": go_bound("buffered Append"),
    "a journal in Go of our own writing, Scan": go_bound("Scan"),
}
"""Names of sections, rows and peers, wherever they are."""

_ROWS = {
    Key("queue", _QUEUE_DURABLE, "synced, 1 task", "go syncput"): Key(
        "durable", _ONE, "queue, 1 task", go_synced(1)
    ),
    Key("queue", _QUEUE_DURABLE, "synced, 1 task, against a raw loop", "raw fdatasync"): Key(
        "durable", _ONE, "queue, 1 task", RAW
    ),
    Key("queue", _QUEUE_DURABLE, "synced, 16 tasks", "go syncput 16"): Key(
        "durable", _SIXTEEN, "queue, 16 tasks", go_synced(16)
    ),
    Key("queue", _QUEUE_DURABLE, "synced, 256 tasks", "go syncput 256"): Key(
        "durable", _MANY, "queue, 256 tasks", go_synced(256)
    ),
    Key("stream", _STREAM_DURABLE, "synced, 1 task, against a raw loop", "raw fdatasync"): Key(
        "durable", _ONE, "stream, 1 task", RAW
    ),
    **{
        Key("priority", _QUEUE_DURABLE, "synced, 64 tasks", f"{peer} put"): Key(
            "priority", _QUEUE_DURABLE, "synced, 64 tasks, beside one producer", f"{peer} put"
        )
        for peer in ("localqueue", "persist-queue ack", "litequeue")
    },
}


def present(key: Key) -> Key:
    """What the row is called now."""
    texts = (_TEXTS.get(text, text) for text in (key.section, key.name, key.peer))
    key = Key(key.benchmark, *texts)
    return _ROWS.get(key, key)


# --- ways of measuring -----------------------------------------------------------------------------------

_WAITS = "the receiver waits when the message is sent"
_CHANGES: dict[int, dict[Key, str]] = {
    2: {
        Key("stream", "", "", calls("Consumer")): "the calls are those that go-diskq makes: 4 or 5, not 6",
        Key("stream", "", "", calls("Push to Consumer")): _WAITS,
        Key("queue", "", "latency, p50"): _WAITS,
        Key("sweep", "To the page cache: 64 KiB", ""): "as many bytes on both sides",
        Key("sweep", "To the page cache: 1 MiB", ""): "as many bytes on both sides",
        Key("durable", "", ""): "shorter works, in more rounds",
    },
}
"""By the number of `MEASURED`: rows that agree in all that is not empty, and what is otherwise."""


def note_of(key: Key, old: int, new: int) -> str:
    """Return what is otherwise in the newer of two ways of measuring; empty if nothing is."""
    return "; ".join(_notes(key, min(old, new), max(old, new)))


def _notes(key: Key, old: int, new: int) -> Iterator[str]:
    for number in range(old + 1, new + 1):
        for which, note in _CHANGES.get(number, {}).items():
            pairs = zip(
                (which.benchmark, which.section, which.name, which.peer),
                (key.benchmark, key.section, key.name, key.peer),
                strict=True,
            )
            if all(one in ("", other) for one, other in pairs):
                yield note

# What the documents of each system promise, by which it is judged. Law: the words are the document's, in
# quotes and with their place, of the version that is installed (NSQ's and SQLite's sites have none); a
# promise that is not there is none.

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CRASHES", "DOCUMENTS", "NOTHING", "OURS", "TELLS", "Documents"]

TELLS = "tells"
"""A promise: of each sync that failed somebody is told."""
CRASHES = frozenset({"kill", "power", "posix"})


@dataclass(frozen=True, slots=True)
class Documents:
    """A system's own."""

    promises: frozenset[str] = frozenset()
    """The rigs after which nothing acknowledged is missing or altered; and TELLS."""
    says: str = ""


NOTHING = Documents()

OURS = Documents(
    CRASHES | {"errors", "rot", "owners", "clock", TELLS},
    "docs/durability.md promises all of it.",
)

_NSQ = Documents(
    says="""Its README promises nothing. NSQ's Design: "the only edge case that would result in message loss \
is an unclean shutdown of an nsqd process. In that case, any messages that were in memory (or any buffered \
writes not flushed to disk) would be lost"."""
)

_SQLITE = (
    'SQLite, PRAGMA synchronous, of FULL in WAL mode: "The extra WAL sync following each transaction help '
    'ensure that transactions are durable across a power loss"; "Transactions are durable across application '
    'crashes regardless of the synchronous setting or journal mode".'
)

DOCUMENTS = {
    "go-diskqueue, sync 1": _NSQ,
    "go-diskqueue": _NSQ,
    "queuelib": Documents(
        says='README, Always close disk queues: "Queuelib never calls fsync() either"; "If a process ends '
        'without calling close() [...] using the queue again is unsafe". Use one queue object per path at a '
        'time: "a given path must not be used by more than one open queue object at a time". Nothing that is '
        "done here is promised."
    ),
    "persist-queue file": Documents(
        frozenset({"kill"}),
        'README: "queue implementations that survive process crashes and restarts"; "Each queued item is '
        'stored on disk to survive crashes". Neither power nor two processes are spoken of ("Thread-safe").',
    ),
    "persist-queue SQLite": Documents(
        CRASHES,
        f'README: as above, and "SQLite3 queues use WAL mode by default". {_SQLITE}',
    ),
    "diskcache Deque": Documents(
        CRASHES | {"owners"},
        'README: Deque is a "cross-process, persistent" replacement for that of Python; "Thread-safe and '
        'process-safe". `Cache.reset`: its settings with `sqlite_` "correspond to SQLite pragmas". '
        + _SQLITE,
    ),
    "litequeue": Documents(
        CRASHES,
        f'README: "Queue implemented on top of SQLite", "to implement a persistent queue". {_SQLITE}',
    ),
    "localqueue": Documents(
        frozenset({"kill", "power", "owners"}),
        'README: it "selects synchronous=FULL and prioritizes stronger protection for recent commits. '
        'Neither mode is an absolute guarantee across every filesystem" (so `posix` is not promised); '
        '"multiple Python threads and processes can share a queue on the same machine".',
    ),
    "sqlite3": Documents(
        CRASHES | {"errors", "owners"},
        f'{_SQLITE} FAQ 5: "Multiple processes can have the same database open at the same time". How SQLite '
        'Is Tested, of I/O errors and a full disk: "it is important that SQLite be able to respond correctly '
        'to these errors". Bytes that change are not spoken of there.',
    ),
}
"""Of the peers."""

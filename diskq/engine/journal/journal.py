# A journal open for writing, in sej's files. Law: offsets are dense and assigned once, a message is in the
# journal whole or not at all, and an acknowledged message is as durable as `durability` says.
#
# Synchronous, and complete in itself; a Trio channel drives its steps (steps.py) and its log
# (log/writer.py), and has its syncs executed in a thread. Readers need no `Journal`: see reader.py.

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Unpack

from diskq._native.journal import codec as journal_codec
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.steps import Item, JournalSteps, Key, Value, When
from diskq.engine.log.engine import LogEngine
from diskq.engine.log.sync import exclusive
from diskq.errors import NotFoundError
from diskq.keywords import JournalKeywords
from diskq.options import Durability, JournalOptions, chosen_options
from diskq.storage.fs import AnyPath, FileSystem
from diskq.storage.lock import checked_wait

__all__ = ["Item", "Journal", "Key", "Value", "When"]


class Journal(LogEngine):
    """A journal open for writing: messages get offsets in the order in which they are appended.

    For one process at a time, sej's writers are kept out as well. Threads may share it: a call waits while
    another thread is inside one. `close` releases the lock, whose file stays.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        create: bool = True,
        wait: float = 0.0,
        options: JournalOptions | None = None,
        fs: FileSystem | None = None,
        clock: Callable[[], float] | None = None,
        time_slice: float | None = None,
        uses_wal: bool = False,
        first_offset: int = 0,
        **changes: Unpack[JournalKeywords],
    ) -> None:
        """Open the journal in the directory `path`, which is made, with its parents, if it does not exist.

        `create=False`: a missing journal is a NotFoundError, and nothing is made.

        Returns when it is whole and durable; `repairs` lists what was repaired. `clock` (seconds, monotonic)
        is the sync policy's; `time_slice` (seconds) closes the fast paths periodically; with `uses_wal`
        messages may be staged in the write-ahead log, to be written by `flush` soon after: all for a channel.
        A journal that has never had a message begins with `first_offset`: for the copy of a journal whose
        oldest messages are gone.

        `wait`: seconds for which the lock is tried while another process has it.

        Raises LockedError if another process writes to it, DiskFullError, OSError, and CorruptionError if
        `options.strict`.

        Options (`JournalOptions`). Sizes in bytes, durations in seconds. No option is part of the format: a
        journal may be reopened with other options at any time.

        - `sync_every=2500`: Sync after this many messages were written, consumed, or (of one partition)
          committed; in a priority store, after this many commands. 1: each time. (nsqd's default.)
        - `sync_timeout=2.0`: Sync this many seconds after the first unsynced message, commit or command at
          the latest (nsqd's default).
        - `checkpoint_slice=100e-6`: A task whose calls never have to wait yields to others after this many
          seconds; 0: in every call.
        - `durability="written"`: What a call that writes (`send`, `put`, `append`, `ack` of a priority store)
          waits for: the process's memory, the page cache, or the disk.
        - `max_unsynced=64 * 1024 * 1024`: Senders wait while this many bytes are not synced. A channel begins
          a sync at half of it.
        - `memory_flush=0.01`: `memory` messages are written to the page cache after this many seconds at the
          latest; in a queue only if it has no `memory_size`.
        - `sync_to="log"`: Where `synced` messages are on stable storage when the call returns: in the redo
          `log`, by one sync, and in their files by the sync policy; or in their `files`, by two. After a
          power cut another program finds what is in the log alone only after diskq has opened the store.
        - `redo_log_size=4 * 1024 * 1024`: The redo log grows up to this size; it begins with 64 KiB.
        - `segment_size=1024 * 1024 * 1024`: A new file starts after the message with which the current one
          reaches this size (sej's default).
        - `min_message_size=0`: Smaller values are refused.
        - `max_message_size=16 * 1024 * 1024`: Larger values are refused. Larger ones that are already in the
          files are delivered.
        - `max_key_size=127`: Longer keys are refused; the format allows up to 127 bytes.
        - `strict=False`: Raise `CorruptionError` at damage, at open, instead of reporting it and going on.
        """
        checked = chosen_options(Journal, options, JournalOptions, changes)
        self.steps: JournalSteps = JournalSteps(path, checked, fs, clock, time_slice, uses_wal, first_offset)
        super().__init__(self.steps)
        self.options: JournalOptions = self.steps.options
        self.path: str = self.steps.path
        self.name: str = self.path
        self.files: JournalFiles = self.steps.files
        self.log.patience = checked_wait(wait)
        with self.log.opening():
            if not create and not self.files.exist():
                raise NotFoundError.with_create_false("journal", self.path)
            self.steps.open()

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        value: Value,
        key: Key = None,
        timestamp: When = None,
        type: int = 0,
        *,
        durability: Durability | None = None,
        offset: int | None = None,
    ) -> int:
        """Append one message. Returns its offset.

        Without a timestamp (an aware datetime, or nanoseconds since the Unix epoch) it gets the current time;
        with NULL_TIMESTAMP it has none. `type` is a number of 0 to 255. `offset`: the one that it must get.
        Returns when it is as durable as `durability` (else the options) says. Raises TypeError, ValueError,
        MessageSizeError, KeySizeError, OffsetMismatchError and FullError, after which the
        message is not in the journal, and StorageFailedError, after which it may or may not be.
        """
        word = self.log.durability(durability)
        if not isinstance(value, bytes) or timestamp is not None:
            value, key, timestamp, type = self.steps.checked(value, key, timestamp, type)
        call = None
        try:
            self.guard.take()
            while self.steps.obstacle(len(value)):
                self.log.sync()
            self.steps.check_offset(offset)
            given = self.steps.accept(value, key, timestamp, type, is_held=word == "memory")
            if not self.log.after_append() and word == "synced":
                call = self.log.join_sync()
        finally:
            self.guard.give()
        self.log.end_sync(call)
        return given

    def append_many(
        self, messages: Iterable[Item], *, durability: Durability | None = None, offset: int | None = None
    ) -> range:
        """Append messages, with as few system calls as possible. Returns their offsets.

        An item is a value, (key, value), (key, value, timestamp) or (key, value, timestamp, type). All are
        checked before the first is appended. `offset`: the one that the first must get. Raises as `append`:
        if the disk is full midway, the first `FullError.accepted` are in the journal all the same.
        """
        word = self.log.durability(durability)
        batch = self.steps.checked_many(messages)
        call = None
        with self.guard:
            while self.steps.obstacle(self.steps.buffer.size_of(batch)):
                self.log.sync()
            self.steps.check_offset(offset)
            offsets = self.steps.accept_many(batch, is_held=word == "memory")
            if not self.log.after_append() and word == "synced":
                call = self.log.join_sync()
        self.log.end_sync(call)
        return offsets

    @exclusive
    def append_encoded(self, data: bytes | memoryview, *, durability: Durability | None = None) -> range:
        """Append encoded records, which begin with the next offset. Returns their offsets.

        Raises ValueError for bytes that are not whole records, OffsetMismatchError, and as `append_many`. All
        are checked before the first is appended.
        """
        word = self.log.durability(durability)
        self.log.check_usable()
        if len(data):
            self.steps.check_offset(int.from_bytes(data[:8], "big"))
        first = self.next_offset
        found = journal_codec.count(data, first)
        if found.stop != "END":
            raise ValueError(f"no whole record that comes next at byte {found.valid_end} of {len(data)}")
        self.steps.accept_encoded(data, is_held=word == "memory")
        self.log.after_append(word)
        return range(first, self.next_offset)

    # --- where it is ------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""
        return self.steps.next_offset

    @property
    def synced_offset(self) -> int:
        """All messages before this offset are on stable storage."""
        return self.steps.synced_offset

    @property
    def accepted_bytes(self) -> int:
        """Bytes of records accepted since the open."""
        return self.steps.accepted_bytes

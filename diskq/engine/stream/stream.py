# A stream open for writing: partitions in go-diskq's files. Law: a message goes to the partition of its key,
# offsets are dense and assigned once, and an acknowledged message is as durable as `durability` says.
#
# Synchronous, and complete in itself; a Trio channel drives its steps (steps.py) and its log
# (log/writer.py), and has its syncs executed in a thread. Readers need no `Stream`: see
# partition_reader.py.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Unpack

from diskq._native.core.message import Position
from diskq.engine.log.engine import LogEngine
from diskq.engine.log.shared_sync import SharedCall
from diskq.engine.log.sync import exclusive
from diskq.engine.stream.disk_share import size_on_disk
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.retention import RetentionReport
from diskq.engine.stream.settings import StreamSettings
from diskq.engine.stream.steps import Item, Key, StreamSteps, Value, When, key_maker
from diskq.engine.stream.transactions import roll_forward as rollforward
from diskq.engine.stream.transactions.transaction import Committed, Transaction, forget_finished
from diskq.errors import DiskFullError, FullError, NotFoundError
from diskq.keywords import StreamKeywords
from diskq.options import Durability, StreamOptions, chosen_options
from diskq.storage.arguments import check_is
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem
from diskq.storage.lock import checked_wait

__all__ = ["Item", "Key", "Stream", "Value", "When", "key_maker"]


class Stream(LogEngine):
    """A stream open for writing: messages go to its partitions, in the order in which they are appended.

    For one process at a time. Threads may share it: a call waits while another thread is inside one.
    `close` removes the owner file.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        create: bool = True,
        take_over: bool = False,
        wait: float = 0.0,
        options: StreamOptions | None = None,
        fs: FileSystem | None = None,
        clock: Callable[[], float] | None = None,
        time_slice: float | None = None,
        uses_wal: bool = False,
        **changes: Unpack[StreamKeywords],
    ) -> None:
        """Open the stream in the directory `path`, which is made, with its parents, if it does not exist.

        `create=False`: a missing stream is a NotFoundError, and nothing is made.

        Returns when every partition is whole and durable; `repairs` lists what was repaired. Values that
        `options` leave open are taken from the stream's settings. `take_over` replaces the owner file that a
        go-diskq producer has left; be sure that it does not run. `clock` (seconds, monotonic) is the sync
        policy's; `time_slice` (seconds) closes the fast paths periodically; with `uses_wal` messages may be
        staged in the write-ahead log, to be written by `flush` soon after: all for a channel.

        `wait`: seconds for which the lock is tried while another process has it.

        Raises LockedError if another process writes to it, UnsupportedFormatError, ForeignFilesError,
        DiskFullError, OSError, and CorruptionError if `options.strict`.

        Options (`StreamOptions`). Sizes in bytes, durations in seconds. `partition_count`, `segment_size`,
        `retention_max_bytes`, `retention_max_age` and `encoding` are the stream's settings, kept in its
        settings.json; None means the value there or the default in parentheses, and is not written down. The
        others are the producer's, and may differ at each open.

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
        - `partition_count=None`: Number of partitions that are written to (3). If the stream has more, it
          keeps them.
        - `segment_size=None`: A new segment starts after the one whose data has reached this many bytes (32
          MiB).
        - `segment_age=None`: A segment is complete, and a new one starts, at the latest this long after its
          first message, so that tables get it. A stream that no program has open waits for the next open.
          None: only by its size.
        - `retention_max_bytes=None`: The oldest complete segments of a partition are removed while all of
          them are larger (no bound).
        - `retention_max_age=None`: Complete segments that are older are removed (no bound).
        - `encoding=None`: How records store their lengths: `fixed` as in go-diskq's code, `varuint` as in its
          README (fixed).
        - `min_message_size=0`: Smaller values are refused; set 1 where Go programs read: they cannot read
          empty ones.
        - `max_message_size=16 * 1024 * 1024`: Larger values are refused.
        - `max_key_size=64 * 1024`: Longer keys are refused.
        - `budget=None`: A `DiskBudget`: a bound on the disk that this stream shares with others.
        - `on_full="wait"`: When the budget is used up: let senders wait, refuse (`FullError`), or drop old
          segments.
        - `age_rule="newest"`: The message of a segment that must be older than `retention_max_age`: its
          `newest`, as go-diskq promises, or its `oldest`, as go-diskq does.
        - `keep_for_groups=False`: Retention, and `on_full="drop_oldest"`, keep what the slowest consumer
          group has not committed yet.
        - `strict=False`: Raise `CorruptionError` at damage, at open, instead of reporting it and going on.
        """
        self._fs = fs or OsFileSystem()
        checked = chosen_options(Stream, options, StreamOptions, changes)
        self.steps: StreamSteps = StreamSteps(path, checked, self._fs, clock, time_slice, uses_wal)
        super().__init__(self.steps)
        self.options: StreamOptions = self.steps.options
        self.path: str = self.steps.path
        self.name: str = self.path
        self.files: StreamFiles = self.steps.files
        self.log.patience = checked_wait(wait)
        with self.log.opening():
            if not create and not self.files.exist():
                raise NotFoundError.with_create_false("stream", self.path)
            self.steps.open(take_over)
        self.settings: StreamSettings = self.steps.settings

    # --- appending --------------------------------------------------------------------------------

    def append(
        self, value: Value, key: Key = None, timestamp: When = None, *, durability: Durability | None = None
    ) -> Position:
        """Append one message to the partition that its key belongs to.

        Without a key it gets one of 32 random hex digits, as go-diskq makes them; without a timestamp
        (an aware datetime, or nanoseconds since the Unix epoch) the current time. Returns when it is as
        durable as `durability` (else the options) says. Raises TypeError, ValueError, MessageSizeError,
        KeySizeError and FullError, after which the message is not in the stream, and
        StorageFailedError, after which it may or may not be.
        """
        word = self.log.durability(durability)
        if type(value) is not bytes:
            key, value, timestamp = self.steps.checked(value, key, timestamp)
        call = None
        try:
            self.guard.take()
            self._clear_way(self.steps.size_of(value, key))
            position = self.steps.accept(value, key, timestamp, is_held=word == "memory")
            self._show(word)
            call = self._sync_if_due(word)
        finally:
            self.guard.give()
        self.log.end_sync(call)
        return position

    def append_many(
        self,
        messages: Iterable[Item],
        key: Key = None,
        timestamp: When = None,
        *,
        durability: Durability | None = None,
    ) -> dict[int, range]:
        """Append messages, with as few system calls as possible. Returns each partition's new offsets.

        An item is a value, (key, value) or (key, value, timestamp); `key` and `timestamp` are for those
        that have none. All are checked before the first is appended. Raises as `append`: if the disk is
        full midway some are in the stream all the same, and `FullError.rest` are those that are not.
        """
        word = self.log.durability(durability)
        batch = self.steps.checked_many(messages, key, timestamp)
        with self.guard:
            self._clear_way(self.steps.size_of_many(batch, key))
            offsets = self.steps.accept_many(batch, key, timestamp, is_held=word == "memory")
            self._show(word)
            call = self._sync_if_due(word)
        self.log.end_sync(call)
        return offsets

    @exclusive
    def commit(self, transaction: Transaction) -> bool:
        """Append all that was staged, or nothing; and only once, if committed again. Synced on return.

        False if it was committed before: so was an epoch lower than the sink's last one. Messages appended
        earlier are synced as well; and the staged files are removed.
        Raises SinkNameError, SinkError, StagedError, CorruptionError (a staged file is damaged),
        DiskFullError and StorageFailedError. After an error nothing of it is in the stream, and it may be
        committed again; unless the stream then raises the error at every call: the transaction is committed
        then, and is in the stream once that is opened again.
        """
        steps, fs, files = self.steps, self._fs, self.files
        self.log.check_usable()
        check_is("transaction", transaction, Transaction, "a Transaction")
        transaction.check()
        if rollforward.is_committed(fs, files, transaction):
            forget_finished(fs, files)
            return False
        records = steps.transaction_records(transaction)
        self.log.sync()
        if steps.has_pending_rows or steps.router.waiting_bytes:
            raise DiskFullError(self.path, "the disk is full")
        if steps.share is not None:
            # A committed transaction cannot be undone: there has to be space for all of it before.
            size = sum(extent.size for file in transaction.staged for extent in file.extents)
            self._clear_way(size_on_disk(size, sum(records.values())))
        intent = rollforward.intent_of(transaction, records, self.next_offsets)
        try:
            if records:
                rollforward.write_intent(fs, files, intent)
            else:
                last = Committed(transaction.epoch, transaction.query)
                rollforward.note_committed(fs, files, transaction.sink, last)
        except OSError as failure:
            self.log.fail(failure)
        if records:
            steps.roll_forward(intent, is_new=True)
        else:
            forget_finished(fs, files)
        return True

    def _clear_way(self, size: int) -> None:
        """Make space for `size` more bytes, by a sync or a removal. Raises DiskFullError if that fails."""
        while (obstacle := self.steps.obstacle(size)) is not None:
            if obstacle == "unsynced":
                self.log.sync()
            elif obstacle == "droppable":
                self._drop()
            else:
                raise self.steps.full_error(size)

    def _show(self, word: Durability) -> None:
        """Write the index entries of accepted messages. If that fails, the next message is refused."""
        if word != "memory":
            with contextlib.suppress(FullError, OSError):
                self.log.flush()

    def _drop(self) -> None:
        self.steps.dropped(self.steps.make_room(self.steps.missing))

    def _sync_if_due(self, word: Durability) -> SharedCall | None:
        """Sync if that is due; else begin what `word` wants, to be ended outside the guard."""
        if not self.log.after_append():
            return self.log.join_sync() if word == "synced" else None
        if self.steps.is_contended:
            self._drop()
        return None

    # --- retention --------------------------------------------------------------------------------

    @exclusive
    def vacuum(self) -> RetentionReport:
        """Remove segments that exceed the bounds of settings and options. Returns what was removed.

        Readers keep the files that they have open. Raises OSError, StorageFailedError, and ValueError after
        `close`: another process may have the stream by then.
        """
        self.log.check_usable()
        report = self.steps.remove_old()
        self.steps.forget_removed(report)
        return report

    # --- where it is ------------------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        """The number of partitions that are written to."""
        return self.steps.partition_count

    def partition_of(self, key: bytes) -> int:
        """Return the partition that messages of that key go to."""
        return self.steps.partition_of(key)

    @property
    def next_offsets(self) -> tuple[int, ...]:
        """For each partition, the offset that its next message gets."""
        return self.steps.next_offsets

    @property
    def accepted_bytes(self) -> int:
        """Bytes of records accepted since the open."""
        return self.steps.accepted_bytes

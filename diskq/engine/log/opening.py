# How a queue, a stream or a journal is opened. Law: what the last writer's logs hold is in its files before
# anybody looks at these; and nothing is appended before what was found is durable.
#
# The steps, in this order for every kind. A step that is the kind's is taken between two calls here.
#
#   lock             `LogOpening`: the store's lock is held. A swap that was interrupted is finished next.
#   replay           `replay`: messages that only a log holds are written to their files.
#   recover          The kind judges its files, by what the last writer left: trust.py.
#   note             `note_found`: what the kind found, without the messages that are appended again.
#   sign             `LogWriter.sign_lock`: the lock file names this process.
#   report           `report`: the repairs are logged, before the next open finds none.
#   first barrier    The kind makes all of that durable, with its metadata.
#   append again     `append_displaced`: accepted messages in whose place another program has written.
#   clear            The same call: the old logs are empty.
#   new logs         `WriteAheadLogs.open`: only now that the old ones are clear.
#
# If a process is killed before "sign", the next open finds the same. After "first barrier" it finds a store
# in order, and perhaps displaced messages, which stay in the logs until they are appended.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from diskq.engine.log.format import LoggedOptions
from diskq.engine.log.redo import Appends, Redo
from diskq.engine.log.writer import LogWriter
from diskq.storage.fs import FileSystem
from diskq.storage.lock import Lock
from diskq.storage.log.entries import Displaced, Staging
from diskq.storage.log.replay import Redone, RedoSource, not_displaced
from diskq.storage.log_events import Log
from diskq.storage.repairs import Repair
from diskq.storage.write_ahead_logs import WriteAheadLogs

__all__ = ["LogOpening"]


class LogOpening:
    """One open of a writer's store, from its lock to its first message."""

    def __init__(self, fs: FileSystem, writer: LogWriter, lock: Lock, topic: Log) -> None:
        """The writer holds the lock from now on."""
        self._fs = fs
        self._writer = writer
        self._topic = topic
        self._logged = 0
        self.lock = writer.hold(lock)
        self.displaced: list[Displaced] = []
        """Accepted messages, with other bytes in their place."""

    def use_logs(
        self,
        options: LoggedOptions,
        stagings: Mapping[int, Staging],
        redo_path: str,
        appends: Appends,
        *,
        staged: Sequence[int] = (),
        most_redo: int,
    ) -> WriteAheadLogs:
        """Give the writer its logs, at first the last writer's. For the rest see `Redo`, `WriteAheadLogs`.

        `most_redo`: the most bytes that a redo log may have on the disk; 0: there is none.
        """
        writer = self._writer
        wals = writer.use_wals(WriteAheadLogs(self._fs, self.lock, stagings, staged))
        writer.use_redo(
            Redo(self._fs, redo_path, self.lock, options, appends, self._topic, writer.clock, most=most_redo)
        )
        return wals

    def replay(
        self, source: RedoSource, *, in_place: bool = True, judge: Callable[[Redone], None] = lambda _: None
    ) -> Redone:
        """Write to the files what only the logs hold. Raises as `replay_redo`, and OSError.

        `in_place`: False if another program may have written since; then nothing of a write-ahead log is
        written. `judge` may decide about displaced messages, before the checksums in a write-ahead log are
        used.
        """
        writer = self._writer
        redo, wals = writer.redo, writer.wals
        assert redo is not None
        assert wals is not None
        redone = redo.replay(source)
        judge(redone)
        wals.replay(in_place=in_place, voided=redone.voided)
        self.displaced = [*redone.displaced, *wals.displaced]
        writer.repairs += [*wals.unreported, *redone.repairs, *wals.repairs]
        return redone

    def note_found(self, repairs: Iterable[Repair], counted: Callable[[bytes], int]) -> None:
        """Note repairs of the kind, without the messages that are appended again. See `not_displaced`."""
        self._writer.repairs += not_displaced(repairs, self.displaced, counted)

    def report(self, reported: Sequence[Repair] = ()) -> None:
        """Log the repairs that are not logged yet, but for those that the kind has `reported` itself."""
        repairs = self._writer.repairs
        self._logged = self._topic.report_repairs(repairs, self._logged, reported=reported)

    def append_displaced(self, append_again: Callable[[Displaced], None]) -> None:
        """Append displaced messages durably, and clear the last writer's logs. Raises as `append_again`."""
        writer = self._writer
        for each in self.displaced:
            append_again(each)
        self.displaced.clear()
        assert writer.redo is not None
        assert writer.wals is not None
        writer.wals.clear()
        writer.redo.clear_old()
        self.report()

# Several journals read as one. Law: journals take turns, each journal's messages come in order, and a journal
# that is made later is read from its beginning.

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Unpack

from trio.lowlevel import enable_ki_protection

from diskq.channels.core.notifier import notifier_of
from diskq.channels.core.receiving import End
from diskq.channels.core.tail import Tail
from diskq.channels.journal.notifiers import Notifiers
from diskq.channels.journal.scanner import (
    JournalScannerStatistics,
    OpeningScanner,
    Scanner,
    ScannerLoop,
    part_of,
)
from diskq.engine.journal.reader import JournalReader
from diskq.engine.journal.shards import Shard, ShardSet
from diskq.engine.journal.starts import JournalStart, open_reader
from diskq.errors import NotFoundError
from diskq.keywords import JournalScannerKeywords
from diskq.options import JournalScannerOptions
from diskq.storage.fs import AnyPath, FileSystem, as_path

__all__ = ["JournalShardScanner", "open_shard_scanner"]


class JournalShardScanner(Scanner):
    """Receives the messages of all shards, in turn, as `JournalScanner` does. Made by `open_shard_scanner`.

    A message's `partition` is its shard.
    """

    @enable_ki_protection
    async def seek(self, start: JournalStart) -> None:
        """Continue at `start` in each shard, one after the other, as `JournalScanner.seek`.

        After an error or `Cancelled` some shards may have moved, each of them completely.
        """
        await self._seek(self._tail.parts.values(), start)

    @property
    def position(self) -> dict[int, int]:
        """The offset of the next message, by shard."""
        return {index: part.position for index, part in sorted(self._tail.parts.items())}

    def statistics(self) -> dict[int, JournalScannerStatistics]:
        """Return the figures of each shard that is read, by number. Waiting tasks wait for all shards."""
        return {index: self._statistics_of(part) for index, part in sorted(self._tail.parts.items())}

    def look(self) -> dict[int, JournalScannerStatistics]:
        """Look at the files, then do as `statistics`. From any thread. Raises DiskqError, OSError."""
        for part in tuple(self._tail.parts.values()):
            part.look()
        return self.statistics()


class open_shard_scanner(OpeningScanner[JournalShardScanner]):  # noqa: N801 (it is used as a function)
    """Open the journals of `prefix` below `root` for reading: gives a `JournalShardScanner` for a block.

    It reads the present shards and, if `end` is "wait", those made later, from their beginning. `bits` must
    be the value that they were made with. Otherwise as `open_scanner`: `start` and `end` apply to each shard,
    and a `reader` has an offset in each. Two files are open for each shard.

    Options (`JournalScannerOptions`). Durations in seconds.

    - `sync_every=2500`: Sync after this many messages were written, consumed, or (of one partition)
      committed; in a priority store, after this many commands. 1: each time. (nsqd's default.)
    - `sync_timeout=2.0`: Sync this many seconds after the first unsynced message, commit or command at the
      latest (nsqd's default).
    - `checkpoint_slice=100e-6`: A task whose calls never have to wait yields to others after this many
      seconds; 0: in every call.
    - `autocommit=False`: A named reader: the next receive, and the end of the block, commit what was received
      before.
    """

    def __init__(
        self,
        root: AnyPath,
        prefix: str = "",
        bits: int = 3,
        *,
        start: JournalStart = "oldest",
        end: End = "wait",
        reader: str | None = None,
        wait: float = 0.0,
        options: JournalScannerOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Unpack[JournalScannerKeywords],
    ) -> None:
        self._shards = ShardSet(as_path(root), prefix, bits)
        super().__init__(start, end, reader, options, fs, changes, wait)
        self._first = open_reader(self._shards.root, self._fs, self._options.checkpoint_slice)
        self._there_at_open: set[int] = set()

    async def _open(self) -> tuple[ScannerLoop | None, JournalShardScanner]:
        found = await self._event_loop.run_in_thread(self._open_files, self._event_loop.clock)
        self._notifier = Notifiers()
        with contextlib.ExitStack() as opened:  # everything is closed again if a step fails
            opened.callback(self._abandon, found)
            self._tail = tail = Tail(
                self._fs, self._first.gate, self._notifier, "scanner", self._options.checkpoint_slice
            )
            opened.callback(tail.close)
            for shard, reader, limit in found:
                self._add(shard, reader, limit)
            tail.ends_at_limits = self._end == "close"
            if self._end == "wait":
                tail.is_open_ended = True
                tail.on_new_partitions = self._add_more
                tail.watch_for_partitions(self._shards.root)
                self._add_more()
            loop = self._loop_below(self._shards.root)
            opened.pop_all()
        return loop, JournalShardScanner(tail, self._options, loop)

    def _open_files(self, clock: Callable[[], float]) -> list[tuple[Shard, JournalReader, float]]:
        self._open_offsets(clock)
        found: list[tuple[Shard, JournalReader, float]] = []
        try:
            shards = self._shards.existing(self._fs)
            self._there_at_open.update(shard.number for shard in shards)
            for shard in shards:
                if (opened := self._open_one(shard)) is not None:
                    found.append((shard, *opened))
        except BaseException:
            self._abandon(found)
            raise
        return found

    def _open_one(self, shard: Shard) -> tuple[JournalReader, float] | None:
        """Return the shard's reader and its limit; None: there is no journal in it yet."""
        start = self._start
        if shard.number not in self._there_at_open and isinstance(start, (str, int)):
            start = "oldest"  # it was made after the open
        reader = open_reader(
            shard.path,
            self._fs,
            self._options.checkpoint_slice,
            gate=self._first.gate,
            number=shard.number,
        )
        try:
            reader.first_offset()
            return reader, self._find_place(reader, shard.number, start)
        except NotFoundError:
            reader.close()
            return None
        except BaseException:
            reader.close()
            raise

    def _add(self, shard: Shard, reader: JournalReader, limit: float) -> None:
        self._notifier.add(shard.number, notifier_of(self._fs, shard.path))
        self._tail.add(part_of(reader, shard.number, limit))

    def _add_more(self) -> None:
        """Add the shards made since the last look. Raises DiskqError, OSError."""
        for shard in self._shards.existing(self._fs):
            if shard.number in self._tail.parts:
                continue
            # A directory is made before the journal in it.
            self._tail.watch_for_partitions(shard.path)
            if (opened := self._open_one(shard)) is not None:
                self._add(shard, *opened)

    def _abandon(self, found: list[tuple[Shard, JournalReader, float]]) -> None:
        for _, reader, _ in found:
            reader.close()
        self._close_offsets()

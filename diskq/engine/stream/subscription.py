# What a consumer of a stream reads: which partitions, where each begins, and where it ends. Law: in a group a
# partition continues after the group's committed offset; a start is for those that have none.

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from diskq._native.core.thread_guard import ThreadGuard
from diskq.engine.log.start import End, Start, checked_end, checked_start
from diskq.engine.stream.committed_offset import GroupOffset
from diskq.engine.stream.files import PartitionFiles
from diskq.engine.stream.group_members import GroupMembers
from diskq.engine.stream.groups import ConsumerGroup
from diskq.engine.stream.membership import Membership
from diskq.engine.stream.reader import PartitionTail, ReadableStream, make_stream
from diskq.errors import NotFoundError
from diskq.options import StreamConsumerOptions
from diskq.storage.arguments import whole_number
from diskq.storage.fs import AnyPath, FileSystem, as_path

__all__ = ["OpenPartition", "Subscription"]


@dataclass(slots=True)
class OpenPartition:
    """One partition, open at the first message to read."""

    files: PartitionFiles
    reader: PartitionTail
    limit: float
    """The offset after the last message to read."""


class Subscription:
    """The partitions of a stream that a consumer wants, and those that it has. For one thread at a time."""

    def __init__(
        self,
        path: AnyPath,
        partitions: Iterable[int] | None,
        group: str | None,
        start: Start | Mapping[int, Start],
        end: End,
        options: StreamConsumerOptions,
        fs: FileSystem,
        *,
        create: bool = False,
    ) -> None:
        """Check what a consumer is opened with; no file is looked at. Raises TypeError, ValueError."""
        self._path = path
        if partitions is not None:
            partitions = tuple(dict.fromkeys(whole_number("a partition", each) for each in partitions))
        self.partitions = partitions
        """Those that are wanted; None: all, and those that are made later."""
        self._group = group
        self._starts: dict[int, Start] = {}
        self._start: Start = "oldest"
        if isinstance(start, Mapping):
            self._starts = {index: checked_start(each) for index, each in start.items()}
        else:
            self._start = checked_start(start)
        self.end = checked_end(end)
        if options.autocommit and group is None:
            raise ValueError("autocommit is for a group: open it with group=...")
        self.options = options
        self.fs = fs
        self._create = create
        self.stream: ReadableStream
        self.membership: Membership | None = None
        self.share = 0
        """In a group: the number of partitions that it is to have, as of the last attempt to claim some."""
        self._there_at_open: set[int] = set()

    def open(
        self,
        *,
        time_slice: float | None = None,
        guard: ThreadGuard | None = None,
        clock: Callable[[], float] | None = None,
    ) -> list[OpenPartition]:
        """Open the stream, join the group, and return the partitions that could be had.

        Raises NotFoundError, OffsetOutOfRangeError, GroupNameError, UnsupportedFormatError, OSError:
        everything is closed then.
        """
        path = as_path(self._path)
        if self._create:
            make_stream(self.fs, path)
        try:
            self.stream = ReadableStream(path, fs=self.fs, time_slice=time_slice, guard=guard)
        except NotFoundError as missing:
            way_out = "start first the program that writes it, or open it with create=True"
            raise NotFoundError("stream", path, missing.reason, way_out=way_out) from None
        opened: list[OpenPartition] = []
        try:
            if self._group is not None:
                group = ConsumerGroup(self.fs, self.stream.files, self._group)
                members = None
                if self.partitions is None and self.end == "wait":
                    members = GroupMembers(self.fs, self.stream.files, self._group)
                self.membership = Membership(group, self.options, clock, members=members)
            wanted = self.stream.partitions() if self.partitions is None else self.partitions
            self._there_at_open.update(wanted)
            opened.extend(self._each(wanted, ()))
        except BaseException:
            self.abandon(opened)
            raise
        return opened

    def more(self, known: Container[int]) -> Iterator[OpenPartition]:
        """Open partitions that are new, or that another member released. Raises DiskqError, OSError."""
        wanted = self.stream.partitions() if self.partitions is None else self.partitions
        return self._each(wanted, known)

    def _each(self, wanted: Iterable[int], known: Container[int]) -> Iterator[OpenPartition]:
        wanted = tuple(wanted)
        share = len(wanted)
        if self.membership is not None:
            self.share = share = self.membership.share(share)
        for index in wanted:
            if self.membership is not None and self.membership.claimed >= share:
                break
            if index not in known and (opened := self._open_partition(index)) is not None:
                yield opened
        if self.membership is not None:
            self.membership.note_shortage(share, wanted)

    def _open_partition(self, index: int) -> OpenPartition | None:
        """Return the opened partition; None: another member of the group has it."""
        reader = self.stream.open(index)
        committed_offset: GroupOffset | None = None
        if self.membership is not None and (committed_offset := self.membership.claim(index)) is None:
            return None
        limit: float = math.inf
        try:
            if committed_offset is not None and committed_offset.next_offset is not None:
                # Whether it still exists is found out when it is received: other partitions stay readable.
                reader.ahead.next_offset = committed_offset.next_offset
            else:
                self.stream.seek(reader, index, self._start_of(index))
            if isinstance(self.end, int):
                limit = self.end + 1
            elif self.end == "close":
                limit = reader.next_offset()
        except BaseException:
            reader.close()
            raise
        return OpenPartition(self.stream.files.partition(index), reader, limit)

    def _start_of(self, index: int) -> Start:
        if index in self._starts:
            return self._starts[index]
        if index in self._there_at_open or isinstance(self._start, datetime):
            return self._start
        return "oldest"  # it was made since: nothing in it is older than this consumer

    def offset_of(self, partition: int, start: Start) -> int:
        """Return the offset where `start` is in the partition now. Raises as `ReadableStream.seek`."""
        with self.stream.open(partition) as reader:
            self.stream.seek(reader, partition, start)
            return reader.position

    def abandon(self, opened: Iterable[OpenPartition]) -> None:
        """Close the partitions, and leave the group. Raises as `Membership.close`."""
        with contextlib.ExitStack() as stack:
            if self.membership is not None:
                stack.callback(self.membership.close)
            for each in opened:
                stack.callback(each.reader.close)

# Gauges of streams and journals. Law: as gauge.py. Contents and progress come from names, sizes and committed
# offsets; of the messages only the oldest is read, once, and of a journal also the last.

from __future__ import annotations

from diskq._native.journal import codec as journal_codec
from diskq._native.stream.codec import INDEX_ROW_SIZE
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.reader import JournalReader
from diskq.engine.journal.reader_offset import read_journal_offsets
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import groups
from diskq.engine.stream.segment_times import SegmentGone, SegmentTimes, framing_of
from diskq.errors import NotFoundError, OffsetOutOfRangeError
from diskq.storage.fs import FileSystem
from diskq.storage.lock import holder_of
from diskq.tools.holders import in_words, writer_of
from diskq.tools.stores import Store
from diskq.tools.watch.samples import Aside, Sample, SamplePart, own_status
from diskq.tools.watch.segment_list import Growth, SegmentList

__all__ = ["JournalGauge", "StreamGauge"]

_WINDOW = 64 * 1024


# --- streams --------------------------------------------------------------------------------------


class StreamGauge:
    """Samples a stream by the sizes of its indexes and its groups' committed offsets."""

    def __init__(self, fs: FileSystem, store: Store) -> None:
        self.store = store
        self._fs = fs
        self._files = StreamFiles(fs, store.path)
        self._partitions: dict[int, SegmentList] = {}
        self._oldest: dict[int, tuple[int, int | None]] = {}  # by partition: the offset, and its time
        self._growth = Growth()
        self._aside = Aside(fs)

    def sample(self) -> Sample:
        fs, files = self._fs, self._files
        lists = self._partitions = self._look()
        first = {partition: found.bases[0] for partition, found in lists.items() if found.bases}
        ends = {partition: self._end(partition, found) for partition, found in lists.items() if found.bases}
        parts, wrong = self._groups(first, ends)
        depth = sum(ends[partition] - first[partition] for partition in ends)
        holder, is_open = holder_of(fs, files.lock)
        sizes = {
            (partition, base): size for partition in lists for base, size in lists[partition].sizes.items()
        }
        return Sample(
            store=self.store,
            at=fs.monotonic(),
            holder=writer_of(fs, files),
            messages_in=sum(ends.values()),
            bytes_in=self._growth.look(sizes),
            messages_out=sum(part.done or 0 for part in parts) if parts else None,
            depth=depth,
            oldest_ns=self._oldest_of(first, ends),
            size=sum(found.size for found in lists.values()),
            segments=sum(len(found.bases) for found in lists.values()),
            parts=parts,
            problems=(*wrong, *self._aside.names([files.partition(number).private for number in lists])),
            status=own_status(fs, files.status, holder, is_open),
        )

    def _look(self) -> dict[int, SegmentList]:
        lists = {}
        for number in self._files.partitions():
            found = self._partitions.get(number) or self._list(number)
            try:
                found.look()
            except NotFoundError:
                continue  # removed meanwhile
            lists[number] = found
        return lists

    def _list(self, number: int) -> SegmentList:
        files = self._files.partition(number)

        def paths(base: int) -> tuple[str, ...]:
            return (*files.segment(base), *files.private_files(base))

        return SegmentList(self._fs, files.directory, files.bases, paths)

    def _end(self, number: int, found: SegmentList) -> int:
        base = found.bases[-1]
        index = self._fs.size_of(self._files.partition(number).index_of(base)) or 0
        return base + index // INDEX_ROW_SIZE

    def _groups(
        self, first: dict[int, int], ends: dict[int, int]
    ) -> tuple[tuple[SamplePart, ...], list[str]]:
        parts, wrong = [], []
        for group in groups(self._fs, self._files):
            wrong += [str(repair) for repair in group.repairs]
            behind = {number: 0 if offset is None else offset + 1 for number, offset in group.offsets.items()}
            lags = [
                max(0, ends[number] - max(first[number], offset))
                for number, offset in behind.items()
                if number in ends
            ]
            parts.append(SamplePart(name=group.name, lag=sum(lags), done=sum(behind.values())))
        return tuple(parts), wrong

    def _oldest_of(self, first: dict[int, int], ends: dict[int, int]) -> int | None:
        """Return the time of the oldest of the partitions' first messages."""
        there = {number: offset for number, offset in first.items() if ends[number] > offset}
        framing = framing_of(self._fs, self._files)
        for number, offset in there.items():
            if self._oldest.get(number, (-1,))[0] != offset:
                times = SegmentTimes(self._fs, self._files.partition(number), offset, framing)
                try:
                    times.count()
                    self._oldest[number] = offset, times.timestamp_of(offset)
                except SegmentGone:
                    self._oldest.pop(number, None)
                finally:
                    times.close()
        times_there = (self._oldest[number][1] for number in there if number in self._oldest)
        return min((time for time in times_there if time is not None), default=None)


# --- journals -------------------------------------------------------------------------------------


class JournalGauge:
    """Samples a journal by the names of its segments, its last message, and its readers' offsets."""

    def __init__(self, fs: FileSystem, store: Store) -> None:
        self.store = store
        self._fs = fs
        files = self._files = JournalFiles(fs, store.path)
        self._segments = SegmentList(
            fs, files.directory, files.bases, lambda base: (files.data(base), files.checksum_file(base))
        )
        self._end = -1  # not known
        self._oldest: tuple[int, int | None] = (-1, None)  # the offset, and its time
        self._growth = Growth()
        self._aside = Aside(fs)

    def sample(self) -> Sample:
        fs, files, segments = self._fs, self._files, self._segments
        segments.look()
        first = segments.bases[0] if segments.bases else 0
        end = self._end = self._next_offset()
        parts = []
        for reader in read_journal_offsets(files.path, fs=fs, next_offset=end):
            behind = first if reader.offset is None else max(first, reader.offset)
            parts.append(SamplePart(name=reader.name, lag=max(0, end - behind), done=reader.offset or 0))
        holder, is_open = holder_of(fs, files.lock)
        return Sample(
            store=self.store,
            at=fs.monotonic(),
            holder=in_words(holder, is_open),
            messages_in=end,
            bytes_in=self._growth.look(segments.sizes),
            messages_out=sum(part.done or 0 for part in parts) if parts else None,
            depth=end - first,
            oldest_ns=self._oldest_time(first) if end > first else None,
            size=segments.size,
            segments=len(segments.bases),
            parts=tuple(parts),
            problems=self._aside.names(files.data_places()),
            status=own_status(fs, files.status, holder, is_open),
        )

    def _next_offset(self) -> int:
        """Return it from the last message, read backward; if none ends the file, as before, or by a walk."""
        if not self._segments.bases:
            return 0
        base = self._segments.bases[-1]
        try:
            handle = self._fs.open(self._files.data(base))
        except FileNotFoundError:
            return max(base, self._end)
        try:
            size = self._fs.size(handle)
            window = min(size, _WINDOW)
            while window:
                found = journal_codec.scan_back(self._fs.pread(handle, window, size - window), max_records=1)
                if found.messages:
                    return found.messages[0].offset + 1
                if found.stop != "TORN" or not window < found.claimed <= size:
                    break
                window = found.claimed
        finally:
            self._fs.close(handle)
        if not size or self._end > base:
            return max(base, self._end)
        with JournalReader(self._files.path, fs=self._fs) as reader:
            return reader.next_offset()

    def _oldest_time(self, first: int) -> int | None:
        if self._oldest[0] != first:
            with JournalReader(self._files.path, fs=self._fs) as reader:
                try:
                    reader.seek(first)
                except OffsetOutOfRangeError:
                    return None
                message = reader.read()
            self._oldest = first, None if message is None else message.timestamp_ns
        return self._oldest[1]

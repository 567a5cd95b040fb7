# The gauge of a store of priority queues. Law: as gauge.py. Its state is read once, as an open does; from
# then on the log is followed, and commands are counted.

from __future__ import annotations

from collections import Counter
from operator import itemgetter

from diskq._native.priority.codec import ADD, DELETE, FILE_HEAD, REMOVE, scan
from diskq.engine.priority.files import StoreFiles
from diskq.engine.priority.view import look_at_store
from diskq.storage.fs import FileSystem
from diskq.storage.numbers import UNBOUNDED
from diskq.tools.holders import owner_of
from diskq.tools.stores import Store
from diskq.tools.watch.samples import Aside, Sample, SamplePart, own_status
from diskq.tools.watch.segment_list import SegmentList

__all__ = ["StoreGauge"]

_WINDOW = 1024 * 1024
# Up to this many bytes of the log are read for a sample.
_MOST_BYTES = 64 * 1024 * 1024
_KIND_AND_QUEUE = itemgetter(0, 1)


class StoreGauge:
    """Samples a store, its queues, and the messages that go in and out of them."""

    def __init__(self, fs: FileSystem, store: Store) -> None:
        self.store = store
        self._fs = fs
        files = self._files = StoreFiles.existing(fs, store.path)
        self._segments = SegmentList(fs, files.log, files.segments, lambda base: (files.segment(base),))
        self._stored: dict[str, int] = {}
        self._removed: Counter[str] = Counter()
        self._added = 0
        self._next = -1  # the next command; -1: the state is to be read
        self._base = -1  # the segment of that command,
        self._at = 0  # and its byte there
        self._bytes = 0
        self._aside = Aside(fs)

    def sample(self) -> Sample:
        fs, files = self._fs, self._files
        self._segments.look()
        is_exact = self._follow()
        if not is_exact and self._next < 0:
            self._begin()
            is_exact = self._follow()
        owner = owner_of(self.store.path, fs=fs)
        bases = self._segments.bases
        depth = sum(self._stored.values())
        stamp = fs.stamp_of(files.segment(bases[0])) if bases and depth else None
        parts = [
            SamplePart(name=name, lag=stored, done=self._removed[name])
            for name, stored in sorted(self._stored.items())
        ]
        return Sample(
            store=self.store,
            at=fs.monotonic(),
            holder=str(owner) if owner.is_open is not False else None,
            messages_in=self._added,
            bytes_in=self._bytes,
            messages_out=self._removed.total(),
            depth=depth,
            is_exact=is_exact,
            oldest_ns=None if stamp is None else stamp.modified_ns,
            is_oldest_exact=False,
            size=self._segments.size + (fs.size_of(files.snapshot) or 0),
            segments=len(bases),
            parts=tuple(parts),
            problems=self._aside.names([files.private]),
            status=own_status(fs, files.status, owner.holder, owner.is_open),
        )

    def _begin(self) -> None:
        """Read the state."""
        look = look_at_store(self.store.path, fs=self._fs)
        self._stored = {info.name: info.stored for info in look.infos()}
        self._next = look.lsn + 1
        self._base = -1

    def _follow(self) -> bool:
        """Count new commands of the log. False: not all of them yet, or the state is to be read."""
        if self._next < 0:
            return False
        if self._base not in self._segments.bases and not self._find():
            return False
        left = _MOST_BYTES
        while left > 0:
            size = self._read(self._next, left)
            left -= size
            if size:
                continue
            if self._next not in self._segments.bases or self._next == self._base:
                return True
            self._base, self._at = self._next, len(FILE_HEAD)
        return False

    def _find(self) -> bool:
        """Go to the next command, in the segment that has it."""
        bases = [base for base in self._segments.bases if base <= self._next]
        if not bases:
            # No segment: nothing to read. A later segment only: the command was removed.
            self._next = self._next if not self._segments.bases else -1
            return not self._segments.bases
        self._base, self._at = bases[-1], len(FILE_HEAD)
        wanted, self._next = self._next, self._base
        while self._next < wanted:
            if not self._read(wanted, _MOST_BYTES):
                self._next = -1
                return False
        return True

    def _read(self, wanted: int, most: int) -> int:
        """Read the next stretch of the segment, and count commands from `wanted` on. Returns its bytes."""
        try:
            handle = self._fs.open(self._files.segment(self._base))
        except FileNotFoundError:
            return 0
        try:
            width = min(_WINDOW, most)
            skip = max(0, wanted - self._next)
            found = scan(self._fs.pread(handle, width, self._at), UNBOUNDED, skip, most=skip or -1)
            while not found.records and found.stop == "MORE" and width < most:
                width = min(2 * width, most)
                window = self._fs.pread(handle, width, self._at)
                if len(window) < width // 2:
                    break
                found = scan(window, UNBOUNDED, skip, most=skip or -1)
        finally:
            self._fs.close(handle)
        self._at += found.end
        self._bytes += found.end if found.commands else 0
        self._next += found.records
        for (kind, queue), times in Counter(map(_KIND_AND_QUEUE, found.commands)).items():
            self._count(kind, queue.decode("ascii"), times)
        return found.end

    def _count(self, kind: int, queue: str, times: int) -> None:
        if kind == ADD:
            self._added += times
            self._stored[queue] = self._stored.get(queue, 0) + times
        elif kind == REMOVE:
            self._removed[queue] += times
            self._stored[queue] = max(0, self._stored.get(queue, 0) - times)
        elif kind == DELETE:
            self._stored.pop(queue, None)
        else:
            self._stored.setdefault(queue, 0)

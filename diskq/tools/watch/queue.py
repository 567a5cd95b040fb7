# Gauges of queues and spools. Law: as gauge.py.
#
# A queue's metadata holds the number of messages at the last full barrier, some seconds ago. Messages written
# since then are counted, by checksum entries if there are some. Consumed messages are known once recorded.

from __future__ import annotations

from dataclasses import replace

from diskq.engine.queue.files import QueueFiles, QueueMetadata, QueuePosition
from diskq.engine.spool.files import SPOOL, SpoolFiles, read_note
from diskq.storage.fs import FileSystem, base_name
from diskq.tools.holders import in_words
from diskq.tools.record_count import bytes_between, count_between, count_waiting
from diskq.tools.stores import Store
from diskq.tools.view.queue import QueueView, look
from diskq.tools.view.spool import look_at_spool
from diskq.tools.watch.samples import Sample, own_status

__all__ = ["QueueGauge", "SpoolGauge"]

# More bytes than this after the recorded position are not counted: their writer records nothing.
_MOST_BYTES = 256 * 1024 * 1024
_SECOND = 10**9


class QueueGauge:
    """Samples a queue."""

    def __init__(self, fs: FileSystem, store: Store, name: str) -> None:
        self.store = store
        self._fs = fs
        self._name = name
        self._files = QueueFiles(fs, store.path, name)
        self._sizes: dict[int, int] = {}  # from the file that is read
        self._recorded: QueueMetadata | None = None
        self._at = QueuePosition(0, 0)  # messages are counted up to here
        self._seen = 0  # messages counted since the first look
        self._seen_recorded = 0  # of these, those up to the recorded write position
        self._bytes_in = self._bytes_out = 0

    def sample(self) -> Sample:
        return self.sample_of(look(self.store.path, self._name, fs=self._fs, opens=False))

    def sample_of(self, view: QueueView) -> Sample:
        """Return the sample of a queue that was looked at a moment ago."""
        fs, files = self._fs, self._files
        content = files.read_metadata()
        recorded = QueueMetadata.parse(content) if content is not None else None
        self._sizes |= {number: fs.size_of(files.data(number)) or 0 for number in files.numbers()}
        depth, is_exact = None, False
        if recorded is not None:
            is_exact = self._count(recorded)
            depth = max(0, recorded.depth + self._seen - self._seen_recorded)
            depth += count_waiting(fs, files, self._at)
            self._sizes = {file: size for file, size in self._sizes.items() if file >= recorded.read.file}
        stamp = fs.stamp_of(files.data(view.read.file)) if depth else None
        return Sample(
            store=self.store,
            at=fs.monotonic(),
            holder=in_words(view.holder, view.is_open),
            messages_in=None if recorded is None else self._seen,
            bytes_in=None if recorded is None else self._bytes_in,
            messages_out=None if recorded is None else self._seen_recorded - recorded.depth,
            bytes_out=None if recorded is None else self._bytes_out,
            depth=depth,
            is_exact=is_exact,
            oldest_ns=None if stamp is None else stamp.modified_ns,
            is_oldest_exact=False,
            size=view.bytes,
            segments=view.files,
            problems=(*view.problems, *map(base_name, view.aside)),
            status=own_status(fs, files.status, view.holder, view.is_open),
        )

    def _count(self, recorded: QueueMetadata) -> bool:
        """Count what was written and consumed since the last time. False: too much to be counted."""
        before, self._recorded = self._recorded, recorded
        if before is None or self._has_gone():
            self._at, self._seen_recorded = recorded.write, self._seen
        else:
            self._bytes_out += bytes_between(before.read, recorded.read, self._sizes)
            if recorded.write > self._at:
                self._go_on(recorded.write)
                self._at, self._seen_recorded = recorded.write, self._seen
            elif recorded.write != before.write:
                behind = count_between(self._fs, self._files, recorded.write, self._at)
                self._seen_recorded = self._seen - behind.records
        last = max(self._sizes, default=0)
        return self._go_on(QueuePosition(last, self._sizes.get(last, 0)))

    def _has_gone(self) -> bool:
        """True if the last counted file is gone: it was consumed, or the queue was made anew."""
        size = self._fs.size_of(self._files.data(self._at.file))
        return size is None or size < self._at.byte

    def _go_on(self, end: QueuePosition) -> bool:
        size = bytes_between(self._at, end, self._sizes)
        if size > _MOST_BYTES:
            return False
        if size:
            counted = count_between(self._fs, self._files, self._at, end)
            self._seen += counted.records
            self._bytes_in += bytes_between(self._at, counted.end, self._sizes)
            self._at = counted.end
        return True


class SpoolGauge:
    """Samples a spool: its queue, and its status while it is at work."""

    def __init__(self, fs: FileSystem, store: Store) -> None:
        self.store = store
        self._fs = fs
        self._files = SpoolFiles(store.path)
        self._queue = QueueGauge(fs, store, SPOOL)

    def sample(self) -> Sample:
        view = look_at_spool(self.store.path, fs=self._fs, opens=False)
        found, status = self._queue.sample_of(view.queue), view.status
        note = read_note(self._fs, self._files) if view.is_at_work else None
        is_told = bool(found.depth) and status.accepted_at is not None
        return replace(
            found,
            oldest_ns=int(status.accepted_at * _SECOND)
            if is_told and status.accepted_at is not None
            else found.oldest_ns,
            is_oldest_exact=is_told,
            in_flight=0 if note is None else note.items,
            dead_letters=status.dead_letters,
            problems=(*found.problems, *([status.last_error] if status.last_error else [])),
        )

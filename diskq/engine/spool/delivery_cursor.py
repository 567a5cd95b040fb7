# The head of a spool: which messages are the next batch, how often it was tried, and how far everything
# has been delivered. Law: a message leaves after it was delivered or its dead letter is durable; if the files
# show less than was done, a batch is delivered again.
#
# A queue's own read position is on disk only after its next sync, some thousands of messages later. So
# what has left is noted for each batch, in the page cache: a process that is killed repeats only the batch
# that it was at. A note is believed only if the message before its place is the one it names.
#
# The caller peeks, takes up what was peeked at, tries it, and commits:
#
#     cursor.take_batch(queue.head.peek_many(*cursor.limits(100, MIB)))
#     cursor.begin_try();  deliver(cursor.batch());  count = cursor.count
#     queue.head.advance(count);  cursor.commit()

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from diskq.engine.queue.age_samples import AgeSamples
from diskq.engine.queue.files import QueuePosition
from diskq.engine.queue.steps import QueueSteps
from diskq.engine.spool.dead_letters import DeadLetter
from diskq.engine.spool.files import (
    Note,
    SpoolFiles,
    SpoolState,
    SpoolStatus,
    Trace,
    read_note,
    read_state,
)
from diskq.messages import Batch
from diskq.storage.barrier import Barrier, write_all
from diskq.storage.closing import Closing, Dropped
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, directory_of
from diskq.storage.numbers import UNBOUNDED

__all__ = ["DeliveryCursor"]

_NO_MESSAGE = Trace(-1, 0)
_PIECE = 1024
# Each crash makes one epoch; beyond the limit, messages of the oldest ones get other ids than before.
_MOST_EPOCHS = 1000

Epochs = tuple[tuple[QueuePosition, str], ...]


class DeliveryCursor(Closing, Dropped):
    """What is delivered of an open queue, and the state of the delivery. For one thread at a time."""

    def __init__(self, fs: FileSystem, path: str, queue: QueueSteps) -> None:
        """Go on where the last process was. The queue's head is then there, and that is durable.

        Raises OSError, StorageFailedError.
        """
        self._fs = fs
        self._queue = queue
        self._files = SpoolFiles(path)
        self.path = path
        self._overhead = queue.overhead
        self._bodies: list[bytes] = []
        self._ends: list[QueuePosition] = []
        self._live: Sequence[int] = ()  # indices of the messages that are neither buried nor dropped
        self._buried: set[QueuePosition] = set()
        self._handle = -1
        self.attempts = 0
        """Tries of the head's batch so far, the present one included."""
        self._excused = 0  # tries that failed because of messages that are buried now
        self._trace = _NO_MESSAGE
        self._end = QueuePosition(0, 0)
        self._items = 0  # the size of the batch that was being tried; 0: none
        state, note = read_state(fs, self._files), read_note(fs, self._files)
        self.found = state.status if state is not None else None
        """The status that the last process wrote."""
        self._head = queue.head.position
        if note is not None:
            self._resume(note)
        self._read_epochs(state)
        self.ages = AgeSamples(state.times if state is not None else ())
        self.ages.add(queue.tail.position, fs.wall_clock())
        if state is not None:
            self._buried.update(place for place in state.buried if self._head < place <= self._end)
        self._begin(is_new=state is None)

    def close(self) -> None:
        """Close the note. Idempotent."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            self._fs.close(handle)

    def _unclosed(self) -> tuple[FileSystem, str] | None:
        return (self._fs, f"delivery cursor of spool {self.path}") if self._handle >= 0 else None

    def _let_go_dropped(self) -> None:
        self.close()

    # --- going on where the last process was ------------------------------------------------------

    def _resume(self, note: Note) -> None:
        queue, head = self._queue, self._queue.head.position
        if head == note.head or (head < note.head <= queue.tail.position and self._skip_to(note)):
            self._head, self._trace = note.head, note.trace
        # If a file ended with the batch before it, the head has a place in the next file by now.
        if note.items and note.head <= queue.head.position < note.end:
            self._end, self._items = note.end, note.items
            self.attempts, self._excused = note.attempts, note.excused

    def _skip_to(self, note: Note) -> bool:
        """Remove everything up to the note's head from the queue, if the files agree with the note."""
        queue, wanted = self._queue, _PIECE
        while True:
            bodies = queue.head.peek_many(wanted)
            ends = queue.head.peeked_ends(len(bodies))
            if len(bodies) < wanted or ends[-1] >= note.head:
                break
            wanted *= 2
        count = bisect_right(ends, note.head)
        if not count or ends[count - 1] != note.head or Trace.of(bodies[count - 1]) != note.trace:
            return False
        queue.head.advance(count)
        return True

    def _read_epochs(self, state: SpoolState | None) -> None:
        """Read the epochs. After a crash a place may be used again: the new message must get another id."""
        tail = self._queue.tail.position
        is_closed = state is not None and not state.is_open
        # Another program may have written where a power cut took messages that had ids.
        epochs = state.epochs if state is not None and (is_closed or not self._queue.has_foreign) else ()
        if not epochs:
            epochs = ((self._head, self._new_epoch()),)
        if state is None or state.is_open or state.tail != tail:
            kept = (epoch for epoch in epochs if epoch[0] < tail)
            # Epochs before the head are kept, too: a power cut may take the head back to where they count.
            epochs = (*kept, (tail, self._new_epoch()))[-_MOST_EPOCHS:]
        self._epochs: Epochs = epochs

    def _new_epoch(self) -> str:
        return f"{self._fs.unique_number():016x}"

    def _begin(self, *, is_new: bool) -> None:
        """Make durable that the spool is open, and where its head is, before a message is accepted."""
        fs, files = self._fs, self._files
        self._handle = fs.open(files.note, write=True, create=True)
        try:
            self._write_note()
            if is_new:
                # A process without the right to open the parent directory has made nothing there.
                with contextlib.suppress(PermissionError):
                    Barrier(directories=(directory_of(files.path.rstrip("/")),)).execute(fs)
            barrier = Barrier(
                files=(self._handle,),
                directories=(files.private, files.path),
                replacements=(files.state_as(self.state(self.found or SpoolStatus())),),
                removals=tuple(files.leftovers(fs)),
            )
            if not barrier.execute(fs):
                # The disk is full; the old state must not claim later that the spool was not opened since.
                Barrier(removals=(files.state,)).execute(fs)
            self._queue.note_taken_up()
        except BaseException:
            self.close()
            raise

    # --- the batch at the head --------------------------------------------------------------------

    def limits(self, max_messages: int, max_bytes: int) -> tuple[int, int]:
        """Return how many messages, and bytes, to peek at: a batch that was tried before stays the same."""
        return (self._items, UNBOUNDED) if self._items else (max_messages, max_bytes)

    def take_batch(self, bodies: list[bytes]) -> None:
        """Take the first of these messages, which were peeked at, as the batch."""
        ends = self._queue.head.peeked_ends(len(bodies))
        fits = bisect_right(ends, self._end) if self._items else len(ends)
        if not fits:
            # The batch that was tried before was dropped.
            fits = len(ends)
            self.attempts = self._excused = 0
        self._bodies, self._ends = bodies[:fits], ends[:fits]
        self._live = range(fits)
        self._items, self._end = fits, ends[fits - 1]

    @property
    def count(self) -> int:
        """The number of messages in the batch, including buried and dropped ones: all are to leave."""
        return len(self._ends)

    @property
    def live(self) -> int:
        """The number of them that are still to be delivered."""
        head = self._queue.head.position
        if self._buried or self._ends[0] <= head:
            self._live = [
                index for index in self._live if (end := self._ends[index]) > head and end not in self._buried
            ]
        return len(self._live)

    @property
    def is_tried(self) -> bool:
        """True if the batch at the head was tried before, so that it must not grow."""
        return self._items > 0

    @property
    def failed_attempts(self) -> int:
        """The number of tries that failed for all of it."""
        return self.attempts - self._excused

    def begin_try(self) -> Batch:
        """Begin a try, and return its batch. The try counts even if the process is killed in it."""
        self._queue.head.settle_in_hand()  # what was dropped before is not in the batch
        self.attempts += 1
        self._write_note()
        return self.batch()

    def do_not_count_try(self) -> None:
        """Do not count the try: it was ended from outside, and says nothing about the batch."""
        self.attempts -= 1
        self._write_note()

    def do_not_count_failed_try(self) -> None:
        """Do not count the try against the others: it failed because of messages that are buried now."""
        self._excused += 1
        self._write_note()

    def batch(self) -> Batch:
        """Return the part of the batch that is still to be delivered."""
        bodies, ends = self._bodies, self._ends
        if self.live < len(bodies):
            bodies, ends = [bodies[index] for index in self._live], [ends[index] for index in self._live]
        return Batch(bodies, self.attempts, lambda: self.ids(bodies, ends))

    def ids(self, bodies: list[bytes], ends: list[QueuePosition]) -> tuple[str, ...]:
        """Return the ids of messages, given the places just after each."""
        epochs, ids = self._epochs, []
        for body, (file, end) in zip(bodies, ends, strict=True):
            start = end - len(body) - self._overhead
            number = bisect_right(epochs, QueuePosition(file, start), key=_place)
            ids.append(f"{epochs[max(0, number - 1)][1]}:{file}:{start}")
        return tuple(ids)

    def dead_letters(self, batch: Batch, items: Iterable[int], reason: str) -> list[DeadLetter]:
        """Return dead letters for messages of the batch that is being tried."""
        now = int(self._fs.wall_clock() * 1e9)
        return [DeadLetter(batch.ids[item], reason, now, batch.attempts, batch[item]) for item in items]

    def bury(self, items: Iterable[int]) -> None:
        """Leave these messages out of the delivery: their dead letters are durable."""
        self._buried.update(self._ends[self._live[item]] for item in items)

    def commit(self) -> None:
        """Note that the batch has left the queue."""
        self._head, self._trace = self._ends[-1], Trace.of(self._bodies[-1])
        self._items = self.attempts = self._excused = 0
        self._buried.clear()
        self._bodies, self._ends = [], []
        self._write_note()

    def _write_note(self) -> None:
        note = Note(self._head, self._trace, self._end, self._items, self.attempts, self._excused)
        # On a full disk even writing in place may fail: batches may be delivered again.
        with _full_disk_suppressed():
            write_all(self._fs, self._handle, note.pack(), 0)

    # --- what is to be remembered -----------------------------------------------------------------

    def note_arrival(self) -> None:
        """Note that the first message has just been accepted."""
        self.ages.add(self._queue.head.position, self._fs.wall_clock())

    def accepted_at(self) -> float | None:
        """Return when the first message was accepted, in seconds since the Unix epoch; None without one."""
        return self.ages.at(self._queue.head.position) if self._queue.head.depth else None

    def barrier(self, status: SpoolStatus, *, is_open: bool = True) -> Barrier:
        """Return a barrier that makes the present state durable."""
        state = self.state(status, is_open=is_open)
        return Barrier(files=(self._handle,), replacements=(self._files.state_as(state),))

    def state(self, status: SpoolStatus, *, is_open: bool = True) -> SpoolState:
        self.ages.forget_before(self._queue.head.position)
        return SpoolState(
            is_open=is_open,
            tail=self._queue.tail.position,
            epochs=self._epochs,
            times=self.ages.marks,
            buried=tuple(sorted(self._buried)),
            status=status,
        )


def _place(epoch: tuple[QueuePosition, str]) -> QueuePosition:
    return epoch[0]


@contextlib.contextmanager
def _full_disk_suppressed() -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        if failure.errno not in FULL_DISK_ERRNOS:
            raise

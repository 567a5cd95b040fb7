# A spool without an event loop: a thread of its own delivers what others put. Law: one batch at a time, in
# order; a batch leaves the queue after `deliver` returned, or after its undeliverable messages are durable as
# dead letters; in all other cases it stays.
#
# The files, the order and what follows from a failure are those of the channel (channels/spool), by the same
# modules: delivery_cursor.py and trial.py. No event loop runs in the thread: it does nothing but wait, for
# messages, for time to pass, and for `deliver`. What it cannot do is to end a `deliver` that does not return.
#
# `deliver` is called without the thread guard, so that others put meanwhile; everything else of the queue,
# the cursor and the figures is done with it held.

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from types import TracebackType
from typing import NamedTuple, Unpack

from diskq.engine.log.sync import DurationCounter
from diskq.engine.log.thread_line import deadline, now
from diskq.engine.queue.fifo_queue import Body, Queue
from diskq.engine.queue.files import QueuePosition
from diskq.engine.spool.dead_letters import DeadLetter, DeadLetters
from diskq.engine.spool.delivery_cursor import DeliveryCursor
from diskq.engine.spool.figures import TICK, SpoolFigures, SpoolStatistics
from diskq.engine.spool.files import ADOPTING, SPOOL, SpoolStatus, is_left_behind, make_or_find
from diskq.engine.spool.trial import FailedTry, Pace, Trial, report_end
from diskq.errors import DiskqError, ForkedError, FullError, LockedError
from diskq.keywords import ThreadedSpoolKeywords
from diskq.messages import Batch
from diskq.options import Durability, SpoolOptions, chosen_options
from diskq.storage.backoff import backoff
from diskq.storage.callbacks import check_plain, check_result
from diskq.storage.closing import Closing
from diskq.storage.forks import notify_on_fork
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.lock import checked_wait
from diskq.storage.log_events import Log, held_back
from diskq.storage.repairs import Repair
from diskq.storage.slots import open_slot, slots_in

__all__ = ["Deliver", "Spool", "ThreadedDeadLetters"]

log = Log("spool")

# Seconds between two looks at a slot that is adopted, to see whether there are messages of its own again.
_LOOK = 0.2
# Seconds until the next attempt after a failed read.
_READ_AGAIN = 1.0

_DeadLetterList = list[DeadLetter]

Deliver = Callable[[Batch], Collection[object] | int | None]
"""A plain function. What it returns is ignored, and is no more general, because an async function returns an
object, too."""


class Spool(Closing):
    """Accepts messages, and delivers them to a destination that may be away, in a thread of its own.

    Threads may share it. The files are those of `open_spool`: one and the other may open a spool in turn.
    """

    def __init__(
        self,
        path: AnyPath,
        deliver: Deliver,
        *,
        create: bool = True,
        slots: bool = False,
        wait: float = 0.0,
        options: SpoolOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Unpack[ThreadedSpoolKeywords],
    ) -> None:
        """Open the spool at `path`, a directory of its own, made if it is missing, and begin to deliver.

        `create=False`: a missing spool is a NotFoundError, and nothing is made.

        `deliver(batch)` is called in the spool's thread with a `Batch`, in order, one at a time; when it
        returns, the batch is delivered. It may raise `Retry` and `Permanent`. It should have a timeout of
        its own: it cannot be interrupted, so there is no `deliver_timeout`, and `close` waits for it. An
        async function is a TypeError.

        With `slots`, any number of processes may open it: each has the first free slot below `path`, a spool
        of its own. The slot of a dead process is taken by the next one that opens, and its messages are also
        delivered by a living one that has none of its own. A child of a fork opens a slot at its first call.

        `wait`: seconds for which the lock is tried while another process has it. Raises LockedError if
        another process has the spool, OSError, TypeError and ValueError.

        Options (`SpoolOptions`). Sizes in bytes, durations in seconds. No option is part of the format: a
        spool may be reopened with other options at any time.

        - `max_messages=100`: A batch has at most this many messages.
        - `max_bytes=1024 * 1024`: A batch has at most this many bytes of messages; a single larger message is
          a batch of its own.
        - `backoff_initial=0.1`: The second try comes after this time; each later one waits twice as long as
          the one before.
        - `backoff_max=60.0`: No try waits longer than this.
        - `backoff_jitter=1.0`: A random time of up to this much is added, so that many processes do not retry
          at the same moment.
        - `linger=0.0`: A batch that is not full waits this long for more messages.
        - `max_attempts=None`: After this many tries a batch's messages become dead letters. None: it is tried
          without limit.
        - `retry_on=Exception`: Exceptions of `deliver` after which the batch is tried again; any other one
          ends the spool's block.
        - `pause_after=None`: After this many failures in a row delivery stops for `pause`, then tries once.
          None: it never stops.
        - `pause=60.0`: The length of that pause, to which up to a tenth is added at random.
        - `rate=None`: At most this many messages a second on average, each batch at once. None: as fast as
          possible.
        - `drain_timeout=0.0`: Leaving the block without an error waits up to this long for the remaining
          messages' delivery.
        - `commit="written"`: How durably a delivered batch is recorded before the next one is tried:
          `written`, it is not delivered again after a kill; `synced`, also not after a power cut, at the
          price of one sync for each batch.
        - `queue=QueueOptions()`: How the spool keeps its messages: durability, bounds, and what happens when
          it is full.
        """
        check_plain("deliver", deliver)
        chosen = chosen_options(Spool, options, SpoolOptions, changes, refused="deliver_timeout")
        if chosen.deliver_timeout is not None:
            raise ValueError(
                "deliver_timeout is for open_spool: a plain function cannot be interrupted, give it a timeout"
            )
        self.root: str = as_path(path)
        self.options = chosen
        self._deliver = deliver
        self._given_fs = fs
        self._create = create
        self._wait_for_lock = checked_wait(wait)
        self._has_slots = slots
        self._reopening = _Reopening()
        self._begin(fs or OsFileSystem())

    def _begin(self, fs: FileSystem) -> None:
        """Open the files, in a slot if there are slots, and begin to deliver."""
        self._fs = fs
        if self._has_slots:
            make_or_find(fs, self.root, create=self._create, slots=True)
            opened = open_slot(self.root, self._open_files)
        else:
            opened = self._open_files(self.root)
        self._files, self._cursor = opened.files, opened.cursor
        self.path: str = opened.path
        """The directory of its files: with slots, that of the slot."""
        self._pace = Pace(self.options)
        self._trial = Trial(self._cursor, self.options, self._pace, TimeoutError)
        self._figures = SpoolFigures(
            opened.queue.steps, self._cursor, opened.letters, self._trial, self._pace, self._fs
        )
        self.dead_letters: ThreadedDeadLetters = ThreadedDeadLetters(opened.letters, opened.queue)
        """The messages that could not be delivered, to be listed, replayed or removed."""
        self._news = threading.Condition()  # something has changed for a thread that waits
        self._wakes = 0  # calls that end the waits of the delivery
        self._is_closing = self._is_over = self._is_closed = False
        self._failure: BaseException | None = None
        self._barriers = DurationCounter()
        self._status_at = -math.inf  # when the status was written last
        self._written: tuple[SpoolStatus, QueuePosition] | None = None
        self._adopt_at = now()  # when to look for slots of dead processes
        self._queue = opened.queue  # last: in a child of a fork, it says to other threads that all is there
        self._thread = threading.Thread(target=self._run, name=f"diskq delivers {self.path}", daemon=True)
        self._thread.start()

    def _open_files(self, path: str) -> _OpenFiles:
        wait = 0.0 if self._has_slots else self._wait_for_lock
        make_or_find(self._fs, path, create=self._create or self._has_slots)
        with contextlib.ExitStack() as opened:
            queue = opened.enter_context(
                Queue(path, SPOOL, wait=wait, options=self.options.queue, fs=self._fs)
            )
            letters = opened.enter_context(DeadLetters(path, fs=self._fs))
            cursor = opened.enter_context(DeliveryCursor(self._fs, path, queue.steps))
            return _OpenFiles(path, queue, letters, cursor, opened.pop_all())

    def _reopen(self) -> None:
        """Open a slot of its own, in a child of a fork: what it inherited is its parent's."""
        with self._reopening.lock:
            try:
                with self._queue.guard:
                    return  # another thread has done it
            except ForkedError:
                self._begin(self._given_fs or OsFileSystem())

    def _be_own(self) -> None:
        """In a child of a fork, open a slot of its own. Raises ForkedError where there are no slots."""
        try:
            self._queue.guard.take()
        except ForkedError:
            if not self._has_slots:
                raise
            self._reopen()
        else:
            self._queue.guard.give()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._failure is None else "failed"
        return f"<Spool {self.path!r}: {self._queue.depth} messages, {state}>"

    # --- putting ----------------------------------------------------------------------------------

    def put(
        self,
        body: Body,
        block: bool = True,
        timeout: float | None = None,
        *,
        durability: Durability | None = None,
    ) -> None:
        """Accept a message, to be delivered after all earlier ones. As `Queue.put`.

        Returns when it is as durable as `durability` (by default the queue options') says. Where delivery
        has ended by an error, messages are accepted all the same: the next open delivers them.
        """
        try:
            self._queue.put(body, block, timeout, durability=durability)
        except ForkedError:
            if not self._has_slots:
                raise
            self._reopen()
            self._queue.put(body, block, timeout, durability=durability)

    def put_nowait(self, body: Body, *, durability: Durability | None = None) -> None:
        """Accept a message as `put`, without waiting for space."""
        self.put(body, False, durability=durability)

    def put_many(self, messages: Iterable[Body], *, durability: Durability | None = None) -> None:
        """Accept messages next to each other, in order. As `Queue.put_many`."""
        messages = list(messages)
        try:
            self._queue.put_many(messages, durability=durability)
        except ForkedError:
            if not self._has_slots:
                raise
            self._reopen()
            self._queue.put_many(messages, durability=durability)

    def sync(self) -> None:
        """Return when all accepted messages, and all deliveries, are on stable storage. As `Queue.sync`."""
        self._be_own()
        self._queue.sync()

    # --- delivering -------------------------------------------------------------------------------

    def drained(self, timeout: float | None = None) -> bool:
        """Wait until all messages accepted by now are delivered or are dead letters. False: not in time.

        Waits up to `timeout` seconds (None: without limit). Raises the error that has ended delivery,
        ValueError after `close`, and RuntimeError inside `deliver`, since it waits for that to return.
        """
        self._refuse_inside("drained()")
        self._be_own()
        end, steps = deadline(timeout), self._queue.steps
        tail = steps.tail.position
        with self._news:
            while steps.head.depth and steps.head.position < tail:
                if self._is_over:
                    if self._failure is not None:
                        raise self._failure
                    raise ValueError(f"the spool {self.path} is closed")
                left = end - now()
                if left <= 0:
                    return False
                self._news.wait(None if left == math.inf else left)
        return True

    def pause(self) -> None:
        """Begin no further try until `resume`. A try under way is completed."""
        self._be_own()
        self._pace.pause()

    def resume(self) -> None:
        """Try now, even during a back-off, a pause after failures or a wait for the rate."""
        self._be_own()
        self._pace.resume()
        self._wake()

    @property
    def failure(self) -> BaseException | None:
        """The error that has ended delivery; None: it goes on."""
        return self._failure

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """The damage found in the files of the queue and of the dead letters, at the open and since."""
        return self._queue.repairs + self.dead_letters.repairs

    def statistics(self) -> SpoolStatistics:
        """Return figures of the spool as it is now. Cheap; from any thread."""
        return self._figures.statistics(self.repairs, self._barriers.now())

    def close(self) -> None:
        """Wait up to `drain_timeout` for the remaining messages, end delivery, and close the files.

        Idempotent. A `deliver` that runs is waited for; what it does not deliver is delivered after the next
        open. Raises the error that has ended delivery, DiskFullError and StorageFailedError; it is closed all
        the same.
        """
        self._close(self.options.drain_timeout)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            super().__exit__(kind, error, trace)
        else:
            with contextlib.suppress(Exception):  # the block's own error is raised instead
                self._close(0.0)

    def _close(self, drain_timeout: float) -> None:
        if self._is_closed:
            return
        self._refuse_inside("close()")
        with self._queue.guard:
            pass  # in a child of a fork it raises
        if drain_timeout and self._failure is None:
            with contextlib.suppress(Exception):  # it is raised below
                self.drained(drain_timeout)
        self._is_closing = True
        self._wake()
        self._thread.join()
        self._is_closed = True
        with self._files:
            if self._queue.log.failure is None:
                self._write_status(is_open=False)
        if self._failure is not None:
            raise self._failure

    def _refuse_inside(self, call: str) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"deliver of spool {self.path!r} called {call}, which waits until deliver has returned: "
                "call it in another thread"
            )

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        """Deliver until the spool is closed, or delivery fails for good."""
        try:
            while not self._is_closing:
                self._wait_for_messages()
                self._deliver_batch()
        except _SpoolCloses:
            pass
        except BaseException as failure:
            report_end(self.path, failure)
            self._failure = failure
        finally:
            self._is_over = True
            self._notify()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the thread guard. What is logged meanwhile is logged afterwards.

        A handler of logging may put into this spool: with the handler's own lock, it waits for the guard.
        """
        with held_back(), self._queue.guard:
            yield

    def _wait_for_messages(self) -> None:
        """Return when there is a message; with `linger`, when there is a full batch or time is up."""
        head, line = self._queue.steps.head, self._queue.log.thread_lines.for_messages
        was_idle = not head.depth
        while not head.depth and not self._is_closing:
            due = self._keep_status()
            if self._has_slots:
                if self._adopt_at <= now():
                    self._adopt()
                left = max(0.0, self._adopt_at - now())
                due = left if due is None else min(due, left)
            line.wait(lambda: True if head.depth or self._is_closing else None, due)
        if self._is_closing:
            raise _SpoolCloses
        if was_idle:
            with self._alone():
                self._cursor.note_arrival()
        linger, most = self.options.linger, self.options.max_messages
        if linger and not self._cursor.is_tried and head.depth < most:
            line.wait(lambda: True if head.depth >= most or self._is_closing else None, linger)
            if self._is_closing:
                raise _SpoolCloses

    def _adopt(self) -> None:
        """Deliver what dead processes have left in their slots, while there are no messages of its own."""
        options = dataclasses.replace(self.options, drain_timeout=0.0)  # messages of its own wait meanwhile
        for path in slots_in(self._fs, self.root):
            if path == self.path or not is_left_behind(self._fs, path):
                continue
            try:
                with Spool(path, self._deliver, options=options, fs=self._fs) as other:
                    while not (self._is_closing or self._queue.depth or other.drained(_LOOK)):
                        pass
            except LockedError:
                pass  # a process has it
            except (DiskqError, OSError) as failure:
                self._trial.complain(failure)
        self._adopt_at = now() + ADOPTING

    def _deliver_batch(self) -> None:
        steps, cursor, options = self._queue.steps, self._cursor, self.options
        try:
            with self._alone():
                bodies = steps.head.peek_many(*cursor.limits(options.max_messages, options.max_bytes))
                if not bodies:
                    return  # the messages were given up meanwhile, to free space
                cursor.take_batch(bodies)
        except OSError as failure:
            # For example, too many open files: the messages are still there.
            self._trial.complain(failure)
            self._wait(_READ_AGAIN)
            return
        self._see_through()
        with self._alone():
            count = cursor.count
            steps.head.advance(count)
            steps.head.settle_in_hand()
            cursor.commit()
        if self._queue.log.lines is not None:
            self._queue.log.lines.note_taken(count)
        if options.commit == "synced":
            # The queue reports a full disk; deliveries go on.
            with contextlib.suppress(FullError):
                self._queue.sync()
        self._notify()
        self._keep_status()

    def _see_through(self) -> None:
        """Return when nothing is left of the batch at the head. Raises _SpoolCloses."""
        failures = 0
        while True:
            try:
                return self._try()
            except _TryAgain as again:
                failures += 1
                seconds = backoff(failures, self.options) if again.after is None else again.after
            self._pace.next_try_at = self._queue.log.clock() + seconds
            self._wait(seconds)

    def _try(self) -> None:
        """Return when nothing is left of the batch. Raises _TryAgain, and _SpoolCloses."""
        cursor, trial = self._cursor, self._trial
        while cursor.live:
            self._wait_for_turn()
            if trial.is_tried_enough:
                return self._bury(trial.gives_up())
            with self._alone():
                batch = cursor.begin_try()
            try:
                check_result("deliver", self._deliver, self._deliver(batch))
            except Exception as raised:
                with self._alone():
                    failed = trial.failed(batch, raised)
                if not failed.given_up:
                    raise _TryAgain(failed.after) from raised
                self._bury(failed)
            except BaseException:
                with self._alone():
                    cursor.do_not_count_try()  # its outcome is unknown
                raise
            else:
                with self._alone():
                    trial.succeeded()
                    trial.delivered += len(batch)
                return None
        return None

    def _bury(self, failed: FailedTry) -> None:
        """Make dead letters of what is given up. Raises _TryAgain if there is no space for them."""
        with self._alone():
            letters = self._cursor.dead_letters(self._cursor.batch(), failed.given_up, failed.reason)
        try:
            self.dead_letters.add(letters)
        except FullError as full:
            self._trial.complain(full)
            raise _TryAgain(self._pace.failed()) from full
        with self._alone():
            self._trial.bury(failed)

    # --- waiting ----------------------------------------------------------------------------------

    def _wait_for_turn(self) -> None:
        """Return when the batch may be tried. Raises _SpoolCloses."""
        while True:
            if self._is_closing:
                raise _SpoolCloses
            clock = self._queue.log.clock()
            if self._pace.is_held:
                self._wait(math.inf)
                continue
            if (free_at := self._pace.free_at(clock)) is None:
                break
            self._pace.next_try_at = free_at
            if self._wait(free_at - clock):
                break
        self._pace.begin(self._cursor.live, clock)

    def _wait(self, seconds: float) -> bool:
        """Wait so long, or until `resume` (True). Raises _SpoolCloses. Keeps the status meanwhile."""
        end, wakes = now() + seconds, self._wakes
        while True:
            due = self._keep_status()
            with self._news:
                if self._is_closing:
                    raise _SpoolCloses
                if self._wakes != wakes:
                    return True
                left = end - now()
                if left <= 0:
                    return False
                left = left if due is None else min(left, due)
                self._news.wait(None if left == math.inf else left)

    def _wake(self) -> None:
        """End the waits of the delivery."""
        with self._news:
            self._wakes += 1
            self._news.notify_all()
        self._queue.log.thread_lines.for_messages.wake()

    def _notify(self) -> None:
        with self._news:
            self._news.notify_all()

    # --- the status file --------------------------------------------------------------------------

    def _keep_status(self) -> float | None:
        """Write the status if it has changed, once per tick. Returns in how many seconds to look again.

        None: not before something happens.
        """
        left = self._status_at + TICK - now()
        if left <= 0:
            with self._alone():
                tail = self._queue.steps.tail.position
                self._cursor.ages.add(tail, self._fs.wall_clock())
                self._figures.sample()
                current = dataclasses.replace(self._figures.status(), written_at=0.0), tail
            if current != self._written:
                self._status_at = now()
                self._written = current if self._write_status(is_open=True) else None
            elif not self._queue.steps.head.depth:
                return None
            left = TICK
        return left

    def _write_status(self, *, is_open: bool) -> bool:
        """Write the status to stable storage. False: the disk is full, and the old status stays."""
        with self._alone():
            barrier = self._cursor.barrier(self._figures.status(), is_open=is_open)
        began = now()
        try:
            return barrier.execute(self._fs)
        except OSError as failure:
            self._queue.log.fail(failure)
        finally:
            self._barriers.count(now() - began)


class _OpenFiles(NamedTuple):
    path: str
    queue: Queue
    letters: DeadLetters
    cursor: DeliveryCursor
    files: contextlib.ExitStack
    """It closes them all."""


class _Reopening:
    """The lock of the one thread that opens a slot in a child of a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        notify_on_fork(self)

    def leave_to_parent(self, pid: int) -> None:
        """In a child of a fork, let go of it: the thread that has it is not there."""
        self.lock = threading.Lock()


class _SpoolCloses(Exception):
    """The spool is being closed: the batch stays."""


class _TryAgain(Exception):
    """The batch is to be tried again `after` that many seconds; None: as the back-off says."""

    def __init__(self, after: float | None) -> None:
        super().__init__()
        self.after = after


class ThreadedDeadLetters:
    """The messages that an open `Spool` could not deliver. Threads may share it."""

    def __init__(self, engine: DeadLetters, queue: Queue) -> None:
        self._engine = engine
        self._queue = queue
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of dead letters; a crash may have left some twice."""
        return len(self._engine)

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """The damage found in the dead letters' files, at the open and by later reads."""
        return self._engine.repairs

    def list(self) -> _DeadLetterList:
        """Return all dead letters, in the order in which they were given up."""
        self._check_process()
        with self._lock:
            return self._engine.list()

    def replay(self, ids: Collection[str] | None = None) -> int:
        """Put the messages of these dead letters, or of all, at the spool's tail. Returns how many.

        They become ordinary messages with new ids. They are durable before the dead letters are removed: a
        crash in between leaves both. Raises KeyError for an unknown id, and as `Queue.put_many`.
        """
        self._check_process()
        with self._lock:
            letters = self._engine._select(ids)
        # Without the lock: a full spool frees space by delivering, which may add dead letters.
        self._queue.put_many([letter.body for letter in letters], durability="synced")
        return self._remove(letters)

    def purge(self, ids: Collection[str] | None = None) -> int:
        """Remove these dead letters, or all, for good. Returns how many. Raises KeyError, DiskFullError."""
        self._check_process()
        with self._lock:
            letters = self._engine._select(ids)
        return self._remove(letters)

    def _check_process(self) -> None:
        """Raise ForkedError in a child of a fork: another thread of its parent may have held the lock."""
        with self._queue.guard:
            pass

    def _remove(self, letters: Iterable[DeadLetter]) -> int:
        ids = [letter.id for letter in letters]
        with self._lock:
            self._engine._remove(ids)
        return len(ids)

    def add(self, letters: Collection[DeadLetter]) -> None:
        """Add dead letters. Durable when this returns. Raises DiskFullError: some of them may be in then."""
        with self._lock:
            self._engine._add(letters)

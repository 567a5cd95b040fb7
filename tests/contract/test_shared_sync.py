# Syncs that threads share. Law: a call returns when a sync that began after its bytes were written has ended;
# other threads append while it is executed, and the next one covers all of them; a sync that failed is raised
# in every call that it should have covered.
#
# The disk holds a sync until the test lets it go, so that nothing here depends on chance.

from __future__ import annotations

import errno
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq import StorageFailedError
from diskq.storage.fs import OsFileSystem
from tests import waiting
from tests.contract.kinds import ENGINES, Kind, body, engines
from tests.contract.lives import PATH, crash_disk

MOST_SECONDS = 60.0
each_kind = pytest.mark.parametrize("kind", engines(), ids=str)


until = partial(waiting.until, seconds=MOST_SECONDS, pause=0)


class HoldingDisk(OsFileSystem):
    """A disk whose syncs wait until the test lets them go, once `holds` is set.

    But for those of the thread of a spool: when it writes its status is by chance.
    """

    native = False

    def __init__(self) -> None:
        super().__init__()
        self.holds = False
        self.syncs = self.begun = self.allowed = 0
        self.failure: BaseException | None = None
        self._changed = threading.Condition()

    def sync_files(self, handles: Sequence[int]) -> None:
        with self._changed:
            self.syncs += 1
            if not self.holds or threading.current_thread().name.startswith("diskq delivers"):
                return
            self.begun += 1
            mine = self.begun
            assert self._changed.wait_for(lambda: self.allowed >= mine or not self.holds, MOST_SECONDS)
            if self.failure is not None:
                raise self.failure

    def sync_directory(self, path: str) -> None:
        pass

    def let_go(self, failure: BaseException | None = None) -> None:
        """Let the sync end that has begun."""
        with self._changed:
            self.failure = failure
            self.allowed += 1
            self._changed.notify_all()

    def let_all_go(self) -> None:
        with self._changed:
            self.holds = False
            self._changed.notify_all()


class Caller:
    """A thread that makes one call."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.is_over = False
        self.failure: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as failure:
            self.failure = failure
        self.is_over = True

    def end(self) -> BaseException | None:
        self._thread.join(MOST_SECONDS)
        assert self.is_over, "it waits for ever"
        return self.failure


class Place:
    """A store on a disk that holds its syncs, with one synced message in it."""

    def __init__(self, kind: Kind, path: Path) -> None:
        self.disk = HoldingDisk()
        self.store = kind.open(path, fs=self.disk)
        self.put = 0
        self.store.put(self.next_body(), "synced")
        self.store.put(self.next_body(), "synced")  # the redo log is there
        self.disk.holds = True

    def next_body(self) -> bytes:
        self.put += 1
        return body(self.put - 1)

    def synced(self) -> Caller:
        """A thread that puts a synced message, which is accepted."""
        message = self.next_body()
        return self.joined(Caller(lambda: self.store.put(message, "synced")))

    def joined(self, caller: Caller) -> Caller:
        until(lambda: self.store.accepted() >= self.put)
        with self.store.guard:
            pass  # the other one has left it
        return caller

    def leader(self) -> Caller:
        """A thread whose synced message is being synced."""
        begun = self.disk.begun
        caller = self.synced()
        until(lambda: self.disk.begun > begun)
        return caller


@pytest.fixture
def place(kind: Kind, tmp_path: Path) -> Iterator[Place]:
    place = Place(kind, tmp_path)
    yield place
    place.disk.let_all_go()
    place.store.close()


@each_kind
def test_while_a_sync_is_executed_other_threads_append(kind: Kind, place: Place) -> None:
    leader = place.leader()
    place.store.put(place.next_body(), "written")
    place.store.put_many([place.next_body(), place.next_body()], "written")
    assert not leader.is_over
    place.disk.let_go()
    assert leader.end() is None
    assert place.store.accepted() == place.put


@each_kind
def test_the_next_sync_covers_all_that_came_meanwhile(kind: Kind, place: Place) -> None:
    before = place.store.log.syncs
    leader = place.leader()
    followers = [place.synced() for _ in range(8)]
    place.disk.let_go()
    assert leader.end() is None
    until(lambda: place.disk.begun == 2)
    place.disk.let_go()
    assert [follower.end() for follower in followers] == [None] * 8
    assert place.store.log.syncs == before + 2


@each_kind
def test_a_call_does_not_return_with_a_sync_that_began_before_its_message(kind: Kind, place: Place) -> None:
    leader = place.leader()
    follower = place.synced()
    place.disk.let_go()
    assert leader.end() is None
    until(lambda: place.disk.begun == 2)
    assert not follower.is_over
    place.disk.let_go()
    assert follower.end() is None


@each_kind
def test_calls_of_sync_share_one(kind: Kind, place: Place) -> None:
    before = place.store.log.syncs
    leader = place.leader()
    calls = []
    for _ in range(4):
        message = place.next_body()

        def put_and_sync(message: bytes = message) -> None:
            place.store.put(message, "memory")
            place.store.sync()

        calls.append(place.joined(Caller(put_and_sync)))
    until(lambda: len(place.store.log._shared._calls) == 4)
    place.disk.let_all_go()
    assert leader.end() is None
    assert [call.end() for call in calls] == [None] * 4
    assert place.store.log.syncs == before + 2
    assert place.store.log.unsynced_bytes == 0


@each_kind
@pytest.mark.parametrize("which", ["the first", "the second"])
def test_a_sync_that_fails_is_raised_in_every_call_that_it_should_have_covered(
    kind: Kind, place: Place, which: str
) -> None:
    failure = OSError(errno.EIO, "the disk is ill")
    leader = place.leader()
    followers = [place.synced() for _ in range(4)]
    if which == "the second":
        place.disk.let_go()
        assert leader.end() is None
        until(lambda: place.disk.begun == 2)
    place.disk.let_go(failure)
    calls = followers if which == "the second" else [leader, *followers]
    for call in calls:
        assert isinstance(call.end(), StorageFailedError)
    with pytest.raises(StorageFailedError) as refused:
        place.store.put(place.next_body())
    assert refused.value.__cause__ is failure


@pytest.mark.parametrize("kind", engines("spool", "threaded spool"), ids=str)  # they first sync a cursor
def test_closing_waits_for_the_sync_that_is_executed_and_covers_the_others(
    kind: Kind, place: Place, tmp_path: Path
) -> None:
    leader = place.leader()
    followers = [place.synced() for _ in range(4)]
    syncs = place.store.log.syncs
    closing = Caller(place.store.close)
    until(lambda: place.store.guard.depth > 0)
    for _ in range(100):
        time.sleep(0)  # it is inside, and waits
    assert place.disk.begun == 1
    assert place.store.log.syncs == syncs
    place.disk.let_all_go()
    assert [call.end() for call in (leader, closing, *followers)] == [None] * 6
    assert sorted(map(int, kind.read(tmp_path))) == list(range(place.put))


@pytest.mark.parametrize("kind", engines("threaded spool"), ids=str)  # its thread is waited for
def test_closing_a_failed_store_keeps_its_files_open_while_they_are_synced(kind: Kind, place: Place) -> None:
    leader = place.leader()
    place.store.log.refuse(StorageFailedError("/k"))
    closing = Caller(place.store.engine.close)
    until(lambda: place.store.guard.depth > 0)
    for _ in range(100):
        time.sleep(0)
    assert not place.store.log.is_closed
    place.disk.let_all_go()
    assert closing.end() is None
    assert isinstance(leader.end(), StorageFailedError)
    with suppress(ValueError, StorageFailedError):
        place.store.close()


@each_kind
def test_a_sync_whose_thread_was_interrupted_has_failed_for_all(kind: Kind, place: Place) -> None:
    leader = place.leader()
    followers = [place.synced() for _ in range(4)]
    place.disk.let_go(KeyboardInterrupt())
    assert isinstance(leader.end(), KeyboardInterrupt)
    for follower in followers:
        assert isinstance(follower.end(), StorageFailedError)


@each_kind
def test_a_call_whose_wait_a_signal_ends_leaves_the_others_as_they_were(kind: Kind, place: Place) -> None:
    leader = place.leader()
    message = place.next_body()
    main = threading.get_ident()
    is_over = threading.Event()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def send() -> None:
        place.joined(leader)
        while not is_over.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)
            is_over.wait(0.01)  # one may come before it sleeps

    def put() -> None:
        sending.start()
        try:
            place.store.put(message, "synced")
        finally:
            is_over.set()

    old = signal.signal(signal.SIGUSR1, interrupt)
    sending = threading.Thread(target=send)
    try:
        with pytest.raises(KeyboardInterrupt):
            put()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        sending.join()
    finally:
        signal.signal(signal.SIGUSR1, old)
    follower = place.synced()
    place.disk.let_all_go()
    assert leader.end() is None
    assert follower.end() is None
    place.store.put(place.next_body(), "synced")
    assert place.store.accepted() == place.put


@pytest.mark.parametrize("kind", [ENGINES["queue"]], ids=str)
def test_a_callback_of_the_disk_does_not_wait_for_the_sync_that_it_is_in(kind: Kind, tmp_path: Path) -> None:
    class Calling(OsFileSystem):
        native = False
        call: Callable[[], object] | None = None
        failure: BaseException | None = None

        def sync_files(self, handles: Sequence[int]) -> None:
            call, self.call = self.call, None
            if call is not None:
                try:
                    call()
                except BaseException as failure:
                    self.failure = failure

    disk = Calling()
    with kind.open(tmp_path, fs=disk) as store:
        disk.call = store.sync
        store.put(body(0), "synced")
        assert isinstance(disk.failure, diskq.BusyError)
        store.put(body(1), "synced")
    assert kind.read(tmp_path) == [body(0), body(1)]


@pytest.mark.parametrize("kind", engines("leases"), ids=str)
def test_what_threads_were_told_is_synced_survives_a_power_cut(kind: Kind) -> None:
    fs: Any = crash_disk()
    store = kind.open(PATH, fs=fs, sync_every=11)
    told: list[int] = []

    def put(first: int) -> None:
        for number in range(first, first + 20):
            store.put(body(number), "synced")
            told.append(number)

    callers = [Caller(lambda first=first: put(first)) for first in range(0, 80, 20)]  # type: ignore[misc]
    assert [caller.end() for caller in callers] == [None] * 4
    found = list(map(int, kind.read(PATH, fs=fs.crash())))
    store.close()
    assert sorted(found) == sorted(told) == list(range(80))


@pytest.mark.slow
@pytest.mark.parametrize("kind", engines("leases"), ids=str)
@pytest.mark.parametrize("threads", [4, 16])
def test_many_threads_with_every_durability_lose_nothing(kind: Kind, tmp_path: Path, threads: int) -> None:
    class Quick(OsFileSystem):
        native = False

        def sync_files(self, handles: Sequence[int]) -> None:
            time.sleep(0)

        def sync_directory(self, path: str) -> None:
            pass

    store = kind.open(tmp_path, fs=Quick(), sync_every=97)
    each = 3_200 // threads

    def put(first: int) -> None:
        for number in range(first, first + each):
            store.put(body(number), ("memory", "written", "synced", "synced")[number % 4])
            if number % 50 == 0:
                store.sync()

    callers = [Caller(lambda n=n: put(n * each)) for n in range(threads)]  # type: ignore[misc]
    assert [caller.end() for caller in callers] == [None] * threads
    store.close()
    assert sorted(map(int, kind.read(tmp_path))) == list(range(3_200))


@pytest.mark.parametrize("kind", engines("leases", "spool", "threaded spool"), ids=str)
def test_64_threads_take_at_most_an_eighth_of_the_syncs_that_one_lock_would(
    kind: Kind, tmp_path: Path
) -> None:
    """A sync ends once every thread that is not at its end has appended, however busy the machine is."""
    disk = HoldingDisk()
    with kind.open(tmp_path, fs=disk) as store:
        store.put(body(0), "synced")  # the redo log is there
        before = disk.syncs
        for number in range(1, 9):
            store.put(body(number), "synced")
        assert disk.syncs - before == 8, "one after the other, each has its own"
        before = disk.syncs
        disk.holds = True
        returned = [0] * 64

        def put(which: int) -> None:
            for _ in range(5):
                store.put(body(9 + 5 * which + returned[which]), "synced")
                returned[which] += 1

        def all_wait() -> bool:
            """True if each thread that is not at its end waits, for this sync or for the next one."""
            shared = store.log._shared
            return len(shared._covered) + len(shared._calls) == sum(each < 5 for each in returned)

        callers = [Caller(lambda which=which: put(which)) for which in range(64)]  # type: ignore[misc]
        while not all(caller.is_over for caller in callers):
            if disk.begun > disk.allowed:
                with suppress(AssertionError):  # the thread that makes room in the log lets no other one in
                    waiting.until(all_wait, seconds=1.0, pause=0)
                disk.let_go()
            time.sleep(0.0005)
        disk.let_all_go()
        assert [caller.end() for caller in callers] == [None] * 64
        assert disk.syncs - before <= 5 * 64 / 8
        print(f"{5 * 64} synced puts of 64 threads: {disk.syncs - before} syncs")
    assert sorted(map(int, kind.read(tmp_path))) == list(range(9 + 5 * 64))

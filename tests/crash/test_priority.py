# The promises of a store of priority queues after every crash there is. Law: what is found is what a
# beginning of the log says, and nothing else: a kill leaves all of it, a power cut what was synced at
# least. So no record is lost or altered, none that was acknowledged comes back, and those that are left
# come out by key and id. And each way to weaken this is caught.

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from diskq.engine.log import recovery
from diskq.engine.priority import command_segment as commandsegment
from diskq.engine.priority import recovery as storerecovery
from diskq.engine.priority import snapshot as storesnapshot
from diskq.engine.priority import steps as prioritysteps
from diskq.engine.priority.store import PriorityStore
from diskq.errors import StorageFailedError
from diskq.options import Durability, PriorityOptions, StoreLayout
from diskq.storage import barrier
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS
from tests.crash.harness import KILL, POWER_CUT, PromiseBroken, Report, run_cuts
from tests.crash.mutations import Mutation
from tests.reference import taskflux_oracle as oracle
from tests.sampling import spread, stride

pytestmark = pytest.mark.usefixtures("quiet_log")

ROOT = "/q"
# Some segments to a store, some snapshots to a life, and some sectors to a record, in few operations.
SMALL: dict[str, Any] = {"soft_limit": 900, "hard_limit": 1500, "snapshot_segments": 2}
SMALL |= {"sync_every": 9, "sync_timeout": 1000.0}

Command = tuple[Any, ...]
State = dict[str, oracle.Queue]


def options(layout: StoreLayout = "aligned", *, preallocate: bool = True) -> PriorityOptions:
    return PriorityOptions(layout=layout, preallocate=preallocate, **SMALL)


def payload(number: int) -> bytes:
    """Told from every other, and from itself with any byte changed."""
    return b"%06d" % number + random.Random(number).randbytes(number * 37 % 700)


@dataclass
class Promises:
    """What the log has been asked to hold, command by command, and how much of that was promised."""

    commands: list[bytes] = field(default_factory=list)
    """Attempted, in order."""
    accepted: int = 0
    """So many are there after a kill."""
    synced: int = 0
    """So many are there after everything."""
    layout: StoreLayout = "aligned"


def state_after(commands: list[bytes]) -> State:
    state = {"": oracle.Queue()}
    for command in commands:
        oracle.apply(state, command)
    return state


class Meanwhile:
    """A disk on which something happens behind each write to a temporary file: as if in another thread."""

    def __init__(self, disk: CrashFS) -> None:
        self._disk = disk
        self._temporary: set[int] = set()
        self.act: Callable[[], object] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, **how: bool) -> int:
        handle = self._disk.open(path, **how)
        (self._temporary.add if "/temp/" in path else self._temporary.discard)(handle)
        return handle

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        taken = self._disk.pwrite(handle, data, offset)
        if self.act is not None and handle in self._temporary:
            act, self.act = self.act, None  # what it does may write temporary files as well
            act()
            self.act = act
        return taken


class Session:
    """A store in use, and the promises it makes."""

    def __init__(self, fs: CrashFS, promises: Promises, *, preallocate: bool) -> None:
        self.promises = promises
        self.disk = Meanwhile(fs)
        chosen = options(promises.layout, preallocate=preallocate)
        self.store = PriorityStore(ROOT, options=chosen, fs=cast(FileSystem, self.disk))
        self.in_hand: list[Any] = []
        self.note()

    def note(self) -> None:
        """Note what is promised, now that a call has returned."""
        promises, store = self.promises, self.store
        if store.log.is_flushed:
            promises.accepted = len(promises.commands)
        if not store.unsynced_bytes:
            promises.synced = len(promises.commands)

    def act(self, rng: random.Random) -> None:
        acts: list[Callable[[random.Random], None]] = [
            self.send, self.send_many, self.receive, self.settle, self.create, self.delete, self.sync,
            self.snapshot,
        ]  # fmt: skip
        rng.choices(acts, [6, 3, 3, 5, 1, 0.7, 1, 1])[0](rng)
        self.note()

    def word(self, rng: random.Random) -> Durability:
        return rng.choice(("written", "written", "synced", "memory"))

    def name(self, rng: random.Random) -> str:
        return rng.choice([info.name for info in self.store.queues()])

    def send(self, rng: random.Random) -> None:
        self._send(rng, 1)

    def send_many(self, rng: random.Random) -> None:
        self._send(rng, rng.randrange(2, 7))

    def _send(self, rng: random.Random, count: int) -> None:
        name = self.name(rng)
        keys = [rng.randrange(-2, 3) for _ in range(count)]
        bodies = [payload(len(self.promises.commands) + i) for i in range(count)]
        self.promises.commands += [
            oracle.add(name, key, body) for key, body in zip(keys, bodies, strict=True)
        ]
        self.store.put_many(self.store.queue(name), bodies, keys, durability=self.word(rng))

    def receive(self, rng: random.Random) -> None:
        queue = self.store.queue(self.name(rng))
        ready = sorted((r.priority, r.id) for r in self.store.peek(queue, 100))
        found = self.store.get_many(queue, rng.randrange(1, 5))
        assert [(record.priority, record.id) for record in found] == ready[: len(found)]
        self.in_hand += [(queue, record) for record in found]

    def settle(self, rng: random.Random) -> None:
        rng.shuffle(self.in_hand)
        if not self.in_hand:
            return
        queue = self.in_hand[0][0]
        chosen = [record for each, record in self.in_hand if each is queue][: rng.randrange(1, 4)]
        self.in_hand = [pair for pair in self.in_hand if pair[1] not in chosen]
        if rng.random() < 0.3:
            self.store.nack_many(queue, chosen)
            return
        if not queue.is_deleted:
            self.promises.commands += [oracle.remove(queue.name, record.id) for record in chosen]
        self.store.ack_many(queue, chosen, durability=self.word(rng))

    def create(self, rng: random.Random) -> None:
        name = f"queue-{len(self.promises.commands)}"
        self.promises.commands.append(oracle.create(name, 2, 1000, None, (-2, 2)))
        self.store.create_queue(
            name, implementation="QA", max_messages=1000, priority_range=(-2, 2), durability=self.word(rng)
        )

    def delete(self, rng: random.Random) -> None:
        name = self.name(rng)
        if name:
            self.promises.commands.append(oracle.delete(name))
            self.store.delete_queue(name, durability=self.word(rng))

    def sync(self, rng: random.Random) -> None:
        self.store.sync()

    def snapshot(self, rng: random.Random) -> None:
        """In steps, as a channel does it; the store goes on being used."""
        snapshot = self.store.steps.begin_snapshot()
        if snapshot is None:
            return
        self.note()
        self.disk.act = lambda: self.go_on(rng)
        try:
            snapshot.write()
        except OSError:
            self.store.steps.drop_snapshot(snapshot)
            return
        finally:
            self.disk.act = None
        if not self.store.steps.is_durable(snapshot.lsn):
            self.store.sync()
        barrier = self.store.steps.snapshot_barrier(snapshot)
        self.go_on(rng)
        barrier.execute(cast(FileSystem, self.disk))
        self.store.steps.mark_snapshot(snapshot)

    def go_on(self, rng: random.Random) -> None:
        rng.choice((self.send, self.receive, self.settle, self.delete, self.create))(rng)
        self.note()

    def close(self) -> None:
        self.store.close()
        self.promises.accepted = self.promises.synced = len(self.promises.commands)


def lifetimes(
    seed: int, layout: StoreLayout = "aligned", sessions: int = 2, acts: int = 16
) -> Callable[[CrashFS, Promises], None]:
    """A workload: a store opened, used at random and closed, a few times over."""

    def workload(fs: CrashFS, promises: Promises) -> None:
        rng = random.Random(seed)
        promises.layout = layout
        fs.make_directory_durably(ROOT)
        for number in range(sessions):
            session = Session(fs, promises, preallocate=(seed + number) % 3 > 0)
            for _ in range(acts):
                session.act(rng)
            session.close()

    return workload


def found_in(store: PriorityStore) -> State:
    """The state, with records as they come out."""
    state = {}
    for info in store.queues():
        queue = store.queue(info.name)
        records = store.get_many(queue, info.ready)
        keys = [(record.priority, record.id) for record in records]
        assert keys == sorted(keys), "out of order"
        assert info.stored == len(records), "hidden, or in somebody's hand"
        state[info.name] = oracle.Queue(
            queue.implementation,
            info.last_id,
            info.max_messages,
            info.max_message_size,
            info.priority_range,
            {record.id: (record.priority, record.body) for record in records},
        )
    return state


def files_of(fs: CrashFS) -> dict[str, bytes]:
    below = f"{ROOT}/data/"
    return {path.removeprefix(below): data for path, data in fs.files().items() if path.startswith(below)}


# What a power cut's warnings may say.
AFTER_A_POWER_CUT = {"tail_truncated", "valid_records_dropped", "segments_dropped", "segment_reinitialised"}


def check(
    outcome: str,
    fs: CrashFS,
    promises: Promises,
    theirs: Sequence[bytes] | None = None,
    *,
    is_reported: bool = False,
) -> None:
    """`theirs`: another program has opened the store first, and added these messages to the default queue.

    `is_reported`: an open that was cut has reported damage; a snapshot may have what is left.
    """
    added = [oracle.add("", 0, message) for message in theirs or ()]
    with PriorityStore(ROOT, options=options(promises.layout), fs=fs) as store:
        found = found_in(store)
        count = store.next_lsn - len(added)
        warnings = set(store.warnings) - {"document_layout"}
        repairs = store.repairs
        assert added or oracle.read_files(files_of(fs), promises.layout) == found, (
            "the files say something else"
        )
    if is_reported or (repairs and (theirs is not None or "damage_passed_over" in warnings)):
        # The machine ran on, so that it is damage; or TaskFlux removed a segment after a gap in the log.
        return check_what_is_left(found, promises, theirs or ())
    assert warnings <= (set() if outcome == KILL else AFTER_A_POWER_CUT)
    promised = promises.accepted if outcome == KILL else promises.synced
    assert promised <= count <= len(promises.commands), f"{count} commands, promised were {promised}"
    assert found == state_after([*promises.commands[:count], *added]), "not what these commands say"
    files = files_of(fs)
    assert added or oracle.read_files(files, promises.layout) == found, "closed, the files say something else"
    assert not [path for path in files if path.startswith("temp")], "something is left over"


def check_what_is_left(found: State, promises: Promises, theirs: Sequence[bytes]) -> None:
    """What was not synced may be missing in the middle: it was reported. What was synced is there."""
    there = {payload for queue in found.values() for _, _, payload in queue.ordered()}
    states = [
        state_after(promises.commands[:count]) for count in range(promises.synced, len(promises.commands) + 1)
    ]
    each = [{its for queue in state.values() for _, _, its in queue.ordered()} for state in states]
    assert set.intersection(*each) | set(theirs) <= there, "lost"
    sent = state_after([one for one in promises.commands if one[:1] in b"CA"])
    assert there <= {its for queue in sent.values() for _, _, its in queue.ordered()} | set(theirs), "altered"


def crash(seed: int, layout: StoreLayout = "aligned", **how: Any) -> Report:
    return run_cuts(lifetimes(seed, layout), check, witness=Promises, **how)


# 203: a removed segment comes back, and the one behind it does not.
@pytest.mark.parametrize("seed", [0, 1, 2, 203])
def test_whatever_the_power_interrupts_the_promises_hold(seed: int) -> None:
    every = 1 if seed == 203 else stride(1)
    report = crash(seed, every=every)
    assert report.cuts > 60 // every


def test_so_they_do_in_the_documents_layout() -> None:
    crash(77, "document", every=stride(3))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 2])
def test_recovery_may_be_interrupted_too(seed: int) -> None:
    crash(seed, again=2, every=7)


@pytest.mark.sampled
def test_after_a_failed_sync_nothing_is_promised_and_nothing_promised_is_lost() -> None:
    failed, seeds = 0, spread(range(12))
    for seed in seeds:
        for nth in range(1, 40, 3):
            fs, promises, rng = CrashFS(), Promises(), random.Random(seed)
            fs.make_directory_durably(ROOT)
            session = Session(fs, promises, preallocate=seed % 2 > 0)
            fs.fail_sync(nth)
            try:
                for _ in range(30):
                    session.act(rng)
            except StorageFailedError:
                failed += 1
                with pytest.raises(StorageFailedError):
                    session.store.put(session.store.queue(), b"more")
                with pytest.raises(StorageFailedError):
                    session.store.sync()
            promises.accepted = promises.synced  # the page cache is no witness any more
            after = fs.kill()
            with PriorityStore(ROOT, options=options(), fs=after) as store:
                assert store.next_lsn >= promises.synced
                count = store.next_lsn
            # What this open has found is durable now, whatever the kernel held for clean.
            promises.synced = count
            promises.commands = promises.commands[:count]
            check(POWER_CUT, after.crash(random.Random(nth)), promises)
    assert failed > 4 * len(seeds)


# --- do they bite? --------------------------------------------------------------------------------

BARRIER, SNAPSHOT, SEGMENT = barrier.__name__, storesnapshot.__name__, commandsegment.__name__
STORE, RECOVERY = prioritysteps.__name__, storerecovery.__name__
ACTS = recovery.__name__

MUTATIONS = [
    # An fsync left out: of the log, of a snapshot, of the directories in which they are found.
    Mutation(BARRIER, "fs.sync_files(self.files)", "pass"),
    Mutation(BARRIER, "files=(*self.files, *active)", "files=active"),
    Mutation(SNAPSHOT, "Barrier(files=(handle,)).execute(fs)", "pass"),
    Mutation(BARRIER, "directory_of(target) for _, target in self.installs", "_ for _ in ()"),
    Mutation(SEGMENT, "pending_syncs.directories[self._files.log] = None", "pass"),
    Mutation(
        SEGMENT, "pending_syncs.sync_and_close(self.handle)", "pending_syncs.closing.append(self.handle)"
    ),
    # Deletions before names.
    Mutation(
        BARRIER,
        "        self._install(fs)\n        replaced = self._replace(fs)\n        self._remove(fs)\n",
        "        self._remove(fs)\n        self._install(fs)\n        replaced = self._replace(fs)\n",
    ),
    # The point runs ahead, or is not believed.
    Mutation(STORE, "base = segment.base if", "base = 10**9 if"),
    Mutation(RECOVERY, "return self.point is not None and lsn >= self.point.base", "return False"),
    # A snapshot covers what is not in the log, or less than it says; or what it does not cover goes.
    Mutation(STORE, "lsn = self.next_lsn - 1\n        if lsn", "lsn = self.next_lsn\n        if lsn"),
    Mutation(STORE, "if following <= lsn + 1]", "if base <= lsn + 1]"),
    Mutation(STORE, "return lsn <= self._synced_lsn", "return True", by=6),
    # Recovery goes on behind what it should have cut, or begins in the wrong place.
    Mutation(RECOVERY, "self._cut(handle, base, end, *self._after_the_end(handle, base, scanned))", "pass"),
    Mutation(RECOVERY, "self._cut(handle, base, end, *fault)", "pass"),
    Mutation(RECOVERY, "max(0, found.snapshot_lsn + 1 - base)", "max(0, found.snapshot_lsn - base)"),
    Mutation(ACTS, "pending_syncs.asides.append((path, aside))", "pass"),
    Mutation(RECOVERY, "if not is_ended(self.fs, handle, scanned):", "if False:"),
    # A barrier says that more is durable than it paid for.
    Mutation(STORE, "return (segment.handle,) if segment.is_open else ()", "return ()"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_weaker_store_is_caught(mutation: Mutation) -> None:
    def crash_everywhere() -> None:
        for seed in sorted(range(8), key=lambda seed: seed != mutation.by):
            crash(seed, again=1, every=2)

    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError)):
        crash_everywhere()


def test_bytes_that_the_kernel_holds_for_clean_are_written_again() -> None:
    test = test_after_a_failed_sync_nothing_is_promised_and_nothing_promised_is_lost
    mutation = Mutation(ACTS, "rewrite(self._fs, handle, start, end)", "pass")
    with mutation.installed(), pytest.raises(AssertionError):
        test()

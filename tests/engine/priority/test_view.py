# A store's state, seen from beside it. Law: it is as some command left it, and nothing of the store changes.

from __future__ import annotations

import itertools
import threading

import pytest

from diskq.engine.priority.store import PriorityStore
from diskq.engine.priority.view import last_command, look_at_store, repair_store, try_opening
from diskq.errors import DamagedStoreError, LockedError
from diskq.options import PriorityOptions
from diskq.storage.fs import OsFileSystem
from tests.engine.stores import ROOT, disk, opened, segment, written
from tests.reference import taskflux_oracle as oracle


def told(look):
    return {
        name: [(each.id, each.priority, each.body) for each in queue.table.peek(99)]
        for name, queue in look.queues.items()
    }


def test_what_a_store_in_use_holds_is_seen_and_not_touched():
    fs = disk()
    with opened(fs, soft_limit=60, snapshot_segments=99) as store:
        mail = store.create_queue("mail", max_messages=9)
        store.put_many(mail, [b"b", b"a", b"c"], [2, 1, 2])
        store.snapshot()
        store.put(store.queue(), b"late", 7)
        taken = store.get(mail)
        before = fs.files()
        look = look_at_store(ROOT, fs=fs)
        assert fs.files() == before
        # It is not acknowledged: it would come again.
        assert told(look) == {"": [(1, 7, b"late")], "mail": [(2, 1, b"a"), (1, 2, b"b"), (3, 2, b"c")]}
        assert look.lsn == last_command(ROOT, fs=fs) == store.next_lsn - 1
        assert [info.max_messages for info in look.infos()] == [None, 9]
        assert taken is not None
        store.ack(mail, taken)
        assert [number for number, _, _ in told(look_at_store(ROOT, fs=fs))["mail"]] == [1, 3]


def test_a_state_of_before_is_seen_until_a_snapshot_covers_it():
    fs = disk()
    with opened(fs, soft_limit=60, snapshot_segments=99) as store:
        for number in range(6):
            store.put(store.queue(), b"%d" % number, number)
        for until in range(-1, 6):
            look = look_at_store(ROOT, fs=fs, until=until)
            assert look.lsn == until
            assert [payload for _, _, payload in told(look)[""]] == [b"%d" % n for n in range(until + 1)]
        store.snapshot()
        store.put(store.queue(), b"6", 6)
        assert look_at_store(ROOT, fs=fs, until=3).lsn == 5
        assert len(told(look_at_store(ROOT, fs=fs, until=3))[""]) == 6


class Meanwhile(OsFileSystem):
    """Something happens before the file system is asked for the nth time to open a file, or to list."""

    def __init__(self, act, nth):
        self.act = act
        self.left = nth

    def _ask(self):
        self.left -= 1
        if not self.left:
            self.act()

    def open(self, path, **how):
        self._ask()
        return super().open(path, **how)

    def list_directory(self, path):
        self._ask()
        return super().list_directory(path)


@pytest.mark.parametrize("nth", range(1, 8))
def test_a_snapshot_that_comes_in_between_is_no_damage(nth, tmp_path):
    options = PriorityOptions(soft_limit=60, snapshot_segments=99)
    with PriorityStore(tmp_path, options=options) as store:
        for number in range(6):
            store.put(store.queue(), bytes(9), number)
        snapshot = store.steps.begin_snapshot()
        assert snapshot is not None
        snapshot.write()
        store.sync()
        # The segments are gone, before they are listed, or before they are read.
        look = look_at_store(tmp_path, fs=Meanwhile(lambda: store.steps.finish_snapshot(snapshot), nth))
        assert len(told(look)[""]) == 6


def test_a_look_beside_a_writer_is_always_a_beginning_of_its_log(tmp_path):
    # Numbers go in at one end and out at the other: what is there at any moment has no gap.
    options = PriorityOptions(soft_limit=2000, snapshot_segments=2)
    is_over = threading.Event()

    def work():
        with PriorityStore(tmp_path, options=options) as store:
            queue = store.queue()
            for number in itertools.count():
                store.put(queue, b"%d" % number, number)
                if number >= 20:
                    store.ack_many(queue, store.get_many(queue, 1))
                if is_over.is_set():
                    return

    PriorityStore(tmp_path, options=options).close()
    writer = threading.Thread(target=work)
    writer.start()
    ends: set[int] = set()
    try:
        while len(ends) <= 10 and writer.is_alive():
            found = [number for _, number, _ in told(look_at_store(tmp_path))[""]]
            assert found == list(range(found[0], found[-1] + 1)) if found else True
            assert len(found) <= 21
            ends.update(found[-1:])
    finally:
        is_over.set()
        writer.join()
    assert len(ends) > 10


def test_damage_is_reported_and_ends_the_look():
    log = oracle.segment([oracle.add("", 1, b"one")] * 3)
    fs = written(disk(), {0: [oracle.add("", 1, b"one")] * 3, 3: [oracle.add("", 2, b"two")]})
    handle = fs.open(segment(0), write=True)
    fs.pwrite(handle, b"?", len(log) - 5)
    fs.close(handle)
    with pytest.raises(DamagedStoreError):
        look_at_store(ROOT, fs=fs)
    opening = try_opening(ROOT, fs=fs)
    assert opening.outcome == "refused"
    assert isinstance(opening.refusal, DamagedStoreError)
    assert opening.refusal.lsn == 2
    assert last_command(ROOT, fs=fs) == 3


def test_what_a_repair_would_do_is_what_it_does():
    fs = written(disk(), {0: [oracle.add("", 1, b"one")] * 3, 3: [oracle.add("", 2, b"two")]})
    handle = fs.open(segment(0), write=True)
    fs.pwrite(handle, b"?", 60)
    fs.close(handle)
    before = fs.files()
    would = repair_store(ROOT, fs=fs, dry_run=True)
    assert fs.files() == before
    done = repair_store(ROOT, fs=fs)
    assert would == done
    assert [info.stored for info in done.queues] == [1]
    assert len(done.repairs) == 2
    for repair in done.repairs:
        assert repair.saved_as is not None
        cut = before[repair.path][repair.kept :]
        assert fs.read(repair.saved_as).rstrip(b"\0") == cut.rstrip(b"\0")
    assert repair_store(ROOT, fs=fs).repairs == ()
    assert told(look_at_store(ROOT, fs=fs)) == {"": [(1, 1, b"one")]}


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_store_in_use_is_not_repaired(tmp_path, dry_run):
    with PriorityStore(tmp_path), pytest.raises(LockedError):
        repair_store(tmp_path, dry_run=dry_run)


@pytest.mark.parametrize("look", [look_at_store, try_opening, repair_store, last_command])
def test_where_there_is_no_store_none_is_made(tmp_path, look):
    with pytest.raises(FileNotFoundError, match="no store"):
        look(tmp_path)
    with pytest.raises(FileNotFoundError):
        look(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []

# Transactions: staged messages are in the stream once, all or none, however often they are committed.

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from diskq._native.stream.codec import encode
from diskq.engine.log.writer import LogWriter
from diskq.engine.stream.retention import retain
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.engine.stream.transactions import staging as staging_module
from diskq.engine.stream.transactions.staging import Extent, StagedFile
from diskq.engine.stream.transactions.transaction import (
    Committed,
    Intent,
    PartitionShare,
    Transaction,
    abandon,
    committed,
    read_intent,
    sweep_staging,
)
from diskq.errors import (
    CorruptionError,
    DiskFullError,
    DiskqError,
    LockedError,
    SinkError,
    SinkNameError,
    StagedError,
    StorageFailedError,
)
from diskq.testing import FaultFS
from tests.engine.streams import (
    ROOT,
    disk,
    failing_disk,
    flip,
    held,
    items,
    opened,
    parted,
    triple,
    triples,
    truncate,
)
from tests.engine.transactions import (
    INTENT,
    commit,
    files_of,
    refused_while_rotten,
    stage,
    stage_files,
    staged_files,
    staging,
    transaction,
)
from tests.reference import triplet_oracle as oracle

TWO: dict[str, Any] = {"partition_count": 2}


# --- committing -----------------------------------------------------------------------------------


def test_what_was_staged_is_in_the_stream_behind_what_was_there():
    fs = disk()
    with opened(fs, **TWO) as stream:
        stream.append_many(items(triples(5)))
        assert commit(stream, fs, triples(10, start=5))
        stream.append_many(items(triples(5, start=15)))
    assert held(fs) == parted(triples(20), 2)


def test_it_is_durable_when_commit_returns():
    fs = disk()
    with opened(fs, **TWO) as stream:
        stream.append_many(items(triples(5)))
        commit(stream, fs, triples(10, start=5))
        with opened(fs.crash()) as after:
            assert after.next_offsets == stream.next_offsets


def test_the_same_epoch_is_committed_once():
    fs = disk()
    with opened(fs, **TWO) as stream:
        assert commit(stream, fs, triples(10))
        assert not commit(stream, fs, triples(10))
        assert staged_files(fs) == []
    with opened(fs) as stream:
        assert not commit(stream, fs, triples(10))
    assert held(fs) == parted(triples(10), 2)


def test_a_lower_epoch_is_committed_already():
    fs = disk()
    with opened(fs, **TWO) as stream:
        assert commit(stream, fs, triples(10), epoch=7)
        assert not commit(stream, fs, triples(10), epoch=6)
        assert commit(stream, fs, triples(10, start=10), epoch=9)
    assert held(fs) == parted(triples(20), 2)
    assert committed(fs, files_of(fs), "sink") == Committed(9, "query")


def test_a_sink_is_one_querys():
    fs = disk()
    with opened(fs, **TWO) as stream:
        commit(stream, fs, triples(10))
        for epoch in (0, 1):
            with pytest.raises(
                SinkError, match="sink 'sink' belongs to query 'query', not to 'another'"
            ) as refused:
                commit(stream, fs, triples(10), epoch=epoch, query="another")
            assert (refused.value.found, refused.value.given) == ("query", "another")
        assert commit(stream, fs, triples(10, start=10), epoch=0, sink="other", query="another")
    assert held(fs) == parted(triples(20), 2)


def test_an_epoch_of_no_messages_is_committed_too():
    fs = disk()
    with opened(fs, **TWO) as stream:
        assert stream.commit(transaction(stage(fs, [], epoch=3), epoch=3))
        assert not commit(stream, fs, triples(5), epoch=3)
        assert stream.commit(transaction(epoch=4))
    assert held(fs) == {0: [], 1: []}
    assert staged_files(fs) == []


def test_files_are_appended_in_the_order_that_is_given():
    fs = disk()
    batches = [triples(10, start=10 * number) for number in range(4)]
    with opened(fs, **TWO) as stream:
        staged = [stage(fs, batch, task=task, extent=3) for task, batch in enumerate(batches)]
        stream.commit(transaction(*(staged[number] for number in (2, 0, 3, 1))))
    assert held(fs) == parted([one for number in (2, 0, 3, 1) for one in batches[number]], 2)


@pytest.mark.parametrize("encoding", ["fixed", "varuint"])
@pytest.mark.parametrize("segment_size", [1, 100, 5000])
def test_segments_end_where_they_would_have_ended(encoding, segment_size):
    one, other = disk(), disk()
    messages = triples(200)
    options = TWO | {"segment_size": segment_size, "encoding": encoding}
    with opened(one, **options) as stream:
        commit(stream, one, messages, encoding=encoding)
    with opened(other, **options) as stream:
        stream.append_many(items(messages))
    parts = [{p: c for p, c in fs.files().items() if p.startswith(f"{ROOT}/parts")} for fs in (one, other)]
    assert parts[0] == parts[1]
    sealed = [{p: c for p, c in fs.files().items() if p.endswith("sealed")} for fs in (one, other)]
    assert sealed[0] == sealed[1]


def test_its_messages_are_found_by_time():
    fs = disk()
    with opened(fs, partition_count=1, segment_size=3000) as stream:
        commit(stream, fs, {0: triples(1000)})
    times = TimeLookup(fs, files_of(fs).partition(0))
    for number in (0, 1, 255, 256, 700, 999):
        assert times.offset_at_or_after(triple(number)[1]) == number


def test_what_is_staged_is_larger_than_what_may_be_unsynced(monkeypatch):
    fs = disk()
    with opened(fs, **TWO, max_unsynced=2000) as stream:
        most = 0
        execute = LogWriter.sync

        def sync(log: LogWriter) -> None:
            nonlocal most
            most = max(most, stream.unsynced_bytes)
            execute(log)

        monkeypatch.setattr(LogWriter, "sync", sync)
        commit(stream, fs, triples(300, length=500), extent=2)
        assert 1000 < most <= 2000
    assert held(fs) == parted(triples(300, length=500), 2)


@pytest.mark.parametrize("stretch", [10, 700, 5000])
def test_extents_of_any_size_are_read_in_stretches(stretch, monkeypatch):
    monkeypatch.setattr(staging_module, "_STRETCH", stretch)
    fs = failing_disk()
    messages = [*triples(60, length=300), (b"key-0", 0, bytes(9000)), *triples(60, start=60)]
    with opened(fs, **TWO) as stream:
        staged = stage(fs, messages)
        fs.calls.clear()
        stream.commit(transaction(staged))
    reads = [call.size for call in fs.calls if call.verb == "pread" and call.path.endswith(".staged")]
    assert max(reads) <= max(4 * stretch, 9000, 40)
    assert held(fs.inner) == parted(messages, 2)


# --- what is refused ------------------------------------------------------------------------------


def refused(fs, stream, of, error):
    """Nothing of it is in the stream, which stays usable."""
    before = stream.next_offsets
    with pytest.raises(error) as told:
        stream.commit(of)
    assert stream.next_offsets == before
    assert fs.size_of(INTENT) is None
    assert committed(fs, files_of(fs), "sink") is None
    stream.append(b"goes on")
    return told.value


@pytest.mark.parametrize("at", [0, 5, 30, 200, 700])
def test_rot_in_a_staged_file_is_found_before_anything_is_committed(at):
    fs = disk()
    with opened(fs, **TWO) as stream:
        staged = stage(fs, triples(20), extent=4)
        flip(fs, f"{ROOT}/.diskq/staging/{staged.name}", at)
        error = refused(fs, stream, transaction(staged), CorruptionError)
        assert error.path.endswith(staged.name)


@pytest.mark.parametrize("size", [0, 10, 23, 24, 500])
def test_so_is_a_file_that_is_too_short(size):
    fs = disk()
    with opened(fs, **TWO) as stream:
        staged = stage(fs, triples(20), extent=4)
        truncate(fs, f"{ROOT}/.diskq/staging/{staged.name}", size)
        assert refused(fs, stream, transaction(staged), CorruptionError).path.endswith(staged.name)


def test_a_staged_file_that_is_gone_was_staged_for_something_else_or_is_given_twice():
    fs = disk()
    with opened(fs, **TWO) as stream:
        gone = StagedFile("sink-0-0-00000000000000ff.staged", (Extent(0, 23, 10, 1, 0),))
        assert "gone" in str(refused(fs, stream, transaction(gone), StagedError))
        for bad in (
            stage(fs, triples(5), epoch=1),
            stage(fs, triples(5), sink="other"),
            stage(fs, triples(5), count=3),
            stage(fs, triples(5), encoding="varuint"),
            StagedFile("../stream.lock", gone.extents),
        ):
            refused(fs, stream, transaction(bad), StagedError)
        twice = stage(fs, triples(5))
        refused(fs, stream, transaction(twice, twice), StagedError)
        for extents in (
            (replace(twice.extents[0], partition=2),),
            (twice.extents[0], replace(twice.extents[0], start=0)),
        ):
            refused(fs, stream, transaction(StagedFile(twice.name, extents)), StagedError)
        for extent in (
            replace(twice.extents[0], records=1),
            replace(twice.extents[0], start=0),  # then there is no head
            replace(twice.extents[0], crc=0),
            replace(twice.extents[0], size=twice.extents[0].size - 1),
        ):
            refused(fs, stream, transaction(StagedFile(twice.name, (extent,))), CorruptionError)


@pytest.mark.parametrize("sink", ["", "a/b", "a-b", "ä", "x" * 101, "a\n"])
def test_a_sinks_name_is_part_of_a_files(sink):
    fs = disk()
    with opened(fs) as stream, pytest.raises(SinkNameError):
        stream.commit(Transaction(sink, 0, "query", ()))
    with pytest.raises(SinkNameError):
        stage(fs, [], sink=sink)


@pytest.mark.parametrize("epoch, query", [(-1, ""), (2**63, ""), (0, "a\nb"), (0, "x" * 201)])
def test_epochs_and_queries_that_cannot_be_noted(epoch, query):
    with opened(disk()) as stream, pytest.raises(ValueError, match=r"epoch|query"):
        stream.commit(Transaction("sink", epoch, query, ()))


def test_a_rotten_note_of_what_was_committed_is_not_guessed_at():
    fs = disk()
    with opened(fs, **TWO) as stream:
        commit(stream, fs, triples(5))
        flip(fs, f"{ROOT}/.diskq/sink.committed", 30)
        with pytest.raises(CorruptionError, match=r"sink\.committed"):
            commit(stream, fs, triples(5), epoch=1)
        stream.append(b"goes on")
    with opened(fs, **TWO):
        pass


# --- what is left of one that was cut short ----------------------------------------------------------


def killed(of, *, when="*.data", records=None, **options):
    """A disk on which a commit was killed: in its `records`-th write to such a file."""
    fs = failing_disk()
    options = TWO | options
    stream = opened(fs, **options)
    stream.append_many(items(triples(5)))
    staged = stage(fs, of, extent=2, count=options["partition_count"])
    fs.fail("pwrite", nth=records or 1, path=when, times=None)
    with pytest.raises(StorageFailedError):
        stream.commit(transaction(staged))
    fs.heal()
    return fs.inner.kill(), staged


def test_the_next_open_carries_it_out():
    fs, _ = killed(triples(40, start=5), records=2)
    assert read_intent(fs, files_of(fs)) is not None
    with opened(fs) as stream:
        assert stream.next_offsets == tuple(map(len, parted(triples(45), 2).values()))
        assert not commit(stream, fs, triples(40, start=5))
    assert held(fs) == parted(triples(45), 2)
    assert read_intent(fs, files_of(fs)) is None


def test_a_part_of_it_is_there_meanwhile_and_none_that_will_not_stay():
    fs, _ = killed(triples(400, length=3000), records=2)
    before = held(fs, may_trail=True)
    with opened(fs):
        pass
    after = held(fs)
    assert any(before[partition] != after[partition] for partition in before)
    assert all(after[p][: len(before[p])] == before[p] for p in before)


@pytest.mark.parametrize("segment_size, size", [(1000, 1), (1000, 20), (100_000, 1), (100_000, 20)])
def test_damaged_bytes_of_it_that_no_sync_covered_are_appended_again(segment_size, size):
    of = triples(60, start=5, length=40)
    before, _ = killed(of, when="*/000001/*.data", segment_size=segment_size)
    path = f"{ROOT}/parts/000000/{0:020}.data"
    content = before.read(path)
    start = len(encode(parted(triples(5), 2)[0]).data)
    damaged = []
    for at in range(start, len(content), 29):
        fs = before.kill()
        wrong = bytes(byte ^ 0xFF for byte in content[at : at + size])
        fs.write_durably(path, content[:at] + wrong + content[at + size :])
        with opened(fs) as stream:
            assert sum(repair.records or 0 for repair in stream.repairs) == 0
        damaged += [at] * (held(fs) != parted(triples(5) + of, 2))
    assert not damaged


def test_a_stream_with_fewer_partitions_carries_it_out_for_all():
    fs, _ = killed(triples(40, start=5, keys=20), partition_count=4)
    with opened(fs, partition_count=1) as stream:
        assert stream.partition_count == 1
        stream.append(b"value", b"key", 1)
        assert stream.next_offsets[0] == len(held(fs)[0])
    found = held(fs)
    assert sum(map(len, found.values())) == 46
    assert parted(triples(5) + triples(40, start=5, keys=20), 4) | {0: found[0]} == found
    with opened(fs, partition_count=4) as stream:
        assert stream.next_offsets == tuple(map(len, found.values()))


def test_rot_in_a_staged_file_of_a_committed_transaction_is_refused_and_nothing_is_dropped():
    fs, staged = killed(triples(40, start=5))
    path = f"{ROOT}/.diskq/staging/{staged.name}"
    refused_while_rotten(fs, path, 300)
    assert held(fs) == parted(triples(45), 2)


def test_a_rotten_intent_is_refused():
    fs, _ = killed(triples(40, start=5))
    flip(fs, INTENT, 40)
    with pytest.raises(CorruptionError, match="intent"):
        opened(fs)
    flip(fs, INTENT, 40)
    with opened(fs):
        pass
    assert held(fs) == parted(triples(45), 2)


def test_a_rotten_note_costs_nothing_while_the_intent_tells():
    fs, _ = killed(triples(40, start=5))
    fs.write_durably(f"{ROOT}/.diskq/sink.committed", b"rotten")
    with opened(fs):
        pass
    assert held(fs) == parted(triples(45), 2)
    assert committed(fs, files_of(fs), "sink") == Committed(0, "query")


@pytest.mark.parametrize("written", [1, 2, 3, 4])
def test_a_peer_that_was_let_in_between_is_gone_round(written):
    """Its owner file was removed by hand, and a go-diskq producer appended what it had."""
    fs, _ = killed(triples(400, start=5, length=3000), records=written, partition_count=1)
    before = held(fs, may_trail=True)[0]
    peer = triples(3, start=1000)
    append_as_a_peer(fs, peer)
    for _ in range(2):
        with opened(fs) as stream:
            assert not commit(stream, fs, [])
        assert held(fs)[0] == before + peer + (triples(5) + triples(400, start=5, length=3000))[len(before) :]


@pytest.mark.parametrize("more", [0, 4])
@pytest.mark.parametrize("second", [1, 2, 3])
def test_so_it_is_when_that_is_cut_short_too_and_a_peer_comes_again(second, more):
    fs, _ = killed(triples(400, start=5, length=3000), records=2, partition_count=1)
    peer = triples(3, start=1000)
    append_as_a_peer(fs, peer)
    faulty = FaultFS(fs)
    faulty.fail("pwrite", nth=second, path="*.data", times=None)
    with pytest.raises((StorageFailedError, OSError)):
        opened(faulty)
    fs = fs.kill()
    between = held(fs, may_trail=True)[0]
    again = triples(more, start=2000)
    append_as_a_peer(fs, again)
    with opened(fs):
        pass
    ours = triples(5) + triples(400, start=5, length=3000)
    assert held(fs)[0] == between + again + ours[len(between) - len(peer) :]


def append_as_a_peer(fs, messages):
    """To partition 0, at the end, as go-diskq does: without a look at what is ours."""
    files = files_of(fs)
    base = files.partition(0).bases()[-1]
    found = oracle.records(fs.read(files.partition(0).data(base)))[0]
    segment = oracle.segment([*found, *messages], base)
    for suffix, content in segment.items():
        fs.write_durably(f"{ROOT}/parts/000000/{base:020d}.{suffix}", content)
    for path in (f"{ROOT}/owner", f"{ROOT}/.diskq/parts/000000/wal"):
        if fs.size_of(path) is not None:
            fs.unlink(path)


def test_what_retention_has_removed_of_it_is_not_appended_again():
    fs, _ = killed(triples(400, start=5, length=300), records=3, partition_count=1, segment_size=20_000)
    retain(fs, files_of(fs), now_ns=0, max_bytes=1)
    first = files_of(fs).partition(0).bases()[0]
    assert first > 5
    with opened(fs) as stream:
        assert stream.next_offsets == (405,)
    assert held(fs)[0] == (triples(5) + triples(400, start=5, length=300))[first:]


# --- a disk that fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("room", [*range(0, 200, 20), *range(200, 30_000, 700)])
def test_a_full_disk_at_any_moment_heals(room, whole, monkeypatch):
    monkeypatch.setattr(staging_module, "_EXTENT", 1)
    fs = failing_disk()
    messages = triples(60, start=5, length=100)
    with suppress(DiskFullError, StorageFailedError), opened(fs, **TWO, segment_size=3000) as stream:
        stream.append_many(items(triples(5)))
        fs.capacity(room)
        staged = stage_files(fs, messages, extent=7, segment_size=3000 if whole else None)
        stream.commit(transaction(*staged))
    fs.heal()
    after = fs.inner.kill()
    with opened(after) as stream:
        if held(after) == parted(triples(5), 2):
            assert commit(stream, after, messages)
        else:
            assert not commit(stream, after, messages)
    assert held(after) == parted(triples(5) + messages, 2)


def test_a_disk_that_fills_up_behind_the_commit_point_says_so_and_lets_nothing_else_in():
    fs = failing_disk()
    stream = opened(fs, **TWO)
    staged = stage(fs, triples(60))
    fs.fail("pwrite", error=errno.ENOSPC, path="*.data", times=None)
    with pytest.raises(DiskFullError, match="epoch 0 of sink 'sink' is committed, and continues"):
        stream.commit(transaction(staged))
    fs.heal()
    for act in (lambda: stream.append(b"x"), stream.sync, lambda: stream.commit(transaction(staged))):
        with pytest.raises(DiskFullError, match="is committed, and continues"):
            act()
    stream.close()
    assert fs.size_of(f"{ROOT}/owner"), "no peer may come in between"
    for _ in range(2):
        fs.fail("pwrite", error=errno.ENOSPC, path="*.data", times=None)
        with pytest.raises(DiskFullError, match="is committed, and continues"):
            opened(fs)
        fs.heal()
    with opened(fs) as stream:
        assert not stream.commit(transaction(staged))
    assert held(fs.inner) == parted(triples(60), 2)


@pytest.mark.parametrize(
    "verb",
    [
        "open",
        "pread",
        "pwrite",
        "truncate",
        "sync_files",
        "sync_directory",
        "rename",
        "unlink",
        "close",
        "size_of",
        "list_directory",
    ],
)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("segment_size", [None, 700])
def test_whatever_fails_it_is_in_once_in_the_end(verb, error, segment_size, monkeypatch):
    """Of a commit, and of the open that carries it out, each call once. Some files may become segments."""
    monkeypatch.setattr(staging_module, "_EXTENT", 1)
    messages = triples(40, start=5, length=100)
    for nth in range(1, 110):
        fs = failing_disk()
        stream = opened(fs, **TWO, segment_size=2000)
        stream.append_many(items(triples(5)))
        staged = stage_files(fs, messages, extent=7, segment_size=segment_size)
        struck = fs.fail(verb, nth, error)
        with suppress(DiskqError, OSError):
            stream.commit(transaction(*staged))
        if not struck.hits:
            break
        fs.heal()
        with suppress(DiskqError, OSError):
            stream.close()
        with suppress(DiskqError, OSError):
            fs.fail(verb, nth, error)
            opened(fs).close()
        after = fs.inner.kill()
        with opened(after) as stream:
            if held(after) == parted(triples(5), 2):
                assert commit(stream, after, messages)
            assert not commit(stream, after, messages)
        assert held(after) == parted(triples(5) + messages, 2), nth
        assert staged_files(after) == []
    else:
        raise AssertionError("it has more calls than that")


# --- abandoned transactions -----------------------------------------------------------------------


def test_what_is_abandoned_is_removed_and_nothing_else():
    fs = disk()
    for epoch, task, sink in ((0, 0, "sink"), (0, 1, "sink"), (1, 0, "sink"), (0, 0, "other")):
        stage(fs, triples(5), epoch=epoch, task=task, sink=sink)
    gone = abandon(ROOT, "sink", 0, fs=fs)
    assert [name.split("-")[:3] for name in gone] == [["sink", "0", "0"], ["sink", "0", "1"]]
    assert [name.split("-")[:2] for name in staged_files(fs)] == [["other", "0"], ["sink", "1"]]
    assert abandon(ROOT, "sink", 0, fs=fs) == []


def test_what_is_staged_late_for_a_transaction_that_was_abandoned_for_good_is_refused():
    fs = disk()
    stage(fs, triples(5))
    with staging(fs, task=1) as late:
        late.add_encoded(0, encode(triples(5)).data, 5)
        assert len(abandon(ROOT, "sink", 0, for_good=True, fs=fs)) == 2
        with pytest.raises(StagedError, match="abandoned"):
            late.finish()
    with pytest.raises(StagedError, match="abandoned"):
        stage(fs, triples(5), task=2)
    stage(fs, triples(5), epoch=1)
    assert [name.split("-")[1] for name in staged_files(fs)] == ["0.abandoned", "1"]

    assert sweep_staging(ROOT, lambda name: name.epoch == 0, fs=fs) == [], "the mark is no staged file"
    stage(fs, triples(5))
    assert [name.split("-")[1] for name in staged_files(fs)] == ["0", "1"]


def test_what_is_committed_and_pending_is_never_removed():
    fs, staged = killed(triples(40, start=5))
    stage(fs, triples(3), task=5)
    assert len(abandon(ROOT, "sink", 0, fs=fs)) == 1
    assert sweep_staging(ROOT, lambda name: True, fs=fs) == []
    assert staged_files(fs) == [staged.name]
    with opened(fs):
        pass
    assert held(fs) == parted(triples(45), 2)
    assert staged_files(fs) == []


def test_nothing_is_swept_while_somebody_may_commit_it():
    fs = disk()
    with opened(fs):
        stage(fs, triples(5), sink="other")
        stage(fs, triples(5))
        with pytest.raises(LockedError):
            sweep_staging(ROOT, lambda name: True, fs=fs)
        assert abandon(ROOT, "other", 0, fs=fs), "who says so knows it"
    assert sweep_staging(ROOT, lambda name: str(name).startswith("sink-0-0-"), fs=fs)
    assert staged_files(fs) == []
    assert sweep_staging("/nowhere", lambda name: True, fs=fs) == []


def test_a_commit_removes_what_other_attempts_have_staged():
    fs = disk()
    with opened(fs, **TWO) as stream:
        for task in range(3):
            stage(fs, triples(5), task=task)
        kept = stage(fs, triples(5), epoch=1)
        commit(stream, fs, triples(5))
        assert staged_files(fs) == [kept.name]
        stage(fs, triples(5))  # a process that does not know
        with opened(fs.kill()):
            pass
        assert not commit(stream, fs, triples(5))
        assert staged_files(fs) == [kept.name]


# --- the files ------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_an_intent_says_what_it_was_told():
    extents = tuple(Extent(number % 3, 23 + 10 * number, 10, 1, number * 2**19) for number in range(5000))
    shares = {
        0: PartitionShare(0, 0, 1667),
        1: PartitionShare(2**40, 3, 1667),
        999_999: PartitionShare(5, 5, 5),
    }
    staged = (StagedFile("a-1-2-0123456789abcdef.staged", extents), StagedFile("b", ()))
    intent = Intent("sink", 2**63 - 1, "a query", shares, staged)
    content = intent.render()
    assert Intent.parse(content) == intent
    for at in range(0, len(content), 997):
        assert Intent.parse(content[:at]) is None
        assert Intent.parse(content[:at] + b"\x7f" + content[at + 1 :]) is None
    assert Intent.parse(content + b"\n") is None

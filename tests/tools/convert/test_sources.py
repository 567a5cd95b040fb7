# What things hold, as tools read it.

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from diskq.engine.journal.journal import Journal
from diskq.engine.log.reader import SkippedBytes
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.stream.stream import Stream
from diskq.errors import NotFoundError, QueueMovedError
from diskq.options import PriorityOptions, QueueOptions, StreamOptions
from diskq.tools.convert.sources import LinesFile, Selection, entries, open_reading
from diskq.tools.entries import Entry, EntryBatch
from diskq.tools.json_lines import to_lines
from diskq.tools.stores import Store

GOLDEN = Path(__file__).parents[2] / "golden"


def a_queue(path: Path, name: str = "q", count: int = 3) -> Store:
    with Queue(path, name) as queue:
        queue.put_many(b"%d" % number for number in range(count))
    return Store("queue", str(path), name)


def a_stream(path: Path) -> Store:
    with Stream(path, options=StreamOptions(partition_count=1)) as stream:
        stream.append_many([(b"k", b"%d" % number, 10 * number) for number in range(5)])
    return Store("stream", str(path))


def a_journal(path: Path) -> Store:
    with Journal(path) as journal:
        journal.append_many([(b"k", b"%d" % number, 10 * number, number) for number in range(5)])
    return Store("journal", str(path))


def a_store(path: Path) -> Store:
    with PriorityStore(path, options=PriorityOptions(preallocate=False)) as store:
        store.put_many(store.create_queue("mail"), [b"late", b"soon"], [7, -1])
        store.put(store.queue(), b"any")
    return Store("jobs", str(path))


def values(source: Store | LinesFile, **selection: object) -> list[bytes]:
    return [entry.value for entry in entries(source, Selection(**selection))]  # type: ignore[arg-type]


def test_a_queue_is_read_from_its_head(tmp_path: Path) -> None:
    store = a_queue(tmp_path)
    with Queue(tmp_path, "q") as queue:
        queue.get()
    assert list(entries(store)) == [Entry(b"1", queue="q"), Entry(b"2", queue="q")]


def test_reading_a_queue_leaves_every_byte_as_it_is(tmp_path: Path) -> None:
    store = a_queue(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert values(store) == [b"0", b"1", b"2"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_queue_is_read_while_a_process_has_it(tmp_path: Path) -> None:
    with Queue(tmp_path, "q") as queue:
        queue.put(b"now")
        assert values(Store("queue", str(tmp_path), "q")) == [b"now"]


def test_a_spool_is_its_two_queues(tmp_path: Path) -> None:
    a_queue(tmp_path, "spool", 2)
    a_queue(tmp_path, "dead", 1)
    store = Store("spool", str(tmp_path))
    assert [entry.queue for entry in entries(store)] == ["spool", "spool", "dead"]
    assert [entry.queue for entry in entries(store, Selection(queues=("dead",)))] == ["dead"]


def test_a_stream_is_read_partition_by_partition(tmp_path: Path) -> None:
    found = list(entries(a_stream(tmp_path)))
    assert found[1] == Entry(b"1", b"k", 10, partition=0, offset=1)
    assert [entry.offset for entry in found] == [0, 1, 2, 3, 4]


def test_a_journal_is_read_by_offset(tmp_path: Path) -> None:
    assert list(entries(a_journal(tmp_path)))[4] == Entry(b"4", b"k", 40, 4, offset=4)


def test_a_store_is_read_as_it_would_be_received(tmp_path: Path) -> None:
    assert [(entry.queue, entry.priority, entry.value) for entry in entries(a_store(tmp_path))] == [
        ("", 0, b"any"),
        ("mail", -1, b"soon"),
        ("mail", 7, b"late"),
    ]


def test_lines_are_read_as_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(to_lines(EntryBatch.of([Entry(b"a", offset=1), Entry(b"b", offset=2)])))
    assert values(LinesFile(str(path))) == [b"a", b"b"]
    assert values(LinesFile(str(path)), start=2) == [b"b"]


@pytest.mark.parametrize("make", [a_stream, a_journal])
@pytest.mark.parametrize(
    "selection, wanted",
    [
        ({"start": 3}, b"34"),
        ({"end": 1}, b"01"),
        ({"start": 1, "end": 9, "max_messages": 2}, b"12"),
        ({"since": 15}, b"234"),
        ({"since": 20, "until": 30}, b"2"),
        ({"since": 99}, b""),
        ({"until": 0}, b""),
        ({"max_messages": 0}, b""),
    ],
    ids=str,
)
def test_a_part_may_be_chosen(tmp_path: Path, make, selection, wanted: bytes) -> None:
    assert b"".join(values(make(tmp_path), **selection)) == wanted


def test_a_message_without_a_time_is_in_no_stretch_of_time(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append_many([(b"", b"never", -(2**63), 0), (b"", b"then", 5, 0)])
    assert values(Store("journal", str(tmp_path)), since=-(2**63), until=2**62) == [b"then"]


@pytest.mark.parametrize(
    "make, selection, reason",
    [
        (a_queue, {"since": 1}, "no times"),
        (a_queue, {"start": 1}, "no offsets"),
        (a_store, {"end": 1}, "no offsets"),
        (a_stream, {"queues": ("q",)}, "no queues"),
    ],
    ids=["queue-since", "queue-start", "store-end", "stream-queues"],
)
def test_a_choice_by_what_messages_do_not_have_is_refused(tmp_path: Path, make, selection, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        open_reading(make(tmp_path), Selection(**selection))


def test_a_queue_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="letters"):
        open_reading(a_store(tmp_path), Selection(queues=("letters",)))


@pytest.mark.parametrize("kind", ["queue", "stream", "journal", "jobs"])
def test_it_is_the_same_again_whatever_was_written_meanwhile(tmp_path: Path, kind: str) -> None:
    make = {"queue": a_queue, "stream": a_stream, "journal": a_journal, "jobs": a_store}[kind]
    with open_reading(make(tmp_path)) as reading:
        first = [entry for batch in reading.batches() for entry in batch.entries()]
        if kind == "jobs":
            with PriorityStore(tmp_path, options=PriorityOptions(preallocate=False)) as store:
                store.put(store.queue("mail"), b"more", -9)
        else:
            make(tmp_path)
        assert [entry for batch in reading.batches() for entry in batch.entries()] == first
        assert reading.total == len(first)


def test_messages_that_were_taken_out_meanwhile_are_an_error(tmp_path: Path) -> None:
    options = QueueOptions(segment_size=8)
    with Queue(tmp_path, "q", options=options) as queue:
        queue.put_many([b"%d" % number for number in range(9)])
        with open_reading(Store("queue", str(tmp_path), "q")) as reading:
            queue.get_many(9)
            queue.sync()
            with pytest.raises(QueueMovedError):
                list(reading.batches())


def test_what_cannot_be_read_is_reported(tmp_path: Path) -> None:
    store = a_journal(tmp_path)
    file = next((tmp_path / "jnl").glob("*.jnl"))
    rotten = bytearray(file.read_bytes())
    rotten[len(rotten) // 2] ^= 0xFF
    file.write_bytes(rotten)
    losses: list[SkippedBytes] = []
    found = list(entries(store, losses=losses))
    assert len(found) + sum(gap.count for gap in losses) == 5
    assert losses


def test_a_peers_queue_is_read(tmp_path: Path) -> None:
    path = Path(shutil.copytree(GOLDEN / "nsq" / "basic" / "data", tmp_path / "data"))
    assert values(Store("queue", str(path), next(path.glob("*.meta.dat")).name.split(".")[0]))

# What is at a path may be another store by the time that it is read: made again there, or of another machine.
# Law, for all layouts: a read gets the messages for which it was loaded, or an error; never another store's.

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from diskq.engine.journal.journal import Journal
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.stream.stream import Stream
from diskq.options import PriorityOptions
from diskq.spark.batch import read_task
from diskq.spark.errors import DiskqSparkError
from diskq.spark.schema import SCHEMA
from diskq.spark.streaming import DiskqStreamReader
from tests.spark.readers import options, reader, table, tasks

ONE, OTHER = b"one", b"other"

Fill = Callable[[Path, bytes, int], None]


def stream(path: Path, tag: bytes, count: int) -> None:
    with Stream(path) as made:
        made.append_many([(b"key", b"%s %d" % (tag, number)) for number in range(count)])


def peers_stream(path: Path, tag: bytes, count: int) -> None:
    stream(path, tag, count)
    (path / ".diskq" / "owner").unlink(missing_ok=True)  # the id, which only diskq's producer draws


def journal(path: Path, tag: bytes, count: int) -> None:
    with Journal(path) as made:
        made.append_many([(b"key", b"%s %d" % (tag, number)) for number in range(count)])


def queue(path: Path, tag: bytes, count: int) -> None:
    path.mkdir(exist_ok=True)
    with Queue(path, "orders") as made:
        made.put_many([b"%s %d" % (tag, number) for number in range(count)])


def store(path: Path, tag: bytes, count: int) -> None:
    with PriorityStore(path, options=PriorityOptions(), takes_snapshots=False) as made:
        made.put_many(made.queue(), [b"%s %d" % (tag, number) for number in range(count)], [0] * count)


def snapshot_of_store(path: Path, tag: bytes, count: int) -> None:
    store(path, tag, count)
    with PriorityStore(path) as made:
        made.snapshot()


LAYOUTS = [stream, peers_stream, journal, queue, store]
each_layout = pytest.mark.parametrize("fill", LAYOUTS, ids=lambda fill: fill.__name__)


def values(found: Any) -> list[bytes]:
    column = found.column("value" if "value" in found.column_names else "body")
    return list(column.to_pylist())


def schema_of(chosen: Any) -> Any:
    return reader(chosen)._schema


def changed() -> Any:
    return pytest.raises(DiskqSparkError, match=r"^DISKQ_STREAM_CHANGED: .*one shared file system")


@each_layout
def test_a_read_of_what_was_made_again_since_the_load_is_an_error(fill: Fill, tmp_path: Path) -> None:
    path = tmp_path / "it"
    fill(path, ONE, 30)
    loaded = reader(options(path))
    assert len(values(table(loaded))) == 30
    shutil.rmtree(path)
    fill(path, OTHER, 90)
    with changed():
        table(loaded)


@each_layout
def test_a_task_on_a_machine_with_a_store_of_its_own_there_is_an_error(fill: Fill, tmp_path: Path) -> None:
    path = tmp_path / "it"
    fill(path, ONE, 30)
    chosen = options(path)
    schema = schema_of(chosen)
    planned = pickle.loads(pickle.dumps(tasks(chosen)))
    path.rename(tmp_path / "of the planning machine")
    fill(path, OTHER, 90)
    for task in planned:
        with changed():
            list(read_task(chosen, schema, task))


@each_layout
def test_without_fail_on_data_loss_nothing_of_the_other_is_read(
    fill: Fill, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "it"
    fill(path, ONE, 30)
    chosen = options(path, failOnDataLoss=False)
    loaded, planned, schema = reader(chosen), tasks(chosen), schema_of(chosen)
    shutil.rmtree(path)
    fill(path, OTHER, 90)
    assert values(table(loaded)) == []
    assert [batch for task in planned for batch in read_task(chosen, schema, task) if batch.num_rows] == []
    assert "DISKQ_STREAM_CHANGED" in caplog.text


@each_layout
def test_what_is_sent_after_the_load_makes_no_other_store_of_it(fill: Fill, tmp_path: Path) -> None:
    path = tmp_path / "it"
    fill(path, ONE, 30)
    loaded = reader(options(path))
    fill(path, OTHER, 90)
    assert values(table(loaded)) == [b"one %d" % number for number in range(30)]


def test_a_peers_stream_that_gets_its_id_after_the_load_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "it"
    peers_stream(path, ONE, 30)
    loaded = reader(options(path))
    stream(path, ONE, 1)
    assert len(values(table(loaded))) == 30


def test_a_stream_that_was_empty_at_the_load_is_distinguished_from_another(tmp_path: Path) -> None:
    path = tmp_path / "it"
    stream(path, ONE, 0)
    loaded = reader(options(path))
    shutil.rmtree(path)
    stream(path, OTHER, 90)
    with changed():
        table(loaded)


def test_a_store_with_only_a_snapshot_is_distinguished_from_another(tmp_path: Path) -> None:
    path = tmp_path / "it"
    snapshot_of_store(path, ONE, 30)
    loaded = reader(options(path))
    assert len(values(table(loaded))) == 30
    shutil.rmtree(path)
    snapshot_of_store(path, OTHER, 30)
    with changed():
        table(loaded)


@pytest.mark.parametrize("fill", [stream, peers_stream, journal], ids=lambda fill: fill.__name__)
def test_a_task_of_a_query_reads_only_the_stream_that_was_planned(fill: Fill, tmp_path: Path) -> None:
    path = tmp_path / "it"
    fill(path, ONE, 30)
    chosen = options(path, is_streaming=True, startingOffsets="earliest")
    query = DiskqStreamReader(chosen, SCHEMA)
    start = query.initialOffset()
    (task,) = query.partitions(start, query.latestOffset(start, ReadAllAvailable()))
    assert sum(batch.num_rows for batch in query.read(task)) == 30
    path.rename(tmp_path / "of the planning machine")
    fill(path, OTHER, 90)
    with changed():
        list(query.read(task))


def test_a_checkpoint_without_ids_is_read(tmp_path: Path) -> None:
    path = tmp_path / "it"
    stream(path, ONE, 30)
    query = DiskqStreamReader(options(path, is_streaming=True, startingOffsets="earliest"), SCHEMA)
    start = query.initialOffset()
    for place in start["streams"].values():
        del place["id"]
    end = query.latestOffset(json.loads(json.dumps(start)), ReadAllAvailable())
    assert sum(batch.num_rows for task in query.partitions(start, end) for batch in query.read(task)) == 30

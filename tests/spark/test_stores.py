# Stores of priority queues, read by Spark. Law: one load is one state, and the store does not notice.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from diskq.engine.priority.store import PriorityStore
from diskq.options import PriorityOptions
from diskq.spark import classify
from diskq.spark.errors import DiskqSparkError
from diskq.spark.schema import schema_of
from diskq.spark.source import DiskqDataSource
from tests.spark.readers import options, read, reader, table, write

COLUMNS = ["topic", "queue", "id", "priority", "body"]


def rows(found: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in found.select(COLUMNS[1:]).to_pylist()]


def filled(path: Path, **chosen: Any) -> PriorityStore:
    store = PriorityStore(path, options=PriorityOptions(**chosen))
    mail = store.create_queue("mail", priority_range=(-5, 5))
    store.put_many(mail, [b"b", b"", b"c"], [2, -5, 2])
    store.put(store.queue(), b"\0" * 3, 2**62)
    return store


def test_a_state_is_read_while_a_worker_has_the_store(tmp_path):
    with filled(tmp_path / "jobs") as store:
        mail = store.queue("mail")
        record = store.get(mail)
        assert record is not None
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        found = read(options(tmp_path / "jobs"))
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        assert found.column_names == COLUMNS
        assert set(found.column("topic").to_pylist()) == {"jobs"}
        assert rows(found) == [
            ("", 1, 2**62, b"\0" * 3),
            ("mail", 2, -5, b""),
            ("mail", 1, 2, b"b"),
            ("mail", 3, 2, b"c"),
        ]
        store.ack(mail, record)
        assert len(read(options(tmp_path / "jobs"))) == 3


def test_a_load_is_one_state_however_often_it_is_read(tmp_path):
    with filled(tmp_path, soft_limit=60, snapshot_segments=99) as store:
        loaded = reader(options(tmp_path))
        mail = store.queue("mail")
        store.ack_many(mail, store.get_many(mail, 9))
        store.put(mail, b"later")
        assert len(table(loaded)) == len(table(loaded)) == 4
        store.snapshot()
        with pytest.raises(DiskqSparkError, match=r"DISKQ_DATA_LOSS.*load it again"):
            table(loaded)
        lenient = reader(options(tmp_path, failOnDataLoss=False))
        store.put(mail, b"still later")
        store.snapshot()
        assert len(table(lenient)) == 3


def test_a_large_state_comes_in_batches(tmp_path):
    with PriorityStore(tmp_path) as store:
        store.put_many(store.queue(), [b"%d" % number for number in range(50)], list(range(50, 0, -1)))
    of = reader(options(tmp_path, recordsPerArrowBatch=20))
    (task,) = of.partitions()
    batches = list(of.read(task))
    assert [len(batch) for batch in batches] == [20, 20, 10]
    assert batches[0].column(4)[0].as_py() == b"49"


def test_several_stores_are_so_many_tasks_and_topics(tmp_path):
    for name in ("a", "b"):
        filled(tmp_path / name).close()
    of = reader(options(tmp_path, subscribe="a,b"))
    assert len(of.partitions()) == 2
    assert table(of).column("topic").to_pylist() == ["a"] * 4 + ["b"] * 4
    assert len(reader(options(tmp_path, subscribePattern="[ab]")).partitions()) == 2


def test_damage_is_an_error_with_its_code(tmp_path):
    filled(tmp_path, soft_limit=60).close()
    segment = min((tmp_path / "data" / "log").iterdir())
    content = bytearray(segment.read_bytes())
    content[40] ^= 1
    segment.write_bytes(content)
    with pytest.raises(DiskqSparkError, match=r"DISKQ_CORRUPT.*\.log: byte 8"):
        read(options(tmp_path))


@pytest.mark.parametrize(
    "chosen, why",
    [
        ({"startingOffsets": "earliest"}, "DISKQ_OPTION: startingOffsets: a priority store"),
        ({"minPartitions": "3"}, "DISKQ_OPTION: minPartitions: a priority store"),
        ({"path": "nowhere", "layout": "taskflux"}, "DISKQ_NOT_FOUND"),
        ({"schema": "value binary"}, "no column 'value'.* there are topic string, queue string, id bigint"),
    ],
)
def test_wrong_options_for_a_priority_store_are_errors(tmp_path, chosen, why):
    filled(tmp_path / "jobs").close()
    given = {"path": str(tmp_path / "jobs")} | chosen
    columns = given.pop("schema", None)
    given["path"] = str(tmp_path / given["path"])
    source = DiskqDataSource(given)
    schema = source.schema() if columns is None else schema_of({"triplet"})
    with pytest.raises(DiskqSparkError, match=why):
        source.reader(schema).partitions()


def test_a_store_is_read_alone_and_in_batches(tmp_path):
    filled(tmp_path / "jobs").close()
    write(tmp_path / "clicks", 3)
    source = DiskqDataSource({"path": str(tmp_path), "subscribe": "jobs,clicks"})
    with pytest.raises(DiskqSparkError, match="read them separately"):
        source.schema()
    source = DiskqDataSource({"path": str(tmp_path / "jobs")})
    with pytest.raises(DiskqSparkError, match="taskflux is for batch reads"):
        source.streamReader(source.schema()).initialOffset()


@pytest.mark.spark
def test_spark_reads_a_store(spark, tmp_path):
    with filled(tmp_path / "jobs"):
        frame = spark.read.format("diskq").option("layout", "taskflux").load(str(tmp_path / "jobs"))
        assert frame.columns == COLUMNS
        assert not any(field.nullable for field in frame.schema)
        assert frame.where("queue = 'mail'").orderBy("priority", "id").first().body == b""
        narrow = spark.read.format("diskq").schema("queue string NOT NULL, priority long NOT NULL")
        assert narrow.load(str(tmp_path / "jobs")).agg({"priority": "min"}).first()[0] == -5
        with pytest.raises(AnalysisException) as caught:
            spark.read.format("diskq").option("startingOffsets", "earliest").load(
                str(tmp_path / "jobs")
            ).count()
        assert classify(caught.value) is not None

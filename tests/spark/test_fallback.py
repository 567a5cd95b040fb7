# Reading with pyarrow alone. Law: of a stream that is whole it gives what the engine gives; and nothing
# compiled is imported on the way.

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from diskq.engine.stream import Stream
from diskq.options import StreamOptions
from diskq.spark import shipping
from diskq.spark.arrow import Batches
from diskq.spark.batch import DiskqReader
from diskq.spark.errors import DiskqSparkError
from diskq.spark.fallback import UnverifiedLayout
from diskq.spark.layouts import Losses
from diskq.spark.schema import arrow_schema, schema_of
from tests.spark.readers import VALUE, data_files, numbers, options, read, tasks, write

SCHEMA = schema_of(with_nanos=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clicks"


def unverified(path: Path, *, is_fatal: bool = True, max_bytes: int = 4096, **given: Any) -> Any:
    batches: list[Any] = []
    for task in tasks(options(path, **given)):
        pieces = UnverifiedLayout(str(path)).read(task, max_bytes, Losses(is_fatal=is_fatal))
        made = Batches(SCHEMA, topic=task.topic, partition=task.partition, rows=100, size=4096)
        batches += made.of(pieces, task.start, task.end)
    return pa.Table.from_batches(batches, arrow_schema(SCHEMA))


def fails_with(code: str):
    return pytest.raises(DiskqSparkError, match=f"^{code}: ")


def test_it_gives_what_the_engine_gives(path):
    with Stream(path, StreamOptions(partition_count=3, segment_size=20_000)) as stream:
        stream.append_many([(b"k" * (1 + i % 40), b"v" * (i % 300), i - 500) for i in range(3000)])
        stream.append(b"x" * 10_000)
    expected = read(options(path), SCHEMA)
    assert unverified(path).equals(expected)
    assert unverified(path, max_bytes=1).equals(expected)
    assert unverified(path, minPartitions=17, startingOffsets='{"0": 5, "1": 900, "2": -2}').equals(
        read(options(path, startingOffsets='{"0": 5, "1": 900, "2": -2}'), SCHEMA)
    )


@pytest.mark.parametrize(
    "what", ["row's offset", "row's position", "row's size", "key's length", "value's length"]
)
def test_what_index_and_data_do_not_say_alike_costs_its_message(path, what):
    write(path, 2000)
    data = data_files(path)[1]
    file = data if "length" in what else data.with_suffix(".index")
    content = bytearray(file.read_bytes())
    number = int(data.stem) + 7
    if "length" in what:
        value = content.find(VALUE % number)
        at = value - 8 if what.startswith("value") else value - 8 - 8 - 1 - 4
    else:
        at = 7 * 24 + ("offset", "position", "size").index(what[6:]) * 8
    content[at + 3] ^= 64
    file.write_bytes(content)
    with fails_with("DISKQ_CORRUPT"):
        unverified(path)
    lost = set(range(2000)).difference(numbers(unverified(path, is_fatal=False)))
    assert number in lost
    assert len(lost) <= 2


def test_a_cut_file_and_a_cut_index_cost_what_is_cut(path, caplog):
    write(path, 2000)
    data, other = data_files(path)[1:3]
    behind = int(data_files(path)[3].stem)
    planned = tasks(options(path))
    for file in (data, other.with_suffix(".index")):
        with file.open("r+b") as handle:
            handle.truncate(1000)
    (task,) = planned
    pieces = UnverifiedLayout(str(path)).read(task, 4096, Losses(is_fatal=False))
    made = Batches(SCHEMA, topic="t", partition=0, rows=100, size=4096)
    left = numbers(pa.Table.from_batches(made.of(pieces, task.start, task.end)))
    assert left[: int(data.stem) + 1] == list(range(int(data.stem) + 1))
    assert left[-(2000 - behind) :] == list(range(behind, 2000))
    assert len(left) < 2000 - 2 * 200
    assert 2 <= len(caplog.records) <= 4


def test_what_retention_took_is_told(path):
    write(path, 2000)
    planned = tasks(options(path))
    for file in data_files(path)[:2]:
        file.unlink()
    first = int(data_files(path)[0].stem)
    with fails_with("DISKQ_DATA_LOSS"):
        list(UnverifiedLayout(str(path)).read(planned[0], 4096, Losses(is_fatal=True)))
    found = UnverifiedLayout(str(path)).read(planned[0], 4096, Losses(is_fatal=False))
    assert next(found)[0] == first


def test_another_encoding_is_refused(path):
    with Stream(path, StreamOptions(encoding="varuint")):
        pass
    with fails_with("DISKQ_FORMAT"):
        UnverifiedLayout(str(path))


_EXECUTOR = """
import pickle, sys
for name in ("trio", "outcome", "crc32c", "portalocker"):
    sys.modules[name] = None
import diskq.spark.source, diskq.spark.streaming
reader, planned = pickle.load(sys.stdin.buffer)
assert not any(name.startswith("diskq._native.") for name in sys.modules)
print(sum(batch.num_rows for task in planned for batch in reader.read(task)))
"""


def test_a_task_runs_where_nothing_is_compiled(path, tmp_path):
    write(path, 1000, partitions=2)
    made = DiskqReader(options(path), SCHEMA, None)
    done = subprocess.run(
        [sys.executable, "-c", _EXECUTOR],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(shipping.archive(tmp_path, pure=True))},
        input=pickle.dumps((made, made.partitions())),
        capture_output=True,
        check=False,
    )
    assert done.stdout == b"1000\n", done.stderr.decode()
    assert b"checksums are not looked at" in done.stderr

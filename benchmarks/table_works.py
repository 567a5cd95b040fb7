# What a table does while it is measured: an update of all segments with its syncs, and reading by column.
# Beside it stands pyarrow alone, which writes the same rows from memory, with the same settings.

from __future__ import annotations

import random
from typing import Any

import pyarrow.parquet as pq

import diskq
from benchmarks.stopwatch import Reading, Stopwatch
from diskq.storage.fs import OsFileSystem
from diskq.tables.arrow import NANOS, STREAM
from diskq.tables.parquet import open_file

_BURST = 10_000


def table_and_back(directory: str, *, count: int) -> dict[str, Reading]:
    """Messages of 100 bytes, of which seven tenths can be compressed, with keys of 8 bytes."""
    path, lake = f"{directory}/clicks", f"{directory}/lake"
    rng = random.Random(1)
    with diskq.Stream(path, partition_count=1) as stream:
        for _ in range(0, count, _BURST):
            stream.append_many(
                [(b"user%04d" % rng.randrange(5000), rng.randbytes(30) + b"x" * 70) for _ in range(_BURST)]
            )
    diskq.open_table(path, f"{directory}/warm").update()
    watch = Stopwatch()
    done = diskq.open_table(path, lake).update()
    found = {"update": watch.stop(done.messages)}
    rows = diskq.read_arrow(path, columns=STREAM.names).read_all().slice(0, done.messages)
    watch = Stopwatch()
    _write(rows, f"{directory}/alone.parquet", done.messages // len(done.made))
    found["pyarrow alone"] = watch.stop(rows.num_rows)
    del rows
    with open_file(OsFileSystem(), f"{directory}/alone.parquet") as opened:
        watch = Stopwatch()
        alone = sum(batch.num_rows for batch in opened.iter_batches(65_536, use_threads=False))
        found["pyarrow reads"] = watch.stop(alone)
    for name, how in {"read, table and tail": lake, "read, stream": None}.items():
        watch = Stopwatch()
        read = sum(batch.num_rows for batch in diskq.read_arrow(path, table=how))
        found[name] = watch.stop(read)
        assert read == count
    return found


def _write(rows: Any, path: str, group: int) -> None:
    pq.write_table(
        rows,
        path,
        compression="zstd",
        use_dictionary=["key"],
        column_encoding=dict.fromkeys(("offset", "timestamp", NANOS), "DELTA_BINARY_PACKED"),
        write_statistics=["offset", "timestamp", NANOS],
        write_page_index=True,
        write_page_checksum=True,
        row_group_size=group,
    )

# Workers that have diskq's Python, and no compiled modules that they can import. Law: whatever a worker was
# to do, it says why it cannot, and what to do; and the driver has a code for it.

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from diskq.engine.stream.stream import Stream
from diskq.spark import shipping
from diskq.spark.batch import DiskqReader
from diskq.spark.errors import SparkFault, classify
from diskq.spark.schema import schema_of
from diskq.spark.sink import DiskqBatchWriter
from tests.spark.readers import options

PACKAGE = Path(shipping.__file__).parents[1]
OTHER, OURS = "cpython-39-s390x-linux-gnu", sysconfig.get_config_var("SOABI")

FAULT = SparkFault(
    "DISKQ_NOT_COMPILED",
    f"diskq is compiled for {OTHER}, and this Python is {OURS}: install diskq for it; to Spark's executors "
    "ship what `python -m diskq.spark.shipping` makes with the same Python",
)


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """What an archive brings that was made with another Python, on another machine."""
    tree = tmp_path / "shipped"
    shutil.copytree(PACKAGE, tree / "diskq", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tree / "diskq" / "_native" / "queue" / f"codec.{OTHER}.so").touch()
    return tree


def fault_of(diskq: Path, sent: Any) -> SparkFault | None:
    """What the driver finds in the text of a worker that has this diskq, and is sent work by pickle."""
    done = subprocess.run(
        [sys.executable, "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)"],
        cwd=diskq.parent,
        env={"PYTHONPATH": str(diskq)},
        input=pickle.dumps(sent),
        capture_output=True,
        check=False,
    )
    told = done.stderr.decode()
    assert done.returncode == 1, told
    return classify(Exception(told))


def test_the_error_of_a_read_without_compiled_modules_says_what_to_do(shipped, tmp_path):
    with Stream(tmp_path / "clicks") as stream:
        stream.append(b"one")
    reader = DiskqReader(options(tmp_path / "clicks"), schema_of(), None)
    assert fault_of(shipped, (reader, reader.partitions())) == FAULT


def test_the_error_of_a_write_without_compiled_modules_says_what_to_do(shipped, tmp_path):
    assert (
        fault_of(shipped, DiskqBatchWriter({"path": str(tmp_path / "clicks")}, schema_of(), False)) == FAULT
    )


def test_what_is_brought_zipped_says_that_it_has_to_be_unpacked(tmp_path):
    zipped = shipping.archive(tmp_path / "diskq.zip")  # as with `--py-files`
    fault = fault_of(zipped, DiskqBatchWriter({"path": str(tmp_path / "clicks")}, schema_of(), False))
    assert fault is not None
    assert fault.code == "DISKQ_NOT_COMPILED"
    assert f"from a zip file ({zipped}/diskq/_native)" in fault.sentence

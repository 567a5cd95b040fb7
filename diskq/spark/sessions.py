# A SparkSession for diskq's work. Law: each setting has its reason next to it, and the caller can override
# it.

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from diskq.options import MIB
from diskq.spark.java import ensure_java
from diskq.spark.source import register

__all__ = ["session"]

Setting = bool | int | float | str

_TRUSTING = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

_SOCKETS = "spark.python.unix.domain.socket"
# The JVM creates them in its directory for temporary files, under names of 42 bytes. The system's limit for
# the path is 103 bytes on macOS and 107 on Linux.
_LONGEST_DIRECTORY = 60

_EVERYWHERE: dict[str, Setting] = {
    # Hours and dates are computed in this zone; no hour is repeated or skipped in it.
    "spark.sql.session.timeZone": "UTC",
    # The size of a sink's batches: a write of 1,000,000 messages took 1.4 s with this, 1.9 s with Spark's
    # 10,000.
    "spark.sql.execution.arrow.maxRecordsPerBatch": 50_000,
    # The same in bytes. While a batch is made its worker waits, and Arrow's memory for it grows by copying.
    # A write of 200,000 messages of 1 KiB took 1.84 s of processor time with Spark's 64 MiB, 1.45 s with 16,
    # 1.17 s with 4, and 1.08 s with this; Spark's own write of Parquet took 1.12 s.
    "spark.sql.execution.arrow.maxBytesPerBatch": MIB,
    # A web server and its memory, which most jobs do not need.
    "spark.ui.enabled": False,
    # Spark writes its messages to a Python worker in two pieces, and over TCP the second one waits for the
    # acknowledgement of the first: 40 ms for each task, and more than once for each batch of a query.
    f"{_SOCKETS}.enabled": hasattr(socket, "AF_UNIX"),
    # Arrow's own advice for speed: the producer guarantees the bounds of a batch, so they are not checked
    # again for every value of every row. (A fifth of the JVM's time of reading.)
    "spark.driver.extraJavaOptions": _TRUSTING,
    "spark.executor.extraJavaOptions": _TRUSTING,
}

_ON_THIS_HOST: dict[str, Setting] = {
    # Otherwise executors reach the driver at the first address of a network, which may be down later, and
    # where other machines could connect to it.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def session(
    app_name: str | None = None, master: str | None = None, conf: Mapping[str, Setting] | None = None
) -> SparkSession:
    """Return the SparkSession of this process, or a new one, in which `diskq` is a format.

    `master` is Spark's name for where it runs; the default, if `spark-submit` gives none either, is
    `local[*]`, all cores of this machine. `conf` are settings by Spark's names, `{"spark.driver.memory":
    "4g"}`: they, and those of `spark-submit`, take precedence over diskq's own, which docs/spark.md lists. An
    existing session keeps all its settings but those in `conf`.

    A Java is found first (`ensure_java`), and for a Spark on this host the Python of its workers is this one,
    unless PYSPARK_PYTHON names another. Raises JavaNotFoundError.
    """
    wanted = dict(conf or {})
    if SparkContext._active_spark_context is None:
        # The driver needs it only for the first batch; an error now is better than one in a worker then.
        if find_spec("pyarrow") is None:
            raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
        wanted = _settings(app_name, master, wanted)
        _prepare_processes(str(wanted.get("spark.master") or _submitted().get("spark.master")))
    made = SparkSession.builder.config(map={**wanted}).getOrCreate()
    register(made)
    return made


def _settings(app_name: str | None, master: str | None, conf: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return all settings that `spark-submit` has not made."""
    submitted = _submitted()
    asked: dict[str, Setting | None] = {"spark.app.name": app_name, "spark.master": master, **conf}
    chosen = {name: value for name, value in asked.items() if value is not None}
    where = str(chosen.get("spark.master") or submitted.get("spark.master") or "local[*]")
    defaults = {"spark.app.name": "diskq", "spark.master": where, **_EVERYWHERE}
    if is_on_this_host(where):
        defaults |= _ON_THIS_HOST
    defaults |= _sockets(chosen, is_here=is_on_this_host(where))
    if cores := cores_of(where):
        # A task for each core: a waiting one is only overhead, and a stream that aggregates starts all of
        # them in every batch. (Spark's own 200 are meant for a cluster.)
        defaults["spark.sql.shuffle.partitions"] = cores
    return {name: value for name, value in defaults.items() if name not in submitted} | chosen


def _sockets(chosen: Mapping[str, Setting], *, is_here: bool) -> dict[str, Setting]:
    """Return the settings for Unix sockets if the path of the JVM's own directory is too long for them."""
    options = [str(chosen.get(f"spark.{side}.extraJavaOptions", "")) for side in ("driver", "executor")]
    directories = re.findall(r"-Djava\.io\.tmpdir=(\S+)", " ".join(options))
    if all(len(os.fsencode(directory)) <= _LONGEST_DIRECTORY for directory in directories):
        return {}
    short = tempfile.gettempdir()
    if is_here and len(os.fsencode(short)) <= _LONGEST_DIRECTORY:
        return {f"{_SOCKETS}.dir": short}
    return {f"{_SOCKETS}.enabled": False}


def _submitted() -> dict[str, str]:
    """Return the settings of `spark-submit`, from its JVM. Empty in a plain Python."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _prepare_processes(master: str) -> None:
    """Set what Spark's processes inherit from the environment, and no setting covers."""
    if SparkContext._gateway is None:
        ensure_java()
    if is_on_this_host(master):
        # Spark's own choice is the `python3` of PATH, which is another one, without pyarrow, in an
        # environment that was not activated. The driver's is this one, whatever shell started it.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault(
            "SPARK_LOCAL_IP", "127.0.0.1"
        )  # as spark.driver.host, for code that does not read it


# --- Spark's master -------------------------------------------------------------------------------


def is_on_this_host(master: str) -> bool:
    return re.match(r"local\b|spark://(127\.0\.0\.1|localhost|\[::1\]):", master) is not None


def cores_of(master: str) -> int | None:
    """Return how many tasks run at once; None if the master's name does not contain it."""
    if master == "local":
        return 1
    if found := re.fullmatch(r"local\[(\d+|\*)(?:,.*)?\]", master):
        return (os.cpu_count() or 1) if found[1] == "*" else int(found[1])
    if found := re.fullmatch(r"local-cluster\[(\d+),(\d+),\d+\]", master.replace(" ", "")):
        return int(found[1]) * int(found[2])
    return None

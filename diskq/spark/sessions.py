# A SparkSession for diskq's work. Law: each setting has its reason beside it, and whoever asks overrides it.

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

from diskq.spark.java import ensure_java
from diskq.spark.source import register

__all__ = ["session"]

Setting = bool | int | float | str

_TRUSTING = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

_SOCKETS = "spark.python.unix.domain.socket"
# The JVM makes them in its directory for temporary files, under names of 42 bytes, and the system takes no
# more than 103 together (on macOS; 107 on Linux).
_LONGEST_DIRECTORY = 60

_EVERYWHERE: dict[str, Setting] = {
    # Hours and dates are cut in this zone, and it is the only one that repeats and skips none.
    "spark.sql.session.timeZone": "UTC",
    # What a sink is handed at once: a write of 1,000,000 messages took 1.4 s with this, 1.9 s with Spark's
    # 10,000. Arrow's batches are bounded by bytes as well (64 MiB), so long messages do no harm.
    "spark.sql.execution.arrow.maxRecordsPerBatch": 50_000,
    # A web server and its memory, for whoever looks at it.
    "spark.ui.enabled": False,
    # What Spark tells a Python worker it writes in two pieces, and over TCP the second one waits for the
    # first one's acknowledgement: 40 ms for each task, and for each batch of a query more than once.
    f"{_SOCKETS}.enabled": hasattr(socket, "AF_UNIX"),
    # Arrow's own advice where speed counts: the bounds of a batch are right by who made it, and need not be
    # looked at again for every value of every row. (A fifth of what reading costs the JVM.)
    "spark.driver.extraJavaOptions": _TRUSTING,
    "spark.executor.extraJavaOptions": _TRUSTING,
}

_ON_THIS_HOST: dict[str, Setting] = {
    # Otherwise the driver is offered to its executors at the first address of a network that may be down
    # tomorrow, and at which it would be open to others.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def session(
    app_name: str | None = None, master: str | None = None, conf: Mapping[str, Setting] | None = None
) -> SparkSession:
    """The SparkSession of this process, made where there is none, in which `diskq` is a format.

    `master` is Spark's word for where it runs; where neither you nor `spark-submit` say, it is `local[*]`,
    all of this machine. `conf` are settings by Spark's names, `{"spark.driver.memory": "4g"}`: they, and what
    `spark-submit` was told, stand before diskq's own, which docs/spark.md lists. A session that is there
    already keeps all it has, but for `conf`.

    A Java is found first (`ensure_java`), and for a Spark on this host the Python of its workers is this one,
    unless PYSPARK_PYTHON names another. Raises JavaNotFoundError.
    """
    wanted = dict(conf or {})
    if SparkContext._active_spark_context is None:
        # Here nothing needs it before the first batch comes: better told now than by a worker then.
        if find_spec("pyarrow") is None:
            raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
        wanted = _settings(app_name, master, wanted)
        _prepare_processes(str(wanted.get("spark.master") or _submitted().get("spark.master")))
    made = SparkSession.builder.config(map={**wanted}).getOrCreate()
    register(made)
    return made


def _settings(app_name: str | None, master: str | None, conf: Mapping[str, Setting]) -> dict[str, Setting]:
    """All that is set, and was not set by `spark-submit`."""
    submitted = _submitted()
    asked: dict[str, Setting | None] = {"spark.app.name": app_name, "spark.master": master, **conf}
    chosen = {name: value for name, value in asked.items() if value is not None}
    where = str(chosen.get("spark.master") or submitted.get("spark.master") or "local[*]")
    ours = {"spark.app.name": "diskq", "spark.master": where, **_EVERYWHERE}
    if is_on_this_host(where):
        ours |= _ON_THIS_HOST
    ours |= _sockets(chosen, is_here=is_on_this_host(where))
    if cores := cores_of(where):
        # A task each: one that waits for a core is only overhead, and a stream that aggregates starts all of
        # them in every batch. (Spark's own 200 are meant for a cluster.)
        ours["spark.sql.shuffle.partitions"] = cores
    return {name: value for name, value in ours.items() if name not in submitted} | chosen


def _sockets(chosen: Mapping[str, Setting], *, is_here: bool) -> dict[str, Setting]:
    """Where Unix sockets are made, should the JVM's own directory for them be too deep."""
    options = [str(chosen.get(f"spark.{side}.extraJavaOptions", "")) for side in ("driver", "executor")]
    directories = re.findall(r"-Djava\.io\.tmpdir=(\S+)", " ".join(options))
    if all(len(os.fsencode(directory)) <= _LONGEST_DIRECTORY for directory in directories):
        return {}
    short = tempfile.gettempdir()
    if is_here and len(os.fsencode(short)) <= _LONGEST_DIRECTORY:
        return {f"{_SOCKETS}.dir": short}
    return {f"{_SOCKETS}.enabled": False}


def _submitted() -> dict[str, str]:
    """What `spark-submit` was told: its JVM runs already, and knows. Nothing in a Python of one's own."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _prepare_processes(master: str) -> None:
    """What Spark's processes inherit, and no setting can tell them."""
    if SparkContext._gateway is None:
        ensure_java()
    if is_on_this_host(master):
        # Spark's own choice is the `python3` of PATH, which in an environment that was not activated is
        # another one, without pyarrow. The driver's is this one, whatever shell it is wrapped in.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # as spark.driver.host, for what does not ask it


# --- Spark's word for where it runs ---------------------------------------------------------------


def is_on_this_host(master: str) -> bool:
    return re.match(r"local\b|spark://(127\.0\.0\.1|localhost|\[::1\]):", master) is not None


def cores_of(master: str) -> int | None:
    """How many tasks run at once; None where the master's name does not tell."""
    if master == "local":
        return 1
    if found := re.fullmatch(r"local\[(\d+|\*)(?:,.*)?\]", master):
        return (os.cpu_count() or 1) if found[1] == "*" else int(found[1])
    if found := re.fullmatch(r"local-cluster\[(\d+),(\d+),\d+\]", master.replace(" ", "")):
        return int(found[1]) * int(found[2])
    return None

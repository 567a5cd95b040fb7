"""One Spark for the whole run: its start costs more than most of what is asked of it.

Where Java is missing, whoever asks for `spark` is skipped with the reason; with DISKQ_REQUIRE_SPARK=1
it fails instead, because a test that was skipped has shown nothing.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import diskq.spark
from diskq.spark import sessions
from diskq.spark.java import JavaNotFoundError, find_java

# Its loggers make every handler that they are given write JSON. pytest gives its own ones to each logger that
# does not propagate, as these do not: the logs of all later tests in the process would be JSON, unescaped.
PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[assignment,method-assign]


def require_java() -> None:
    try:
        find_java()
    except JavaNotFoundError as reason:
        if os.environ.get("DISKQ_REQUIRE_SPARK") == "1":
            pytest.fail(f"DISKQ_REQUIRE_SPARK=1, but {reason}", pytrace=False)
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def java() -> None:
    require_java()


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this run, on two cores. Whatever it keeps on disk is under pytest's directory."""
    own = tmp_path_factory.mktemp("spark")
    # Spark takes SIGINT for itself, and Trio would then leave it there: it is given back.
    interrupt = signal.getsignal(signal.SIGINT)
    session = diskq.spark.session("diskq's tests", "local[2]", settings(own))
    signal.signal(signal.SIGINT, interrupt)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    stop(session)


def stop(session: SparkSession) -> None:
    """Stop the session and its JVM: `stop()` alone leaves that one to live as long as this process."""
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(240)


def settings(own: Path) -> dict[str, sessions.Setting]:
    """Beside diskq's own: where a session keeps what it makes, and that it will not live long."""
    return {
        "spark.local.dir": str(own),
        "spark.sql.warehouse.dir": str(own / "warehouse"),
        # The second compiler, and a second collector's threads, give nothing back before the end.
        "spark.driver.extraJavaOptions": (
            f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={own} -Dderby.system.home={own}"
        ),
    }

"""One Spark for the whole run: its start costs more than most of what is asked of it.

Where Java is missing, whoever asks for `spark` is skipped with the reason; with DISKQ_REQUIRE_SPARK=1
it fails instead, because a test that was skipped has shown nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession


def require_java() -> None:
    if shutil.which("java") or os.environ.get("JAVA_HOME"):
        return
    if os.environ.get("DISKQ_REQUIRE_SPARK") == "1":
        pytest.fail("DISKQ_REQUIRE_SPARK=1, but java is not installed", pytrace=False)
    pytest.skip("java is not installed")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this run, on two cores. Whatever it keeps on disk is under pytest's directory."""
    require_java()
    own = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        # Spark takes SIGINT for itself, and Trio would then leave it there: it is given back.
        interrupt = signal.getsignal(signal.SIGINT)
        session = SparkSession.builder.config(map=settings(own)).getOrCreate()
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
    gateway.proc.wait(60)


def settings(own: Path) -> dict[str, bool | float | int | str | None]:
    return {
        "spark.app.name": "diskq's tests",
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": False,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 2,
        "spark.local.dir": str(own),
        "spark.sql.warehouse.dir": str(own / "warehouse"),
        # A short life: what the second compiler and a second collector's threads give is never paid back.
        "spark.driver.extraJavaOptions": (
            f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={own} -Dderby.system.home={own}"
        ),
    }

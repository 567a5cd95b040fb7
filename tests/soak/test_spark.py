# A query whose driver is killed again and again, at any moment. Law: in the end each row is there once,
# and nothing is left beside the stream.
#
# The suite kills once; `make soak` as often as DISKQ_SOAK_KILLS says (20).

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from diskq.engine.stream.stream import Stream
from diskq.options import StreamOptions
from tests.spark.cluster import LIGHT
from tests.spark.conftest import require_java
from tests.spark.sinks import found

KILLS = int(os.environ.get("DISKQ_SOAK_KILLS", "1"))
QUERY = Path(__file__).parent / "spark_query.py"
ROWS_A_BATCH = 200
SECONDS = 120.0


@contextmanager
def running(directory: Path) -> Iterator[Iterator[str]]:
    """The query in a process group of its own: what it says. All of it is killed at the end."""
    names = (directory / name for name in ("source", "out", "checkpoint"))
    command = [sys.executable, str(QUERY), *map(str, names), str(ROWS_A_BATCH)]
    process = subprocess.Popen(
        command,
        env=os.environ | {"JDK_JAVA_OPTIONS": LIGHT},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    watchdog = threading.Timer(SECONDS, kill, (process.pid,))
    watchdog.start()
    try:
        yield iter(process.stdout.readline, "")
    finally:
        watchdog.cancel()
        kill(process.pid)
        process.wait()
        process.stdout.close()


def kill(group: int) -> None:
    """Python, its JVM and its workers, all in one moment."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(60 + (KILLS + 1) * SECONDS)
def test_a_driver_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    require_java()
    rng = random.Random(7)
    total = ROWS_A_BATCH * (8 + 3 * KILLS)
    values = [b"%06d" % number for number in range(total)]
    with Stream(str(tmp_path / "source"), options=StreamOptions(partition_count=2)) as stream:
        stream.append_many([(b"k%d" % (number % 5), value) for number, value in enumerate(values)])
    for _ in range(KILLS):
        with running(tmp_path) as says:
            for line in says:
                if line.startswith("batch"):
                    break
            threading.Event().wait(rng.uniform(0, 1.5))
    with running(tmp_path) as says:
        assert [line.split()[0] for line in says][-1:] == ["done"]
    assert found(tmp_path / "out").values == values
    assert found(tmp_path / "out").staged == []
    assert not found(tmp_path / "out").is_pending

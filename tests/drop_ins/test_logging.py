# The handler for logging. Law: each record that was logged is delivered, by whichever process, and what
# cannot be delivered stops nobody.

from __future__ import annotations

import logging
import logging.config
import logging.handlers
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq.logging import SpoolHandler
from diskq.storage.fs import OsFileSystem
from diskq.storage.log_events import Log
from tests import waiting

LONG = 20.0


until = partial(waiting.until, seconds=LONG, pause=0.01)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("program")
    found.setLevel(logging.INFO)
    yield found
    for handler in list(found.handlers):
        found.removeHandler(handler)
        handler.close()


def test_threads_log_and_all_is_delivered(tmp_path: Path, logger: logging.Logger) -> None:
    got: list[bytes] = []
    handler = SpoolHandler(tmp_path / "logs", got.extend)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)

    def log(name: str) -> None:
        for number in range(50):
            logger.info("%s %d", name, number)

    threads = [threading.Thread(target=log, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handler.spool.drained(LONG)
    assert sorted(got) == sorted(
        b"INFO %s %d" % (name, n) for name in (b"a", b"b", b"c", b"d") for n in range(50)
    )


def _deliver(batch: diskq.Batch) -> None:
    with open(os.environ["GOT"], "ab") as file:
        file.writelines(body + b"\n" for body in batch)


def test_it_is_configured_by_a_dictionary(
    tmp_path: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOT", str(tmp_path / "got"))
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {
                "spool": {
                    "class": "diskq.logging.SpoolHandler",
                    "path": str(tmp_path / "logs"),
                    "deliver": f"ext://{__name__}._deliver",
                    "max_messages": 10,
                }
            },
            "loggers": {"program": {"handlers": ["spool"], "level": "INFO"}},
        }
    )
    logger.info("hello %s", "ü\udcff")
    got = tmp_path / "got"
    until(lambda: got.exists() and got.stat().st_size)
    assert got.read_bytes() == "hello ü\\udcff\n".encode()


def test_diskqs_own_records_are_left_out_and_a_full_spool_stops_nobody(
    tmp_path: Path, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(batch: diskq.Batch) -> None:
        raise ConnectionError

    queue = diskq.QueueOptions(max_bytes=65536)
    handler = SpoolHandler(tmp_path / "logs", down, queue=queue)
    logger.addHandler(handler)
    logging.getLogger("diskq").addHandler(handler)
    try:
        for _ in range(200):
            logger.info("x" * 1000)
        assert "FullError" in capsys.readouterr().err
        assert 0 < handler.spool.statistics().depth < 200
    finally:
        logging.getLogger("diskq").removeHandler(handler)


FORKS = """
import logging, os, sys
from diskq.logging import SpoolHandler
def deliver(batch):
    with open(sys.argv[2], "ab") as file:
        file.writelines(body + b"\\n" for body in batch)
logging.basicConfig(level=logging.INFO, handlers=[SpoolHandler(sys.argv[1], deliver, drain_timeout=10.0)])
logging.info("before")
children = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        logging.info("child %d", number)
        sys.exit()
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
logging.info("after")
"""


def test_children_of_a_fork_log_too(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", FORKS, str(tmp_path / "logs"), str(tmp_path / "got")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = (tmp_path / "got").read_text().splitlines()
    assert sorted(lines) == [
        *(f"INFO:root:{what}" for what in ("after", "before")),
        *(f"INFO:root:child {n}" for n in range(3)),
    ]


class DiskThatLogs(OsFileSystem):
    """What diskq would log of a disk that is full, at each write."""

    native = False

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        Log("queue").report("disk_full", "no space", path="/")
        return super().pwrite(handle, data, offset)


def test_what_diskq_logs_in_a_put_does_not_come_back_to_the_handler(
    tmp_path: Path, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    got: list[bytes] = []
    options: dict[str, Any] = {"fs": DiskThatLogs()}
    spool = SpoolHandler(tmp_path / "logs", got.extend, **options)
    # The records of diskq are left out by the last handler alone: this one would hand all on once more.
    handler = logging.handlers.MemoryHandler(1, target=spool)
    diskqs = logging.getLogger("diskq")
    for each in (logger, diskqs):
        each.addHandler(handler)
    try:
        capsys.readouterr()
        logger.info("one")
        assert "no space" in capsys.readouterr().err
        assert spool.spool.drained(LONG)
    finally:
        diskqs.removeHandler(handler)
        spool.close()
    assert got == [b"one"]


def test_what_a_handler_makes_diskq_log_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    class Putting(logging.Handler):
        records = 0

        def emit(self, record: logging.LogRecord) -> None:
            self.records += 1
            Log("queue").report("disk_full", "inner", path="/")

    handler, diskqs = Putting(), logging.getLogger("diskq")
    diskqs.addHandler(handler)
    try:
        Log("queue").report("disk_full", "outer", path="/")
    finally:
        diskqs.removeHandler(handler)
    assert handler.records == 1
    assert capsys.readouterr().err == "inner\n"

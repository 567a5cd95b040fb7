# A real Spark cluster on this machine's loopback: a master and workers, each a process of its own, and
# drivers that are told what to do. Law: nothing of it outlives who started it, however that one ends.

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from tests.docs.documents import ROOT

__all__ = ["LIGHT", "Cluster", "Driver"]

_HOME = Path(pyspark.__file__).parent
_SECONDS = 240

# What is started for seconds: see conftest.settings.
LIGHT = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# Runs a program until our end of its standard input is closed, by us or by our death; then ends all that the
# program started. (`kill 0` is everybody in the process group.)
_LEASH = '"$@" </dev/null & cat >/dev/null; kill -9 0'


class Cluster:
    """A master, and workers with one core each. `url` is the master's name."""

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self._directory = directory
        self._daemons: list[_Daemon] = []
        self._workers = workers
        self.url = ""

    def __enter__(self) -> Self:
        try:
            found = self._start("master", r"Starting Spark master at (spark://\S+)", "--port", "0")
            self.url = found[1]
            started = [
                self._daemon(
                    f"worker{number}",
                    *("--port", "0", "--cores", "1", "--memory", "1g"),
                    *("--work-dir", str(self._directory / f"work{number}"), self.url),
                )
                for number in range(self._workers)
            ]
            for daemon in started:
                daemon.wait_for(r"Successfully registered with master")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in reversed(self._daemons):
            daemon.end()

    def _start(self, name: str, sign: str, *arguments: str) -> re.Match[str]:
        return self._daemon(name, *arguments).wait_for(sign)

    def _daemon(self, name: str, *arguments: str) -> _Daemon:
        kind = name.rstrip("0123456789")
        program = [
            str(_HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}.{kind.capitalize()}",
            *("--host", "127.0.0.1", "--webui-port", "0"),
            *arguments,
        ]
        started = _Daemon(program, _environment(self._directory), self._directory / f"{name}.log")
        self._daemons.append(started)
        return started


class _Daemon:
    """A process whose log is read as it is written."""

    def __init__(self, program: list[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._text = ""
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            ["sh", "-c", _LEASH, "sh", *program],
            env=environment,
            cwd=log.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines, self._log.open("w") as log:
            for line in lines:
                log.write(line)
                log.flush()
                with self._changed:
                    self._text += line
                    self._changed.notify_all()

    def wait_for(self, sign: str) -> re.Match[str]:
        """The first place in the log that looks so."""
        with self._changed:
            self._changed.wait_for(lambda: re.search(sign, self._text), timeout=_SECONDS)
            found = re.search(sign, self._text)
        assert found is not None, f"{self._log} shows no {sign!r} in {_SECONDS} s:\n{self._text[-2000:]}"
        return found

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_SECONDS)
        self._reader.join(_SECONDS)


class Driver:
    """A program with a session on `master`, which runs the jobs of tests/spark/jobs.py."""

    def __init__(
        self, master: str, directory: Path, *, conf: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        self._log = directory / "driver.log"
        settings = {
            "spark.driver.extraJavaOptions": f"{LIGHT} -Djava.io.tmpdir={directory}",
            "spark.executor.extraJavaOptions": f"{LIGHT} -Djava.io.tmpdir={directory}",
            "spark.executor.memory": "1g",
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.local.dir": str(directory),
            "spark.sql.shuffle.partitions": "2",
            **conf,
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.jobs", master, json.dumps(settings)],
                cwd=ROOT,
                env={**_environment(directory), **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )

    def run(self, job: str, **arguments: Any) -> Any:
        """What the job returns."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([job, arguments]), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("result: "):
                return json.loads(line.removeprefix("result: "))
        raise AssertionError(f"the driver ended in {job}:\n{self._log.read_text()[-4000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(_SECONDS)
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, 9)


def _environment(directory: Path) -> dict[str, str]:
    # Some thirty Python processes come and go: what they import is compiled once for all of them.
    left_out = ("SPARK", "PYSPARK", "PYTHONDONTWRITEBYTECODE")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return inherited | {
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory),
        "SPARK_LOG_DIR": str(directory),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{LIGHT} -Djava.io.tmpdir={directory}",
    }

# On what, and of what: a figure without this says nothing.

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.servers import program

__all__ = ["commit", "describe", "load", "versions"]

ROOT = Path(__file__).parent.parent

PACKAGES = (
    "diskq", "trio", "outcome", "cython",
    "queuelib", "persist-queue", "diskcache", "litequeue", "localqueue", "lmdb", "rocksdict",
    "redis", "nats-py", "pyspark", "pyarrow",
)  # fmt: skip
SERVERS = ("redis-server", "nats-server")


def describe(directory: Path) -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "file_system": _file_system(directory),
    }


def versions() -> dict[str, str]:
    """Python's, and those of the packages and the servers that are installed."""
    found = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    for server in SERVERS:
        with suppress(ModuleNotFoundError, OSError):
            done = subprocess.run([program(server), "--version"], capture_output=True, text=True, check=False)
            number = re.search(r"v=?([\d.]+)", done.stdout)
            if number:
                found[server] = number[1]
    return found


def commit() -> str:
    """Of the tree that is measured; a plus says that diskq/ is not as it was committed."""
    head = _git("rev-parse", "--short=12", "HEAD") or "unknown"
    return head + ("+" if _git("status", "--porcelain", "--", "diskq") else "")


def load() -> list[float]:
    """How many processes want to run, over 1, 5 and 15 minutes."""
    return [round(average, 2) for average in os.getloadavg()]


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _file_system(directory: Path) -> str:
    """Its type, by the mount that is nearest above the directory."""
    path = directory.resolve()
    best, kind = -1, "unknown"
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount, found, *_ = line.split()
            if path.is_relative_to(mount) and len(mount) >= best:
                best, kind = len(mount), found
    return kind


def _git(*command: str) -> str:
    with suppress(OSError):
        done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()
    return ""

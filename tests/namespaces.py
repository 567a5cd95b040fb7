# A file system of one's own, which may be full: 1 MiB of tmpfs, in a mount namespace. Law: it ends with the
# program that it is for.

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["DISK", "run_on_small_disk"]

DISK = 1024 * 1024
"""Bytes that it has."""

_ROOT = Path(__file__).parents[1]
_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
_SCRIPT = f'mount -t tmpfs -o size={DISK} none "$1" && shift && exec "$@"'


def run_on_small_disk(mount: Path, module: str, *arguments: str, timeout: float = 300) -> str:
    """Run `python -m module MOUNT arguments...` with the disk at `mount`. Returns what it prints.

    Skips the test where nothing may be mounted. `timeout`, in seconds, ends what hangs: importing all of
    diskq takes seconds of the processor by itself, on a busy machine a minute.
    """
    if trouble := _trouble():
        pytest.skip(trouble)
    program = [sys.executable, "-m", module, str(mount), *arguments]
    command = [*_NAMESPACE, "sh", "-c", _SCRIPT, "sh", str(mount), *program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def _trouble() -> str | None:
    """Why there is none to be had here."""
    if shutil.which(_NAMESPACE[0]) is None:
        return "there is no unshare(1) here: no file system can be mounted"
    command = [*_NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"]
    may = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return f"no file system may be mounted here: {may.stderr.strip()}" if may.returncode else None

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import diskq
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS
from tests.channels.rig import NAME, crash_disk, opened

Open = Callable[..., diskq.open_queue]


@pytest.fixture
def disk() -> CrashFS:
    """A disk in memory, which knows what a power cut would leave."""
    return crash_disk()


@pytest.fixture(params=["in memory", "on disk"])
def open_queue(request: pytest.FixtureRequest, tmp_path: Path, disk: CrashFS) -> Open:
    """Opens one and the same queue, with options: on a disk in memory, and on the real one."""
    if request.param == "in memory":
        return partial(opened, disk)
    return partial(diskq.open_queue, tmp_path, NAME, fs=OsFileSystem())

# A reader with end="close", of files that end before the end that there was at the open. Law: it ends; what
# can be read is delivered; and what is missing is reported once.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import trio

import diskq
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS

pytestmark = pytest.mark.usefixtures("quiet_log")

COUNT = 40
BODIES = [b"%d" % number for number in range(COUNT)]


def fill_stream(fs: FileSystem) -> None:
    with diskq.Stream("/q/s", options=diskq.StreamOptions(partition_count=2), fs=fs) as stream:
        stream.append_many([(b"key %d" % number, body) for number, body in enumerate(BODIES)])


def fill_journals(fs: FileSystem) -> None:
    for path in ("/q/j.1.000", "/q/j.1.001"):
        with diskq.Journal(path, fs=fs) as journal:
            journal.append_many(BODIES[: COUNT // 2])


class Reading(NamedTuple):
    """A way to read messages up to the end that there is at the open."""

    name: str
    fill: Callable[[FileSystem], None]
    open: Callable[[FileSystem], Any]
    parts: int
    data: str
    """How the names of the files with messages end."""


READINGS = [
    Reading("consumer", fill_stream, lambda fs: diskq.open_consumer("/q/s", end="close", fs=fs), 2, ".data"),
    Reading(
        "consumer of a group",
        fill_stream,
        lambda fs: diskq.open_consumer("/q/s", group="g", end="close", fs=fs),
        2,
        ".data",
    ),
    Reading(
        "scanner", fill_journals, lambda fs: diskq.open_scanner("/q/j.1.000", end="close", fs=fs), 1, ".jnl"
    ),
    Reading(
        "scanner of shards",
        fill_journals,
        lambda fs: diskq.open_shard_scanner("/q", "j", 1, end="close", fs=fs),
        2,
        ".jnl",
    ),
]


def cut(fs: CrashFS, ending: str, others: str) -> None:
    """Cut the data files in half. `others`: what becomes of the files that say how much there was."""
    for path, content in fs.files().items():
        if path.endswith(ending) or (others == "others cut" and path.endswith("index")):
            fs.write_durably(path, content[: len(content) // 2])
        elif others == "others cut" and path.endswith((".sums", "wal")):
            fs.write_durably(path, b"")


@pytest.mark.parametrize("others", ["others whole", "others cut"])
@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.name)
async def test_it_ends_and_what_is_missing_is_reported_once(
    reading: Reading, others: str, autojump_clock: object
) -> None:
    disk = CrashFS()
    disk.make_directory_durably("/q")
    reading.fill(disk)
    async with reading.open(disk) as receiver:
        cut(disk, reading.data, others)
        with trio.fail_after(60):
            found = [message.value async for message in receiver]
        losses = receiver.losses
    there = COUNT // 2 * reading.parts
    assert 0 < len(found) < there
    assert set(found) <= set(BODIES)
    assert sum(gap.count for gap in losses) == there - len(found)
    assert len(losses) == reading.parts

# The words of the transactions' tests: what tasks stage, and what a sink commits.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from diskq._native.stream.codec import encode
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.stream import Stream
from diskq.engine.stream.transactions.staging import StagedFile, StagingWriter
from diskq.engine.stream.transactions.transaction import Transaction
from diskq.errors import CorruptionError
from diskq.options import Encoding
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS
from tests.engine.streams import ROOT, Triple, flip, listed, opened, parted

INTENT = f"{ROOT}/.diskq/intent"
STAGING = f"{ROOT}/.diskq/staging"


def staging(
    fs: FileSystem, *, sink: str = "sink", epoch: int = 0, task: int = 0, **options: Any
) -> StagingWriter:
    options.setdefault("partition_count", 2)
    options.setdefault("encoding", "fixed")
    return StagingWriter(ROOT, sink=sink, epoch=epoch, task=task, fs=fs, **options)


def stage(
    fs: FileSystem, of: Iterable[Triple] | Mapping[int, list[Triple]], *, epoch: int = 0, **how: Any
) -> StagedFile:
    """A staged file of these messages, each in its partition, in extents of so many messages."""
    (file,) = stage_files(fs, of, epoch=epoch, **how)
    return file


def stage_files(
    fs: FileSystem,
    of: Iterable[Triple] | Mapping[int, list[Triple]],
    *,
    sink: str = "sink",
    epoch: int = 0,
    task: int = 0,
    count: int = 2,
    encoding: Encoding = "fixed",
    extent: int = 1_000_000,
    segment_size: int | None = None,
) -> tuple[StagedFile, ...]:
    """All staged files of a task, of which some can become segments of that size."""
    by_partition = of if isinstance(of, Mapping) else parted(of, count)
    writer = staging(
        fs,
        sink=sink,
        epoch=epoch,
        task=task,
        partition_count=count,
        encoding=encoding,
        segment_size=segment_size,
    )
    with writer:
        for partition, messages in by_partition.items():
            for at in range(0, len(messages), extent):
                some = messages[at : at + extent]
                writer.add_encoded(partition, encode(some, varuint=encoding == "varuint").data, len(some))
        return (writer.finish(), *writer.segments)


def transaction(*staged: StagedFile, sink: str = "sink", epoch: int = 0, query: str = "query") -> Transaction:
    return Transaction(sink, epoch, query, staged)


def commit(
    stream: Stream,
    fs: FileSystem,
    of: Iterable[Triple] | Mapping[int, list[Triple]],
    epoch: int = 0,
    **how: Any,
) -> bool:
    """Stage these messages in one file, and commit them."""
    query = how.pop("query", "query")
    staged = stage(fs, of, epoch=epoch, count=stream.partition_count, **how)
    return stream.commit(transaction(staged, sink=how.get("sink", "sink"), epoch=epoch, query=query))


def staged_files(fs: FileSystem) -> list[str]:
    """The names of what is staged."""
    return listed(fs, STAGING) if fs.size_of(STAGING) is not None else []


def files_of(fs: FileSystem) -> StreamFiles:
    return StreamFiles(fs, ROOT)


def refused_while_rotten(fs: CrashFS, path: str, at: int) -> None:
    """Assert that opens are refused while a byte of a file is another one, and are not once it is right."""
    flip(fs, path, at)
    for _ in range(2):
        with pytest.raises(CorruptionError) as refused:
            opened(fs)
        assert refused.value.path == path
    flip(fs, path, at)
    with opened(fs):
        pass

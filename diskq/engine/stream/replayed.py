# The redo log of a stream, for who opens it without its lock. A message that is in it alone has no index
# entry either: it is made, as by an open.

from __future__ import annotations

from collections.abc import Iterator

from diskq._native.stream.codec import TripletFraming, count
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.index_rebuild import rebuild_index
from diskq.engine.stream.recovery import redo_source
from diskq.engine.stream.settings import read_settings
from diskq.storage.barrier import opened
from diskq.storage.fs import FileSystem
from diskq.storage.log.reader_replay import ReaderReplay
from diskq.storage.log.replay import Redone, RedoSource

__all__ = ["stream_replay"]


def stream_replay(fs: FileSystem, path: str) -> ReaderReplay:
    """Return the replay of a stream's redo log."""
    files = StreamFiles(fs, path)

    def framing() -> TripletFraming:
        settings = read_settings(fs, files)
        return TripletFraming(varuint=settings is not None and settings.encoding == "varuint")

    def source(_: object) -> RedoSource:
        varuint = framing().varuint
        return redo_source(fs, files, lambda records: count(records, varuint).records)

    def indexed(after: FileSystem, redone: Redone) -> Iterator[str]:
        return _rebuilt_indexes(after, StreamFiles(after, path), framing(), redone)

    return ReaderReplay(fs, files, source, indexed)


def _rebuilt_indexes(
    after: FileSystem, files: StreamFiles, framing: TripletFraming, redone: Redone
) -> Iterator[str]:
    """Make the entries of messages that the replay has put into their segments; yield the files."""
    ends = {(its.group, its.file): its.position + len(its.content) for its in redone.in_place}
    for (index, base), end in ends.items():
        partition = files.partition(index)
        data, *entries = partition.segment(base)
        with opened(after, data, write=True) as handle:
            after.truncate(handle, end)  # what follows was not synced
        rebuild_index(after, partition, framing, base)
        yield from entries

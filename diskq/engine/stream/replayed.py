# A stream as the next open will find it once its redo log is replayed, for those who only look.

from __future__ import annotations

from dataclasses import replace
from functools import partial

from diskq._native.stream.codec import TripletFraming, count
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.index_rebuild import rebuild_index
from diskq.engine.stream.recovery import redo_source
from diskq.engine.stream.settings import read_settings
from diskq.storage.barrier import opened, read_small
from diskq.storage.fs import FileSystem
from diskq.storage.log.replay import Redone, RedoSource
from diskq.storage.redo_view import RedoLook, Restored, as_replayed, difference, look_at_redo

__all__ = ["look_at_stream", "stream_as_replayed"]


def look_at_stream(fs: FileSystem, files: StreamFiles) -> RedoLook | None:
    """Return what the next open will do with the redo log, as `look_at_redo`."""
    return look_at_redo(fs, files, partial(_source, fs, files), partial(_with_index, fs, files))


def stream_as_replayed(fs: FileSystem, path: str) -> FileSystem:
    """Return a view of a stream's files in which the messages of the redo log are in their places.

    These messages have index entries there, as after an open. See `as_replayed`.
    """
    files = StreamFiles(fs, path)
    return as_replayed(fs, files, partial(_source, fs, files), partial(_with_index, fs, files))


def _source(fs: FileSystem, files: StreamFiles, _: object) -> RedoSource:
    framing = _framing(fs, files)
    return redo_source(fs, files, lambda records: count(records, framing.varuint).records)


def _framing(fs: FileSystem, files: StreamFiles) -> TripletFraming:
    settings = read_settings(fs, files)
    return TripletFraming(varuint=settings is not None and settings.encoding == "varuint")


def _with_index(
    fs: FileSystem, files: StreamFiles, view: FileSystem, redone: Redone, restored: tuple[Restored, ...]
) -> tuple[Restored, ...]:
    """Add the index entries of the messages that the replay has put into their segments."""
    ends = {(its.group, its.file): its.position + len(its.content) for its in redone.in_place}
    framing = _framing(fs, files)
    entries: list[Restored] = []
    for (index, base), end in ends.items():
        partition = StreamFiles(view, files.path).partition(index)
        data, *others = partition.segment(base)
        with opened(view, data, write=True) as handle:
            view.truncate(handle, end)  # what follows was not synced
        rebuild_index(view, partition, framing, base)
        found = (_rest(fs, path, read_small(view, path, view.size_of(path) or 0) or b"") for path in others)
        entries += [each for each in found if each is not None]
    return (*restored, *entries)


def _rest(fs: FileSystem, path: str, content: bytes) -> Restored | None:
    """Return what a file lacks of this content, without what it has."""
    rest = difference(fs, path, 0, content)
    if rest is None:
        return None
    start = len(content) - rest.missing
    return replace(rest, start=start, content=content[start:])

# Converts messages from one format to another. Law: losses are reported before anything is written, and
# refused unless they are allowed; a new store appears whole or not at all; an old one is appended to under
# its lock.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from diskq.engine.log.reader import SkippedBytes
from diskq.engine.priority.state import DEFAULT
from diskq.engine.queue.files import check_name
from diskq.engine.spool.files import DEAD, SPOOL
from diskq.engine.stream.settings import StreamSettings, settings_at
from diskq.engine.stream.stream import key_maker
from diskq.errors import ConversionLossError, NotFoundError
from diskq.storage.callbacks import check_plain
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path, base_name
from diskq.tools.convert.field_mapping import KEPT, ConvertOptions, FieldMapper, Format
from diskq.tools.convert.sources import LinesFile, Source, kind_of, open_reading
from diskq.tools.convert.targets import LinesOut, Target, check_there, open_target
from diskq.tools.entries import EntryBatch
from diskq.tools.placing import Place, check_free
from diskq.tools.stores import Store

__all__ = ["Conversion", "Progress", "convert", "losses_in_words"]

Progress = Callable[[int, "int | None"], object]
"""Called with the number of messages that were processed, and of all messages, or None if that is not known.
Messages that are first looked at and then written are counted twice."""

# Fields that a target may be unable to store.
_LOSABLE = frozenset({"key", "timestamp_ns", "type", "priority"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """The result of a conversion; of a dry run, what it would be."""

    sources: tuple[str, ...]
    target: str
    to: Format
    messages: int
    bytes: int
    """Bytes of their values."""
    lost: dict[str, int]
    """The fields that the target cannot store, and how many messages had each."""
    invented: dict[str, int]
    """The fields that had to be made up, and for how many messages."""
    unreadable: tuple[SkippedBytes, ...]
    """The parts of the sources that could not be read."""
    is_dry: bool

    def told(self) -> dict[str, Any]:
        """Return the result for programs."""
        return {
            "sources": list(self.sources),
            "target": self.target,
            "to": self.to,
            "messages": self.messages,
            "bytes": self.bytes,
            "lost": self.lost,
            "invented": self.invented,
            "unreadable": [str(gap) for gap in self.unreadable],
            "dry_run": self.is_dry,
        }


def convert(
    sources: Source | Sequence[Source],
    target: AnyPath | Callable[[bytes], object],
    to: Format,
    options: ConvertOptions | None = None,
    *,
    fs: FileSystem | None = None,
    progress: Progress | None = None,
    warn: Callable[[Mapping[str, int]], object] | None = None,
) -> Conversion:
    """Convert the messages of `sources`, one source after the other, into a new or existing `target`.

    For lines of JSON `target` may be a function, which is called with whole lines. Returns when everything
    is durable. `warn` is called with the losses before anything is written. Sources do not change. After an
    error, or Ctrl-C, a new target does not exist, and an existing one may have a part of the messages. A
    killed process leaves what it has built next to the target, under a name that begins with a dot; the next
    conversion removes it.

    Raises ConversionLossError if something would be lost and `options.lossy` does not allow it,
    ConversionError for a message that the target cannot store, FileExistsError, FileNotFoundError, ValueError
    for options that make no sense, and what reading the sources and writing the target raise.
    """
    given = [sources] if isinstance(sources, Store | LinesFile) else sources
    its = options or ConvertOptions()
    its.check(to)
    with _Conversion(
        _chosen(given, its), target, to, its, fs or OsFileSystem(), progress, warn
    ) as conversion:
        return conversion.run()


def losses_in_words(losses: Mapping[str, int]) -> str:
    """Return the losses in words: "key (12,345 messages have one), type (1 message has one)"."""
    return ", ".join(f"{what} ({_loss_in_words(what, count)})" for what, count in losses.items())


def _loss_in_words(what: str, count: int) -> str:
    if what == "queue":
        return f"{count:,} messages of several queues come into one"
    if what == "messages":
        return f"{count:,} cannot be read" if count else "an unknown number cannot be read"
    return f"{count:,} messages have one" if count != 1 else "1 message has one"


def _chosen(sources: Sequence[Source], options: ConvertOptions) -> list[Source]:
    """Return the sources without queues that are not wanted. Raises NotFoundError if none is left."""
    wanted = options.selection.queues
    chosen = [source for source in sources if not wanted or _has_any(source, wanted)]
    if not chosen and sources:
        source = sources[0]
        raise NotFoundError("priority queue", source.path, f"there is no queue {wanted[0]!r}")
    return chosen


def _has_any(source: Source, wanted: Sequence[str]) -> bool:
    """True if the source may have one of these queues; otherwise opening it raises."""
    if isinstance(source, LinesFile) or source.kind not in ("queue", "spool"):
        return True
    return bool({source.name} & {*wanted} if source.kind == "queue" else {SPOOL, DEAD} & {*wanted})


class _Conversion(ExitStack):
    def __init__(
        self,
        sources: Sequence[Source],
        target: AnyPath | Callable[[bytes], object],
        to: Format,
        options: ConvertOptions,
        fs: FileSystem,
        progress: Progress | None,
        warn: Callable[[Mapping[str, int]], object] | None,
    ) -> None:
        super().__init__()
        if callable(target):
            check_plain("target", target)
        if progress is not None:
            check_plain("progress", progress)
        self._warn = None if warn is None else check_plain("warn", warn)
        self._fs = fs
        self._to = to
        self._options = options
        self._take = target if callable(target) else None
        self._path = "" if callable(target) else as_path(target)
        if self._take is not None and (to != "jsonl" or options.append):
            raise ValueError("a function as the target is for new lines of JSON only, not for append")
        self._check_target()
        self._readings = [
            self.enter_context(open_reading(source, options.selection, fs=fs)) for source in sources
        ]
        self._unreadable: list[SkippedBytes] = []
        self._mapper = FieldMapper(
            to,
            options,
            now_ns=int(fs.wall_clock() * 1_000_000_000),
            new_key=key_maker(fs),
            default_queue=self._default_queue(),
        )
        self._progress = progress
        self._passed = 0
        self._passes = 1

    def _default_queue(self) -> str:
        if self._to != "nsq":
            return DEFAULT
        name = base_name(self._path.rstrip("/"))
        if self._options.into is None:
            check_name(name)
        return name

    def _check_target(self) -> None:
        if self._take is not None:
            return
        if self._options.append:
            check_there(self._fs, self._to, self._path)
        else:
            check_free(self._fs, self._path)

    # --- the ways to do it ----------------------------------------------------------------------------

    def run(self) -> Conversion:
        if self._options.dry_run:
            self._look(None)
        elif self._options.append:
            self._append()
        elif self._take is not None:
            self._look(None, is_first=True)
            with LinesOut(self._take, text=self._options.text) as out:
                self._write(out)
        else:
            self._make()
        return Conversion(
            sources=tuple(str(reading.source) for reading in self._readings),
            target=self._path or "-",
            to=self._to,
            messages=self._mapper.messages,
            bytes=self._mapper.bytes,
            lost=self._losses(),
            invented=dict(self._mapper.invented),
            unreadable=tuple(self._unreadable),
            is_dry=self._options.dry_run,
        )

    def _append(self) -> None:
        target = self._open(self._path)
        try:
            self._look(target, is_first=True)
            self._write(target)
        except BaseException:
            target.abandon()
            raise
        target.close()

    def _make(self) -> None:
        if self._is_to_be_looked_at():
            self._look(None, is_first=True)
        place = Place(self._fs, self._path, is_file=self._to == "jsonl")
        try:
            target = self._open(place.path)
            try:
                self._write(target)
            except BaseException:
                target.abandon()
                raise
            target.close()
            place.put()
        except BaseException:
            place.give_up()
            raise

    def _is_to_be_looked_at(self) -> bool:
        """True if only the messages show what would be lost, and what is needed."""
        kinds = [kind_of(reading.source) for reading in self._readings]
        may_lose = any((reading.fields & _LOSABLE) - KEPT[self._to] for reading in self._readings)
        may_merge = len(kinds) > 1 or bool({"spool", "jobs"} & {*kinds})
        return "lines" in kinds or may_lose or (may_merge and self._to != "jsonl")

    def _open(self, path: str) -> Target:
        partitions = None
        if self._to == "triplet" and not self._options.append:
            self._settle_partitions()
            partitions = self._mapper.partitions
        elif self._to == "triplet":
            self._partitions_there()
        infos = [info for reading in self._readings for info in reading.queues]
        return open_target(
            self._fs,
            self._to,
            path,
            partitions=partitions,
            queues=infos if self._options.into is None else (),
            default_queue=self._options.into or self._empty_queue(),
            text=self._options.text,
        )

    def _empty_queue(self) -> str:
        """Return the name of the queue that exists even without a message."""
        names = [getattr(reading.source, "name", "") for reading in self._readings]
        return names[0] if names and names[0] else self._default_queue()

    def _settle_partitions(self) -> None:
        """Choose the number of partitions of a new stream."""
        if self._mapper.partitions is None:
            counts = [reading.partitions for reading in self._readings if reading.partitions is not None]
            most = max(0, self._mapper.highest_partition + 1, *counts)
            self._mapper.partitions = most or StreamSettings().partitions

    def _partitions_there(self) -> None:
        """Return the existing stream's number of partitions. Raises ValueError if another is asked for."""

        settings = settings_at(self._path, fs=self._fs) or StreamSettings()
        if self._options.partition_count not in (None, settings.partitions):
            raise ValueError(f"{self._path} has {settings.partitions} partitions, and keeps them")
        self._mapper.partitions = settings.partitions

    # --- passing over the messages --------------------------------------------------------------------

    def _look(self, target: Target | None, *, is_first: bool = False) -> None:
        """Count the messages; with `is_first`, raise ConversionLossError for losses that are not allowed."""
        self._passes += is_first
        if self._to == "triplet" and self._options.append:
            self._partitions_there()
        for batch in self._mapped():
            if target is not None:
                target.admit(batch, self._mapper)
        if is_first:
            self._judge()
            if self._warn is not None and (lost := self._losses()):
                self._warn(lost)

    def _write(self, target: Target) -> None:
        highest = self._mapper.highest_partition
        self._mapper.restart()
        self._mapper.highest_partition = highest
        self._unreadable.clear()
        for batch in self._mapped():
            target.write(batch)
        self._judge()

    def _mapped(self) -> Iterator[EntryBatch]:
        left = self._options.selection.max_messages
        counts = [reading.total for reading in self._readings]
        total = None if None in counts else self._passes * sum(count or 0 for count in counts)
        for reading in self._readings:
            self._mapper.source = str(reading.source)
            for found in reading.batches():
                batch = found if left is None else found.cut(0, left)
                if len(batch):
                    yield self._mapper.map(batch)
                if left is not None:
                    left -= len(batch)
                self._passed += len(batch)
                if self._progress is not None:
                    self._progress(self._passed, total)
            # A queue's losses of no messages are of an unknown number.
            is_queue = kind_of(reading.source) in ("queue", "spool")
            self._unreadable += [gap for gap in reading.losses if gap.count or is_queue]

    def _losses(self) -> dict[str, int]:
        lost = self._mapper.lost
        if self._unreadable:
            lost["messages"] = sum(gap.count for gap in self._unreadable)
        return lost

    def _judge(self) -> None:
        lost = self._losses()
        if lost and not self._options.lossy:
            source = ", ".join(str(reading.source) for reading in self._readings)
            raise ConversionLossError(source, lost, losses_in_words(lost))

# The options of `.option(...)`. Law: an unknown option is an error, which names the nearest known one: a
# misspelt `failOnDataLoss` must not lose data. An option that only a Kafka client needs is ignored with a
# warning, so that a job is moved by changing its format and path.
#
# Spark passes options with lower-case names and values that are text.

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from diskq.options import MIB
from diskq.spark.errors import DiskqSparkError
from diskq.spark.offsets import EARLIEST, LATEST, Each, ReadBound, as_milliseconds, parse_each

__all__ = ["LAYOUTS", "ReadOptions", "StreamSelection", "check_names", "name_of", "nearest"]

logger = logging.getLogger("diskq.spark")

T = TypeVar("T")

LAYOUTS = ("triplet", "sej", "taskflux", "nsq")
ROWS_IN_A_BATCH = 8192
BYTES_IN_A_BATCH = 4 * MIB
_MOST_BYTES_IN_A_BATCH = 64 * MIB
_MOST = 2**63 - 1
_TRIGGER_DELAY = 15 * 60.0

# Of a Kafka client: they have no effect on a stream on disk.
_OF_KAFKA = (
    re.compile(r"kafka\..*"),
    re.compile(r"kafkaconsumer\.polltimeoutms"),
    re.compile(r"fetchoffset\.(numretries|retryintervalms)"),
    re.compile(r"groupidprefix"),
)

# What CREATE TABLE passes, instead of the options that it was given.
_OF_A_CATALOG = "owner"
NO_CATALOG = (
    "CREATE TABLE keeps no options of a source in Python: use CREATE TEMPORARY VIEW ... USING diskq OPTIONS "
    "(path '...'), or USING parquet with the files of a table (diskq stream table)"
)

# --- names ----------------------------------------------------------------------------------------


def nearest(name: str, known: Mapping[str, str]) -> str:
    """Return, for an error, the probable option. `known` maps lower-case names to names."""
    import difflib

    found = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f"did you mean {known[found[0]]}?" if found else f"there are {', '.join(sorted(known.values()))}"


def check_names(options: Mapping[str, str], known: Mapping[str, str], *, warns: bool = True) -> None:
    """Raise DISKQ_OPTION for an unknown option; ignore a Kafka client's, with a warning."""
    for name in options:
        lower = name.lower()
        if lower in known:
            continue
        if any(pattern.fullmatch(lower) for pattern in _OF_KAFKA):
            if warns:
                logger.warning("option %s is a Kafka client's, and does nothing here", name)
            continue
        if lower == _OF_A_CATALOG:
            raise DiskqSparkError("DISKQ_OPTION", NO_CATALOG)
        raise DiskqSparkError("DISKQ_OPTION", f"there is no option {name!r}: {nearest(name, known)}")


# --- which streams --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSelection:
    """Which streams are read, and the name of each in the column `topic`."""

    streams: Mapping[str, str] | None = None
    """Paths by topic; None: those below `root` whose names match `pattern` at the time of the look."""
    root: str = ""
    pattern: str = ""
    partitions: Mapping[str, tuple[int, ...]] | None = None
    """With `assign`: only these."""

    def of(self, topic: str, there: list[int]) -> list[int]:
        """Return the partitions of a stream that are read. Raises DISKQ_NOT_FOUND if one does not exist."""
        if self.partitions is None:
            return there
        wanted = sorted(self.partitions[topic])
        for number in wanted:
            if number not in there:
                raise DiskqSparkError("DISKQ_NOT_FOUND", f"assign: {topic} has no partition {number}")
        return wanted


# --- all of them ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The checked options of a read, in the order of docs/spark.md."""

    selection: StreamSelection
    layout: str | None = None
    """None: found from the files."""
    starting: ReadBound
    ending: ReadBound
    at_no_match: Literal["error", "latest"] = "error"
    """What happens if no message is as late as a starting time."""
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = _TRIGGER_DELAY
    """Seconds after which fewer than `min_offsets_per_trigger` are enough."""
    records_per_batch: int = ROWS_IN_A_BATCH
    bytes_per_batch: int = BYTES_IN_A_BATCH
    with_nanos: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_streaming: bool | None) -> ReadOptions:
        """Parse the options. Raises DISKQ_OPTION with the option and its allowed values.

        `is_streaming` is None while it is unknown; nothing is then refused or warned about for it.
        """
        given = Given(options)
        check_names(options, _KNOWN, warns=is_streaming is not None)
        if given.has("includeHeaders") and given.truth("includeHeaders"):
            raise given.refused("includeHeaders", "the format keeps no headers; leave it out")
        given.of_one_kind(is_streaming)
        min_offsets = given.number("minOffsetsPerTrigger", 1)
        max_offsets = given.number("maxOffsetsPerTrigger", 1)
        if min_offsets and max_offsets and min_offsets > max_offsets:
            raise given.refused("minOffsetsPerTrigger", f"more than maxOffsetsPerTrigger, {max_offsets}")
        return cls(
            selection=_selection(given),
            layout=given.word("layout", LAYOUTS),
            starting=_starting(given, is_streaming=is_streaming),
            ending=_ending(given),
            at_no_match="latest"
            if given.word("startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest"
            else "error",
            fail_on_data_loss=given.truth("failOnDataLoss", default=True),
            min_partitions=given.number("minPartitions", 1),
            max_records_per_partition=given.number("maxRecordsPerPartition", 1),
            max_offsets_per_trigger=max_offsets,
            max_bytes_per_trigger=given.number("maxBytesPerTrigger", 1),
            min_offsets_per_trigger=min_offsets,
            max_trigger_delay=given.duration("maxTriggerDelay", _TRIGGER_DELAY),
            records_per_batch=given.number("recordsPerArrowBatch", 1) or ROWS_IN_A_BATCH,
            bytes_per_batch=given.number("bytesPerArrowBatch", 1, _MOST_BYTES_IN_A_BATCH) or BYTES_IN_A_BATCH,
            with_nanos=given.truth("includeTimestampNanos"),
        )


_NAMES = """
    path paths subscribe subscribePattern assign topic layout
    startingOffsets endingOffsets startingTimestamp endingTimestamp
    startingOffsetsByTimestamp endingOffsetsByTimestamp startingOffsetsByTimestampStrategy
    failOnDataLoss includeHeaders includeTimestampNanos minPartitions maxRecordsPerPartition
    maxOffsetsPerTrigger maxBytesPerTrigger minOffsetsPerTrigger maxTriggerDelay
    recordsPerArrowBatch bytesPerArrowBatch
"""
_KNOWN = {name.lower(): name for name in _NAMES.split()}
_OF_BATCHES = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_OF_STREAMS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


# --- one at a time --------------------------------------------------------------------------------


class Given:
    """Options by their names in any case, and the errors for invalid values."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str:
        return str(self._values[name.lower()])

    def refused(self, name: str, allowed: str) -> DiskqSparkError:
        return DiskqSparkError("DISKQ_OPTION", f"{name} is {self.text(name)!r}: {allowed}")

    def of_one_kind(self, is_streaming: bool | None) -> None:
        for name in _OF_BATCHES if is_streaming else ():
            if self.has(name):
                raise self.refused(name, "only for batch reads; a stream ends when it is stopped")
        for name in _OF_STREAMS if is_streaming is False else ():
            if self.has(name):
                logger.warning("option %s is for streaming reads, and does nothing in a batch", name)

    def read(self, name: str, parse: Callable[[str], T], allowed: str) -> T | None:
        if not self.has(name):
            return None
        try:
            return parse(self.text(name).strip())
        except ValueError:
            raise self.refused(name, allowed) from None

    def word(self, name: str, words: tuple[str, ...]) -> str | None:
        return self.read(name, lambda text: words[words.index(text.lower())], f"one of {', '.join(words)}")

    def truth(self, name: str, *, default: bool = False) -> bool:
        word = self.word(name, ("true", "false"))
        return default if word is None else word == "true"

    def number(self, name: str, least: int, most: int = _MOST) -> int | None:
        def parse(text: str) -> int:
            number = int(text)
            if not least <= number <= most:
                raise ValueError
            return number

        bound = "or more" if most == _MOST else f"to {most}"
        return self.read(name, parse, f"a whole number, {least} {bound}")

    def duration(self, name: str, default: float) -> float:
        found = self.read(name, _seconds, "a time as Spark writes it: 90s, 15m, 2h, or milliseconds")
        return default if found is None else found


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "": 0.001}


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]+)\s*([a-z]*)", text.lower())
    if found is None or found[2] not in _UNITS:
        raise ValueError
    return int(found[1]) * _UNITS[found[2]]


# --- which streams: path, paths, subscribe, subscribePattern, assign, topic ------------------------


def _selection(given: Given) -> StreamSelection:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if given.has(name)]
    if len(ways) > 1:
        raise given.refused(ways[1], f"{ways[0]} is given, too: use one of them")
    if given.has("topic") and (ways or given.has("paths")):
        raise given.refused("topic", "only for one stream, in `path`: otherwise each has its own")
    if given.has("paths"):
        if given.has("path") or ways:
            raise given.refused("paths", "a list of streams; give it alone")
        return StreamSelection(streams=_by_name(given, _listed(given)))
    if not given.has("path") or not given.text("path"):
        what = "the directory that holds the streams" if ways else "the stream's directory"
        raise DiskqSparkError("DISKQ_OPTION", f"path is not given: .load(path), {what}. {NO_CATALOG}")
    root = given.text("path")
    if not ways:
        return StreamSelection(streams={given.text("topic") if given.has("topic") else name_of(root): root})
    if ways == ["subscribe"]:
        names = [name.strip() for name in given.text("subscribe").split(",")]
        return StreamSelection(streams=_below(given, "subscribe", root, names))
    if ways == ["subscribePattern"]:
        given.read("subscribePattern", _pattern, "a regular expression")
        return StreamSelection(root=root, pattern=given.text("subscribePattern"))
    assigned = _assigned(given)
    return StreamSelection(streams=_below(given, "assign", root, list(assigned)), partitions=assigned)


def name_of(path: str) -> str:
    """Return the name of the stream at `path`: that of its directory."""
    return path.rstrip("/").rpartition("/")[2] or path


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error:
        raise ValueError from None


def _listed(given: Given) -> list[str]:
    try:
        paths = json.loads(given.text("paths"))
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise given.refused("paths", "a JSON list of directories, as .load([...]) makes it")
    return paths


def _by_name(given: Given, paths: list[str]) -> dict[str, str]:
    streams: dict[str, str] = {}
    for path in paths:
        if (name := name_of(path)) in streams:
            raise given.refused("paths", f"two streams have the name {name!r}; read them one by one")
        streams[name] = path
    return streams


def _below(given: Given, option: str, root: str, names: list[str]) -> dict[str, str]:
    for name in names:
        if not name or "/" in name or name in (".", ".."):
            raise given.refused(option, f"{name!r} is not the name of a directory in `path`")
    return {name: f"{root.rstrip('/')}/{name}" for name in names}


def _assigned(given: Given) -> dict[str, tuple[int, ...]]:
    try:
        found = json.loads(given.text("assign"))
    except ValueError:
        found = None
    is_one = (
        isinstance(found, dict)
        and found
        and all(
            isinstance(numbers, list)
            and numbers
            and all(type(number) is int and number >= 0 for number in numbers)
            and len(set(numbers)) == len(numbers)
            for numbers in found.values()
        )
    )
    if not is_one:
        raise given.refused("assign", 'partitions by stream, in JSON: {"clicks": [0, 1]}')
    return {topic: tuple(numbers) for topic, numbers in found.items()}


# --- where it begins and ends ---------------------------------------------------------------------


def _starting(given: Given, *, is_streaming: bool | None) -> ReadBound:
    bound = _bound(given, "starting")
    if bound is None:
        return ReadBound("startingOffsets", LATEST if is_streaming else EARLIEST)
    if is_streaming is False and bound.names(LATEST):
        raise given.refused(bound.option, "a batch that begins at the latest has nothing: earliest, or JSON")
    return bound


def _ending(given: Given) -> ReadBound:
    bound = _bound(given, "ending")
    if bound is None:
        return ReadBound("endingOffsets", LATEST)
    is_earliest = bound.everywhere == EARLIEST or any(
        EARLIEST in each.values() for each in bound.each.values()
    )
    if not bound.is_time and is_earliest:
        raise given.refused(bound.option, "a batch that ends at the earliest has nothing: latest, or JSON")
    return bound


def _bound(given: Given, which: str) -> ReadBound | None:
    """Return the bound of the first option in Kafka's order: one time for all, a time for each, offsets."""
    if given.has(option := f"{which}Timestamp"):
        return ReadBound(option, as_milliseconds(option, given.text(option)), is_time=True)
    if given.has(option := f"{which}OffsetsByTimestamp"):
        return ReadBound(option, each=parse_each(option, given.text(option)), is_time=True)
    if not given.has(option := f"{which}Offsets"):
        return None
    word = given.text(option).strip().lower()
    if word in ("earliest", "latest"):
        return ReadBound(option, EARLIEST if word == "earliest" else LATEST)
    return ReadBound(option, each=_offsets(given, option))


def _offsets(given: Given, option: str) -> Each:
    each = parse_each(option, given.text(option))
    if any(number < EARLIEST for numbers in each.values() for number in numbers.values()):
        raise given.refused(option, "an offset is 0 or more; -2 is the earliest, -1 the latest")
    if not each:
        raise given.refused(option, "earliest, latest, or offsets in JSON")
    return each

# Places in streams, as written in options and checkpoints. Law: a checkpoint is canonical: the same places
# are the same text, and it names their stream.
#
# Options (Kafka's): a word; {"clicks": {"0": 23, "1": -1}}; or, for one stream, {"0": 23, "1": -1}.
# -2 is the earliest, -1 the latest. Times are milliseconds since 1970, in the same two shapes.
#
# Checkpoints: {"v": 1, "streams": {"clicks": {"id": "4f0c...", "partitions": {"0": 23, "1": 45}}}},
# each number being the next offset. `id` distinguishes a stream from one that was created again in its place:
# 32 hex digits, or null if only a peer has written to it.

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from diskq.spark.errors import DiskqSparkError

__all__ = [
    "EARLIEST",
    "LATEST",
    "Places",
    "ReadBound",
    "StreamPlace",
    "as_milliseconds",
    "parse_each",
    "share",
]

EARLIEST, LATEST = -2, -1

_VERSION = 1
_MOST = 2**63 - 1

K = TypeVar("K")

# --- in options -----------------------------------------------------------------------------------

Each = Mapping[str | None, Mapping[int, int]]
"""By topic and partition; the topic is None for a single stream that is not named."""


@dataclass(frozen=True, slots=True)
class ReadBound:
    """Where reading begins, or ends: one number for all partitions, or one for each."""

    option: str
    """The name of the option."""
    everywhere: int | None = None
    each: Each = field(default_factory=dict)
    is_time: bool = False
    """True if the numbers are milliseconds. Otherwise they are offsets, EARLIEST or LATEST."""

    def of(self, topic: str, partitions: list[int]) -> dict[int, int]:
        """Return the number for each of these partitions of a stream.

        Raises DISKQ_OPTION if it names others, or not all of them.
        """
        if self.everywhere is not None:
            return dict.fromkeys(partitions, self.everywhere)
        named = self.each.get(topic, self.each.get(None, {}))
        if sorted(named) != sorted(partitions):
            missing = [number for number in partitions if number not in named]
            unknown = sorted(set(named).difference(partitions))
            what = [f"partition {number} of {topic} is not named" for number in missing[:5]]
            what += [f"{topic} has no partition {number}" for number in unknown[:5]]
            advice = "" if self.is_time else " (-2: earliest, -1: latest)"
            raise DiskqSparkError(
                "DISKQ_OPTION", f"{self.option}: {'; '.join(what)}; name each one that is read{advice}"
            )
        return dict(named)

    def names(self, number: int) -> bool:
        """True if a partition has this number: EARLIEST, LATEST or an offset."""
        said = [self.everywhere, *(offset for each in self.each.values() for offset in each.values())]
        return not self.is_time and number in said

    def check_topics(self, topics: list[str]) -> None:
        """Raise DISKQ_OPTION if it names a stream that is not read, or none of several."""
        unknown = sorted(topic for topic in self.each if topic is not None and topic not in topics)
        if unknown:
            raise DiskqSparkError(
                "DISKQ_OPTION", f"{self.option}: {unknown[0]!r} is not read, but {', '.join(topics[:5])}"
            )
        if None in self.each and len(topics) != 1:
            raise DiskqSparkError(
                "DISKQ_OPTION",
                f"{self.option}: name the stream, as in {{{topics[0]!r}: {{...}}}}: there are {len(topics)}",
            )


def parse_each(option: str, text: str) -> Each:
    """Return the mapping in this JSON, in either shape. Raises DISKQ_OPTION."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise _refused(option, f"{text!r} is no JSON ({reason})") from None
    if not isinstance(found, dict):
        raise _refused(option, f"{text!r} is no JSON object")
    if any(isinstance(value, dict) for value in found.values()):
        return {topic: _by_partition(option, each) for topic, each in found.items()}
    return {None: _by_partition(option, found)} if found else {}


def _by_partition(option: str, found: Any) -> dict[int, int]:
    if not isinstance(found, dict):
        raise _refused(option, f'{found!r}: streams are objects, as in {{"clicks": {{"0": 23}}}}')
    each: dict[int, int] = {}
    for key, number in found.items():
        if not (key.isascii() and key.isdigit()) or int(key) in each:
            raise _refused(option, f"{key!r} is no partition, or is there twice")
        if isinstance(number, bool) or not isinstance(number, int) or not -_MOST <= number <= _MOST:
            raise _refused(option, f"{number!r} is no number, for partition {key}")
        each[int(key)] = number
    return each


def as_milliseconds(option: str, text: str) -> int:
    """Parse a moment: whole milliseconds since 1970. Raises DISKQ_OPTION."""
    try:
        number = int(text)
    except ValueError:
        number = _MOST + 1
    if not -_MOST <= number <= _MOST:
        raise _refused(option, f"{text!r} is no moment: milliseconds since 1970, as 1735689600000") from None
    return number


def _refused(option: str, what: str) -> DiskqSparkError:
    return DiskqSparkError("DISKQ_OPTION", f"{option}: {what}")


# --- in checkpoints -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """The id of a stream, and the next offset in each of its partitions."""

    identity: str | None
    partitions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Places:
    """The content of a checkpoint: a place in each stream."""

    streams: Mapping[str, StreamPlace]

    def as_json(self) -> dict[str, Any]:
        """Return the canonical form: streams by name, partitions by number."""
        return {
            "v": _VERSION,
            "streams": {
                topic: {
                    "id": place.identity,
                    "partitions": {
                        str(number): place.partitions[number] for number in sorted(place.partitions)
                    },
                }
                for topic, place in sorted(self.streams.items())
            },
        }

    @classmethod
    def from_json(cls, found: Any) -> Places:
        """Parse a checkpoint. Raises DISKQ_STREAM_CHANGED if it is not of diskq, or of a newer version."""
        try:
            if found["v"] != _VERSION:
                raise ValueError(f"version {found['v']}")
            streams = {
                str(topic): StreamPlace(
                    place.get("id"),
                    {int(number): int(offset) for number, offset in place["partitions"].items()},
                )
                for topic, place in found["streams"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as reason:
            raise DiskqSparkError(
                "DISKQ_STREAM_CHANGED",
                f"the checkpoint's offsets are not of this diskq ({reason!r}): {json.dumps(found)[:200]}; "
                "begin with a new checkpointLocation",
            ) from None
        return cls(streams)


# --- limits ---------------------------------------------------------------------------------------


def share(limit: int, waiting: Mapping[K, int]) -> dict[K, int]:
    """Distribute `limit` over the partitions, in proportion to the messages that wait in each.

    Each partition with messages gets at least one, so that a slow one is not starved by a fast one.
    """
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    return {key: min(count, max(1, limit * count // total)) for key, count in waiting.items()}

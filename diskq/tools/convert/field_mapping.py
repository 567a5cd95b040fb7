# Maps the fields of messages from one format to another: what the target keeps, loses, and needs made up.
# Law: every field that is lost or made up is counted; and a message that the target cannot store is refused
# by its number.
#
#             key     timestamp  type  priority  queue  partition
#   nsq       -       -          -     -         its    -
#   triplet   its     its        -     -         -      its
#   sej       127 B   or none    its   -         -      -
#   taskflux  -       -          -     its       its    -
#   jsonl     its     its        its   its       its    its
#
# Offsets, ids and the order between partitions are not mapped: a target gives its own.

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from diskq._native.core.message import NULL_TIMESTAMP
from diskq._native.journal.codec import MAX_KEY, MAX_RECORD, RECORD_OVERHEAD
from diskq._native.queue.codec import MAX_BODY
from diskq._native.stream.codec import MAX_VALUE, key_hash
from diskq.engine.log.timestamps import as_timestamp, from_text
from diskq.engine.priority.state import DEFAULT, check_queue_name
from diskq.engine.queue.files import check_name
from diskq.errors import ConversionError, QueueNameError
from diskq.options import LARGEST_PAYLOAD, MOST_PARTITIONS
from diskq.tools.convert.sources import Selection
from diskq.tools.entries import EntryBatch

__all__ = ["FORMATS", "KEPT", "ConvertOptions", "FieldMapper", "Format"]

Format = Literal["nsq", "triplet", "sej", "taskflux", "jsonl"]
FORMATS: tuple[Format, ...] = ("nsq", "triplet", "sej", "taskflux", "jsonl")

KEPT: Mapping[Format, frozenset[str]] = {
    "nsq": frozenset({"queue"}),
    "triplet": frozenset({"key", "timestamp_ns", "partition"}),
    "sej": frozenset({"key", "timestamp_ns", "type"}),
    "taskflux": frozenset({"priority", "queue"}),
    "jsonl": frozenset({"key", "timestamp_ns", "type", "priority", "queue", "partition"}),
}
"""The fields that each format keeps of a message, besides its value."""

_LARGEST: Mapping[Format, int] = {
    "nsq": MAX_BODY,
    "triplet": MAX_VALUE,
    "sej": MAX_RECORD - RECORD_OVERHEAD - MAX_KEY,
    "taskflux": LARGEST_PAYLOAD,
    "jsonl": MAX_BODY,
}
_FROM_JSON = "json:"
_LEAST, _LARGEST_NUMBER = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """How messages are converted. `json:FIELD` is a field of the JSON object in the value."""

    selection: Selection = field(default_factory=Selection)
    append: bool = False
    """Append to the existing target, under its lock; else the target is new."""
    lossy: bool = False
    """Allow that fields are lost; otherwise a loss raises `ConversionLossError`, and nothing is written."""
    dry_run: bool = False
    """Count messages, and write nothing."""
    into: str | None = None
    """The queue in the target for all messages; None: the queue of each message."""
    key: str | None = None
    """The key of messages without one: `json:FIELD`, or `random`, also if it is empty. None: random."""
    timestamp: str | None = None
    """The time of messages without one: `now`, `none` (journals), or `json:FIELD`. None: `none` if possible,
    else `now`."""
    priority: int | str | None = None
    """The priority of messages without one: a number, `key`, or `json:FIELD`. None: 0."""
    partition_count: int | None = None
    """The number of partitions, chosen by the hash of the key. None: as they were, or else 3."""
    text: bool = False
    """In lines of JSON, write UTF-8 as text."""
    min_message_size: int = 0
    """Smaller values are refused, as some peers cannot read them."""
    max_message_size: int | None = None
    """Larger values are refused."""

    def check(self, to: Format) -> None:
        """Raise ValueError for values without sense, or fields that the target's messages do not have."""
        needs = {
            "key": (self.key, "key"),
            "timestamp": (self.timestamp, "timestamp_ns"),
            "priority": (self.priority, "priority"),
            "partition_count": (self.partition_count, "partition"),
            "into": (self.into, "queue"),
        }
        for name, (given, what) in needs.items():
            if given is not None and (what not in KEPT[to] or (to == "jsonl" and name == "partition_count")):
                raise ValueError(f"{name} is of no use for messages of {to}: leave it out")

        if self.text and to != "jsonl":
            raise ValueError(f"text is for jsonl, not for {to}")
        _one_of("key", self.key, ("random",))
        _one_of("timestamp", self.timestamp, ("now",) if to == "triplet" else ("now", "none"))
        if not isinstance(self.priority, int):
            _one_of("priority", self.priority, ("key",))
        elif not _LEAST <= self.priority <= _LARGEST_NUMBER:
            raise ValueError(f"priority is a number of 64 bits, got {self.priority}")
        if self.partition_count is not None and not 1 <= self.partition_count <= MOST_PARTITIONS:
            raise ValueError(f"partition_count is 1 to {MOST_PARTITIONS}, got {self.partition_count}")
        most = _LARGEST[to] if self.max_message_size is None else self.max_message_size
        if not 0 <= self.min_message_size <= most <= _LARGEST[to]:
            raise ValueError(f"sizes of {to} are 0 to {_LARGEST[to]} bytes")
        if self.into is not None:
            (check_name if to == "nsq" else check_queue_name)(self.into)


def _one_of(name: str, given: str | None, words: tuple[str, ...]) -> None:
    if given is not None and given not in words and not given.startswith(_FROM_JSON):
        raise ValueError(f"{name} is {', '.join(words)} or json:FIELD, got {given!r}")
    if given == _FROM_JSON:
        raise ValueError(f"{name} is json:FIELD: the name of a field is missing")


class FieldMapper:
    """Maps batches as they were read to batches for the target, and counts messages and fields."""

    def __init__(
        self,
        to: Format,
        options: ConvertOptions,
        *,
        now_ns: int,
        new_key: Callable[[], bytes],
        default_queue: str,
    ) -> None:
        """`now_ns` and `default_queue` are for messages without a time or a queue. Raises ValueError."""
        options.check(to)
        self.to = to
        self.source = ""
        """The source, for errors."""
        self.partitions: int | None = options.partition_count
        """The number of partitions that are written to; None: not known yet."""
        self._options = options
        self._kept = KEPT[to]
        self._now_ns = now_ns
        self._new_key = new_key
        self._default_queue = default_queue
        self._largest = _LARGEST[to] if options.max_message_size is None else options.max_message_size
        self.restart()

    def restart(self) -> None:
        """Start counting anew."""
        self.messages: int = 0
        self.bytes: int = 0
        """Bytes of values."""
        self.highest_partition: int = -1
        self.invented: Counter[str] = Counter()
        """The fields that were made up, and for how many messages."""
        self._lost: Counter[str] = Counter()
        self._named: dict[str, Counter[str | None]] = {}  # by queue in the target: the source queues

    @property
    def lost(self) -> dict[str, int]:
        """Return the fields that the target cannot store, and how many messages have each."""
        lost = dict(self._lost)
        merged = sum(names.total() for names in self._named.values() if len(names) > 1)
        return lost | {"queue": merged} if merged else lost

    def map(self, batch: EntryBatch) -> EntryBatch:
        """Return the messages with what the target needs. Raises ConversionError for one it cannot store."""
        self._check_sizes(batch)
        documents = _Documents(batch)
        mapped = EntryBatch(values=batch.values)
        if self.to == "jsonl":
            mapped.offsets, mapped.ids = batch.offsets, batch.ids
        self._map_keys(batch, mapped, documents)
        self._map_timestamps(batch, mapped, documents)
        self._map_types(batch, mapped)
        self._map_priorities(batch, mapped, documents)
        self._map_queues(batch, mapped)
        self._map_partitions(batch, mapped)
        self.messages += len(batch)
        self.bytes += sum(map(len, batch.values))
        return mapped

    # --- what cannot be -------------------------------------------------------------------------------

    def refuse(self, batch: EntryBatch, at: int, reason: str) -> ConversionError:
        """Return the error for the message at place `at` of the batch that is being mapped."""
        where = f"message {self.messages + at + 1}"
        places = [
            f"{word} {column[at]!r}"
            for word, column in (
                ("queue", batch.queues),
                ("partition", batch.partitions),
                ("offset", batch.offsets),
                ("id", batch.ids),
            )
            if column is not None and column[at] is not None
        ]
        return ConversionError(self.source, where + (f" ({', '.join(places)})" if places else ""), reason)

    def _check_sizes(self, batch: EntryBatch) -> None:
        least, most = self._options.min_message_size, self._largest
        sizes = list(map(len, batch.values))
        if sizes and (min(sizes) < least or max(sizes) > most):
            at = next(at for at, size in enumerate(sizes) if not least <= size <= most)
            raise self.refuse(
                batch,
                at,
                f"a value of {sizes[at]} bytes: {self.to} is to have {least} to {most} bytes; leave it out "
                "by offsets or times, or convert to another format",
            )

    def _lose(self, what: str, count: int) -> None:
        if count:
            self._lost[what] += count

    # --- field by field -------------------------------------------------------------------------------

    def _map_keys(self, batch: EntryBatch, mapped: EntryBatch, documents: _Documents) -> None:
        keys = batch.keys
        if "key" not in self._kept:
            if keys is not None and self._options.priority != "key":
                self._lose("key", sum(map(bool, keys)))
            return
        rule = self._options.key
        if rule is not None and rule.startswith(_FROM_JSON):
            pick = documents.picking(rule.removeprefix(_FROM_JSON), self.refuse)
            keys = [key or self._counted("key", _key_of(pick, at)) for at, key in _all(keys, batch)]
        elif rule == "random" or (self.to == "triplet" and keys is None):
            keys = [key or self._counted("key", self._new_key()) for _, key in _all(keys, batch)]
        elif self.to == "triplet" and keys is not None and None in keys:
            keys = [self._counted("key", self._new_key()) if key is None else key for key in keys]
        if self.to == "sej":
            keys = self._short_keys(
                batch, [b""] * len(batch) if keys is None else [key or b"" for key in keys]
            )
        mapped.keys = keys

    def _short_keys(self, batch: EntryBatch, keys: list[bytes]) -> list[bytes]:
        if max(map(len, keys), default=0) <= MAX_KEY:
            return keys
        if not self._options.lossy:
            at = next(at for at, key in enumerate(keys) if len(key) > MAX_KEY)
            reason = (
                f"a key of {len(keys[at])} bytes: a journal's has at most {MAX_KEY}; convert to a stream, or "
                "lossy: then it has none"
            )
            raise self.refuse(batch, at, reason)
        self._lose("key", sum(len(key) > MAX_KEY for key in keys))
        return [key if len(key) <= MAX_KEY else b"" for key in keys]

    def _counted(self, what: str, made: Any) -> Any:
        self.invented[what] += 1
        return made

    def _map_timestamps(self, batch: EntryBatch, mapped: EntryBatch, documents: _Documents) -> None:
        times = batch.timestamps
        if "timestamp_ns" not in self._kept:
            if times is not None:
                self._lose("timestamp", len(times) - times.count(None))
            return
        if self.to == "sej" and times is not None and NULL_TIMESTAMP in times:
            if not self._options.lossy:
                reason = f"its timestamp is {NULL_TIMESTAMP}, with which a journal says that it has none"
                raise self.refuse(batch, times.index(NULL_TIMESTAMP), reason)
            self._lose("timestamp", times.count(NULL_TIMESTAMP))
        if times is None or None in times:
            times = self._made_times(batch, times, documents)
        mapped.timestamps = times

    def _made_times(
        self, batch: EntryBatch, times: Sequence[int | None] | None, documents: _Documents
    ) -> Sequence[int | None] | None:
        rule = self._options.timestamp or ("now" if self.to == "triplet" else "none")
        if rule == "none":
            return times
        if rule == "now":
            self.invented["timestamp"] += len(batch) if times is None else times.count(None)
            return [self._now_ns if time is None else time for _, time in _all(times, batch)]
        pick = documents.picking(rule.removeprefix(_FROM_JSON), self.refuse)
        return [
            self._counted("timestamp", _moment_of(pick, at)) if time is None else time
            for at, time in _all(times, batch)
        ]

    def _map_types(self, batch: EntryBatch, mapped: EntryBatch) -> None:
        types = batch.types
        if "type" in self._kept:
            if self.to == "sej":
                types = [0] * len(batch) if types is None else [type or 0 for type in types]
            mapped.types = types
        elif types is not None:
            self._lose("type", _count_present(types))

    def _map_priorities(self, batch: EntryBatch, mapped: EntryBatch, documents: _Documents) -> None:
        priorities = batch.priorities
        if "priority" not in self._kept:
            if priorities is not None:
                self._lose("priority", _count_present(priorities))
            return
        rule = self._options.priority
        if rule is None and self.to == "taskflux":
            rule = 0
        if rule is not None and (priorities is None or None in priorities):
            make = self._priority_maker(rule, batch, documents)
            priorities = [
                self._counted("priority", make(at)) if priority is None else priority
                for at, priority in _all(priorities, batch)
            ]
        mapped.priorities = priorities

    def _priority_maker(
        self, rule: int | str, batch: EntryBatch, documents: _Documents
    ) -> Callable[[int], int]:
        if isinstance(rule, int):
            return lambda at: rule
        if rule == "key":
            return lambda at: self._priority_of_key(batch, at)
        pick = documents.picking(rule.removeprefix(_FROM_JSON), self.refuse)
        return lambda at: _number_of(pick, at)

    def _priority_of_key(self, batch: EntryBatch, at: int) -> int:
        key = (batch.keys[at] if batch.keys is not None else None) or b""
        with suppress(ValueError):
            found = int(key)
            if b"%d" % found == key and _LEAST <= found <= _LARGEST_NUMBER:
                return found
        raise self.refuse(batch, at, "its key is to be the priority, and is not a number of 64 bits")

    def _map_queues(self, batch: EntryBatch, mapped: EntryBatch) -> None:
        queues = batch.queues
        if "queue" not in self._kept:
            if queues is not None:
                self._names("").update(queues)
            return
        if self.to == "jsonl":
            into = self._options.into
            mapped.queues = queues if into is None else [into] * len(batch)
            return
        names = {None} if queues is None else set(queues)
        renamed = {name: self._name_of(batch, name) for name in names}
        for name, target in renamed.items():
            self._names(target)[name] += len(batch) if queues is None else queues.count(name)
        mapped.queues = [renamed[name] for _, name in _all(queues, batch)]

    def _names(self, target: str) -> Counter[str | None]:
        return self._named.setdefault(target, Counter())

    def _name_of(self, batch: EntryBatch, name: str | None) -> str:
        """Return the name of a queue in the target."""
        if self._options.into is not None:
            return self._options.into
        if name is None or (self.to == "nsq" and name == DEFAULT):
            return self._default_queue
        try:
            check_name(name) if self.to == "nsq" else check_queue_name(name)
        except QueueNameError as failure:
            queues = batch.queues or ()
            reason = f"{failure}; say into which queue"
            raise self.refuse(batch, queues.index(name), reason) from None
        return name

    def _map_partitions(self, batch: EntryBatch, mapped: EntryBatch) -> None:
        partitions = batch.partitions
        if self.to == "jsonl":
            mapped.partitions = partitions
        if self.to != "triplet":
            return
        if partitions is not None:
            self.highest_partition = max(
                self.highest_partition, *(each for each in partitions if each is not None), -1
            )
        if self.partitions is None:
            return  # the partitions are counted first
        if self._options.partition_count is not None or partitions is None:
            mapped.partitions = self._hashed(mapped.keys or ())
            return
        if self.highest_partition >= self.partitions:
            at = next(
                at for at, each in enumerate(partitions) if each is not None and each >= self.partitions
            )
            reason = (
                f"partition {partitions[at]}, and the stream has {self.partitions}: say how many, by the key"
            )
            raise self.refuse(batch, at, reason)
        if None in partitions:
            hashed = self._hashed(mapped.keys or ())
            partitions = [own if its is None else its for its, own in zip(partitions, hashed, strict=True)]
        mapped.partitions = partitions

    def _hashed(self, keys: Sequence[bytes | None]) -> list[int]:
        """Return the partitions that a producer would choose."""
        count = self.partitions or 1
        return [key_hash(key or b"") % count for key in keys]


def _all(column: Sequence[Any] | None, batch: EntryBatch) -> Any:
    """Yield places and cells."""
    return enumerate([None] * len(batch) if column is None else column)


def _count_present(column: Sequence[int | None]) -> int:
    return len(column) - column.count(None) - column.count(0)


# --- from the value ---------------------------------------------------------------------------------


class _Documents:
    """The values of a batch as JSON, parsed when they are asked for."""

    def __init__(self, batch: EntryBatch) -> None:
        self._batch = batch
        self._read: dict[int, dict[str, Any]] = {}

    def picking(
        self, name: str, refuse: Callable[[EntryBatch, int, str], ConversionError]
    ) -> Callable[[int, Callable[[Any], Any]], Any]:
        """Return a function that finds the field `name` of the message at a place, and reads it."""

        def pick(at: int, read: Callable[[Any], Any]) -> Any:
            try:
                return read(self._document(at)[name])
            except KeyError:
                raise refuse(self._batch, at, f"its value has no field {name!r}") from None
            except (ValueError, RecursionError) as failure:
                raise refuse(self._batch, at, f"its field {name!r}: {failure}") from None

        return pick

    def _document(self, at: int) -> dict[str, Any]:
        if at not in self._read:
            document = json.loads(self._batch.values[at].decode())
            if not isinstance(document, dict):
                raise ValueError("the value is not a JSON object")
            self._read[at] = document
        return self._read[at]


def _key_of(pick: Callable[..., Any], at: int) -> bytes:
    found: bytes = pick(at, _as_key)
    return found


def _as_key(cell: Any) -> bytes:
    if isinstance(cell, bool) or not isinstance(cell, str | int):
        raise ValueError("it is not text, and not a whole number")
    return str(cell).encode()


def _moment_of(pick: Callable[..., Any], at: int) -> int:
    found: int = pick(at, _as_moment)
    return found


def _as_moment(cell: Any) -> int:
    if isinstance(cell, str):
        return from_text(cell)
    if isinstance(cell, bool) or not isinstance(cell, int):
        raise ValueError("it is not a time: RFC 3339, or nanoseconds since 1970")
    return as_timestamp(cell)


def _number_of(pick: Callable[..., Any], at: int) -> int:
    found: int = pick(at, _as_number)
    return found


def _as_number(cell: Any) -> int:
    if isinstance(cell, bool) or not isinstance(cell, int) or not _LEAST <= cell <= _LARGEST_NUMBER:
        raise ValueError("it is not a whole number of 64 bits")
    return cell

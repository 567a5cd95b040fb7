# The queues of a store, built from the snapshot and the log: a state machine, fed by commands. Law: anomalies
# that TaskFlux itself leaves do not stop it. A record that is removed twice, a queue that is created twice or
# never: each is counted, and the state continues.

from __future__ import annotations

from collections import Counter
from typing import Any

from diskq._native.priority.codec import ADD, CREATE, DELETE, REMOVE
from diskq._native.priority.key_order import MOST_BUCKETS, BucketOrder, HeapOrder, KeyOrder
from diskq._native.priority.record_table import RecordTable
from diskq._native.priority.state_codec import QueueHead
from diskq.errors import FullError, PriorityRangeError, QueueNameError

__all__ = [
    "DEFAULT",
    "IMPLEMENTATIONS",
    "State",
    "StoredQueue",
    "UnknownImplementation",
    "check_queue_name",
]

DEFAULT = ""
"""The queue that is always there."""
IMPLEMENTATIONS = {"H4": 1, "QA": 2}
_LEAST_KEY, _LARGEST_KEY = -(2**63), 2**63 - 1
_LONGEST_NAME = 255

KeyRange = tuple[int, int]


class UnknownImplementation(Exception):
    """A queue of a kind that no known TaskFlux has. The argument is its number."""


def check_queue_name(name: str) -> str:
    """Return the name if a queue can have it. Raises TypeError, QueueNameError."""
    if not isinstance(name, str):
        raise TypeError(f"a queue's name is a str, not {type(name).__name__}")
    if len(name) > _LONGEST_NAME:
        raise QueueNameError(name, f"at most {_LONGEST_NAME} characters")
    if not all("!" <= letter <= "~" for letter in name):
        raise QueueNameError(name, "only the visible characters of ASCII, and no blank")
    return name


class StoredQueue:
    """One queue: its limits and its messages."""

    def __init__(
        self,
        name: str,
        implementation: int = IMPLEMENTATIONS["H4"],
        max_messages: int | None = None,
        max_message_size: int | None = None,
        priority_range: KeyRange | None = None,
    ) -> None:
        self.name = name
        self.encoded_name = name.encode("ascii")
        self.implementation = implementation
        self.max_messages = max_messages
        self.max_message_size = max_message_size
        self.priority_range = priority_range
        self.table = RecordTable(name, _order(implementation, priority_range))
        self.is_deleted = False

    @property
    def kind(self) -> str:
        """The implementation's name."""
        return next(kind for kind, number in IMPLEMENTATIONS.items() if number == self.implementation)

    @property
    def keys(self) -> KeyRange:
        """The lowest and the highest priority that it accepts."""
        return self.priority_range or (_LEAST_KEY, _LARGEST_KEY)

    def has_room_for(self, count: int) -> bool:
        """True if it may hold `count` more messages now."""
        return not count or self.max_messages is None or self.table.stored + count <= self.max_messages

    def check_room(self, count: int) -> None:
        """Raises FullError if it may not hold `count` more messages."""
        if not self.has_room_for(count):
            assert self.max_messages is not None
            raise FullError(
                f"queue {self.name!r}", f"holds {self.table.stored} messages: {self.max_messages} are allowed"
            )

    def check_priorities(self, lowest: int, highest: int) -> None:
        """Raises PriorityRangeError if one of the two is outside this queue's range."""
        least, largest = self.keys
        for key in (lowest, highest):
            if not least <= key <= largest:
                raise PriorityRangeError(key, least, largest)


def _order(implementation: int, priority_range: KeyRange | None) -> KeyOrder:
    if (
        implementation == IMPLEMENTATIONS["QA"]
        and priority_range is not None
        and priority_range[1] - priority_range[0] < MOST_BUCKETS
    ):
        return BucketOrder(*priority_range)
    return HeapOrder()


class State:
    """All queues of a store, while they are read."""

    def __init__(self) -> None:
        self.queues: dict[str, StoredQueue] = {}
        self.warnings: Counter[str] = Counter()
        """Numbers of anomalies, by name."""
        self._certain: dict[RecordTable, int] | None = None  # once a command was lost: the last sure ids

    def doubt(self) -> None:
        """Note that a command that added a message may be lost: ids of later messages are then uncertain.

        So commands no longer remove such messages: some that were acknowledged are redelivered, and none is
        confused with another.
        """
        certain = {} if self._certain is None else self._certain
        self._certain = {
            queue.table: certain.get(queue.table, queue.table.last_id) for queue in self.queues.values()
        }

    def _is_doubtful(self, table: RecordTable, number: int) -> bool:
        if self._certain is None or number <= self._certain.get(table, number):
            return False
        self.warnings["remove_after_loss"] += 1
        return True

    def add_queue(self, name: bytes, implementation: int, *limits: Any) -> StoredQueue:
        """Add a queue. Raises UnknownImplementation."""
        # The network protocol has 0 for "the default".
        implementation = implementation or IMPLEMENTATIONS["H4"]
        if implementation not in IMPLEMENTATIONS.values():
            raise UnknownImplementation(implementation)
        queue = StoredQueue(name.decode("ascii"), implementation, *limits)
        self.queues[queue.name] = queue
        return queue

    def add_from_snapshot(self, head: QueueHead) -> StoredQueue:
        """Add a queue of a snapshot. Raises ValueError for a name that exists, UnknownImplementation."""
        if head.name.decode("ascii") in self.queues:
            raise ValueError("two queues of one name")
        queue = self.add_queue(
            head.name, head.implementation, head.max_messages, head.max_message_size, head.keys
        )
        queue.table.last_id = head.last_id
        return queue

    def apply(self, commands: list[tuple[Any, ...]]) -> int:
        """Carry out commands. Returns how many were done: fewer if one creates an unknown kind of queue."""
        queues, name, table = self.queues, None, None
        for number, command in enumerate(commands):
            kind = command[0]
            if kind in (ADD, REMOVE):
                if command[1] is not name or table is None:
                    name = command[1]
                    table = self._table(name, is_needed=kind == ADD)
                if table is not None and kind == ADD:
                    table.load_add(command[2], command[3])
                elif table is not None and self._certain is not None and self._is_doubtful(table, command[2]):
                    pass  # it was acknowledged, perhaps
                elif table is None or not table.load_remove(command[2]):
                    self.warnings["remove_unknown_record"] += 1
                continue
            table = None
            text = command[1].decode("ascii")
            if kind == CREATE:
                if text in queues:
                    self.warnings["create_existing_queue"] += 1
                    continue
                try:
                    self.add_queue(*command[1:])
                except UnknownImplementation:
                    return number
            else:
                assert kind == DELETE
                queues.pop(text, None)
        return len(commands)

    def _table(self, name: bytes, *, is_needed: bool) -> RecordTable | None:
        queue = self.queues.get(name.decode("ascii"))
        if queue is None and is_needed:
            self.warnings["add_to_unknown_queue"] += 1
            queue = self.add_queue(name, IMPLEMENTATIONS["H4"])
            if self._certain is not None:
                self._certain[queue.table] = 0  # its beginning may be lost
        return None if queue is None else queue.table

    def finish(self) -> dict[str, StoredQueue]:
        """Complete the state after the last command. Returns the queues, in order."""
        if DEFAULT not in self.queues:
            self.warnings["missing_default_queue"] += 1
            self.add_queue(b"", IMPLEMENTATIONS["H4"])
        for queue in self.queues.values():
            queue.table.finish_loading()
        return self.queues

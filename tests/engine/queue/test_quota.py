# The quota of a queue alone: which acts it asks for, in which order, and what it answers. The test takes the
# place of the queue, and does what it is asked for, or nothing.

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from diskq._native.core.append_buffer import Mode
from diskq._native.core.gate import Gate
from diskq._native.core.read_ahead import ReadAhead
from diskq._native.queue.append_buffer import NsqBuffer
from diskq._native.queue.codec import NsqFraming
from diskq._native.queue.memory_tier import MemoryTier
from diskq.engine.queue.files import QueueFiles, QueuePosition, SealedFiles
from diskq.engine.queue.quota import QueueQuota
from diskq.errors import FullError
from diskq.options import QueueOptions
from diskq.storage.append_file import AppendFile
from diskq.storage.barrier import PendingSyncs
from diskq.storage.budget import DiskBudget, join_budget
from tests.engine.ram import RamFS

KIB = 1024
FRAMING = NsqFraming(0, 1 << 20)


class Played:
    """A queue's files 0, 1, ... of `sealed` KiB each, and an active one of `active` KiB after them."""

    def __init__(self, *sealed: int, active: int = 0, **options: Any) -> None:
        self.fs = RamFS({"/q/other": b""})
        files = QueueFiles(self.fs, "/q", "q")
        gate = Gate()
        gate.left = 1 << 40
        self.pending_syncs = PendingSyncs()
        self.sealed = SealedFiles(self.fs, files)
        for number, size in enumerate(sealed):
            self.fs.write_durably(files.data(number), bytes(size * KIB))
            self.sealed.add(number, size * KIB, 0)
        self.append = AppendFile(self.fs, gate, lambda tell: NsqBuffer(self.fs, FRAMING, gate, tell))
        self.number = self.append.buffer.file_number = len(sealed)
        self.append.begin(files.data(self.number), files.checksum_file(self.number), self.pending_syncs)
        self.append.buffer.limit = 1 << 40
        if active:
            self.append.buffer.append_many([bytes(active * KIB - 4)], 0, Mode.WRITTEN)
        self.tier = MemoryTier(FRAMING, gate, Gate(), ReadAhead(self.fs, FRAMING, Gate()))
        self.tier.limit = 1 << 40
        self.head = QueuePosition(0, 0)
        self.asked: list[str] = []
        chosen = QueueOptions(**options)
        self.quota = QueueQuota(self.fs, files, chosen, self.sealed, self.append, self.tier)
        self.quota.join(self.head)

    def do(self, act: str) -> None:
        if act == "roll":
            end = self.append.buffer.end
            self.sealed.add(self.number, end, self.append.finish(self.pending_syncs))
            self.append.buffer.retarget(-1, 0, 0)
        elif act == "drop_oldest":
            self.head = QueuePosition(self.head.file + 1, 0)
            self.sealed.consume(self.head.file, self.pending_syncs)
        elif act == "drop_consumed":
            self.sealed.consume(self.head.file, self.pending_syncs)
        else:
            self.tier.let_go(self.tier.count)

    def carry_out(self, acts: Generator[Any, QueuePosition, Any], do: Callable[[str], object]) -> Any:
        self.asked.clear()
        try:
            act = next(acts)
            while True:
                self.asked.append(act)
                do(act)
                act = acts.send(self.head)
        except StopIteration as answered:
            return answered.value

    def obstacle(self, size: int) -> Any:
        return self.carry_out(self.quota.obstacle(size * KIB, self.head), self.do)


def test_with_enough_space_no_act_is_asked_for():
    for options in ({}, {"max_bytes": 1000 * KIB}, {"budget": DiskBudget(1000 * KIB)}):
        queue = Played(10, 10, active=10, **options)
        assert queue.obstacle(10) is None
        assert queue.asked == []


def test_a_question_does_nothing_itself():
    queue = Played(100, 100, active=100, max_bytes=300 * KIB, on_full="drop_oldest")
    queue.head = QueuePosition(2, 0)
    before = queue.fs.files()
    answer = queue.carry_out(queue.quota.obstacle(40 * KIB, queue.head), lambda act: None)
    assert (answer, queue.asked) == ("full", ["roll", "drop_consumed"])
    assert queue.fs.files() == before
    assert queue.quota.on_disk == 300 * KIB + queue.append.allocated


def test_what_never_fits_is_refused_before_anything_is_asked_for():
    for options in ({"max_bytes": 200 * KIB}, {"budget": DiskBudget(200 * KIB)}):
        queue = Played(100, active=100, on_full="drop_oldest", **options)
        with pytest.raises(FullError):
            queue.obstacle(300)
        assert queue.asked == []


def test_over_its_own_bound_the_active_file_is_left_only_where_the_head_is_in_it():
    queue = Played(10, active=200, max_bytes=240 * KIB)
    assert queue.obstacle(40) == "full"
    assert queue.asked == ["drop_consumed"]
    queue.head = QueuePosition(1, 100 * KIB)
    assert queue.obstacle(40) == "full"
    assert queue.asked == ["roll", "drop_consumed"]


def test_what_is_consumed_is_waited_for_and_nothing_is_dropped_for_it():
    queue = Played(100, 100, active=30, max_bytes=240 * KIB, on_full="drop_oldest")
    queue.head = QueuePosition(1, 0)
    assert queue.obstacle(20) == "unsynced"
    assert queue.asked == ["drop_consumed"]


def test_whole_files_are_dropped_until_it_fits():
    queue = Played(50, 50, 50, 50, active=30, max_bytes=240 * KIB, on_full="drop_oldest")
    queue.obstacle(60)
    assert queue.asked == ["drop_consumed", "drop_oldest", "drop_consumed", "drop_oldest"]
    assert list(queue.sealed) == [2, 3]


def test_messages_in_memory_are_written_where_no_file_is_left_to_drop():
    memory: dict[str, Any] = {"memory_size": 200 * KIB, "durability": "memory"}
    queue = Played(active=100, max_bytes=240 * KIB, on_full="drop_oldest", **memory)
    queue.tier.append_many([bytes(90 * KIB)], 0)
    queue.head = QueuePosition(0, 1)
    queue.obstacle(40)
    assert queue.asked == ["roll", "drop_consumed", "drop_oldest"]
    queue = Played(max_bytes=240 * KIB, on_full="drop_oldest", **memory)
    queue.tier.append_many([bytes(190 * KIB)], 0)
    queue.obstacle(100)
    assert queue.asked == ["drop_consumed", "spill"]


def test_in_a_budget_consumed_bytes_of_the_active_file_go_before_anything_that_is_not():
    queue = Played(100, active=100, budget=DiskBudget(320 * KIB, headroom=0), on_full="drop_oldest")
    queue.head = QueuePosition(1, 60 * KIB)
    assert queue.obstacle(100) == "unsynced"
    assert queue.asked == ["drop_consumed", "roll", "drop_consumed"]


def test_in_a_budget_the_active_file_is_dropped_last():
    budget = DiskBudget(320 * KIB, headroom=0)
    queue = Played(100, active=100, budget=budget, on_full="drop_oldest")
    assert queue.obstacle(100) == "unsynced"
    assert queue.asked == ["drop_consumed", "drop_oldest"]
    budget = DiskBudget(320 * KIB, headroom=0)
    queue = Played(active=200, budget=budget, on_full="drop_oldest")
    other = join_budget(budget, "other", 0, 0, "drop_oldest")
    other.oldest = 5
    assert queue.obstacle(100) == "others"
    assert queue.asked == ["drop_consumed"]
    other.close()
    assert queue.obstacle(100) == "unsynced"
    assert queue.asked == ["drop_consumed", "roll", "drop_oldest"]


def test_a_queue_that_waits_drops_nothing():
    for on_full in ("wait", "reject"):
        queue = Played(100, active=100, budget=DiskBudget(320 * KIB, headroom=0), on_full=on_full)
        assert queue.obstacle(100) == "over_budget"
        assert queue.asked == ["drop_consumed"]


def test_another_member_gets_as_much_as_it_asks_for():
    queue = Played(50, 50, 50, active=50, budget=DiskBudget(320 * KIB, headroom=0), on_full="drop_oldest")
    assert queue.quota.share is not None
    queue.quota.share.asked = 60 * KIB
    queue.carry_out(queue.quota.relief(queue.head), queue.do)
    assert queue.asked == ["drop_consumed", "drop_oldest", "drop_oldest"]
    assert queue.quota.share.asked == 0

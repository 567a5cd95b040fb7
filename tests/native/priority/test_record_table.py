# The records of one queue in memory, against a sorted list that shares no line with them.

from __future__ import annotations

import bisect
import random
import struct
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from diskq._native.priority.key_order import MOST_BUCKETS, BucketOrder, HeapOrder, KeyOrder
from diskq._native.priority.record_table import PriorityRecord, RecordTable
from diskq.storage.numbers import NO_NUMBER
from tests.sampling import examples


def table(keys: tuple[int, int] | None = None) -> RecordTable:
    return RecordTable("q", None if keys is None else BucketOrder(*keys))


def add(records: RecordTable, *keys: int, is_hidden: bool = False) -> None:
    payloads = [b"%d" % (records.last_id + 1 + i) for i in range(len(keys))]
    records.add(payloads, list(keys), 0, len(keys), is_hidden)


def keys_and_ids(found: list[PriorityRecord]) -> list[tuple[int, int]]:
    assert all(record.body == b"%d" % record.id for record in found)
    return [(record.priority, record.id) for record in found]


def drained(records: RecordTable) -> list[tuple[int, int]]:
    found = records.take(records.ready)
    assert records.begin_to_settle(found) == -1
    records.forget(found, 0, len(found))
    return keys_and_ids(found)


def frozen(records: RecordTable, at_least: int = 1) -> list[tuple[int, int]]:
    pieces = list(iter(lambda: records.write_frozen(at_least), b""))
    records.thaw()
    return sorted(parsed(b"".join(pieces)))


def parsed(data: bytes) -> list[tuple[int, int]]:
    found, at = [], 0
    while at < len(data):
        number, key, size = struct.unpack_from(">Qqi", data, at)
        assert data[at + 20 : at + 20 + size] == b"%d" % number
        found.append((key, number))
        at += 20 + size
    return found


COUNT = 200_000
BOTH = pytest.mark.parametrize("keys", [None, (-10, 10)], ids=["H4", "QA"])

# --- order ----------------------------------------------------------------------------------------


@BOTH
def test_the_smallest_key_comes_first_and_equal_ones_in_turn(keys):
    records = table(keys)
    add(records, 3, -1, 3, 0, -1, -10, 10)
    assert drained(records) == [(-10, 6), (-1, 2), (-1, 5), (0, 4), (3, 1), (3, 3), (10, 7)]


@BOTH
@pytest.mark.parametrize("count", [2, 3, 255, 256, 257, 512, 3000])
def test_it_is_a_stable_sort_by_key(keys, count):
    rng = random.Random(count)
    numbers = [rng.randint(-10, 10) for _ in range(count)]
    records = table(keys)
    add(records, *numbers)
    assert drained(records) == sorted((key, number) for number, key in enumerate(numbers, 1))
    assert (records.ready, records.stored) == (0, 0)


@pytest.mark.parametrize("count", [10, 1000, 20_000])
def test_distinct_keys_of_64_bits_are_sorted(count):
    rng = random.Random(count)
    numbers = [rng.randrange(-(2**63), 2**63) for _ in range(count)] + [2**63 - 1, -(2**63)]
    records = table()
    add(records, *numbers)
    assert drained(records) == sorted((key, number) for number, key in enumerate(numbers, 1))


@pytest.mark.parametrize("low, high", [(0, 0), (-(2**63), -(2**63) + 4095), (2**63 - 4096, 2**63 - 1)])
def test_buckets_reach_from_end_to_end(low, high):
    records = table((low, high))
    keys = [high, low, (low + high) // 2, low, high]
    add(records, *keys)
    assert drained(records) == sorted((key, number) for number, key in enumerate(keys, 1))


def test_a_key_without_a_bucket_has_its_place_all_the_same():
    """A queue in a snapshot may hold keys outside its range: limits are checked when a message is sent."""
    records = table((0, 3))
    add(records, 2, 99, -(2**63), 0, 2**63 - 1, -1)
    assert drained(records) == [(-(2**63), 3), (-1, 6), (0, 4), (2, 1), (99, 2), (2**63 - 1, 5)]


@pytest.mark.parametrize("low, high", [(0, MOST_BUCKETS), (1, 0)])
def test_too_many_buckets_are_refused(low, high):
    with pytest.raises(ValueError, match="buckets"):
        BucketOrder(low, high)


@BOTH
def test_a_returned_record_comes_before_later_ones(keys):
    records = table(keys)
    add(records, 5, 5, 5, 1)
    taken = records.take(3)
    assert keys_and_ids(taken) == [(1, 4), (5, 1), (5, 2)]
    add(records, 5)
    assert records.begin_to_settle([taken[2], taken[1]]) == -1
    records.give_back([taken[2], taken[1]])
    assert drained(records) == [(5, 1), (5, 2), (5, 3), (5, 5)]
    assert records.taken == 1


@BOTH
def test_hidden_records_take_their_place_when_they_are_revealed(keys):
    records = table(keys)
    add(records, 1, 2, is_hidden=True)
    add(records, 2, 1)
    add(records, 0, is_hidden=True)
    assert (records.ready, records.hidden, records.stored) == (2, 3, 5)
    assert keys_and_ids(records.peek(9)) == [(1, 4), (2, 3)]
    records.reveal(2)
    assert keys_and_ids(records.peek(9)) == [(1, 1), (1, 4), (2, 2), (2, 3)]
    records.reveal(records.last_id)
    assert drained(records) == [(0, 5), (1, 1), (1, 4), (2, 2), (2, 3)]


# --- taking and settling --------------------------------------------------------------------------


def test_the_byte_bound_holds_for_all_but_the_first():
    records = table()
    records.add([bytes(10), bytes(5), bytes(5), bytes(1)], 0, 0, 4)
    assert [len(record.body) for record in records.take(9, 3)] == [10]
    assert [len(record.body) for record in records.take(9, 10)] == [5, 5]
    assert [len(record.body) for record in records.take(9, 0)] == [1]
    assert records.take(9, 0) == []
    assert records.take(0) == []


def test_a_record_is_settled_once():
    records = table()
    add(records, 1, 2, 3)
    first, second, third = records.take(3)
    assert records.begin_to_settle([first, second, first]) == 2
    assert records.begin_to_settle([first]) == -1
    records.unclaim([first], 0, 1)
    assert records.begin_to_settle([first, second]) == -1
    records.forget([first, second], 0, 1)
    records.give_back([second])
    assert (first.is_settled, second.is_settled, third.is_settled) == (True, True, False)
    assert records.begin_to_settle([third, second]) == 1
    assert records.begin_to_settle([first]) == 0
    assert not third.is_settled
    assert (records.ready, records.taken) == (1, 1)


def test_records_of_another_table_are_not_settled():
    records, other = table(), table()
    add(records, 1, 1)
    add(other, 1)
    assert records.begin_to_settle(other.take(1)) == 0
    assert records.begin_to_settle(records.peek(1)) == 0
    with pytest.raises(TypeError, match="not bytes"):
        records.begin_to_settle([b"1"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="received"):
        PriorityRecord()


def test_a_record_has_a_repr():
    records = table()
    add(records, -4)
    (record,) = records.take(1)
    assert (record.id, record.priority, record.body, record.queue) == (1, -4, b"1", "q")
    assert repr(record) == "PriorityRecord(queue='q', id=1, priority=-4, 1 bytes)"


def test_a_record_outlives_its_table():
    records = table()
    add(records, 7)
    (record,) = records.take(1)
    del records
    assert (record.body, record.queue) == (b"1", "q")


def test_memory_is_given_back_and_used_again():
    records = table()
    before = records.allocated
    for _ in range(3):
        add(records, *range(20_000))
        full = records.allocated
        assert full > before + 20_000 * 32
        drained(records)
        assert records.allocated < before + 200_000
        assert records.payload_bytes == 0
    assert full < before + 20_000 * 32 * 4


@pytest.mark.parametrize("order", [HeapOrder(), BucketOrder(0, 4095)])
def test_a_record_costs_less_than_a_hundred_bytes_beside_its_payload(order: KeyOrder):
    records = RecordTable("q", order)
    records.add([b"x"] * 100_000, [i * 7919 % 4096 for i in range(100_000)], 0, 100_000)
    assert records.allocated < 100 * 100_000


# --- frozen ---------------------------------------------------------------------------------------


def test_frozen_records_are_written_whatever_happens_meanwhile():
    records = table()
    add(records, 5, 4, 3, 2)
    add(records, 9, is_hidden=True)
    taken = records.take(2)
    assert records.freeze() == 5
    assert len(parsed(records.write_frozen(1))) == 1
    assert records.begin_to_settle(taken) == -1
    records.forget(taken, 0, 2)
    add(records, 1, 1, 1)
    more = records.take(4)
    assert keys_and_ids(more) == [(1, 6), (1, 7), (1, 8), (4, 2)]
    assert records.begin_to_settle(more) == -1
    records.forget(more, 0, 4)
    assert frozen(records) == [(2, 4), (3, 3), (4, 2), (9, 5)]
    records.freeze()
    assert frozen(records) == [(5, 1), (9, 5)]
    records.freeze()
    records.thaw()
    assert records.stored == 2


def test_what_was_removed_meanwhile_is_gone_when_it_is_thawed_early():
    records = table()
    add(records, *range(10))
    records.freeze()
    assert [key for key, _ in drained(records)] == list(range(10))
    records.thaw()
    assert records.freeze() == 0
    assert frozen(records) == []


# --- loading --------------------------------------------------------------------------------------


def test_a_snapshot_is_loaded_in_any_order_and_the_log_after_it():
    records = table()
    data = b"".join(struct.pack(">Qqi", n, k, 1) + b"%d" % n for n, k in [(7, 1), (3, 1), (9, 0), (5, 1)])
    assert records.load(data[:-1], 0, 4) == (3, 63)
    assert records.load(data, 63, 9) == (1, 84)
    assert records.sort_loaded()
    assert records.last_id == 9
    records.load_add(1, b"10")
    assert [records.load_remove(number) for number in (7, 7, 6, 10, 1, 99)] == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    records.load_add(-1, b"11")
    records.finish_loading()
    assert drained(records) == [(-1, 11), (0, 9), (1, 3), (1, 5)]


@pytest.mark.parametrize("call", [RecordTable.sort_loaded, RecordTable.finish_loading])
def test_other_threads_run_while_very_many_records_are_ordered(call: Callable[[RecordTable], object]) -> None:
    """No fifth of the call's own work is done without them: with all records at one time it is a third.

    On a busy machine the other thread may come late: that it ran is taken from a few tries together, each of
    which does the same.
    """
    data = b"".join(
        struct.pack(">Qqi", number, number, 0)
        for number in random.Random(4).sample(range(1, COUNT + 1), COUNT)
    )
    moments: list[float] = [0.0, 1.0]
    for _ in range(10):
        records = table()
        records.load(data, 0, COUNT)
        if call is RecordTable.finish_loading:
            records.sort_loaded()
        moments += moments_of_another_thread(lambda: call(records))  # noqa: B023
        longest = max(later - earlier for earlier, later in pairwise(sorted(moments)))
        if longest <= 0.2:
            break
    assert longest <= 0.2


def moments_of_another_thread(call: Callable[[], object]) -> list[float]:
    """When another thread runs during the call: after which share of the call's own processor time."""
    used = time.pthread_getcpuclockid(threading.get_ident())
    steps: list[float] = []
    is_over = threading.Event()

    def step() -> None:
        while not is_over.is_set():
            steps.append(time.clock_gettime(used))

    other = threading.Thread(target=step)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        other.start()
        began = time.clock_gettime(used)
        call()
        ended = time.clock_gettime(used)
    finally:
        is_over.set()
        other.join()
        sys.setswitchinterval(interval)
    return [(at - began) / (ended - began) for at in steps if began < at < ended]


def test_loaded_records_are_stored_in_the_order_of_delivery():
    random.seed(4)
    records = table()
    for _ in range(20_000):
        records.load_add(random.randrange(-5, 5), b"%d" % (records.last_id + 1))
    gone = random.sample(range(1, 20_001), 9_000)
    assert all(map(records.load_remove, gone))
    records.finish_loading()
    records.freeze()
    laid = parsed(records.write_frozen(10**9))
    records.thaw()
    assert laid == sorted(laid)
    assert laid == drained(records)


def test_a_prefetched_record_may_be_gone():
    records = table()
    for turn in range(3):
        add(records, *[number % 3 for number in range(20_000)])
        found = records.take(6_000 + turn * 400)  # into a lane, and far after its head
        records.begin_to_settle(found)
        records.forget(found, 0, len(found))
        assert len(drained(records)) == 20_000 - len(found)
        assert records.allocated < 200_000
        add(records, 0, 1)
        assert len(drained(records)) == 2


def test_a_duplicate_id_is_reported():
    records = table()
    data = struct.pack(">Qqi", 7, 1, 0)
    records.load(data * 2, 0, 2)
    assert not records.sort_loaded()
    records.finish_loading()


@pytest.mark.parametrize("number", [NO_NUMBER, 2**63, 2**64 - 1], ids=hex)
def test_an_id_past_the_bound_is_refused(number):
    """The next record would get the id of an earlier one."""
    with pytest.raises(ValueError, match="an impossible id"):
        table().load(struct.pack(">Qqi", number, 1, 0), 0, 1)


def test_a_length_below_zero_is_refused():
    with pytest.raises(ValueError, match="less than no bytes"):
        table().load(struct.pack(">Qqi", 7, 1, -1), 0, 1)


# --- random operations ------------------------------------------------------------------------------


class Model(RuleBasedStateMachine):
    """A table, and a sorted list of (key, id)."""

    keys: tuple[int, int] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.records = table(self.keys)
        self.ready: list[tuple[int, int]] = []
        self.hidden: list[tuple[int, int]] = []
        self.taken: list[PriorityRecord] = []
        self.frozen_records: list[tuple[int, int]] | None = None
        self.written: list[tuple[int, int]] = []

    @rule(keys=st.lists(st.integers(-5, 5), max_size=9), is_hidden=st.booleans())
    def add(self, keys: list[int], is_hidden: bool) -> None:
        first = self.records.last_id + 1
        add(self.records, *keys, is_hidden=is_hidden)
        for number, key in enumerate(keys, first):
            (self.hidden.append if is_hidden else lambda new: bisect.insort(self.ready, new))((key, number))

    @precondition(lambda self: self.hidden)
    @rule(data=st.data())
    def reveal(self, data: st.DataObject) -> None:
        upto = data.draw(st.sampled_from(self.hidden))[1]
        self.records.reveal(upto)
        for each in [each for each in self.hidden if each[1] <= upto]:
            self.hidden.remove(each)
            bisect.insort(self.ready, each)

    @rule(most=st.integers(0, 6))
    def take(self, most: int) -> None:
        found = self.records.take(most)
        assert keys_and_ids(found) == self.ready[:most]
        del self.ready[:most]
        self.taken += found

    @rule(most=st.integers(0, 6))
    def peek(self, most: int) -> None:
        assert keys_and_ids(self.records.peek(most)) == self.ready[:most]

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), is_ack=st.booleans())
    def settle(self, data: st.DataObject, is_ack: bool) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.taken), unique_by=id, min_size=1))
        assert self.records.begin_to_settle(chosen) == -1
        if is_ack:
            self.records.forget(chosen, 0, len(chosen))
        else:
            self.records.give_back(chosen)
            for record in chosen:
                bisect.insort(self.ready, (record.priority, record.id))
        self.taken = [record for record in self.taken if record not in chosen]

    @precondition(lambda self: self.frozen_records is None)
    @rule()
    def freeze(self) -> None:
        everything = self.ready + self.hidden + [(record.priority, record.id) for record in self.taken]
        assert self.records.freeze() == len(everything)
        self.frozen_records, self.written = sorted(everything), []

    @precondition(lambda self: self.frozen_records is not None)
    @rule(at_least=st.integers(1, 200))
    def write(self, at_least: int) -> None:
        piece = parsed(self.records.write_frozen(at_least))
        self.written += piece
        if not piece:
            assert sorted(self.written) == self.frozen_records
            self.records.thaw()
            self.frozen_records = None

    @precondition(lambda self: self.frozen_records is not None)
    @rule()
    def give_up(self) -> None:
        self.records.thaw()
        self.frozen_records = None

    @invariant()
    def counts(self) -> None:
        found = (self.records.ready, self.records.hidden, self.records.taken)
        assert found == (len(self.ready), len(self.hidden), len(self.taken))
        sizes = [len(b"%d" % n) for _, n in self.ready + self.hidden] + [len(r.body) for r in self.taken]
        assert self.records.payload_bytes == sum(sizes)


class BucketModel(Model):
    keys = (-4, 4)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestBucketModel = BucketModel.TestCase
TestBucketModel.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)

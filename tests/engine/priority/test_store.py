# A store of priority queues: its promises to its users, and what it writes.

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from diskq.engine.priority.store import PriorityQueueInfo, PriorityStore
from diskq.errors import (
    CorruptionError,
    ExistsError,
    FullError,
    LeaseError,
    LockedError,
    MessageSizeError,
    NotFoundError,
    PriorityRangeError,
    QueueNameError,
    UnsupportedFormatError,
)
from diskq.options import PriorityOptions
from diskq.testing import CrashFS
from tests.engine.stores import (
    DATA,
    ROOT,
    disk,
    drain,
    failing_disk,
    files,
    opened,
    segment,
    segments,
    state,
    stored,
    written,
)
from tests.reference import taskflux_oracle as oracle

NAMES = ["a", "~", "!", "n" * 255, "orders:1", "A/b.c", "...", "default"]
NO_NAMES = [" ", "a b", "ä", "\x7f", "\x1f", "\n", "n" * 256, "n" * 400, "\0", "☃"]
LIMITS = [None, 0, 1, 10, 1024, 2**31 - 1]
RANGES = [
    None,
    (0, 0),
    (0, 3),
    (-10, 10),
    (-(2**63), 2**63 - 1),
    (-(2**63), 0),
    (0, 2**63 - 1),
    (-1000, 1002),
]

# --- a new store ----------------------------------------------------------------------------------


def test_a_new_store_is_what_taskflux_leaves_at_its_first_start():
    fs = disk()
    for _ in range(3):
        with opened(fs) as store:
            assert state(store) == {"": oracle.Queue()}
            assert (store.next_lsn, store.repairs, store.warnings) == (0, (), {})
        expected = {"log/0000000000000000000.log": oracle.segment([]), "tflux.metadata": oracle.metadata()}
        assert files(fs) == expected
    assert stored(fs) == {"": oracle.Queue()}


def test_it_is_where_taskflux_looks_for_it():
    fs = disk()
    with opened(fs):
        assert fs.size_of(f"{ROOT}/data/tflux.metadata") == 24
    with PriorityStore(f"{ROOT}/data", fs=fs) as store:
        assert store.files.root == f"{ROOT}/data"


def test_the_directory_is_made():
    fs = CrashFS()
    with PriorityStore("/made/for/it", fs=fs):
        pass
    assert fs.size_of("/made/for/it/data/tflux.metadata") == 24


# --- queues ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_queue_has_any_name_of_visible_characters(name):
    fs = disk()
    with opened(fs) as store:
        assert store.create_queue(name) is store.queue(name)
        store.put(store.queue(name), b"message")
    with opened(fs) as store:
        assert drain(store, name) == [(0, 1, b"message")]
    assert set(stored(fs)) == {"", name}


@pytest.mark.parametrize("name", NO_NAMES)
def test_other_names_are_refused(name):
    with opened(disk()) as store:
        with pytest.raises(QueueNameError):
            store.create_queue(name)
        assert store.next_lsn == 0


def test_every_single_character_is_a_name_or_is_none():
    with opened(disk()) as store:
        for code in range(300):
            if 33 <= code <= 126:
                store.create_queue(chr(code))
            else:
                with pytest.raises(QueueNameError):
                    store.create_queue(chr(code))
        assert len(store.queues()) == 95


def test_a_name_is_a_str():
    with opened(disk()) as store, pytest.raises(TypeError, match="bytes"):
        store.create_queue(b"name")  # type: ignore[arg-type]


@pytest.mark.parametrize("max_messages", LIMITS)
@pytest.mark.parametrize("max_message_size", LIMITS)
def test_limits_are_kept(max_messages, max_message_size):
    fs = disk()
    with opened(fs) as store:
        store.create_queue("q", max_messages=max_messages, max_message_size=max_message_size)
    with opened(fs) as store:
        info = store.info(store.queue("q"))
        assert (info.max_messages, info.max_message_size, info.priority_range) == (
            max_messages,
            max_message_size,
            None,
        )
    assert stored(fs)["q"] == oracle.Queue(1, 0, max_messages, max_message_size)


@pytest.mark.parametrize("implementation, code", [("H4", 1), ("QA", 2)])
@pytest.mark.parametrize("priority_range", RANGES[1:])
def test_implementations_and_ranges_are_kept(implementation, code, priority_range):
    fs = disk()
    with opened(fs) as store:
        store.create_queue("q", implementation=implementation, priority_range=priority_range)
        store.put_many(store.queue("q"), [b"last", b"first"], [priority_range[1], priority_range[0]])
        assert store.snapshot()
    with opened(fs) as store:
        info = store.info(store.queue("q"))
        assert (info.implementation, info.priority_range) == (implementation, priority_range)
        payloads = [payload for _, _, payload in drain(store, "q")]
        assert payloads[0] == (b"first" if priority_range[0] < priority_range[1] else b"last")
    assert stored(fs)["q"].code == code


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_messages": -1},
        {"max_messages": 2**31},
        {"max_message_size": -1},
        {"max_message_size": 2**31},
        {"priority_range": (1, 0)},
        {"priority_range": (0, 2**63)},
        {"priority_range": (-(2**63) - 1, 0)},
        {"implementation": "QA"},
        {"implementation": "H5"},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_anything_is_written(wrong: dict[str, Any]):
    fs = disk()
    with opened(fs) as store:
        with pytest.raises(ValueError, match=next(iter(wrong)) if "implementation" not in wrong else "QA|H4"):
            store.create_queue("q", **wrong)
        assert [info.name for info in store.queues()] == [""]
    assert segments(fs) == {0: []}


def test_queues_are_separate():
    with opened(disk()) as store:
        store.create_queue("b", implementation="QA", priority_range=(0, 5), max_messages=9)
        store.create_queue("a")
        store.put_many(store.queue("b"), [b"four", b"more"], 3)
        store.get(store.queue("b"))
        assert [info.name for info in store.queues()] == ["", "a", "b"]
        assert store.info(store.queue("b")) == PriorityQueueInfo(
            name="b",
            implementation="QA",
            ready=1,
            in_flight=1,
            stored=2,
            body_bytes=8,
            last_id=2,
            max_messages=9,
            max_message_size=None,
            priority_range=(0, 5),
        )
        assert drain(store, "a") == drain(store) == []


def test_a_queue_is_created_once():
    with opened(disk()) as store:
        store.create_queue("q")
        for name in ("q", ""):
            with pytest.raises(ExistsError):
                store.create_queue(name)
        assert store.next_lsn == 1


def test_the_default_queue_is_always_there():
    with opened(disk()) as store:
        with pytest.raises(QueueNameError, match="always there"):
            store.delete_queue("")
        assert store.queue().name == ""


def test_a_deleted_queue_is_gone_with_what_it_held():
    fs = disk()
    with opened(fs) as store:
        queue = store.create_queue("q")
        store.put_many(queue, [b"one", b"two"])
        record = store.get(queue)
        assert record is not None
        store.delete_queue("q")
        for act in (store.queue, store.delete_queue):
            with pytest.raises(NotFoundError):
                act("q")
        with pytest.raises(NotFoundError):
            store.put(queue, b"three")
        with pytest.raises(NotFoundError):
            store.get(queue)
        lsn = store.next_lsn
        store.ack(queue, record)
        assert store.next_lsn == lsn, "nothing is written for it"
        assert record.is_settled
        store.create_queue("q")
        assert store.put(store.queue("q"), b"again") == 1
    with opened(fs) as store:
        assert drain(store, "q") == [(0, 1, b"again")]


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["H4", "QA"])
@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_messages_come_out_by_priority_and_then_in_turn_also_after_a_restart(implementation, count):
    fs, rng = disk(), random.Random(count)
    keys = [rng.randint(-3, 3) for _ in range(count)]
    bodies = [b"%d" % number for number in range(1, count + 1)]
    expected = sorted(zip(keys, range(1, count + 1), bodies, strict=True))
    with opened(fs) as store:
        queue = store.create_queue("q", implementation=implementation, priority_range=(-3, 3))
        assert store.put_many(queue, bodies, keys) == range(1, count + 1)
        half = store.get_many(queue, count // 2)
        assert [(r.priority, r.id, r.body) for r in half] == expected[: count // 2]
    with opened(fs) as store:
        queue = store.queue("q")
        assert store.snapshot()
    with opened(fs) as store:
        assert drain(store, "q") == expected
    with opened(fs) as store:
        assert drain(store, "q") == []
        assert store.info(store.queue("q")).last_id == count
        assert store.put(store.queue("q"), b"next") == count + 1, "ids are not given twice"


@pytest.mark.parametrize("key", [0, 1, -1, 2**63 - 1, -(2**63), 32457])
@pytest.mark.parametrize("payload", [b"", b"\0", b"\xff" * 7, bytes(range(256))])
def test_any_key_and_any_payload(key, payload):
    fs = disk()
    with opened(fs) as store:
        assert store.put(store.queue(), payload, key) == 1
    assert stored(fs)[""].ordered() == [(key, 1, payload)]
    with opened(fs) as store:
        assert drain(store) == [(key, 1, payload)]
    assert stored(fs)[""].ordered() == []


def test_equal_messages_are_two():
    with opened(disk()) as store:
        store.put_many(store.queue(), [b"same", b"same"], 5)
        assert drain(store) == [(5, 1, b"same"), (5, 2, b"same")]


def test_what_is_given_back_is_where_it_was_here_and_after_a_restart():
    fs = disk()
    with opened(fs) as store:
        queue = store.queue()
        store.put_many(queue, [b"one", b"two"], 1)
        first = store.get(queue)
        assert first is not None
        store.put(queue, b"three", 1)
        lsn = store.next_lsn
        store.nack(queue, first)
        assert store.next_lsn == lsn, "nothing is written"
        expected = [(1, 1, b"one"), (1, 2, b"two"), (1, 3, b"three")]
        assert [(r.priority, r.id, r.body) for r in store.peek(queue, 9)] == expected
    with opened(fs) as store:
        assert drain(store) == expected


def test_what_is_in_hand_comes_back_after_a_restart():
    fs = disk()
    with opened(fs) as store:
        queue = store.queue()
        store.put_many(queue, [b"one", b"two", b"three"], [3, 2, 1])
        three, two = store.get_many(queue, 2)
        store.ack(queue, two)
        assert store.snapshot()
        assert not three.is_settled
    with opened(fs) as store:
        assert drain(store) == [(1, 3, b"three"), (3, 1, b"one")]


# --- what is allowed ------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 2, 100])
def test_a_queue_holds_so_many_and_no_more(limit):
    with opened(disk()) as store:
        queue = store.create_queue("q", max_messages=limit)
        for _ in range(limit):
            store.put(queue, b"message")
        lsn = store.next_lsn
        with pytest.raises(FullError, match=str(limit)) as caught:
            store.put(queue, b"message")
        assert f"holds {limit} messages: {limit} are allowed" in str(caught.value)
        assert store.next_lsn == lsn


def test_what_is_in_hand_counts():
    with opened(disk()) as store:
        queue = store.create_queue("q", max_messages=1)
        store.put(queue, b"message")
        record = store.get(queue)
        assert record is not None
        with pytest.raises(FullError):
            store.put(queue, b"message")
        store.ack(queue, record)
        store.put(queue, b"message")


def test_a_batch_that_does_not_fit_is_refused_as_a_whole():
    with opened(disk()) as store:
        queue = store.create_queue("q", max_messages=3, priority_range=(0, 9), max_message_size=2)
        batches: list[tuple[list[bytes], int | list[int], type[Exception]]] = [
            ([b""] * 4, 0, FullError),
            ([b""] * 3, [0, 10, 0], PriorityRangeError),
            ([b""] * 3, -1, PriorityRangeError),
            ([b"", b"abc"], 0, MessageSizeError),
            ([b"abc"] * 4, 99, FullError),  # in this order
            ([b"abc"], 99, PriorityRangeError),
        ]
        for bodies, keys, error in batches:
            with pytest.raises(error):
                store.put_many(queue, bodies, keys)
        assert store.next_lsn == 1
        assert store.put_many(queue, [], 99) == range(1, 1)


@pytest.mark.parametrize(
    "key, is_in", [(-5, True), (4, True), (0, True), (-6, False), (5, False), (2**63 - 1, False)]
)
def test_priorities_are_inside_the_range_ends_included(key, is_in):
    with opened(disk()) as store:
        queue = store.create_queue("q", priority_range=(-5, 4))
        if is_in:
            assert store.put(queue, b"", key) == 1
        else:
            with pytest.raises(PriorityRangeError, match="-5 to 4"):
                store.put(queue, b"", key)


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1])
def test_a_priority_has_64_bits(key):
    with opened(disk()) as store:
        for keys in (key, [key]):
            with pytest.raises(PriorityRangeError):
                store.put_many(store.queue(), [b""], keys)


@pytest.mark.parametrize("limit", [0, 1, 10, 1024])
def test_a_message_has_so_many_bytes_and_no_more(limit):
    with opened(disk()) as store:
        queue = store.create_queue("q", max_message_size=limit)
        store.put(queue, bytes(limit))
        store.put(queue, bytes(max(0, limit - 1)))
        with pytest.raises(MessageSizeError):
            store.put(queue, bytes(limit + 1))


def test_the_store_has_a_limit_of_its_own():
    with opened(disk(), max_message_size=5) as store:
        queue = store.create_queue("q", max_message_size=99)
        store.put(queue, bytes(5))
        with pytest.raises(MessageSizeError):
            store.put(queue, bytes(6))


def test_a_queue_may_hold_more_than_its_limits_when_it_is_loaded():
    full = oracle.Queue(2, 7, 1, 1, (0, 3), {7: (99, b"large"), 3: (-4, b"other")})
    fs = written(disk(), {8: []}, snapshot=oracle.snapshot(7, 1, {"": full}))
    with opened(fs) as store:
        assert state(store) == {"": full}
        with pytest.raises(FullError):
            store.put(store.queue(), b"")
        assert drain(store) == [(-4, 3, b"other"), (99, 7, b"large")]


@pytest.mark.parametrize("what", ["text", 5, None, [1]])
def test_a_message_is_bytes(what):
    with opened(disk()) as store:
        with pytest.raises(TypeError, match="bytes"):
            store.put(store.queue(), what)
        store.put_many(store.queue(), [bytearray(b"a"), memoryview(b"b")])
        assert [payload for _, _, payload in drain(store)] == [b"a", b"b"]


def test_each_message_may_come_with_its_priority():
    with opened(disk()) as store:
        store.put_many(store.queue(), [(1, b"a"), b"c", (0, b"b")], 7)
        assert [(priority, body) for priority, _, body in drain(store)] == [(0, b"b"), (1, b"a"), (7, b"c")]
        with pytest.raises(TypeError, match=r"^a message is a body, or \(priority, body\)$"):
            store.put_many(store.queue(), [(1, b"a", b"c")])  # type: ignore[list-item]
        with pytest.raises(TypeError):
            store.put_many(store.queue(), [(1, b"a")], [7])


def test_priorities_are_as_many_whole_numbers_as_messages():
    with opened(disk()) as store:
        with pytest.raises(ValueError, match="2 messages and 1 priorities"):
            store.put_many(store.queue(), [b"a", b"b"], [1])
        with pytest.raises(TypeError, match="whole number"):
            store.put_many(store.queue(), [b"a"], [1.5])  # type: ignore[list-item]


# --- settling -------------------------------------------------------------------------------------


def test_a_message_is_settled_once():
    with opened(disk()) as store:
        queue = store.queue()
        store.put_many(queue, [b"1", b"2", b"3"])
        one, two, three = store.get_many(queue, 3)
        store.ack(queue, one)
        store.nack(queue, two)
        lsn = store.next_lsn
        for act in (store.ack, store.nack):
            for settled in (one, two):
                with pytest.raises(LeaseError, match=str(settled.id)):
                    act(queue, settled)
        with pytest.raises(LeaseError):
            store.ack_many(queue, [three, three])
        with pytest.raises(LeaseError):
            store.nack_many(queue, [three, one])
        with pytest.raises(LeaseError):
            store.ack(queue, store.peek(queue)[0])
        assert store.next_lsn == lsn
        store.ack(queue, three)


def test_a_message_is_settled_in_its_queue():
    with opened(disk()) as store:
        other = store.create_queue("other")
        store.put(other, b"message")
        record = store.get(other)
        assert record is not None
        assert record.queue == "other"
        with pytest.raises(LeaseError):
            store.ack(store.queue(), record)
        store.ack(other, record)


def test_bytes_bound_a_batch():
    with opened(disk()) as store:
        store.put_many(store.queue(), [bytes(10), bytes(4), bytes(4), bytes(4)])
        sizes = [[len(r.body) for r in store.get_many(store.queue(), 9, max_bytes=8)] for _ in range(4)]
        assert sizes == [[10], [4, 4], [4], []]
        assert store.get(store.queue()) is None


# --- durability -----------------------------------------------------------------------------------


def test_synced_messages_are_seen_when_they_are():
    with opened(disk()) as store:
        queue = store.queue()
        store.steps.add(queue, *store.steps.checked(queue, [b"synced"], 0), "synced")
        store.steps.add(queue, *store.steps.checked(queue, [b"written"], 1), "written")
        ticket = store.log.prepare(full=False)
        store.steps.add(queue, *store.steps.checked(queue, [b"later"], 0), "synced")
        assert [r.body for r in store.peek(queue, 9)] == [b"written"]
        assert store.info(queue).stored == 3
        ticket.barrier.execute(store._fs)
        assert [r.body for r in store.peek(queue, 9)] == [b"written"]
        store.log.complete(ticket, is_replaced=True)
        assert [r.body for r in store.peek(queue, 9)] == [b"synced", b"written"]
        store.sync()
        assert [r.body for r in store.peek(queue, 9)] == [b"synced", b"later", b"written"]


def test_a_deleted_queue_hides_nothing():
    with opened(disk()) as store:
        queue = store.create_queue("q")
        store.steps.add(queue, *store.steps.checked(queue, [b"synced"], 0), "synced")
        ticket = store.log.prepare(full=False)
        store.steps.remove_queue("q")
        store.log.complete(ticket, ticket.barrier.execute(store._fs))
        store.sync()


@pytest.mark.parametrize("word", ["written", "synced"])
def test_a_word_is_what_a_crash_leaves(word):
    fs = disk()
    store = opened(fs)
    store.put(store.queue(), b"message", 0, durability=word)
    after = fs.kill() if word == "written" else fs.crash(random.Random(1))
    with opened(after) as store:
        assert drain(store) == [(0, 1, b"message")]


def test_in_memory_it_waits_and_is_seen():
    fs = disk()
    with opened(fs) as store:
        queue = store.queue()
        store.put_many(queue, [b"one", b"two"], 0, durability="memory")
        record = store.get(queue)
        assert record is not None
        store.ack(queue, record, durability="memory")
        assert not store.log.is_flushed
        assert segments(fs) == {0: []}
        assert store.next_lsn == 3
        store.put(queue, b"three")
        assert store.log.is_flushed, "what came first is written first"
        assert stored(fs)[""].ordered() == [(0, 2, b"two"), (0, 3, b"three")]
        store.put(queue, b"four", 0, durability="memory")
    assert stored(fs)[""].last_id == 4


def test_a_barrier_is_due_by_count_and_by_time():
    now = 0.0
    options = PriorityOptions(sync_every=3, sync_timeout=5.0)
    with PriorityStore(ROOT, options=options, fs=disk(), clock=lambda: now) as store:
        store.put_many(store.queue(), [b"1", b"2"])
        assert store.unsynced_bytes
        assert store.log.due_at == 5.0
        store.put(store.queue(), b"3")
        assert not store.unsynced_bytes
        store.put(store.queue(), b"4")
        now = 5.0
        store.put(store.queue(), b"5")
        assert not store.unsynced_bytes


def test_what_is_unsynced_is_bounded():
    with opened(disk(), max_unsynced=200) as store:
        store.put(store.queue(), bytes(100))
        assert store.steps.obstacle(100) == "unsynced"
        store.put(store.queue(), bytes(100))
        assert store.steps.obstacle(10) is None or store.unsynced_bytes < 200


def test_commands_are_durable_up_to_the_last_barrier():
    with opened(disk()) as store:
        assert store.steps.is_durable(-1)
        store.put_many(store.queue(), [b""] * 3)
        assert not store.steps.is_durable(0)
        store.sync()
        assert store.steps.is_durable(2)
        assert not store.steps.is_durable(3)


# --- one process ----------------------------------------------------------------------------------


def test_a_store_has_one_owner():
    fs = disk()
    with opened(fs), pytest.raises(LockedError, match="process"):
        opened(fs)
    with opened(fs):
        pass


def test_taskflux_keeps_us_out():
    fs = disk()
    with opened(fs):
        pass
    handle = fs.open(f"{DATA}/tflux.metadata", write=True)
    assert fs.try_lock(handle)
    with pytest.raises(LockedError, match="TaskFlux"):
        opened(fs)
    fs.close(handle)
    with opened(fs):
        assert not fs.try_lock(fs.open(f"{DATA}/tflux.metadata", write=True)), "and we keep it out"


def test_a_closed_store_does_not_tell_its_queues():
    store = opened(disk())
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.queues()


def test_a_batch_over_many_segments_keeps_few_of_them_open():
    fs = failing_disk()
    with opened(fs, soft_limit=100, hard_limit=100, snapshot_segments=10**6) as store:
        store.put_many(store.queue(), [bytes(100)] * 400)
        assert store.statistics().segments >= 400
    most = now = 0
    for call in fs.calls:
        now += (call.verb == "open") - (call.verb == "close")
        most = max(most, now)
    assert most < 150


def test_no_handle_is_left_open():
    fs = disk()
    for seed in range(3):
        with opened(fs, soft_limit=100, snapshot_segments=2) as store:
            for number in range(20 + seed):
                store.put(store.queue(), b"%d" % number)
        assert not fs._handles


# --- layouts, terms, metadata -----------------------------------------------------------------------


def test_a_store_in_the_documents_layout_is_so_in_all_its_files():
    fs = disk()
    with opened(fs, layout="document") as store:
        store.create_queue("q")
        store.put_many(store.queue("q"), [b"a", b"bc", b"def", b""], [4, 3, 2, 1])
        assert store.snapshot()
        store.put(store.queue(), b"x")
    assert files(fs)["tflux.metadata"] == oracle.metadata(layout="document")
    assert oracle.read_snapshot(files(fs)["tflux.snapshot"], "document")[0] == 4
    with opened(fs) as store:
        assert store.layout == "document"
        assert set(store.warnings) == {"document_layout"}
        store.put(store.queue(), b"yz", -1)
        assert store.repairs == ()
    assert stored(fs, "document")[""].ordered() == [(-1, 2, b"yz"), (0, 1, b"x")]


@pytest.mark.parametrize("there, asked", [("document", "aligned"), ("aligned", "document")])
def test_a_store_has_one_layout(there, asked):
    fs = disk()
    with opened(fs, layout=there):
        pass
    with pytest.raises(UnsupportedFormatError, match=there):
        opened(fs, layout=asked)
    assert not fs._handles


@pytest.mark.parametrize("layout", ["code", "padout", "docin"])
def test_what_others_began_is_gone_on_with(layout):
    commands = [oracle.create("q"), oracle.add("q", 1, b"odd"), oracle.add("q", 1, b"4444")]
    fs = written(disk(), {0: commands}, layout=layout)
    with opened(fs) as store:
        assert store.layout == ("document" if layout == "docin" else "aligned")
        store.put(store.queue("q"), b"ours", 0)
    with opened(fs) as store:
        assert drain(store, "q") == [(0, 3, b"ours"), (1, 1, b"odd"), (1, 2, b"4444")]


@pytest.mark.parametrize("term", [1, 5, 2**40])
def test_records_have_the_term_of_the_metadata(term):
    fs = written(disk(), {0: [oracle.delete("x")]}, metadata=oracle.metadata(term, 7))
    with opened(fs) as store:
        store.put(store.queue(), b"")
        assert store.snapshot()
    assert [record.term for record in segments(fs)[0]] == [1, term]
    assert files(fs)["tflux.metadata"] == oracle.metadata(term, 7), "it is as it was"
    assert struct.unpack_from(">qq", files(fs)["tflux.snapshot"], 4) == (1, term)


# --- settings ---------------------------------------------------------------------------------------


def test_taskflux_settings_are_honoured():
    fs = disk()
    text = b"""\xef\xbb\xbf{
        // limits, as .NET reads them
        "logfilesoftlimit": "100", "LogFileHardLimit": 200, /* and */
        "SnapshotCreationSegmentsThreshold": 3, "Unknown": [1, 2,], "LogLevel": "// no comment",
    }"""
    fs.write_durably(f"{ROOT}/taskflux.settings.json", text)
    with opened(fs) as store:
        settings = store.steps.settings
        assert (settings.soft_limit, settings.hard_limit, settings.snapshot_segments) == (100, 200, 3)
        store.put_many(store.queue(), [bytes(30)] * 4)
    assert list(segments(fs)) == [0, 3]
    with opened(fs, soft_limit=10**6) as store:
        store.put_many(store.queue(), [bytes(30)] * 4)
    assert list(segments(fs))[:2] == [0, 3], "what the caller chose comes first"


@pytest.mark.parametrize("named", ["/elsewhere", "inside"])
def test_the_data_directory_is_where_the_settings_say(named):
    fs = disk()
    fs.write_durably(f"{ROOT}/taskflux.settings.json", b'{"DataDirectory": "%s"}' % named.encode())
    with opened(fs) as store:
        store.put(store.queue(), b"")
    root = "/elsewhere" if named == "/elsewhere" else f"{ROOT}/inside"
    assert fs.size_of(f"{root}/data/tflux.metadata") == 24


@pytest.mark.parametrize(
    "text", [b"[]", b"{", b'{"LogFileSoftLimit": "many"}', b'{"LogFileSoftLimit": -1}', b"\xff"]
)
def test_invalid_settings_are_reported(text):
    fs = disk()
    fs.write_durably(f"{ROOT}/taskflux.settings.json", text)
    with pytest.raises(CorruptionError, match="settings"):
        opened(fs)


# --- segments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 10, 20])
@pytest.mark.parametrize("soft", [16 * 1024 * 1024, 200])
def test_what_is_appended_is_read_back_in_order(count, soft):
    fs = disk()
    with opened(fs, soft_limit=soft) as store:
        for number in range(count):
            store.put(store.queue(), b"message %d" % number, number)
    found = [record.command for records in segments(fs).values() for record in records]
    assert found == [oracle.add("", number, b"message %d" % number) for number in range(count)]
    for _ in range(2):
        with opened(fs, soft_limit=soft) as store:
            assert store.next_lsn == count
            assert len(state(store)[""].records) == count


def test_a_segment_is_left_when_it_is_larger_than_the_soft_limit():
    fs = disk()
    with opened(fs, soft_limit=100, snapshot_segments=99) as store:
        for number in range(7):
            store.put(store.queue(), bytes(10))  # records of 44 bytes
            # 8 + 3 * 44 > 100: not before that, and only when there is more to write.
            assert list(segments(fs)) == [0, 3, 6][: number // 3 + 1]


def test_a_batch_goes_on_in_the_next_segment_at_the_hard_limit():
    fs = disk()
    with opened(fs, soft_limit=90, hard_limit=180, snapshot_segments=99) as store:
        assert store.put_many(store.queue(), [bytes(10)] * 11) == range(1, 12)
        sizes = {base: len(records) for base, records in segments(fs).items()}
        assert sizes == {0: 4, 4: 4, 8: 3}  # 8 + 4 * 44 >= 180
        records = store.get_many(store.queue(), 11)
        store.ack_many(store.queue(), records)
    assert stored(fs)[""] == oracle.Queue(last_id=11)


def test_an_empty_segment_is_never_left():
    fs = disk()
    with opened(fs, soft_limit=0, hard_limit=0, snapshot_segments=99) as store:
        store.put_many(store.queue(), [b"a", b"b"])
    assert [len(records) for records in segments(fs).values()] == [1, 1]


def test_what_is_held_in_memory_is_rolled_too():
    fs = disk()
    with opened(fs, soft_limit=100, hard_limit=120, snapshot_segments=99) as store:
        for _ in range(9):
            store.put(store.queue(), bytes(10), 0, durability="memory")
        store.put_many(store.queue(), [bytes(10)] * 9, 0, durability="memory")
    assert sum(map(len, segments(fs).values())) == 18
    assert all(len(records) <= 4 for records in segments(fs).values())


@pytest.mark.parametrize("soft", [500, 100_000])
def test_zeros_are_written_ahead_and_cut_when_they_are_not_needed(soft):
    fs = disk()
    with opened(fs, preallocate=True, soft_limit=soft, hard_limit=2 * soft, snapshot_segments=99) as store:
        store.put(store.queue(), b"message")
        size = len(fs.read(segment(0)))
        assert soft <= size < 2 * soft
        assert len(segments(fs)[0]) == 1, "what is ahead is no record"
        while store.statistics().segments == 1:
            store.put(store.queue(), bytes(soft // 9))
        assert len(fs.read(segment(0))) < size + soft // 9 + 50
    assert fs.files()[segment(store.next_lsn - 1)].endswith(bytes(4))
    assert len(fs.files()[segment(store.next_lsn - 1)]) < soft // 2


@pytest.mark.parametrize("base", [0, 1, 87654, 100_000])
def test_the_log_goes_on_behind_a_snapshot(base):
    snapshot = oracle.snapshot(base - 1, 1, {"": oracle.Queue(last_id=5)}) if base else b""
    fs = written(disk(), {base: []}, snapshot=snapshot)
    with opened(fs) as store:
        assert store.next_lsn == base
        store.put(store.queue(), b"")
        assert store.next_lsn == base + 1
    assert list(segments(fs)) == [base]


@pytest.mark.parametrize("sealed", [0, 1, 5])
@pytest.mark.parametrize("tail", [0, 1, 4])
@pytest.mark.parametrize("start", [0, 3765])
def test_every_record_of_every_segment_is_read(sealed, tail, start):
    rng = random.Random(sealed)
    logs: dict[int, list[bytes]] = {}
    lsn = start
    for number in range(sealed + 1):
        count = tail if number == sealed else rng.randint(1, 9)
        logs[lsn] = [oracle.add("", lsn + i, b"%d" % (lsn + i)) for i in range(count)]
        lsn += count
    snapshot = oracle.snapshot(start - 1, 1, {"": oracle.Queue()}) if start else b""
    with opened(written(disk(), logs, snapshot=snapshot)) as store:
        assert [key for key, _, _ in drain(store)] == list(range(start, lsn))


@pytest.mark.parametrize(
    "name",
    [
        "+000000000000000001.log",
        " 00000000000000001.log",
        "1.log",
        ".log",
        "metadata",
        "9223372036854775808.log",
        "4611686018427387904.log",
        "000000000000000001.log",
        "00000000000000000001.log",
    ],
)
def test_other_names_in_the_log_are_somebody_elses(name):
    fs = written(disk(), {0: [oracle.add("", 0, b"message")]})
    fs.write_durably(f"{DATA}/log/{name}", b"what")
    with opened(fs) as store:
        assert store.next_lsn == 1
    assert fs.read(f"{DATA}/log/{name}") == b"what"


@pytest.mark.parametrize("lsn", [0, 1, 7654, 10**18, 2**62 - 1, 3333333333332])
def test_a_segment_has_the_number_of_its_first_record(lsn):
    snapshot = oracle.snapshot(lsn - 1, 1, {"": oracle.Queue()}) if lsn else b""
    fs = written(disk(), {lsn: []}, snapshot=snapshot)
    with opened(fs) as store:
        assert store.files.segments() == [lsn]
        assert store.files.segment(lsn) == f"{DATA}/log/{lsn:019d}.log"

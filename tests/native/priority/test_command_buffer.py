# The end of a priority store's log, against the codec and the oracle.

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq._native.core.cancellation import CancellationTest
from diskq._native.core.gate import Gate
from diskq._native.priority.codec import END_MARKER, FILE_HEAD, encode_adds, encode_removes
from diskq._native.priority.command_buffer import AddBatch, CommandBuffer, QueueCalls
from diskq._native.priority.record_table import RecordTable
from diskq.testing import CrashFS, FaultFS
from tests.reference import taskflux_oracle as oracle

KEYS = st.integers(-(2**63), 2**63 - 1)
MESSAGES = st.lists(st.tuples(st.sampled_from(["", "mail", "n" * 255]), st.binary(max_size=60), KEYS))


class Log:
    """A segment, and tables by name."""

    def __init__(self, hard_limit: int = 10**6) -> None:
        self.disk = FaultFS(CrashFS())
        self.handle = self.disk.open("log", write=True, create=True)
        self.disk.pwrite(self.handle, FILE_HEAD + END_MARKER, 0)
        self.zeros: list[int] = []
        self.gate, self.gate_out = Gate(), Gate()
        self.buffer = CommandBuffer(self.disk, self.gate, self.gate_out, self.zeros.append)
        self.buffer.retarget(self.handle, 0, len(FILE_HEAD), 0, self.disk.size(self.handle))
        self.buffer.hard_limit = hard_limit
        self.buffer.full_at = self.buffer.most_bytes = 10**6
        self.buffer.is_noted = True
        self.gate.left = self.gate_out.left = 10
        self.tables: dict[str, RecordTable] = {}

    @property
    def content(self) -> bytes:
        return self.disk.pread(self.handle, 10**6, 0)

    def calls(self, name: str, *, lowest: int = -(2**63), highest: int = 2**63 - 1) -> QueueCalls:
        table = self.tables.setdefault(name, RecordTable(name))
        calls = QueueCalls(self.buffer, name, table, name.encode(), lowest, highest, 100, 60)
        calls.is_open = True
        return calls

    def gathered(self, messages: list[tuple[str, bytes, int]]) -> AddBatch:
        batch = self.buffer.batch = AddBatch(10**6)
        queues = {name: self.calls(name) for name, _, _ in messages}
        for number, (name, payload, key) in enumerate(messages):
            assert queues[name].gather(payload, key, f"task {number}") is batch
        self.buffer.batch = None
        return batch


def commands(log: Log) -> Iterator[bytes]:
    at = len(FILE_HEAD)
    content = log.content
    while content[at : at + 4] != END_MARKER:
        size = int.from_bytes(content[at + 16 : at + 20], "big")
        yield content[at + 20 : at + 20 + size]
        at += 20 + size
    assert at == log.buffer.end


@given(st.lists(st.binary(max_size=40), min_size=1), st.data())
def test_what_is_written_is_what_the_codec_encodes(payloads, data):
    keys = data.draw(st.lists(KEYS, min_size=len(payloads), max_size=len(payloads)))
    log = Log()
    assert log.buffer.write_adds(b"mail", payloads, keys) == len(payloads)
    assert log.buffer.write_removes(b"mail", [1, 2**61]) == 2
    adds, _ = encode_adds(b"mail", payloads, keys)
    removes, _ = encode_removes(b"mail", [1, 2**61])
    assert log.content == FILE_HEAD + adds[: -len(END_MARKER)] + removes
    assert log.buffer.next_offset == log.buffer.passed == len(payloads) + 2
    assert log.buffer.accepted_bytes == log.buffer.end - len(FILE_HEAD)


@given(MESSAGES.filter(bool))
def test_a_batch_is_in_the_log_in_order_and_its_messages_are_hidden(messages):
    log = Log()
    batch = log.gathered(messages)
    assert log.buffer.write_batch(batch) == len(batch) == len(messages)
    assert [each.rstrip(b"\0") for each in commands(log)] == [
        oracle.add(name, key, payload).rstrip(b"\0") for name, payload, key in messages
    ]
    assert batch.tasks == [f"task {number}" for number in range(len(messages))]
    for name, table in log.tables.items():
        own = [number for number, message in enumerate(messages) if message[0] == name]
        assert [batch.id_of(number) for number in own] == [*range(1, len(own) + 1)]
        assert (table.ready, table.hidden) == (0, len(own))
        table.reveal(len(own))
        found = {(record.id, record.priority, record.body) for record in table.take(len(own))}
        assert found == {(batch.id_of(number), messages[number][2], messages[number][1]) for number in own}


@given(MESSAGES.filter(bool), st.integers(8, 2000))
def test_each_write_ends_with_the_record_that_reaches_the_hard_limit(messages, limit):
    log = Log(hard_limit=limit)
    batch = log.gathered(messages)
    done = 0
    while done < len(batch):
        start, done = done, log.buffer.write_batch(batch, done)
        name, payload, _ = messages[done - 1]
        last = 20 + (14 + len(name) + len(payload) + 3 & ~3)
        assert done == len(batch) or log.buffer.end >= limit
        assert done == start + 1 or log.buffer.end - last < limit
    assert len([*commands(log)]) == len(messages)


def test_a_failed_write_leaves_nothing():
    log = Log()
    log.buffer.write_adds(b"", [b"first"], 1)
    batch = log.gathered([("", b"second", 2), ("", b"third", 3)])
    end = log.buffer.end
    log.disk.fail("pwrite", 1)
    with pytest.raises(OSError, match="Input/output error"):
        log.buffer.write_batch(batch)
    assert (log.buffer.end, log.buffer.next_offset, log.buffer.passed) == (end, 1, 1)
    assert (batch.id_of(0), batch.id_of(1), log.tables[""].stored) == (0, 0, 0)
    assert not log.buffer.is_ahead
    assert log.buffer.write_batch(batch) == 2
    assert (batch.id_of(0), batch.id_of(1)) == (1, 2)


def test_zeros_are_asked_for_before_a_write_that_makes_the_file_larger():
    log = Log()
    log.buffer.preallocates = True
    log.buffer.write_adds(b"", [b"payload"], 1)
    assert log.zeros == [log.buffer.end + len(END_MARKER)]
    log.buffer.allocated += 1000
    log.buffer.write_adds(b"", [b"payload"], 1)
    assert len(log.zeros) == 1


@pytest.mark.parametrize(
    "payload, key",
    [
        (bytearray(b"no bytes"), 1),
        (b"no int", True),
        (b"no int", "1"),
        (b"no int", 1.0),
        (b"too large" * 10, 1),
        (b"too small a key", -1),
        (b"too large a key", 10),
        (b"beyond 64 bits", 2**63),
        (b"beyond 64 bits", -(2**64)),
    ],
)
def test_what_needs_checks_is_not_gathered(payload, key):
    log = Log()
    calls = log.calls("", lowest=0, highest=9)
    log.buffer.batch = AddBatch(1000)
    assert calls.gather(payload, key, None) is None
    assert calls.gather(b"simple", 9, None) is log.buffer.batch
    assert len(log.buffer.batch) == 1


def test_nothing_is_gathered_without_a_batch_or_for_a_queue_that_is_shut():
    log = Log()
    calls = log.calls("")
    assert calls.gather(b"payload", 1, None) is None
    log.buffer.batch = AddBatch(1000)
    calls.is_open = False
    assert calls.gather(b"payload", 1, None) is None
    assert not log.buffer.batch.tasks


def test_a_batch_takes_what_it_has_room_for():
    log = Log()
    calls = log.calls("")
    batch = log.buffer.batch = AddBatch(100)
    assert calls.gather(b"." * 60, 1, None) is batch
    assert calls.gather(b"." * 41, 1, None) is None
    assert calls.gather(b"." * 40, 1, None) is batch
    assert calls.gather(b"", 1, None) is batch
    assert (len(batch), batch.room) == (3, 0)


def test_a_batch_knows_its_messages():
    log = Log()
    batch = log.gathered([("", b"one", 1), ("mail", b"two", 2)])
    assert batch.message(1) == ("mail", b"two", 2)
    assert [*batch.tables()] == [log.tables[""], log.tables["mail"]]
    batch.set_id(1, 7)
    assert batch.id_of(1) == 7
    for number in (-1, 2):
        with pytest.raises(IndexError):
            batch.id_of(number)
        with pytest.raises(IndexError):
            batch.message(number)
        with pytest.raises(IndexError):
            batch.set_id(number, 1)


# --- messages one by one ----------------------------------------------------------------------------


@given(MESSAGES)
def test_what_is_put_is_taken_in_order_of_keys_and_settled(messages):
    log = Log()
    log.gate.left = 10**6
    expected = []
    for name, payload, key in messages:
        assert log.calls(name).put(payload, key) == log.tables[name].last_id
        expected.append(oracle.add(name, key, payload))
    for name, table in log.tables.items():
        calls = log.calls(name)
        taken = list(iter(calls.take, None))
        assert table.taken == len(taken) == sum(message[0] == name for message in messages)
        assert [(r.priority, r.id) for r in taken] == sorted((r.priority, r.id) for r in taken)
        for record in taken:
            assert calls.settle(record) is True
            expected.append(oracle.remove(name, record.id))
        assert table.stored == 0
    assert [each.rstrip(b"\0") for each in commands(log)] == [each.rstrip(b"\0") for each in expected]
    assert log.buffer.passed == 10**6 - log.gate.left == 2 * len(messages)


def test_each_write_passes_the_gate_and_what_is_taken_passes_another():
    log = Log()
    log.gate.left, log.gate_out.left = 2, 1
    calls = log.calls("")
    assert [calls.put(b"a", 1), calls.put_now(b"b", 2), calls.put(b"c", 3)] == [1, 2, None]
    records = [calls.take(), calls.take()]
    assert calls.settle(records[0]) is False
    log.gate.left = 1
    assert [calls.settle(record) for record in records] == [True, False]
    assert log.gate_out.left == 1
    log.gate_out.left = 0
    assert calls.take() is None


SHUT = {
    "a batch waits": lambda log, calls: setattr(log.buffer, "batch", AddBatch(10)),
    "the segment is full": lambda log, calls: setattr(log.buffer, "full_at", log.buffer.end - 1),
    "the segment is not noted": lambda log, calls: setattr(log.buffer, "is_noted", False),
    "too much is unsynced": lambda log, calls: setattr(
        log.buffer, "most_bytes", log.buffer.accepted_bytes + 27
    ),
    "there is no segment": lambda log, calls: log.buffer.retarget(-1, 0, 8, 0, 0),
    "a sender waits": lambda log, calls: calls.senders.update(task=1),
    "the queue is deleted": lambda log, calls: setattr(calls, "is_open", False),
}


@pytest.mark.parametrize("shut", SHUT.values(), ids=SHUT)
def test_nothing_is_written_while(shut):
    log = Log()
    calls = log.calls("")
    assert calls.put(b"a", 1) == 1
    record = calls.take()
    assert record is not None
    content = log.content
    shut(log, calls)
    assert calls.put(b"b", 2) is None
    assert calls.settle(record) is False
    assert (log.content, log.tables[""].stored, record.is_settled) == (content, 1, False)


def test_no_message_passes_a_receiver_that_waits():
    log = Log()
    calls = log.calls("")
    assert calls.put(b"a", 1) == 1
    calls.receivers["task"] = 1
    assert calls.put(b"b", 1) is None
    assert calls.take() is None
    del calls.receivers["task"]
    record = calls.take()
    calls.receivers["task"] = 1
    assert calls.settle(record) is True


def test_a_queue_with_a_bound_adds_nothing_and_takes_and_settles():
    log = Log()
    calls = log.calls("")
    assert calls.put(b"a", 1) == 1
    calls.is_bounded = True
    assert calls.put(b"b", 1) is None
    log.buffer.batch = AddBatch(100)
    assert calls.gather(b"b", 1, None) is None
    log.buffer.batch = None
    assert calls.settle(calls.take()) is True


def test_only_what_is_in_hand_is_settled():
    log = Log()
    calls, mail = log.calls(""), log.calls("mail")
    for queue in (calls, mail):
        assert queue.put(b"a", 1) == 1
    (seen,) = log.tables[""].peek(1)
    record = calls.take()
    for odd in (seen, mail.take(), None, b"a", [record]):
        assert calls.settle(odd) is False
    assert calls.settle(record) is True
    assert calls.settle(record) is False


def test_a_message_that_needs_checks_is_not_put():
    log = Log()
    calls = log.calls("", lowest=0, highest=9)
    for payload, key in [
        (bytearray(b"a"), 1),
        (b"a", 1.0),
        (b"a", True),
        (b"a", -1),
        (b"a", 10),
        (b"a", 2**64),
    ]:
        assert calls.put(payload, key) is None
    assert calls.put(b"." * 101, 1) is None
    assert calls.put(b"." * 100, 1) == 1


def test_a_failed_write_leaves_a_message_out_and_another_one_in_hand():
    log = Log()
    calls = log.calls("")
    assert calls.put(b"a", 1) == 1
    record = calls.take()
    end, table = log.buffer.end, log.tables[""]
    log.disk.fail("pwrite", 1)
    log.disk.fail("pwrite", 2)
    with pytest.raises(OSError, match="Input/output error"):
        calls.put(b"b", 1)
    with pytest.raises(OSError, match="Input/output error"):
        calls.settle(record)
    assert (log.buffer.end, log.buffer.passed, table.stored, table.taken) == (end, 1, 1, 1)
    assert calls.settle(record) is True
    assert calls.put(b"b", 1) == 2


class Task:
    """As much of a Trio task as is looked at."""

    def __init__(self, *, is_cancelled: bool) -> None:
        self._cancel_status = self
        self.effectively_cancelled = is_cancelled


def test_the_running_task_is_gathered_unless_it_is_cancelled():
    log = Log()
    calls = log.calls("")
    batch = log.buffer.batch = AddBatch(100)
    assert calls.gather_own(b"a", 1) is None
    context = type("Context", (), {})()
    calls.running = CancellationTest(context)
    context.task = Task(is_cancelled=True)
    assert calls.gather_own(b"a", 1) is None
    context.task = Task(is_cancelled=False)
    assert calls.gather_own(b"a", 1) is batch
    assert batch.tasks == [context.task]

# The end of a priority store's log, against the codec and the oracle.

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq._native.core.gate import Gate
from diskq._native.priority.codec import END_MARKER, FILE_HEAD, encode_adds, encode_removes
from diskq._native.priority.command_buffer import AddBatch, Adder, CommandBuffer
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
        self.buffer = CommandBuffer(self.disk, Gate(), self.zeros.append)
        self.buffer.retarget(self.handle, 0, len(FILE_HEAD), 0, self.disk.size(self.handle))
        self.buffer.hard_limit = hard_limit
        self.tables: dict[str, RecordTable] = {}

    @property
    def content(self) -> bytes:
        return self.disk.pread(self.handle, 10**6, 0)

    def adder(self, name: str, *, lowest: int = -(2**63), highest: int = 2**63 - 1) -> Adder:
        table = self.tables.setdefault(name, RecordTable(name))
        adder = Adder(self.buffer, name, table, name.encode(), lowest, highest, 60)
        adder.is_open = True
        return adder

    def gathered(self, messages: list[tuple[str, bytes, int]]) -> AddBatch:
        batch = self.buffer.batch = AddBatch(10**6)
        adders = {name: self.adder(name) for name, _, _ in messages}
        for number, (name, payload, key) in enumerate(messages):
            assert adders[name].gather(payload, key, f"task {number}") is batch
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
        found = {(record.id, record.priority, record.payload) for record in table.take(len(own))}
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
    adder = log.adder("", lowest=0, highest=9)
    log.buffer.batch = AddBatch(1000)
    assert adder.gather(payload, key, None) is None
    assert adder.gather(b"simple", 9, None) is log.buffer.batch
    assert len(log.buffer.batch) == 1


def test_nothing_is_gathered_without_a_batch_or_for_a_queue_that_is_shut():
    log = Log()
    adder = log.adder("")
    assert adder.gather(b"payload", 1, None) is None
    log.buffer.batch = AddBatch(1000)
    adder.is_open = False
    assert adder.gather(b"payload", 1, None) is None
    assert not log.buffer.batch.tasks


def test_a_batch_takes_what_it_has_room_for():
    log = Log()
    adder = log.adder("")
    batch = log.buffer.batch = AddBatch(100)
    assert adder.gather(b"." * 60, 1, None) is batch
    assert adder.gather(b"." * 41, 1, None) is None
    assert adder.gather(b"." * 40, 1, None) is batch
    assert adder.gather(b"", 1, None) is batch
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

# The entries of the logs. Law: what is encoded is read, by diskq and by `struct` alone; of any other bytes
# both say the same.

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diskq._native.core.append_buffer import WAL_ENTRY, Mode
from diskq._native.core.gate import Admission, Gate
from diskq._native.core.log_entry import decode_parts, encode_entry, entry_size
from diskq._native.queue.append_buffer import NsqBuffer
from diskq._native.queue.codec import NsqFraming
from diskq.storage.log.format import entry_of, head_at
from diskq.testing import CrashFS
from tests.reference import log_oracle

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
PARTS = st.lists(st.tuples(U32, U32, I64, I64, st.binary(max_size=50)), max_size=4)


def read(data: bytes, number: int, at: int = 0) -> log_oracle.Entry | None:
    """What diskq finds there, in the words of the other reader."""
    head = head_at(number, data, at)
    entry = None if head is None else entry_of(head, data, at)
    if head is None or entry is None:
        return None
    return log_oracle.Entry(head.size, number, entry.sequence, head.floor, list(entry.parts))


@given(U64, U64, U64, PARTS)
def test_what_is_encoded_is_read_by_diskq_and_by_struct_alone(
    number: int, sequence: int, floor: int, parts: list[log_oracle.Part]
) -> None:
    entry = encode_entry(number, sequence, floor, parts)
    assert len(entry) == entry_size(parts)
    assert len(entry) % 8 == 0
    wanted = log_oracle.Entry(len(entry), number, sequence, floor, parts)
    assert log_oracle.entry_at(entry) == wanted
    assert read(entry, number) == wanted
    assert read(b"before " + entry + b"after", number, 7) == wanted


@given(PARTS, st.integers(0, 300), st.integers(1, 255))
@example([(0, 0, 0, 8, b"message")], 3, 0x40)
def test_of_a_damaged_or_cut_entry_nothing_is_read(parts: list[log_oracle.Part], at: int, mask: int) -> None:
    entry = encode_entry(7, 1, 1, parts)
    at %= len(entry)
    for damaged in (entry[:at], entry[:at] + bytes([entry[at] ^ mask]) + entry[at + 1 :]):
        assert log_oracle.entry_at(damaged) is None
        assert read(damaged, 7) is None


@given(st.binary(max_size=200))
@example(bytes(24) + b"\xff\xff\xff\xff" + b"all the rest of it, and more of it")
def test_of_any_content_both_readers_say_the_same(content: bytes) -> None:
    assert decode_parts(content) == log_oracle.parts(content)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_log_in_memory_has_one_entry_that_grows(count: int) -> None:
    memory = bytearray(1 << 16)
    fs = CrashFS()
    handle = fs.open("/data", write=True, create=True)
    gate = Gate()
    buffer = NsqBuffer(fs, NsqFraming(0, 1000), gate, lambda *_: None)
    buffer.retarget(handle, 0, 1 << 20)
    gate.left = 1000
    buffer.attach_wal(memory, 77)
    bodies = [b"message %d" % number for number in range(count)]
    stage = buffer.appender(Mode.STAGED, Admission.FORCED).append
    for sequence in (1, 2):
        position = buffer.end
        records = b""
        for body in bodies:
            assert stage(body)
            records += len(body).to_bytes(4, "big") + body
            wanted = log_oracle.Entry(
                72 + len(records), 77, sequence, sequence, [(0, 0, 0, position, records)]
            )
            assert log_oracle.entry_at(bytes(memory), WAL_ENTRY) == wanted
            assert read(bytes(memory), 77, WAL_ENTRY) == wanted
        buffer.flush()
        assert log_oracle.entry_at(bytes(memory), WAL_ENTRY) is None
    buffer.detach_wal()

# The compiled path of a journal. Law: messages come out as they went in, in order, once; a record with
# another offset than the next one is not delivered; records whose write fails are not accepted.

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from crc32c import crc32c

from diskq._native.core.append_buffer import BLOCK_SIZE, Mode
from diskq._native.core.gate import Admission, Gate
from diskq._native.core.message import NULL_TIMESTAMP, JournalMessage
from diskq._native.journal.append_buffer import SejBuffer
from diskq._native.journal.codec import SejFraming, encode
from diskq._native.journal.read_ahead import SejAhead
from tests.engine.ram import RamFS
from tests.reference import sej_oracle as oracle
from tests.reference.sej_oracle import Item

PATH = "/j/jnl/0.jnl"
NOW = 1_700_000_000_000_000_000
ITEMS: list[Item] = [(b"k%d" % n, n - 3, n, b"value" * (n % 4)) for n in range(10)]


def opened_gate() -> Gate:
    gate = Gate()
    gate.left = 10**9
    return gate


def messages(items: Iterable[Item], first: int = 0) -> list[JournalMessage]:
    return [
        JournalMessage(7, offset, time, kind, key, value)
        for offset, (key, time, kind, value) in enumerate(items, first)
    ]


# --- out --------------------------------------------------------------------------------------


def loaded(data: bytes, first: int = 0) -> SejAhead:
    fs = RamFS({PATH: data})
    ahead = SejAhead(fs, SejFraming(), opened_gate())
    ahead.partition = 7
    ahead.next_offset = first
    ahead.load(fs.open(PATH), 0, len(data))
    return ahead


def test_messages_have_their_position():
    data = encode(ITEMS, 2**40)
    ahead = loaded(data, 2**40)
    assert ahead.take() is None, "nothing is admitted"
    ahead.admit(0, len(data))
    assert ahead.peek() == messages(ITEMS[:1], 2**40)[0]
    assert [ahead.take(), ahead.take_now()] == messages(ITEMS[:2], 2**40)
    assert ahead.take_many(3, 10**6) == messages(ITEMS[2:5], 2**40 + 2)
    assert ahead.take_some(10, 10**6) == messages(ITEMS[5:], 2**40 + 5)
    assert (ahead.take(), ahead.next_offset, ahead.records) == (None, 2**40 + 10, 10)


@pytest.mark.parametrize("said", [4, 6])
def test_another_offset_is_corrupt(said):
    data = encode(ITEMS[:2], 3) + encode(ITEMS[2:], said)
    ahead = loaded(data, 3)
    ahead.admit(0, len(data))
    assert ahead.take_many(10, 10**6) == messages(ITEMS[:2], 3)
    assert (ahead.take_now(), ahead.why) == (None, "CORRUPT")
    assert ahead.take_columns(10, 10**6) is None
    assert ahead.next_offset == 5


def test_columns_are_of_what_comes_next():
    data = encode(ITEMS, 3)
    ahead = loaded(data, 3)
    ahead.admit(0, len(data))
    first = ahead.take_columns(4, 10**6)
    assert first is not None
    assert (first.first_offset, first.records, ahead.next_offset) == (3, 4, 7)
    one = ahead.take_columns(10, 1)
    assert one is not None
    assert (one.first_offset, one.records) == (7, 1)
    rest = ahead.take_columns(10, 10**6)
    assert rest is not None
    assert (rest.first_offset, rest.records) == (8, 5)
    assert ahead.take_columns(10, 10**6) is None
    assert ahead.why == "END"


def test_it_skips_to_an_offset_and_to_a_moment():
    items: list[Item] = [(b"", time, 0, b"") for time in (5, NULL_TIMESTAMP, 3, 9, 7)]
    data = encode(items)
    ahead = loaded(data)
    ahead.admit(0, len(data))
    assert ahead.skip_earlier(6) == 5
    assert ahead.next_offset == 3
    assert ahead.skip_to(4) == 4
    assert ahead.skip_earlier(NULL_TIMESTAMP) == NULL_TIMESTAMP
    assert ahead.next_offset == 4
    ahead.admit(0, len(data))
    assert ahead.count() == 5


# --- in ---------------------------------------------------------------------------------------


class FullDisk(RamFS):
    """Takes a given number of further bytes, and then none."""

    room = 10**9

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "full")
        taken = min(self.room, len(data))
        self.room -= taken
        return super().pwrite(handle, data[:taken], offset)


class Rig:
    def __init__(self, limit: int = 10**9, first: int = 0) -> None:
        self.fs = FullDisk({PATH: b""})
        self.blocks: list[tuple[int, int, int]] = []
        self.full = 0
        self.buffer = SejBuffer(self.fs, SejFraming(0, 10**6), opened_gate(), self._on_block)
        self.buffer.count_from(first, lambda: NOW, self._on_full)
        self.buffer.retarget(self.fs.open(PATH), 0, 0)
        self.buffer.limit = limit
        self.write = self.appender(Mode.WRITTEN, Admission.FORCED)

    def appender(self, mode: Mode, admission: Admission) -> Callable[..., int | None]:
        return self.buffer.appender(mode, admission).append

    def _on_block(self, end: int, size: int, records: int, crc: int) -> None:
        assert crc == crc32c(self.fs.read(PATH)[end - size : end])
        self.blocks.append((end, size, records))

    def _on_full(self) -> None:
        self.full += 1

    @property
    def written(self) -> list[oracle.Message]:
        found, end, _ = oracle.records(self.fs.read(PATH))
        assert end == self.buffer.flushed
        return found


def expected(items: Iterable[Item], first: int = 0) -> list[oracle.Message]:
    return oracle.records(oracle.encoded(items, first))[0]


def test_each_message_gets_the_next_offset():
    rig = Rig(first=5)
    assert [rig.write(v, k, t, kind) for k, t, kind, v in ITEMS] == list(range(5, 15))
    assert rig.written == expected(ITEMS, 5)
    assert (rig.buffer.next_offset, rig.buffer.written_offset) == (15, 15)
    assert rig.buffer.accepted_bytes == len(oracle.encoded(ITEMS))


def test_a_missing_time_is_now_and_a_missing_key_is_empty():
    rig = Rig()
    assert rig.write(b"value", "schlüssel") == 0
    assert rig.buffer.append_many([b"bare", (None, b"keyless"), (b"k", b"v", None, 3)], 0, Mode.STAGED) == 3
    assert rig.written == expected(
        [
            ("schlüssel".encode(), NOW, 0, b"value"),
            (b"", NOW, 0, b"bare"),
            (b"", NOW, 0, b"keyless"),
            (b"k", NOW, 3, b"v"),
        ]
    )


def test_the_fast_path_accepts_only_after_others_and_while_space_is_left():
    rig = Rig()
    timed, counted = (rig.appender(Mode.STAGED, each) for each in (Admission.TIMED, Admission.COUNTED))
    assert timed(b"first") is None, "no task would write it"
    rig.buffer.is_awake = True
    assert counted(b"first") is None, "no room"
    rig.buffer.room = 8
    assert timed(b"first") == 0
    assert rig.appender(Mode.WRITTEN, Admission.COUNTED)(b"second") is None
    assert (rig.buffer.is_flushed, rig.buffer.next_offset) == (True, 1)


@pytest.mark.parametrize("is_awake", [True, False])
def test_staged_records_are_written_if_the_loop_is_not_awake(is_awake):
    rig = Rig()
    rig.buffer.attach_wal(bytearray(1 << 16), 1)
    rig.buffer.is_awake = is_awake
    assert rig.appender(Mode.STAGED, Admission.FORCED)(b"one") == 0
    assert rig.buffer.append_many([b"two", b"three"], 0, Mode.STAGED) == 2
    assert rig.buffer.is_flushed != is_awake
    assert rig.buffer.append_many([b"four"], 0, Mode.WRITTEN) == 1
    assert rig.buffer.is_flushed
    assert rig.appender(Mode.HELD, Admission.FORCED)(b"five") == 4
    assert rig.buffer.append_many([b"six"], 0, Mode.HELD) == 1
    assert (rig.buffer.written_offset, rig.buffer.next_offset) == (4, 6)


@pytest.mark.parametrize(
    "odd",
    [
        (b"k" * 128, b""),
        (b"", "text"),
        "text",
        (1, b""),
        ("\ud800", b""),
        (b"", b"", "now"),
        (b"", b"", 2**63),
        (b"", b"", True),
        (b"", b"", None, 256),
        (b"", b"", None, -1),
        (b"", b"", None, "3"),
        (b"", b"", 1, 2, 3),
        bytearray(b"x"),
        b"x" * (10**6 + 1),
    ],
    ids=lambda odd: repr(odd)[:30],
)
def test_items_that_need_checking_are_not_taken(odd: Any):
    rig = Rig()
    assert rig.buffer.first_odd([b"fine", (b"k", b"v"), odd]) == 2
    assert rig.buffer.first_odd([odd, b"fine"], 1) == -1
    with pytest.raises(TypeError):
        rig.buffer.append_many([b"fine", odd], 0, Mode.STAGED)
    assert (rig.buffer.next_offset, rig.fs.read(PATH)) == (0, b"")


def test_the_record_that_fills_a_file_is_its_last():
    rig = Rig(limit=60)
    assert rig.buffer.append_many([b"x" * 10] * 5, 0, Mode.STAGED) == 2
    assert (rig.full, rig.buffer.is_full, rig.buffer.flushed) == (1, True, 72)
    assert rig.write(b"one more") is None
    assert rig.buffer.append_many([b"more"], 0, Mode.STAGED) == 0
    assert rig.buffer.append_encoded(encode([(b"", 0, 0, b"")], 2)) == 0


def test_encoded_records_are_taken_as_they_are():
    rig = Rig(first=3)
    data = encode(ITEMS, 3)
    assert rig.buffer.append_encoded(data) == len(data)
    assert not rig.buffer.is_flushed
    rig.buffer.flush()
    assert rig.fs.read(PATH) == data


@pytest.mark.parametrize(
    "data, why",
    [
        (encode(ITEMS, 3)[:-1], "no whole record"),
        (encode(ITEMS, 3) + b"\0" * 40, "no whole record"),
        (encode(ITEMS, 4), "message 4 at byte 0"),
        (encode(ITEMS[:2], 3) + encode(ITEMS[2:], 4), "the next one is 5"),
    ],
    ids=["torn", "corrupt", "a gap", "repeated"],
)
def test_encoded_bytes_with_another_offset_are_not_taken(data, why):
    rig = Rig(first=3)
    with pytest.raises(ValueError, match=why):
        rig.buffer.append_encoded(data)
    assert (rig.buffer.next_offset, rig.buffer.accepted_bytes, rig.buffer.is_flushed) == (3, 0, True)


def test_blocks_end_at_records():
    rig = Rig()
    rig.buffer.append_many([b"x" * 1000] * 50, 0, Mode.STAGED)
    assert all(BLOCK_SIZE <= size < BLOCK_SIZE + 1026 and size % 1026 == 0 for _, size, _ in rig.blocks)
    assert sum(records for _, _, records in rig.blocks) == rig.blocks[-1][0] // 1026


@pytest.mark.parametrize("is_batch", [True, False])
def test_records_whose_write_fails_are_not_accepted(is_batch):
    rig = Rig()
    rig.write(b"before")
    rig.fs.room = 5
    with pytest.raises(OSError, match="full"):
        rig.buffer.append_many([b"after"] * 3, 0, Mode.STAGED) if is_batch else rig.write(b"after")
    assert (rig.buffer.next_offset, rig.buffer.accepted_bytes) == (1, 32)
    rig.fs.room = 10**9
    assert rig.write(b"again") == 1
    assert [message.value for message in rig.written] == [b"before", b"again"]

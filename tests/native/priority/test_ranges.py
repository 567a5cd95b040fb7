# Calls with a range that is not one. Law: they raise before memory is touched. No public call can make one,
# but a mistake of ours must not write anywhere.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from diskq._native.core.gate import Gate
from diskq._native.priority import codec
from diskq._native.priority.audit import CommandTally
from diskq._native.priority.command_buffer import CommandBuffer
from diskq._native.priority.record_table import RecordTable
from diskq._native.priority.state_codec import decode_queue_head
from diskq.testing import CrashFS


def buffer() -> CommandBuffer:
    return CommandBuffer(CrashFS(), Gate(), Gate(), lambda at: None)


FAR = -(2**62)
CALLS: dict[str, Callable[[], object]] = {
    "has_record": lambda: codec.has_record(b"x" * 100, FAR),
    "has_record, just before": lambda: codec.has_record(b"x" * 100, -1),
    "encode_adds": lambda: codec.encode_adds(b"q", [b"x"], 0, FAR),
    "encode_adds, after the end": lambda: codec.encode_adds(b"q", [b"x"], 0, 2),
    "encode_removes": lambda: codec.encode_removes(b"q", [1], FAR),
    "encode_removes, after the end": lambda: codec.encode_removes(b"q", [1], 2),
    "decode_queue_head": lambda: decode_queue_head(b"x" * 100, FAR),
    "add": lambda: RecordTable("q").add([b"x"], 0, FAR, 1),
    "add, after the end": lambda: RecordTable("q").add([b"x"], 0, 0, 2),
    "unclaim": lambda: RecordTable("q").unclaim([], FAR, 0),
    "unclaim, after the end": lambda: RecordTable("q").unclaim([], 1, 24),
    "forget": lambda: RecordTable("q").forget([], FAR, 0),
    "load": lambda: RecordTable("q").load(b"x" * 100, FAR, 1),
    "write_adds": lambda: buffer().write_adds(b"q", [b"x"], 0, FAR),
    "write_removes": lambda: buffer().write_removes(b"q", [1], FAR),
    "write_removes, after the end": lambda: buffer().write_removes(b"q", [1], 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_range_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"range of|0 or more|start is 0 to"):
        CALLS[name]()


RECORDS = codec.encode_adds(b"q", [b"x", b"y", b"z"], 0)[0]
HALF = memoryview(RECORDS)[: len(RECORDS) // 2]
"""One record and a part of the second one, in memory that has the others after it."""


@pytest.mark.parametrize("name, number", [("rest", FAR), ("rest", 1), ("skip", FAR), ("skip", -1)])
def test_a_scan_and_a_tally_of_any_range_stay_in_their_bytes(name: str, number: int) -> None:
    for buffer, count in ((RECORDS, 3), (HALF, 1)):
        tally = CommandTally({})
        how: Any = {name: number}
        scanned, tallied = codec.scan(buffer, **how), tally.add(buffer, **how)
        assert (len(scanned.commands), scanned.records) == (tally.stored, tallied.records) == (count, count)
        assert scanned.end == tallied.end <= len(buffer)


@pytest.mark.parametrize("far", [10**6, -FAR])
def test_a_scan_and_a_tally_end_where_their_bytes_do_however_far_they_are_sent(far: int) -> None:
    tally = CommandTally({})
    assert codec.scan(HALF, rest=far)[1:4] == tally.add(HALF, rest=far)[:3] == (1, 36, "MORE")
    assert (codec.scan(HALF, skip=far).commands, codec.scan(HALF, most=far).records) == ([], 1)
    assert tally.add(HALF, skip=far).records == tally.stored == 1
    assert codec.scan(HALF, most=FAR).records == 1


def test_an_object_that_is_no_record_is_not_written_to() -> None:
    with pytest.raises(TypeError, match="PriorityRecord"):
        RecordTable("q").unclaim([object()], 0, 1)  # type: ignore[list-item]

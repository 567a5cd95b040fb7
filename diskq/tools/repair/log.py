# Repairs a log: the part that partitions of streams and journals share. Law: a message keeps its offset, and
# an offset is given once. Where a damaged stretch is left out, a segment ends before it, and another one
# begins after it, named by its first message; what was in between is noted as gone.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from diskq.storage.block_reader import BlockReader, Loss
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.repairs import Repair
from diskq.storage.swap import Swap
from diskq.tools.gaps import Gap
from diskq.tools.repair.rewriting import RecordRange, between

__all__ = ["FoundMessages", "MessageRun", "as_repairs", "gaps_between", "left_out", "read_segment"]


@dataclass(slots=True)
class MessageRun:
    """Consecutive messages first:end of a segment, and where their records are."""

    first: int
    end: int
    pieces: list[RecordRange]


@dataclass(slots=True)
class FoundMessages:
    """What a reader delivers of a segment, and what it skips."""

    base: int
    size: int
    """The size of its data, bytes."""
    runs: list[MessageRun] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """True if the segment is one run, with nothing else."""
        if self.losses or len(self.runs) != 1:
            return not (self.losses or self.runs or self.size)
        return self.runs[0].first == self.base and self.runs[0].pieces == [RecordRange(0, self.size)]


class _Reader(Protocol):
    base: int
    blocks: BlockReader

    @property
    def size(self) -> int: ...

    def read_on(self, end: int, known_end: int | None = None) -> Loss | None: ...


def read_segment(reader: _Reader, ahead: Any, known_end: int | None) -> FoundMessages:
    """Read a segment from its beginning. `known_end`: the offset after it, or None if that is not known."""
    found = FoundMessages(reader.base, reader.size)
    bound = UNBOUNDED if known_end is None else known_end
    while _fill(reader, ahead, found, known_end) and ahead.next_offset < bound:
        start, first = ahead.position, ahead.next_offset
        if ahead.skip_to(bound) == first:
            ahead.take_now()  # measures one that is not whole
        if ahead.next_offset > first:
            _add(found.runs, first, ahead.next_offset, RecordRange(start, ahead.position))
    if known_end is not None and (loss := reader.blocks.missing(found.size)) is not None:
        found.losses.append(loss)
    return found


def _fill(reader: _Reader, ahead: Any, found: FoundMessages, known_end: int | None) -> bool:
    while not ahead.is_ready or ahead.why != "END":
        if (loss := reader.read_on(found.size, known_end)) is not None:
            if loss.start < found.size:
                found.losses.append(loss)  # else it is a gap, which `gaps_between` returns
        elif not ahead.is_ready:
            return False
    return True


def _add(runs: list[MessageRun], first: int, end: int, piece: RecordRange) -> None:
    if not runs or runs[-1].end != first:
        runs.append(MessageRun(first, end, [piece]))
        return
    run = runs[-1]
    run.end = end
    if run.pieces[-1].end == piece.start:
        run.pieces[-1] = RecordRange(run.pieces[-1].start, piece.end)
    else:
        run.pieces.append(piece)


def gaps_between(partition: int, founds: Iterable[FoundMessages], next_offset: int) -> list[Gap]:
    """Return the offsets that no message has, up to `next_offset`."""
    gaps, expected = [], None
    for found in founds:
        expected = found.base if expected is None else expected
        for run in found.runs:
            if run.first > expected:
                gaps.append(Gap(partition, expected, run.first))
            expected = run.end
    if expected is not None and expected < next_offset:
        gaps.append(Gap(partition, expected, next_offset))
    return gaps


def left_out(swap: Swap, path: str, beside: str, found: FoundMessages) -> dict[RecordRange, str]:
    """Keep the bytes of a segment's data that no run has next to `beside`. Returns each one's file."""
    pieces = [piece for run in found.runs for piece in run.pieces]
    rest = between(pieces, 0, found.size)
    return {piece: swap.keep(path, beside, *piece) for piece in rest}


def as_repairs(path: str, losses: Iterable[Loss], asides: Mapping[RecordRange, str]) -> list[Repair]:
    """Return the losses as repairs."""
    return [
        loss.as_repair(
            path, next((to for piece, to in asides.items() if piece.start <= loss.start < piece.end), None)
        )
        for loss in losses
    ]

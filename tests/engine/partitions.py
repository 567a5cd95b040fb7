# The words of the partition reader's tests: segments as anybody may have left them, byte for byte.

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from diskq._native.core.append_buffer import BLOCK_SIZE
from diskq._native.core.message import Message
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.partition_reader import LiveEnd, PartitionReader
from diskq.storage.checksums import Row, checksum, pack_row
from diskq.storage.fs import FileSystem
from tests.engine.ram import RamFS
from tests.engine.streams import ROOT, Triple, data, index, sums, timeindex
from tests.reference import triplet_oracle as oracle

__all__ = ["Laid", "Peer", "laid", "lay", "messages", "read", "reader", "rest"]


def reader(fs: FileSystem, *, varuint: bool = False, live: LiveEnd | None = None) -> PartitionReader:
    return PartitionReader(fs, StreamFiles(fs, ROOT).partition(0), varuint=varuint, live=live)


def rest(of: PartitionReader) -> list[Message]:
    """All messages that are there, one by one."""
    return list(iter(of.read, None))


def read(fs: FileSystem, *, varuint: bool = False) -> tuple[list[Message], list[tuple[int, int]]]:
    """All messages from the oldest on, and what is told to be lost: of each loss the first, and how many."""
    with reader(fs, varuint=varuint) as its:
        its.seek_oldest()
        found = rest(its)
    return found, [(gap.offset, gap.count) for gap in its.losses if gap.count]


def messages(triples: Iterable[Triple], first: int = 0) -> list[Message]:
    return [Message(0, offset, time, key, value) for offset, (key, time, value) in enumerate(triples, first)]


# --- segments at rest -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Laid:
    """A partition on a disk, and what lies where in its data files."""

    fs: RamFS
    triples: list[Triple]
    bases: list[int]
    varuint: bool
    blocks: dict[int, list[tuple[int, int]]]
    """Of each segment its blocks with checksums: start and end."""

    @property
    def messages(self) -> list[Message]:
        return messages(self.triples)

    def records(self, base: int) -> list[tuple[int, int, int]]:
        """Of each message of a segment: its offset, and where its record begins and ends."""
        found, end = [], 0
        for offset in range(base, self.end_of(base)):
            start, end = end, end + len(oracle.record(*self.triples[offset], varuint=self.varuint))
            found.append((offset, start, end))
        return found

    def end_of(self, base: int) -> int:
        return min((later for later in self.bases if later > base), default=len(self.triples))


def lay(
    triples: Sequence[Triple],
    sizes: Iterable[int],
    *,
    with_checksums: bool = True,
    block_size: int = BLOCK_SIZE,
    varuint: bool = False,
    is_sealed: bool = True,
) -> Laid:
    """These messages in segments of so many each; the last segment is the one that is written to."""
    files: dict[str, bytes] = {}
    blocks: dict[int, list[tuple[int, int]]] = {}
    bases = list(itertools.accumulate(sizes, initial=0))
    assert bases.pop() == len(triples)
    for base, end in itertools.pairwise([*bases, len(triples)]):
        content = oracle.segment(triples[base:end], base, varuint=varuint)
        files[data(base)] = content["data"]
        files[index(base)] = content["index"]
        files[timeindex(base)] = content["timeindex"]
        rows = _rows(triples[base:end], content["data"], block_size, varuint)
        blocks[base] = [(row.start, row.end) for row in rows] if with_checksums else []
        if with_checksums:
            seal = [Row(rows[-1].end, rows[-1].end, 0, 0)] if base != bases[-1] and is_sealed else []
            files[sums(base)] = b"".join(map(pack_row, [*rows, *seal])) + bytes(0 if seal else 1024)
    return Laid(RamFS(files), list(triples), bases, varuint, blocks)


def _rows(triples: Iterable[Triple], content: bytes, block_size: int, varuint: bool) -> list[Row]:
    rows = []
    start = end = records = 0
    for triple in triples:
        end += len(oracle.record(*triple, varuint=varuint))
        records += 1
        if end - start >= block_size or end == len(content):
            rows.append(Row(start, end, records, checksum(content[start:end])))
            start, records = end, 0
    return rows


def laid(count: int, per_segment: int, length: int = 30, **how: bool | int) -> Laid:
    """Messages of some length, no two alike, in segments of so many."""
    triples = [
        (b"k%d" % (n % 7), 10**18 + n, b"%06d" % n + bytes([n % 251]) * (length + n % 5))
        for n in range(count)
    ]
    sizes = [per_segment] * (count // per_segment)
    if count % per_segment:
        sizes.append(count % per_segment)
    return lay(triples, sizes, **how)  # type: ignore[arg-type]


# --- a producer at work, one write(2) after the other ---------------------------------------------


@dataclass
class Peer:
    """go-diskq's producer: what it writes, in its order, a step at a time; each tells the path."""

    fs: RamFS
    segment_size: int
    varuint: bool = False
    offset: int = 0
    base: int = 0
    end: int = 0
    pushed: list[Triple] = field(default_factory=list)

    def begin(self) -> Iterator[str]:
        for path in (data(self.base), index(self.base), timeindex(self.base)):
            self.fs.now[path] = bytearray()
            yield path

    def push(self, triple: Triple) -> Iterator[str]:
        """The steps of one Push; after the last one it has returned."""
        record = oracle.record(*triple, varuint=self.varuint)
        self.fs.now[timeindex(self.base)] += oracle.timeindex_row(self.offset, triple[1])
        yield timeindex(self.base)
        self.fs.now[data(self.base)] += record
        yield data(self.base)
        self.fs.now[index(self.base)] += oracle.index_row(self.offset, self.end, len(record))
        self.pushed.append(triple)
        self.offset += 1
        self.end += len(record)
        yield index(self.base)
        if self.end >= self.segment_size:
            self.base, self.end = self.offset, 0
            yield from self.begin()

    def reopen(self) -> None:
        """As after a crash: go on behind whatever is there."""
        self.base = max(
            int(path.split("/")[-1].split(".")[0]) for path in self.fs.now if path.endswith(".data")
        )
        self.offset = self.base + len(self.fs.now[index(self.base)]) // 24
        self.end = len(self.fs.now[data(self.base)])

    def push_all(self, triples: Iterable[Triple]) -> None:
        for triple in triples:
            for _ in self.push(triple):
                pass

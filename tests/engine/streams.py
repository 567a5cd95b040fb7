# The words of the stream engine's tests: streams on a disk in memory, and what lies in their files,
# as the oracle reads them.

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from diskq.engine.stream.files import PartitionFiles, StreamFiles
from diskq.engine.stream.stream import Stream
from diskq.options import StreamOptions
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS, FaultFS
from tests.engine.ram import RamFS
from tests.reference import triplet_oracle as oracle
from tests.reference.triplet_oracle import Message

ROOT = "/s"
SUFFIXES = ("data", "index", "timeindex")

Disk = CrashFS | RamFS

# What a test says of a message: its key, its timestamp in nanoseconds, its value.
Triple = tuple[bytes, int, bytes]


def disk() -> CrashFS:
    """A disk in memory, on which there is no stream yet."""
    return CrashFS()


def failing_disk() -> FaultFS[CrashFS]:
    """The same, which fails where it is told to."""
    return FaultFS(disk())


def opened(fs: FileSystem, *, take_over: bool = False, **options: Any) -> Stream:
    return Stream(ROOT, options=StreamOptions(**options), fs=fs, take_over=take_over)


def part(partition: int = 0) -> PartitionFiles:
    """Where its files are."""
    return StreamFiles(CrashFS(), ROOT).partition(partition)


def data(base: int = 0, partition: int = 0) -> str:
    return part(partition).data(base)


def index(base: int = 0, partition: int = 0) -> str:
    return part(partition).index_of(base)


def timeindex(base: int = 0, partition: int = 0) -> str:
    return part(partition).timeindex(base)


def sums(base: int = 0, partition: int = 0) -> str:
    return part(partition).checksum_file(base)


POINTS = f"{ROOT}/.diskq/state"
OWNER = f"{ROOT}/owner"
SETTINGS = f"{ROOT}/settings.json"
LOCK = f"{ROOT}/.diskq/stream.lock"


def triple(number: int, length: int = 30, keys: int = 3) -> Triple:
    """Message `number`: it tells which one it is, and fills its length with it."""
    key = b"key-%d" % (number * 7 % keys)
    return key, 1_700_000_000_000_000_000 + number, (b"%06d|" % number * (length // 7 + 1))[:length]


def triples(count: int, length: int = 30, start: int = 0, keys: int = 3) -> list[Triple]:
    return [triple(number, length, keys) for number in range(start, start + count)]


def items(of: Iterable[Triple]) -> list[tuple[bytes, bytes, int]]:
    """As `append_many` takes them."""
    return [(key, value, timestamp) for key, timestamp, value in of]


def parted(of: Iterable[Triple], count: int) -> dict[int, list[Triple]]:
    """The partition that each belongs to, by the oracle."""
    found: dict[int, list[Triple]] = {partition: [] for partition in range(count)}
    for one in of:
        found[oracle.fnv1(one[0]) % count].append(one)
    return found


# --- what lies in the files -----------------------------------------------------------------------


def segments(files: Mapping[str, bytes], partition: int) -> dict[int, dict[str, bytes]]:
    """The files of a partition, by base offset and suffix; whatever is there must be one of them."""
    found: dict[int, dict[str, bytes]] = {}
    directory = f"{ROOT}/parts/{partition:06}/"
    for path, content in files.items():
        if path.startswith(directory):
            base, suffix = path.removeprefix(directory).split(".")
            assert len(base) == 20, path
            assert suffix in SUFFIXES, path
            found.setdefault(int(base), {})[suffix] = content
    return dict(sorted(found.items()))


def partitions(files: Iterable[str]) -> list[int]:
    return sorted({int(path.split("/")[3]) for path in files if path.startswith(f"{ROOT}/parts/0")})


def stored(
    fs: Disk, *, varuint: bool = False, may_trail: bool = False, may_skip: bool = False
) -> dict[int, list[Message]]:
    """Every message of every partition. Its segments follow each other, and their files agree.

    With `may_trail` rows of the last records may be missing, or the last of them torn; with `may_skip` a
    segment may begin behind offsets of messages that are lost.
    """
    files = fs.files()
    found: dict[int, list[Message]] = {}
    for partition in partitions(files):
        messages = found[partition] = []
        for base, segment in segments(files, partition).items():
            expected_base = messages[-1].offset + 1 if messages else base
            assert base == expected_base or (may_skip and base > expected_base), f"not the next: {base}"
            read, end, stop = oracle.records(segment["data"], varuint=varuint)
            assert stop == "END", f"{partition}/{base}.data: {stop} at byte {end}"
            expected = oracle.segment(read, base, varuint=varuint)
            for suffix in SUFFIXES:
                is_as_expected = segment.get(suffix) == expected[suffix]
                if may_trail:
                    is_as_expected = expected[suffix].startswith(segment.get(suffix, b""))
                assert is_as_expected, f"{partition}/{base}.{suffix}"
            messages += itertools.starmap(
                Message, ((partition, offset, t, k, v) for offset, (k, t, v) in enumerate(read, base))
            )
    return found


def as_triples(messages: Iterable[Message]) -> list[Triple]:
    return [(message.key, message.timestamp, message.value) for message in messages]


def held(fs: Disk, **how: bool) -> dict[int, list[Triple]]:
    """As `stored`, each message without its place."""
    return {partition: as_triples(messages) for partition, messages in stored(fs, **how).items()}


# --- damage ---------------------------------------------------------------------------------------


def flip(fs: Disk, path: str, at: int, mask: int = 0xFF) -> None:
    """Let one byte of a file rot."""
    content = bytearray(fs.read(path))
    content[at] ^= mask
    fs.write_durably(path, bytes(content))


def truncate(fs: Disk, path: str, size: int) -> None:
    fs.write_durably(path, fs.read(path)[:size])


def listed(fs: FileSystem, directory: str = ROOT) -> list[str]:
    return sorted(fs.list_directory(directory))


def asides(fs: Disk) -> dict[str, bytes]:
    """What repairs kept, by its path."""
    return {path: content for path, content in fs.files().items() if ".bad" in path.rsplit("/", 1)[1]}

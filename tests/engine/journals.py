# The words of the journal engine's tests: journals on a disk in memory, and what lies in their files, as
# the oracle reads them.

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader import JournalReader
from diskq.messages import JournalMessage
from diskq.options import JournalOptions
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS, FaultFS
from tests.engine.ram import RamFS
from tests.reference import sej_oracle as oracle
from tests.reference.sej_oracle import Item, Message

ROOT = "/j"
LOCK = f"{ROOT}/jnl.lck"
POINTS = f"{ROOT}/.diskq/state"

Disk = CrashFS | RamFS


def disk() -> CrashFS:
    """A disk in memory, on which there is no journal yet."""
    return CrashFS()


def failing_disk() -> FaultFS[CrashFS]:
    """The same, which fails where it is told to."""
    return FaultFS(disk())


def opened(fs: FileSystem, **options: Any) -> Journal:
    return Journal(ROOT, options=JournalOptions(**options), fs=fs)


def reader(fs: FileSystem, offset: int = 0) -> JournalReader:
    found = JournalReader(ROOT, fs=fs)
    found.seek(offset)
    return found


def data(base: int = 0) -> str:
    return JournalFiles(CrashFS(), ROOT).data(base)


def sums(base: int = 0) -> str:
    return JournalFiles(CrashFS(), ROOT).checksum_file(base)


def item(number: int, length: int = 30) -> Item:
    """Message `number`: it tells which one it is, and fills its length with it."""
    key = b"" if number % 5 == 4 else b"key-%d" % (number % 3)
    timestamp = oracle.NULL_TIME if number % 7 == 6 else 1_700_000_000_000_000_000 + number
    return key, timestamp, number % 256, (b"%06d|" % number * (length // 7 + 1))[:length]


def items(count: int, length: int = 30, start: int = 0) -> list[Item]:
    return [item(number, length) for number in range(start, start + count)]


def given(of: Iterable[Item]) -> list[tuple[bytes, bytes, int, int]]:
    """As `append_many` takes them."""
    return [(key, value, timestamp, kind) for key, timestamp, kind, value in of]


def told(of: Iterable[Item], first: int = 0) -> list[Message]:
    """As the oracle tells of them."""
    return [Message(offset, t, kind, k, v) for offset, (k, t, kind, v) in enumerate(of, first)]


def as_told(messages: Iterable[JournalMessage]) -> list[Message]:
    return [
        Message(
            m.offset, oracle.NULL_TIME if m.timestamp_ns is None else m.timestamp_ns, m.type, m.key, m.value
        )
        for m in messages
    ]


def lay_out(fs: Disk, of: Iterable[Item], segment_size: int = 10**9, base: int = 0) -> None:
    """A journal as sej leaves it."""
    directory = f"{ROOT}/jnl"
    for path in (ROOT, directory):
        fs.make_directory(path)
    for name, content in oracle.files(of, segment_size, base).items():
        fs.write_durably(f"{directory}/{name}", content)


def segments(fs: Disk) -> dict[str, bytes]:
    """What lies in jnl/, by name."""
    start = f"{ROOT}/jnl/"
    return {
        path.removeprefix(start): content for path, content in fs.files().items() if path.startswith(start)
    }


def stored(fs: Disk, *, has_gaps: bool = False) -> list[Message]:
    """Every message; the segments follow each other, unless it `has_gaps`, and end at records."""
    messages: list[Message] = []
    for name, content in sorted(segments(fs).items()):
        base = int(name.removesuffix(".jnl"), 16)
        assert has_gaps or not messages or base == messages[-1].offset + 1, f"{name} is not the next"
        found, end, stop = oracle.records(content, base)
        assert stop == "END", f"{name}: {stop} at byte {end}"
        messages += found
    return messages


def read_all(fs: FileSystem, offset: int = 0) -> list[Message]:
    """As a reader of ours finds it, by and by."""
    with reader(fs, offset) as found:
        return as_told(found.read_many(10**9))


def flip(fs: Disk, path: str, at: int, mask: int = 0xFF) -> None:
    """Let one byte of a file rot."""
    content = bytearray(fs.read(path))
    content[at] ^= mask
    fs.write_durably(path, bytes(content))


def asides(fs: Disk) -> dict[str, bytes]:
    """What repairs kept, by its path."""
    return {path: content for path, content in fs.files().items() if ".bad" in path.rsplit("/", 1)[1]}

"""NSQ's files by `struct` alone: the judge between diskq and go-diskqueue.

Written from docs/format/nsq.md and from nothing of ours. It knows clean directories, where the
metadata is right, and says so (`AssertionError`) where one is not; `read_files` looks past the
metadata, for what a crash left.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Meta(NamedTuple):
    depth: int
    read_file: int
    read_position: int
    write_file: int
    write_position: int


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def frames(data: bytes, *, may_be_torn: bool = False) -> list[bytes]:
    """The bodies in `data`, which must end where a frame ends, unless it `may_be_torn`."""
    bodies, at = [], 0
    while at + 4 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        if at + 4 + size > len(data):
            break
        bodies.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    assert may_be_torn or at == len(data), f"the last frame ends at {at} of {len(data)} bytes"
    return bodies


def meta_path(directory: Path, name: str) -> Path:
    return directory / f"{name}.diskqueue.meta.dat"


def data_path(directory: Path, name: str, number: int) -> Path:
    return directory / f"{name}.diskqueue.{number:06d}.dat"


def data_numbers(directory: Path, name: str) -> list[int]:
    pattern = re.compile(re.escape(name) + r"\.diskqueue\.(\d{6,})\.dat")
    found = (pattern.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1]) for match in found if match)


def read_meta(directory: Path, name: str) -> Meta:
    """The three lines that go-diskqueue reads; it looks at nothing behind them."""
    text = meta_path(directory, name).read_bytes()
    match = re.match(rb"(-?\d+)\n(\d+),(\d+)\n(\d+),(\d+)\n", text)
    assert match, f"no metadata: {text!r}"
    return Meta(*map(int, match.groups()))


def write_meta(directory: Path, name: str, meta: Meta) -> None:
    meta_path(directory, name).write_bytes(b"%d\n%d,%d\n%d,%d\n" % meta)


def read_dir(directory: Path, name: str) -> list[bytes]:
    """What the next reader of a cleanly closed queue gets; its depth must be their number."""
    meta = read_meta(directory, name)
    pending = []
    for number in range(meta.read_file, meta.write_file + 1):
        path = data_path(directory, name, number)
        if number == meta.write_file and meta.write_position == 0:
            assert not path.exists(), f"{path.name} is longer than the metadata says"
            continue
        data = path.read_bytes()
        assert number < meta.write_file or len(data) == meta.write_position, f"{path.name}: {len(data)} bytes"
        pending += frames(data[meta.read_position if number == meta.read_file else 0 :])
    assert meta.depth == len(pending), f"depth {meta.depth}, pending {len(pending)}"
    return pending


def read_files(directory: Path, name: str, *, may_be_torn: bool = False) -> list[bytes]:
    """Every message in every data file, consumed or not, whatever the metadata says."""
    bodies = []
    for number in data_numbers(directory, name):
        bodies += frames(data_path(directory, name, number).read_bytes(), may_be_torn=may_be_torn)
    return bodies


def write_dir(
    directory: Path,
    name: str,
    bodies: Sequence[bytes],
    segment_size: int = 100 << 20,
    first_file: int = 0,
) -> Meta:
    """A queue as go-diskqueue leaves it at Close after these puts."""
    files = [b""]
    for body in bodies:
        record = frame(body)
        if files[-1] and len(files[-1]) + len(record) > segment_size:
            files.append(b"")
        files[-1] += record
    for number, data in enumerate(files, first_file):
        if data:
            data_path(directory, name, number).write_bytes(data)
    meta = Meta(len(bodies), first_file, 0, first_file + len(files) - 1, len(files[-1]))
    write_meta(directory, name, meta)
    return meta


def consume(directory: Path, name: str, count: int) -> None:
    """Move the read position over `count` messages, and unlink files that are used up, as reading does."""
    meta = read_meta(directory, name)
    number, position = meta.read_file, meta.read_position
    for _ in range(count):
        path = data_path(directory, name, number)
        data = path.read_bytes()
        (size,) = struct.unpack_from(">I", data, position)
        position += 4 + size
        if number < meta.write_file and position == len(data):
            path.unlink()
            number, position = number + 1, 0
    moved = meta._replace(depth=meta.depth - count, read_file=number, read_position=position)
    write_meta(directory, name, moved)

# docs/format/checksums.md, taken at its word: its example is what diskq writes, and `struct` reads the same.

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest
import trio

import diskq
from diskq.storage.checksums import Row, unpack_row
from diskq.storage.lock import Holder, parse_holder
from diskq.testing import CrashFS
from tests.docs.documents import ROOT, blocks, hex_block
from tests.docs.test_format_nsq import castagnoli, write_the_example
from tests.docs.test_format_nsq import example as data_file
from tests.engine.queues import contents, disk
from tests.reference import nsq_oracle as oracle

DOCUMENT = ROOT / "docs/format/checksums.md"
ROWS = {
    "events.diskqueue.000000.dat": [(0, 13, 2), (13, 28, 1), (28, 28, 0)],
    "events.diskqueue.000001.dat": [(0, 8, 1)],
}

files = pytest.mark.parametrize("name, rows", ROWS.items(), ids=ROWS)


def example(name: str) -> bytes:
    """The checksum file of that file, as the document has it."""
    return hex_block(DOCUMENT, f"hex {name}.sums")


def pieces(checksum_file: bytes) -> list[bytes]:
    assert len(checksum_file) % 24 == 0
    return [checksum_file[at : at + 24] for at in range(0, len(checksum_file), 24)]


def test_the_example_is_what_diskq_writes(tmp_path: Path) -> None:
    write_the_example(tmp_path)
    written = {path.name: path.read_bytes() for path in (tmp_path / ".diskq").glob("*.sums")}
    first, second = (f"{name}.sums" for name in ROWS)
    assert written == {
        first: example("events.diskqueue.000000.dat"),
        second: example("events.diskqueue.000001.dat").ljust(4096, b"\0"),
    }
    assert (tmp_path / ".diskq").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / ".diskq").iterdir()} == {0o600}


@files
def test_our_reader_reads_the_example(name: str, rows: list[tuple[int, int, int]]) -> None:
    data = data_file(name)
    found = [unpack_row(piece) for piece in pieces(example(name))]
    assert [(row.start, row.end, row.records) for row in found if row] == rows
    assert all(row.is_seal or row.matches(data[row.start : row.end]) for row in found if row)


@files
def test_struct_alone_reads_the_example(name: str, rows: list[tuple[int, int, int]]) -> None:
    found = []
    for piece in pieces(example(name)):
        end, size, records, crc, check = struct.unpack("<QIIII", piece)
        assert check == castagnoli(piece[:20])
        assert crc == (castagnoli(data_file(name)[end - size : end]) if size else 0)
        found.append((end - size, end, records))
    assert found == rows


def test_the_seal_is_at_the_end_of_the_file() -> None:
    name = "events.diskqueue.000000.dat"
    seal = unpack_row(pieces(example(name))[-1])
    assert seal == Row(len(data_file(name)), len(data_file(name)), 0, 0)


def test_zeros_are_no_row_and_a_row_with_one_wrong_bit_is_none() -> None:
    assert unpack_row(bytes(24)) is None
    row = pieces(example("events.diskqueue.000000.dat"))[0]
    for bit in range(24 * 8):
        rotten = bytearray(row)
        rotten[bit // 8] ^= 1 << bit % 8
        assert unpack_row(bytes(rotten)) is None


def test_the_lock_file_is_what_the_document_shows(tmp_path: Path) -> None:
    (block,) = [block for block in blocks(DOCUMENT) if block.info == "text events.lock"]
    shown = json.loads(block.text)
    write_the_example(tmp_path)
    written = (tmp_path / ".diskq" / "events.lock").read_bytes()
    assert (len(written), written[-1:]) == (512, b"\n")
    assert json.loads(written).keys() == shown.keys()
    padded = block.text.rstrip("\n").ljust(511).encode() + b"\n"
    rest = block.text.rstrip("\n").encode()[len('{"check": "........", ') :]
    assert int(shown.pop("check"), 16) == castagnoli(rest)
    assert parse_holder(padded) == Holder(**shown)
    assert parse_holder(b"nobody can read this") == Holder()


def test_the_wal_is_what_the_document_says() -> None:
    fs = disk()

    async def stage() -> CrashFS:
        async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0) as queue:
            await queue.send(b"written")
            for body in (b"one", b"two", b"three"):
                await queue.send(body)
            return fs.kill()

    killed = trio.run(stage)
    wal = killed.read("/q/.diskq/events.slate")
    assert wal[:64] == killed.identity().boot_id.encode().ljust(64, b"\n")
    written = killed.read("/q/events.diskqueue.000000.dat")
    magic, check = struct.unpack_from("=8sI", wal, 64)
    assert (len(wal), magic, check) == (131072, b"diskqsl2", castagnoli(wal[:72]))
    file, position, size, crc = struct.unpack_from("=qqII", wal, 88)
    assert (file, position) == (0, len(written))
    assert crc == castagnoli(wal[80:104] + wal[1024 : 1024 + size])
    assert not any(wal[65536:])
    assert oracle.frames(written + wal[1024 : 1024 + size]) == [b"written", b"one", b"two", b"three"]
    rows = [struct.unpack_from("=qQIIII", wal, at) for at in range(112, 944, 32) if any(wal[at : at + 32])]
    ends = (len(written) - 7, len(written))  # the first of a slice is written alone
    assert rows == [
        (0, end, end, number, castagnoli(written[:end]), castagnoli(wal[at : at + 28]))
        for number, (end, at) in enumerate(zip(ends, (112, 144), strict=True), 1)
    ]
    assert contents(killed, name="events") == [b"written", b"one", b"two", b"three"]


def test_the_example_of_a_wal_is_what_a_kill_leaves() -> None:
    fs = disk()

    async def stage() -> CrashFS:
        async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0) as queue:
            for body in (b"next", b"one", b"two", b"three"):
                await queue.send(body)
            return fs.kill()

    wal = trio.run(stage).read("/q/.diskq/events.slate")
    entry, records = (
        hex_block(DOCUMENT, f"hex {name}") for name in ("events.slate", "events.slate, the records")
    )
    if sys.byteorder == "little":
        assert (entry, records) == (wal[80:176], wal[1024 : 1024 + len(records)])
    assert oracle.frames(records) == [b"two", b"three"]

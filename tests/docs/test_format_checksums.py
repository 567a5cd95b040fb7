# docs/format/checksums.md, taken at its word: its example is what diskq writes, and `struct` reads the same.

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from diskq.storage.checksums import Row, unpack_row
from diskq.storage.lock import Holder, parse_holder
from tests.docs.documents import ROOT, blocks, hex_block
from tests.docs.test_format_nsq import castagnoli, write_the_example
from tests.docs.test_format_nsq import example as data_file

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
    del shown["has_state"]
    assert parse_holder(padded) == Holder(**shown)
    assert parse_holder(b"nobody can read this") == Holder()

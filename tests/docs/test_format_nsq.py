# docs/format/nsq.md, taken at its word: its example is what diskq writes, and two readers agree on it.

from __future__ import annotations

from pathlib import Path

import pytest

from diskq import Queue, QueueOptions
from diskq._native.queue import codec as queue_codec
from diskq.engine.queue.files import QueueMetadata, QueuePosition
from tests.docs.documents import ROOT, blocks, hex_block, table_rows
from tests.reference import nsq_oracle as oracle

DOCUMENT = ROOT / "docs/format/nsq.md"
NAME = "events"
FILES = {
    "events.diskqueue.000000.dat": [b"hello", b"", b"a third one"],
    "events.diskqueue.000001.dat": [b"next"],
}
META = "events.diskqueue.meta.dat"

files = pytest.mark.parametrize("name, bodies", FILES.items(), ids=FILES)


def example(name: str) -> bytes:
    """The file of that name, as the document has it."""
    return hex_block(DOCUMENT, f"hex {name}")


def metadata(info: str = META) -> bytes:
    (block,) = [block for block in blocks(DOCUMENT) if block.info == f"text {info}"]
    return block.text.encode()


def castagnoli(data: bytes) -> int:
    """crc32c bit by bit, to judge the library by."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def write_the_example(directory: Path) -> None:
    with Queue(directory, NAME, options=QueueOptions(segment_size=32)) as queue:
        queue.put(b"hello")
        queue.put(b"")
        queue.sync()
        queue.put(b"a third one")
        queue.sync()
        queue.put(b"next")
        assert queue.get() == b"hello"


def test_the_example_is_what_diskq_writes(tmp_path: Path) -> None:
    write_the_example(tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert written == {name: example(name) for name in FILES} | {META: metadata()}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir() if path.is_file()} == {0o600}


@files
def test_our_codec_reads_the_example(name: str, bodies: list[bytes]) -> None:
    assert queue_codec.scan(example(name)) == (bodies, len(example(name)), "END")
    assert queue_codec.encode(bodies) == example(name)


@files
def test_the_oracle_reads_the_example(name: str, bodies: list[bytes]) -> None:
    assert oracle.frames(example(name)) == bodies


def test_both_read_the_directory_of_the_example(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes(example(name))
    (tmp_path / META).write_bytes(metadata())
    assert oracle.read_dir(tmp_path, NAME) == [b"", b"a third one", b"next"]
    with Queue(tmp_path, NAME) as queue:
        assert queue.get_many(9) == [b"", b"a third one", b"next"]
        assert queue.repairs == ()


def test_the_metadata_of_the_example_says_what_the_text_says(tmp_path: Path) -> None:
    assert QueueMetadata.parse(metadata()) == QueueMetadata(
        3, QueuePosition(0, 9), QueuePosition(1, 8), is_ours=True
    )
    (tmp_path / META).write_bytes(metadata())
    assert oracle.read_meta(tmp_path, NAME) == (3, 0, 9, 1, 8)


def test_metadata_says_where_damage_is_not_counted(tmp_path: Path) -> None:
    its = metadata("metadata with uncounted damage")
    told = QueueMetadata.parse(its)
    stretch = QueuePosition(0, 9), QueuePosition(2, 4040)
    assert told == QueueMetadata(80, *stretch, is_ours=True, uncounted=(stretch,))
    assert told.render() == its
    (tmp_path / META).write_bytes(its)
    assert oracle.read_meta(tmp_path, NAME) == (80, 0, 9, 2, 4040)
    assert QueueMetadata.parse(its.replace(b"uncounted 0,9", b"uncounted 0,8")) is None
    assert QueueMetadata.parse(its.rsplit(b"crc32c", 1)[0]) is None


def test_the_last_line_is_the_crc32c_of_those_before_it() -> None:
    *lines, ours = metadata().splitlines(keepends=True)
    assert len(b"".join(lines)) == 10
    assert ours == b"crc32c %08x\n" % castagnoli(b"".join(lines))


def test_metadata_without_our_line_is_a_peers_and_with_a_wrong_one_is_nobodys() -> None:
    *lines, ours = metadata().splitlines(keepends=True)
    theirs = QueueMetadata.parse(b"".join(lines))
    assert theirs is not None
    assert not theirs.is_ours
    assert QueueMetadata.parse(b"".join(lines) + ours.replace(b"4", b"5")) is None


@pytest.mark.parametrize(
    "data, stop", [("00000001", "TORN"), ("000000", "TORN"), ("ffffffff", "CORRUPT"), ("", "END")]
)
def test_the_three_stops_are_kept_apart(data: str, stop: str) -> None:
    assert queue_codec.scan(bytes.fromhex(data)) == ([], 0, stop)


def test_every_fault_of_the_peer_has_its_row() -> None:
    rows = table_rows(DOCUMENT, "## What is wrong with it, and what diskq does")
    assert [row[0] for row in rows] == [f"N{number}" for number in range(1, 18)]
    assert all("tests/" in row[4] for row in rows)

# docs/format/triplet.md, taken at its word: its example is what diskq writes, and two readers agree on it.

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from diskq._native.stream import codec as stream_codec
from diskq.engine.log.recovery_points import RecoveryPoint, RecoveryPoints
from diskq.engine.stream.stream import Stream
from diskq.options import StreamOptions
from diskq.storage.state import HEAD_SIZE
from tests.docs.documents import ROOT, blocks, hex_block, named_tests, table_rows
from tests.docs.test_format_nsq import castagnoli
from tests.reference import triplet_oracle as oracle

DOCUMENT = ROOT / "docs/format/triplet.md"

EARLY, LATE = 1704164645000000006, 1704164646000000006
SENT = [(b"a", EARLY, b"hello"), (b"a", -1, b""), (b"a", LATE, b"a third one"), (b"bbb", LATE, b"next")]
OF_PARTITION = {0: SENT[:3], 1: SENT[3:]}

SUFFIXES = ("data", "index", "timeindex")
FIRST = "00000000000000000000"
FILES = [f"parts/00000{partition}/{FIRST}.{suffix}" for partition in OF_PARTITION for suffix in SUFFIXES]
EMPTY = [f"parts/000000/00000000000000000003.{suffix}" for suffix in SUFFIXES]

in_both_forms = pytest.mark.parametrize("varuint", [False, True], ids=["fixed", "varuint"])


def example(name: str) -> bytes:
    """The file of that name, as the document has it."""
    return hex_block(DOCUMENT, f"hex {name}")


def text(name: str) -> bytes:
    (block,) = [block for block in blocks(DOCUMENT) if block.info == f"text {name}"]
    return block.text.encode()


def data(partition: int, *, varuint: bool = False) -> bytes:
    return example(f"{'varuint ' if varuint else ''}parts/00000{partition}/{FIRST}.data")


def write_the_example(directory: Path, encoding: str | None = None) -> None:
    options = StreamOptions(partition_count=2, segment_size=64, encoding=encoding)  # type: ignore[arg-type]
    with Stream(directory, options=options) as stream:
        for key, timestamp, value in SENT:
            stream.append(value, key, timestamp)


def lay_the_example_out(directory: Path) -> None:
    """The files of the example, from the document alone."""
    (directory / "settings.json").write_bytes(text("settings.json"))
    for name in (*FILES, *EMPTY):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"" if name in EMPTY else example(name))


# --- the example ------------------------------------------------------------------------------


def test_the_example_is_what_diskq_writes(tmp_path: Path) -> None:
    write_the_example(tmp_path)
    paths = [path for path in tmp_path.rglob("*") if path.is_file() and ".diskq" not in path.parts]
    written = {str(path.relative_to(tmp_path)): path.read_bytes() for path in paths}
    told = {name: example(name) for name in FILES} | dict.fromkeys(EMPTY, b"")
    assert written == told | {"settings.json": text("settings.json")}


def test_in_the_varuint_form_as_well(tmp_path: Path) -> None:
    write_the_example(tmp_path, "varuint")
    assert (tmp_path / f"parts/000000/{FIRST}.data").read_bytes() == data(0, varuint=True)
    assert len(data(0, varuint=True)) == 49
    assert json.loads((tmp_path / "settings.json").read_bytes())["encoding"] == "varuint"
    messages = oracle.read_stream(tmp_path)[0]
    assert [(m.key, m.timestamp, m.value) for m in messages] == SENT[:3]


def test_the_oracle_reads_the_example_and_writes_it(tmp_path: Path) -> None:
    lay_the_example_out(tmp_path)
    found = oracle.read_stream(tmp_path)
    assert found == {
        partition: [
            oracle.Message(partition, offset, when, key, value) for offset, (key, when, value) in told
        ]
        for partition, told in ((p, list(enumerate(triples))) for p, triples in OF_PARTITION.items())
    }
    ours = tmp_path / "ours"
    oracle.write_stream(ours, SENT, partition_count=2, segment_size_bytes=64)
    for name in (*FILES, *EMPTY, "settings.json"):
        assert (ours / name).read_bytes() == (tmp_path / name).read_bytes(), name


@pytest.mark.parametrize("partition", OF_PARTITION)
def test_our_codec_reads_the_example_and_writes_it(partition: int) -> None:
    files = [example(f"parts/00000{partition}/{FIRST}.{suffix}") for suffix in SUFFIXES]
    messages, valid_end, stop = stream_codec.scan(files[0], partition)
    assert [(m.key, m.timestamp_ns, m.value) for m in messages] == OF_PARTITION[partition]
    assert (valid_end, stop) == (len(files[0]), "END")
    assert list(stream_codec.encode(OF_PARTITION[partition])) == files


def test_our_codec_reads_the_varuint_form_and_writes_it() -> None:
    messages = stream_codec.scan(data(0, varuint=True), varuint=True).messages
    assert [(m.key, m.timestamp_ns, m.value) for m in messages] == SENT[:3]
    assert stream_codec.encode(SENT[:3], varuint=True).data == data(0, varuint=True)


def test_the_rows_of_the_example_are_those_of_its_records() -> None:
    assert stream_codec.index_rows(example(FILES[1])) == [(0, 0, 26), (1, 26, 21), (2, 47, 32)]
    assert stream_codec.timeindex_rows(example(FILES[2])) == [(0, EARLY), (1, -1), (2, LATE)]


# --- what the text says -----------------------------------------------------------------------


@in_both_forms
def test_the_smallest_record_has_as_many_bytes_as_is_said(varuint: bool) -> None:
    assert len(stream_codec.encode([(b"", 0, b"")], varuint=varuint).data) == (10 if varuint else 20)


def test_a_longer_varuint_than_is_needed_is_read() -> None:
    data = bytes.fromhex("838000") + b"key" + bytes(8) + b"\0"
    assert stream_codec.count(data, varuint=True) == (1, len(data), "END")


@pytest.mark.parametrize(
    "varuint, data, stop",
    [
        (False, "", "END"),
        (False, "010000", "TORN"),
        (False, "01000000", "TORN"),
        (False, "00000000 0000000000000000 0100000000000040", "CORRUPT"),
        (True, "ffffffff10", "CORRUPT"),
        (True, "ffffffff0f", "TORN"),
        (True, "80808080808080808002", "CORRUPT"),
    ],
)
def test_the_three_stops_are_kept_apart(varuint: bool, data: str, stop: str) -> None:
    assert stream_codec.scan(bytes.fromhex(data), varuint=varuint) == ([], 0, stop)


def test_the_table_of_hashes_is_right() -> None:
    rows = table_rows(DOCUMENT, "## Partitions")
    assert len(rows) == 9
    for _, key, hashed, *of in rows:
        assert stream_codec.key_hash(bytes.fromhex(key)) == int(hashed)
        assert [int(hashed) % 3, int(hashed) % 7] == list(map(int, of))
    assert rows[6][0] == f"`{bytes.fromhex(rows[6][1]).decode()}`"


def test_settings_that_say_nothing_are_two_braces_and_a_newline(tmp_path: Path) -> None:
    with Stream(tmp_path):
        pass
    assert (tmp_path / "settings.json").read_bytes() == b"{}\n"


def test_the_keys_of_the_settings_are_those_of_the_table(tmp_path: Path) -> None:
    every = StreamOptions(
        partition_count=1, segment_size=1, retention_max_bytes=1, retention_max_age=1, encoding="varuint"
    )
    with Stream(tmp_path, options=every):
        pass
    keys = [row[0].strip("`") for row in table_rows(DOCUMENT, "## Settings")]
    assert list(json.loads((tmp_path / "settings.json").read_bytes())) == keys


def test_the_owner_is_sixteen_bytes_while_there_is_a_producer(tmp_path: Path) -> None:
    with Stream(tmp_path):
        owner = (tmp_path / "owner").read_bytes()
        assert len(owner) == 16
        assert (tmp_path / ".diskq/owner").read_bytes() == owner
    assert not (tmp_path / "owner").exists()


# --- what is ours -----------------------------------------------------------------------------


def test_the_points_are_what_diskq_writes(tmp_path: Path) -> None:
    write_the_example(tmp_path)
    assert (tmp_path / ".diskq/state").read_bytes()[HEAD_SIZE:] == text("points")


def test_the_points_say_what_the_text_says() -> None:
    *lines, check = text("points").splitlines(keepends=True)
    assert check == b"crc32c %08x\n" % castagnoli(b"".join(lines))
    points = RecoveryPoints.parse(text("points"))
    assert points == RecoveryPoints(True, {0: RecoveryPoint(3, 0, 3, 0), 1: RecoveryPoint(0, 27, 1, 0)})


def test_the_row_of_a_sealed_segment_says_what_the_text_says() -> None:
    row = example("sealed")
    timeindex = example(FILES[2])
    assert struct.unpack("<QQQqqqqII", row) == (
        *(0, 3, 79),
        *(EARLY, LATE, -1, LATE),
        castagnoli(timeindex),
        castagnoli(row[:60]),
    )


def test_every_fault_of_the_peer_has_its_row() -> None:
    rows = table_rows(DOCUMENT, "## What is wrong with it, and what diskq does")
    assert [row[0] for row in rows] == [f"D{number}" for number in range(1, 22)]
    assert {row[1] for row in rows} == {"A", "B", "C"}
    assert all(len(row) == 5 and row[3] for row in rows)
    for row in rows:
        assert named_tests(row[4]), row[0]

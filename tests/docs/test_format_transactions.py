# docs/format/transactions.md, held against the code.

from __future__ import annotations

from pathlib import Path

from diskq._native.stream import codec as stream_codec
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.stream import Stream
from diskq.engine.stream.transactions.roll_forward import intent_of, verified
from diskq.engine.stream.transactions.staging import Extent, StagedFile, StagedName, StagingWriter
from diskq.engine.stream.transactions.transaction import (
    Committed,
    Intent,
    PartitionShare,
    Transaction,
    committed,
)
from diskq.options import StreamOptions
from diskq.storage.fs import OsFileSystem
from tests.docs.documents import ROOT, blocks, hex_block
from tests.docs.test_format_nsq import castagnoli
from tests.reference import triplet_oracle as oracle

DOCUMENT = ROOT / "docs/format/transactions.md"

NAME = "clicks-7-0-0000000000000001.staged"
OF_PARTITION = {0: [(b"a", 1, b"one"), (b"c", 2, b"two")], 1: [(b"b", 3, b"")]}
STAGED = StagedFile(NAME, (Extent(0, 23, 48, 2, 0x3DA06049), Extent(1, 71, 21, 1, 0x0CD85A4D)))
TRANSACTION = Transaction("clicks", 7, "5f0c", (STAGED,))


def text(name: str) -> bytes:
    (block,) = [block for block in blocks(DOCUMENT) if block.info == f"text {name}"]
    return block.text.encode()


class NumberOne(OsFileSystem):
    def unique_number(self) -> int:
        return 1


def test_the_staged_file_is_what_diskq_writes(tmp_path: Path) -> None:
    with StagingWriter(
        tmp_path, sink="clicks", epoch=7, task=0, partition_count=2, encoding="fixed", fs=NumberOne()
    ) as writer:
        for partition, messages in OF_PARTITION.items():
            writer.add_encoded(partition, stream_codec.encode(messages).data, len(messages))
        assert writer.finish() == STAGED
    assert (tmp_path / ".diskq/staging" / NAME).read_bytes() == hex_block(DOCUMENT, "hex staged")


def test_its_extents_hold_what_the_text_says() -> None:
    content = hex_block(DOCUMENT, "hex staged")
    assert content[:23] == b"diskq staged 1 fixed 2\n"
    for extent in STAGED.extents:
        data = content[extent.start : extent.start + extent.size]
        assert castagnoli(data) == extent.crc
        assert oracle.records(data)[0] == OF_PARTITION[extent.partition]


def test_the_intent_says_what_the_text_says() -> None:
    *lines, check = text("intent").splitlines(keepends=True)
    assert check == b"crc32c %08x\n" % castagnoli(b"".join(lines))
    shares = {0: PartitionShare(0, 0, 2), 1: PartitionShare(1, 0, 1)}
    assert Intent.parse(text("intent")) == Intent("clicks", 7, "5f0c", shares, (STAGED,))
    assert intent_of(TRANSACTION, {0: 2, 1: 1}, (0, 1)).render() == text("intent")
    assert StagedName.parse(NAME) == ("clicks", 7, 0, "0000000000000001")


def test_an_intent_that_is_found_is_carried_out_and_noted(tmp_path: Path) -> None:
    """From the document alone."""
    with Stream(tmp_path, options=StreamOptions(partition_count=2)) as stream:
        stream.append(b"before", b"b", 0)
    (tmp_path / ".diskq/staging").mkdir()
    (tmp_path / ".diskq/staging" / NAME).write_bytes(hex_block(DOCUMENT, "hex staged"))
    (tmp_path / ".diskq/intent").write_bytes(text("intent"))
    fs = OsFileSystem()
    files = StreamFiles(fs, str(tmp_path))
    assert verified(fs, files, TRANSACTION, 2, varuint=False) == {0: 2, 1: 1}
    with Stream(tmp_path):
        pass
    found = {
        p: [(m.key, m.timestamp, m.value) for m in told] for p, told in oracle.read_stream(tmp_path).items()
    }
    assert found == {0: OF_PARTITION[0], 1: [(b"b", 0, b"before"), *OF_PARTITION[1]]}
    assert (tmp_path / ".diskq/clicks.committed").read_bytes() == text("committed")
    assert committed(fs, files, "clicks") == Committed(7, "5f0c")
    assert not (tmp_path / ".diskq/intent").exists()
    assert list((tmp_path / ".diskq/staging").iterdir()) == []

# docs/format/sej.md, taken at its word: its example is what diskq writes, and two readers agree on it.

from __future__ import annotations

from pathlib import Path

from diskq._native.journal import codec as journal_codec
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader import JournalReader
from diskq.engine.journal.reader_offset import JournalCommittedOffset, read_journal_offset
from diskq.messages import NULL_TIMESTAMP
from tests.docs.documents import ROOT, hex_block, named_tests, table_rows
from tests.reference import sej_oracle as oracle

DOCUMENT = ROOT / "docs/format/sej.md"
FILE = "jnl/0000000000000000.jnl"

SENT = [
    (b"a", 1704164645000000006, 1, b"hello"),
    (b"", NULL_TIMESTAMP, 0, b""),
    (b"bbb", -1, 255, b"a third one"),
]


def example(name: str) -> bytes:
    """The file of that name, as the document has it."""
    return hex_block(DOCUMENT, f"hex {name}")


def test_the_example_is_what_diskq_writes(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for key, timestamp, kind, value in SENT:
            journal.append(value, key, timestamp, kind)
    assert (tmp_path / FILE).read_bytes() == example(FILE)


def test_two_readers_find_in_it_what_was_sent(tmp_path: Path) -> None:
    (tmp_path / "jnl").mkdir()
    (tmp_path / FILE).write_bytes(example(FILE))
    expected = [oracle.Message(n, t, kind, k, v) for n, (k, t, kind, v) in enumerate(SENT)]
    assert oracle.read_journal(tmp_path) == expected
    with JournalReader(tmp_path) as reader:
        ours = reader.read_many(9)
        assert reader.read_back(9) == ours[::-1]
    assert [(m.offset, m.key, m.type, m.value) for m in ours] == [
        (n, k, kind, v) for n, (k, _, kind, v) in enumerate(SENT)
    ]
    assert [m.timestamp_ns for m in ours] == [SENT[0][1], None, -1]


def test_a_message_is_26_bytes_and_its_key_and_its_value() -> None:
    assert journal_codec.RECORD_OVERHEAD == 26
    assert [len(oracle.record(0, k, t, kind, v)) for k, t, kind, v in SENT] == [32, 26, 40]
    assert f"{len(example(FILE))} bytes" in DOCUMENT.read_text(encoding="utf-8")


def test_an_offset_is_the_next_one(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append_many([b"x"] * 20)
    with JournalCommittedOffset(tmp_path, "reader1") as offset:
        offset.commit_to(17)
    assert (tmp_path / "ofs/reader1.ofs").read_bytes() == example("ofs/reader1.ofs")
    told = read_journal_offset(tmp_path, "reader1")
    assert told is not None
    assert told.offset == 17


def test_every_test_of_sejs_has_one_of_ours() -> None:
    rows = table_rows(DOCUMENT, "## What sej's own tests ask for")
    assert len(rows) == 11
    assert all(named_tests(row[1]) for row in rows)

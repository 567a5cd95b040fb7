# docs/format/spool.md, held against the code.

from __future__ import annotations

import json
import struct

from diskq.engine.queue.files import QueuePosition
from diskq.engine.spool.dead_letters import DeadLetter
from diskq.engine.spool.files import Note, SpoolState, SpoolStatus, Trace
from tests.docs.documents import ROOT, blocks, hex_block, table_rows
from tests.docs.test_format_nsq import castagnoli

DOCUMENT = ROOT / "docs/format/spool.md"


def text(name: str) -> bytes:
    (block,) = [block for block in blocks(DOCUMENT) if block.info == f"text {name}"]
    return block.text.encode()


def keys_told(heading: str) -> list[str]:
    return [row[0].strip("`") for row in table_rows(DOCUMENT, heading)]


def test_the_note_is_what_diskq_writes_and_reads() -> None:
    note = Note(QueuePosition(0, 14), Trace.of(b"0123456789"), QueuePosition(0, 42), 2, 3, 1)
    assert note.pack() == hex_block(DOCUMENT, "hex note")
    assert Note.unpack(hex_block(DOCUMENT, "hex note")) == note


def test_the_note_says_what_the_text_says() -> None:
    """From the document alone."""
    content = hex_block(DOCUMENT, "hex note")
    assert content[:8] == b"dqspool\x01"
    assert struct.unpack("<8q", content[8:72]) == (0, 14, 10, 0, 42, 2, 3, 1)
    check, crc = struct.unpack("<II", content[72:])
    assert check == castagnoli(b"0123456789")
    assert crc == castagnoli(content[:76])


def test_the_state_is_what_diskq_writes_and_reads() -> None:
    state = SpoolState(
        is_open=True,
        tail=QueuePosition(0, 56),
        epochs=((QueuePosition(0, 0), "00000000075bcd15"),),
        times=((QueuePosition(0, 0), 1795297689.0), (QueuePosition(0, 42), 1795297690.0)),
        buried=(QueuePosition(0, 28),),
        status=SpoolStatus(
            written_at=1795297690.5,
            depth=3,
            bytes=4152,
            accepted_at=1795297689.0,
            delivered=1,
            buried=1,
            failed_tries=2,
            dead_letters=1,
            failures=2,
            attempts=3,
            last_error="ConnectionError: nobody there",
            next_try_at=1795297691.0,
            arrival_rate=4.0,
            delivery_rate=1.0,
        ),
    )
    assert state.render() == text("state")
    assert SpoolState.parse(text("state")) == state


def test_the_state_says_what_the_text_says() -> None:
    line, check = text("state").splitlines(keepends=True)
    assert check == b"crc32c %08x\n" % castagnoli(line)
    assert list(json.loads(line)) == keys_told("## The state")


def test_the_letter_is_what_diskq_writes_and_reads() -> None:
    letter = DeadLetter("00000000075bcd15:0:14", "HTTP 400", 1795297689500000000, 1, b"b123456789")
    assert letter._pack() + b"\n" == text("letter")
    assert DeadLetter._unpack(letter._pack(), "0:0") == letter
    head, body = letter._pack().split(b"\n")
    assert list(json.loads(head)) == keys_told("## Dead letters")
    assert body == letter.body

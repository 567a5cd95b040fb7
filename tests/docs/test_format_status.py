# docs/format/status.md, held against the code.

from __future__ import annotations

import struct

from diskq.storage.status_file import DiskBound, StatusNote
from tests.docs.documents import ROOT, hex_block
from tests.docs.test_format_nsq import castagnoli

DOCUMENT = ROOT / "docs/format/status.md"
MIB = 1024 * 1024


def test_the_note_is_what_diskq_writes_and_reads() -> None:
    bound = DiskBound(100 * MIB, 50 * MIB, is_shared=True)
    note = StatusNote(4711, 1_790_000_000_500_000_000, 1200, 2_400_000_000, 9_000_000, bound)
    assert note.pack() == hex_block(DOCUMENT, "hex note")
    assert StatusNote.unpack(hex_block(DOCUMENT, "hex note")) == note


def test_the_note_says_what_the_text_says() -> None:
    """From the document alone."""
    content = hex_block(DOCUMENT, "hex note")
    assert content[:8] == b"dqstate\x01"
    pid, written, barriers, spent, longest, most, used, shared = struct.unpack("<8q", content[8:72])
    assert (pid, written) == (4711, 1_790_000_000_500_000_000)
    assert (barriers, spent / barriers, longest) == (1200, 2_000_000, 9_000_000)
    assert (most, used, shared) == (100 * MIB, 50 * MIB, 1)
    assert struct.unpack("<I", content[72:]) == (castagnoli(content[:72]),)

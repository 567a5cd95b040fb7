# docs/format/state.md, held against the code.

from __future__ import annotations

import json

from diskq.engine.log.recovery_points import RecoveryPoint, RecoveryPoints
from diskq.storage.state import HEAD_SIZE, LastWriter
from tests.docs.documents import ROOT, hex_block
from tests.docs.test_format_nsq import castagnoli

DOCUMENT = ROOT / "docs/format/state.md"
LEFT = LastWriter(boot_id="623021a6-e171-45cc-8bb9-098198f2db91", staged=(0,), redo=4711)


def sector() -> bytes:
    return hex_block(DOCUMENT, "hex sector").ljust(511) + b"\n"


def test_the_sector_is_what_diskq_writes_and_reads() -> None:
    assert len(sector()) == HEAD_SIZE
    assert LEFT.render() == sector()
    assert LastWriter.parse(sector()) == LEFT


def test_the_points_are_what_diskq_writes_and_reads() -> None:
    points = RecoveryPoints(False, {0: RecoveryPoint(100, 64, 102, 7)})
    assert points.render() == hex_block(DOCUMENT, "hex points")
    assert RecoveryPoints.parse(hex_block(DOCUMENT, "hex points")) == points


def test_the_sector_says_what_the_text_says() -> None:
    """From the document alone."""
    content = json.loads(sector())
    rest = sector().rstrip(b" \n")[len('{"check": "........", ') :]
    assert int(content.pop("check"), 16) == castagnoli(rest)
    assert content == {"boot_id": LEFT.boot_id, "staged": 1, "redo": 4711}


def test_a_flipped_byte_of_the_sector_is_noticed() -> None:
    for at in range(HEAD_SIZE):
        rotten = bytearray(sector())
        rotten[at] ^= 0x20
        assert LastWriter.parse(bytes(rotten)) in (None, LEFT)

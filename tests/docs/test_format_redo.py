# docs/format/redo.md, taken at its word: its example is what diskq writes, and `struct` reads the same.

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

from diskq.engine.queue.fifo_queue import Queue
from diskq.options import QueueOptions
from diskq.storage.log.entries import Part
from diskq.storage.redo_log import read_redo
from diskq.testing import CrashFS
from tests.docs.documents import ROOT, hex_block
from tests.docs.test_format_nsq import castagnoli
from tests.reference import nsq_oracle

DOCUMENT = ROOT / "docs/format/redo.md"
LOG = "/q/.diskq/events.redo"
HALF = 30720


def written() -> CrashFS:
    """A disk with the log of the example, whose queue is open."""
    fs = CrashFS()
    fs.make_directory_durably("/q")
    queue = Queue("/q", "events", options=QueueOptions(durability="synced"), fs=fs)
    for body in (b"next", b"one", b"two"):
        queue.put(body)
    return fs.kill()


def header() -> bytes:
    return hex_block(DOCUMENT, "hex events.redo")


def entries() -> bytes:
    return hex_block(DOCUMENT, "hex events.redo, the entries")


def test_the_example_is_what_diskq_writes() -> None:
    log = written().read(LOG)
    half = entries().ljust(HALF, b"\0")
    assert log == header().ljust(2048, b"\0") * 2 + half + bytes(HALF)


def test_our_reader_reads_the_example() -> None:
    found = read_redo(written(), LOG)
    assert found is not None
    assert (found.number, found.unreadable) == (2, 0)
    assert [entry.sequence for entry in found.entries] == [1, 2]
    assert [entry.parts[0] for entry in found.entries] == [
        Part(0, 0, 0, 8, b"\0\0\0\3one"),
        Part(0, 0, 0, 15, b"\0\0\0\3two"),
    ]


def parts(content: bytes) -> Iterator[tuple[int, int, int, int, bytes]]:
    at = 0
    while len(content) - at >= 32:
        group, kind, file, position, length, pad = struct.unpack_from("<IIqqII", content, at)
        assert pad == 0
        at += 32
        yield group, kind, file, position, content[at : at + length]
        at += length
    assert not any(content[at:])


def test_struct_alone_reads_the_example() -> None:
    magic, number, half_size, check = struct.unpack("<8sQQI", header())
    assert (magic, number, half_size, check) == (b"diskqrd1", 2, HALF, castagnoli(header()[:24]))
    rest, data, checksums = entries(), b"", b""
    for sequence in (1, 2):
        size, check, its, found, floor, crc, pad = struct.unpack_from("<IIQQQII", rest)
        assert (its, found, floor, pad, size % 8) == (number, sequence, 1, 0, 1)
        assert check == castagnoli(rest[:4] + rest[8:40])
        content = rest[40 : size - 1]
        assert crc == castagnoli(content)
        (_, kind, file, position, records), (_, beside, of, _, rows) = parts(content)
        assert (kind, beside, file, of, position) == (0, 1, 0, 0, 8 + len(data))
        data += records
        checksums += rows
        rest = rest[size - 1 :]
    assert rest == b""
    assert nsq_oracle.frames(data) == [b"one", b"two"]
    assert [struct.unpack("<QIIII", checksums[at : at + 24])[:3] for at in (0, 24)] == [
        (15, 7, 1),
        (22, 7, 1),
    ]


def test_the_files_have_what_the_log_has_and_the_lock_names_it() -> None:
    fs = written()
    assert nsq_oracle.frames(fs.read("/q/events.diskqueue.000000.dat")) == [b"next", b"one", b"two"]
    assert json.loads(fs.read("/q/.diskq/events.lock"))["redo"] == 2


def test_a_power_cut_leaves_the_log_and_the_next_open_empties_it() -> None:
    fs = CrashFS()
    fs.make_directory_durably("/q")
    queue = Queue("/q", "events", options=QueueOptions(durability="synced"), fs=fs)
    for body in (b"next", b"one", b"two"):
        queue.put(body)
    after = fs.crash()
    assert nsq_oracle.frames(after.read("/q/events.diskqueue.000000.dat")) == [b"next"]
    with Queue("/q", "events", fs=after) as again:
        assert again.peek_many(10) == [b"next", b"one", b"two"]
    assert after.read(LOG) == b""
    assert "redo" not in json.loads(after.read("/q/.diskq/events.lock"))

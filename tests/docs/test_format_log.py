# docs/format/log.md, taken at its word: its examples are what diskq writes, and `struct` reads the same.

from __future__ import annotations

import json
import struct
from typing import NamedTuple

import trio

import diskq
from diskq.engine.queue.fifo_queue import Queue
from diskq.options import QueueOptions
from diskq.storage.log.entries import Part
from diskq.storage.log.format import read_redo, read_wal
from diskq.testing import CrashFS
from tests.docs.documents import ROOT, hex_block
from tests.docs.test_format_nsq import castagnoli
from tests.engine.queues import contents, disk
from tests.reference import log_oracle, nsq_oracle

DOCUMENT = ROOT / "docs/format/log.md"
REDO = "/q/.diskq/events.redo"
WAL = "/q/.diskq/events.wal"
AREA = 30720
HEADER = struct.Struct("<8sIIQ64sIIQ20xI")
ROW = struct.Struct("<qQIIII")


class Header(NamedTuple):
    magic: bytes
    version: int
    promise: int
    number: int
    boot: bytes
    start: int
    areas: int
    size: int


def header_of(content: bytes) -> Header:
    *fields, check = HEADER.unpack_from(content)
    assert check == castagnoli(content[:124])
    return Header(*fields)


def entry_of(content: bytes) -> log_oracle.Entry:
    entry = log_oracle.entry_at(content)
    assert entry is not None
    return entry


def synced() -> CrashFS:
    """A disk with the redo log of the example, whose queue is open."""
    fs = CrashFS()
    fs.make_directory_durably("/q")
    queue = Queue("/q", "events", options=QueueOptions(durability="synced"), fs=fs)
    for body in (b"next", b"one", b"two"):
        queue.put(body)
    return fs.kill()


def staged(*bodies: bytes) -> CrashFS:
    """A disk with the write-ahead log of a killed channel that sent these, one after the other."""
    fs = disk()

    async def stage() -> CrashFS:
        async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0) as queue:
            for body in bodies:
                await queue.send(body)
            return fs.kill()

    return trio.run(stage)


def test_the_example_is_what_diskq_writes() -> None:
    header, entries = (
        hex_block(DOCUMENT, "hex events.redo"),
        hex_block(DOCUMENT, "hex events.redo, the entries"),
    )
    redo = synced().read(REDO)
    assert redo == header.ljust(3968, b"\0") + header + entries.ljust(2 * AREA, b"\0")
    wal = staged(b"next", b"one", b"two", b"three").read(WAL)
    rows, entry = (
        hex_block(DOCUMENT, "hex events.wal, the rows"),
        hex_block(DOCUMENT, "hex events.wal, the entry"),
    )
    assert wal[:128] == wal[960:1088]
    assert wal[128:960] == rows.ljust(832, b"\0")
    assert wal[1088:] == entry.ljust(131072 - 1088, b"\0")


# --- the redo log ---------------------------------------------------------------------------------------


def test_our_reader_reads_the_example() -> None:
    found = read_redo(synced(), REDO)
    assert found is not None
    assert (found.number, found.unreadable) == (4, 0)
    assert [entry.sequence for entry in found.entries] == [1, 2]
    assert [entry.parts[0] for entry in found.entries] == [
        Part(0, 0, 0, 8, b"\0\0\0\3one"),
        Part(0, 0, 0, 15, b"\0\0\0\3two"),
    ]


def test_struct_alone_reads_the_example() -> None:
    header = header_of(hex_block(DOCUMENT, "hex events.redo"))
    assert header == (b"diskqlog", 1, 2, 4, bytes(64), 4096, 2, AREA)
    rest, data, checksums = hex_block(DOCUMENT, "hex events.redo, the entries"), b"", b""
    for sequence in (1, 2):
        entry = entry_of(rest)
        assert entry[:4] == (136, header.number, sequence, 1)
        (_, kind, file, position, records), (_, beside, of, _, rows) = entry.parts
        assert (kind, beside, file, of, position) == (0, 1, 0, 0, 8 + len(data))
        data += records
        checksums += rows
        rest = rest[entry.size :]
    assert rest == b""
    assert nsq_oracle.frames(data) == [b"one", b"two"]
    assert [struct.unpack("<QIIII", checksums[at : at + 24])[:3] for at in (0, 24)] == [
        (15, 7, 1),
        (22, 7, 1),
    ]


def test_the_files_have_what_the_log_has_and_the_state_names_it() -> None:
    fs = synced()
    assert nsq_oracle.frames(fs.read("/q/events.diskqueue.000000.dat")) == [b"next", b"one", b"two"]
    assert json.loads(fs.read("/q/.diskq/events.queue.state"))["redo"] == 4


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
    assert after.read(REDO) == b""
    assert "redo" not in json.loads(after.read("/q/.diskq/events.queue.state"))


# --- the write-ahead log --------------------------------------------------------------------------------


def test_our_reader_reads_what_waits_in_the_example() -> None:
    fs = staged(b"next", b"one", b"two", b"three")
    assert read_wal(fs, WAL) == Part(0, 0, 0, 15, b"\0\0\0\3two\0\0\0\5three")


def test_struct_alone_reads_what_waits_in_the_example() -> None:
    entry = entry_of(hex_block(DOCUMENT, "hex events.wal, the entry"))
    assert entry[:4] == (88, 3, 1, 1)
    ((group, kind, file, position, records),) = entry.parts
    assert (group, kind, file, position) == (0, 0, 0, 15)
    assert nsq_oracle.frames(records) == [b"two", b"three"]


def test_a_write_ahead_log_is_what_the_document_says() -> None:
    killed = staged(b"written", b"one", b"two", b"three")
    wal, written = killed.read(WAL), killed.read("/q/events.diskqueue.000000.dat")
    header = header_of(wal)
    boot = killed.identity().boot_id.encode().ljust(64, b"\0")
    assert header == (b"diskqlog", 1, 1, header.number, boot, 1088, 1, 65536 - 1088)
    assert len(wal) == 131072
    assert not any(wal[65536:])
    entry = entry_of(wal[1088:])
    assert (entry.number, entry.floor) == (header.number, entry.sequence)
    ((_, _, file, position, records),) = entry.parts
    assert (file, position) == (0, len(written))
    assert nsq_oracle.frames(written + records) == [b"written", b"one", b"two", b"three"]
    rows = [ROW.unpack_from(wal, at) for at in range(128, 960, 32) if any(wal[at : at + 32])]
    ends = (len(written) - 7, len(written))  # the first of a slice is written alone
    assert rows == [
        (0, end, end, number, castagnoli(written[:end]), castagnoli(wal[at : at + 28]))
        for number, (end, at) in enumerate(zip(ends, (128, 160), strict=True), 1)
    ]
    assert contents(killed, name="events") == [b"written", b"one", b"two", b"three"]

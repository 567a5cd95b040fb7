# Logs of earlier versions, made by `struct` alone. Law: what was accepted or synced with one is read from it
# as before, and a log of today's format that holds something goes first.
#
# Whole directories of these versions are opened in tests/golden/test_versions.py.

from __future__ import annotations

import struct

import pytest

from diskq.storage.checksums import checksum
from diskq.storage.log.entries import Part
from diskq.storage.log.format import holds_all, holds_nothing, is_missing, read_redo, read_wal, rows_on
from diskq.storage.write_ahead_log import clear_wal
from diskq.testing import CrashFS

OLD, NEW, REDO = "/q/.diskq/events.slate", "/q/.diskq/events.wal", "/q/.diskq/events.redo"
SIZE = 64 * 1024
RECORDS = b"\0\0\0\3one\0\0\0\3two"
WAITING = Part(0, 0, 3, 100, RECORDS)


def disk(**files: bytes) -> CrashFS:
    """A disk with these files: by the last word of their names."""
    fs = CrashFS()
    fs.make_directory_durably("/q")
    fs.make_directory_durably("/q/.diskq")
    for name, content in files.items():
        fs.write_durably(f"/q/.diskq/events.{name}", content)
    return fs


def boot(fs: CrashFS | None = None) -> bytes:
    return (fs or CrashFS()).identity().boot_id.encode().ljust(64, b"\n")


def wal(magic: bytes = b"diskqsl2", *, named: bytes | None = None, records: bytes = RECORDS) -> bytes:
    """With one entry of these records, and one row of the 8 bytes before byte 100."""
    begin = (boot() if named is None else named) + magic
    head = begin + struct.pack("=I4x", checksum(begin))
    place = struct.pack("=Qqq", 9, 3, 100)
    state = struct.pack("=II", len(records), checksum(records, checksum(place))) if records else bytes(8)
    row = struct.pack("=qQIII", 3, 100, 8, 1, 77)
    row += checksum(row).to_bytes(4, "little")
    size = 4096 if magic == b"diskqsr1" else SIZE
    return ((head + place + state + row).ljust(1024, b"\0") + records).ljust(size, b"\0")


def first_wal(records: bytes = RECORDS) -> bytes:
    """Of the first form: an entry without a checksum, and no rows."""
    return (boot() + b"diskqsl1" + struct.pack("=qqq", 3, 100, len(records)) + records).ljust(SIZE, b"\0")


@pytest.mark.parametrize("content", [wal(), first_wal()], ids=["diskqsl2", "diskqsl1"])
def test_what_waits_in_an_old_write_ahead_log_is_read(content: bytes) -> None:
    fs = disk(slate=content)
    assert read_wal(fs, NEW) == WAITING
    assert holds_all(fs, NEW)
    assert not holds_nothing(fs, NEW)
    assert not is_missing(fs, NEW)


@pytest.mark.parametrize("magic", [b"diskqsl2", b"diskqsr1"])
def test_the_rows_of_an_old_write_ahead_log_are_read(magic: bytes) -> None:
    fs = disk(slate=wal(magic, records=b""))
    assert [(row.start, row.end, row.records, row.crc) for row in rows_on(fs, NEW, 3)] == [(92, 100, 1, 77)]
    assert rows_on(fs, NEW, 4) == []


def test_of_another_run_of_the_machine_nothing_is_read() -> None:
    fs = disk(slate=wal(named=b"another boot".ljust(64, b"\n")))
    assert read_wal(fs, NEW) is None
    assert holds_nothing(fs, NEW)
    assert rows_on(fs, NEW, 3) == []


@pytest.mark.parametrize("at", [3, 64 + 3, 72])
def test_of_the_boot_id_and_its_checksum_one_is_enough(at: int) -> None:
    content = wal()
    fs = disk(slate=content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert read_wal(fs, NEW) == WAITING


@pytest.mark.parametrize("at", [88, 96, 104, 108, 1024, 1024 + len(RECORDS) - 1])
def test_damaged_records_are_not_read_and_not_taken_for_none(at: int) -> None:
    content = wal()
    fs = disk(slate=content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert read_wal(fs, NEW) is None
    assert not holds_all(fs, NEW)
    assert not holds_nothing(fs, NEW)


@pytest.mark.parametrize("content", [b"", bytes(SIZE), wal()[:-1]], ids=["empty", "zeros", "cut"])
def test_of_no_whole_log_nothing_is_read(content: bytes) -> None:
    assert read_wal(disk(slate=content), NEW) is None


def test_a_log_of_todays_format_that_holds_something_goes_first_and_then_the_old_one() -> None:
    fs = disk(slate=wal(), wal=bytes(SIZE))
    assert read_wal(fs, NEW) is None
    clear_wal(fs, NEW)
    assert read_wal(fs, NEW) == WAITING
    clear_wal(fs, NEW)
    assert OLD not in fs.files()


def test_an_old_log_that_was_cleared_is_gone_after_a_power_cut_too() -> None:
    fs = disk(slate=wal())
    clear_wal(fs, NEW)
    assert OLD not in fs.crash().files()


# --- the redo log ---------------------------------------------------------------------------------------

NUMBER, HALF = 77, 1024


def entry(sequence: int, content: bytes, *, floor: int = 1) -> bytes:
    part = struct.pack("<IIqqI4x", 0, 0, 3, 100 * sequence, len(content)) + content
    part += bytes(-len(part) % 8)
    size = (40 + len(part) | 1).to_bytes(4, "little")
    rest = struct.pack("<QQQI4x", NUMBER, sequence, floor, checksum(part))
    return size + checksum(rest, checksum(size)).to_bytes(4, "little") + rest + part


def redo(*entries: bytes) -> bytes:
    head = struct.pack("<8sQQ", b"diskqrd1", NUMBER, HALF)
    head = (head + checksum(head).to_bytes(4, "little")).ljust(2048, b"\0")
    return head + head + b"".join(entries).ljust(2 * HALF, b"\0")


def test_the_needed_entries_of_an_old_redo_log_are_read() -> None:
    fs = disk(redo=redo(entry(1, b"one"), entry(2, b"two"), entry(3, b"three", floor=2)))
    found = read_redo(fs, REDO)
    assert found is not None
    assert (found.number, found.unreadable, found.torn) == (NUMBER, 0, b"")
    assert [(its.sequence, *its.parts) for its in found.entries] == [
        (2, Part(0, 0, 3, 200, b"two")),
        (3, Part(0, 0, 3, 300, b"three")),
    ]


@pytest.mark.parametrize("at", [0, 4, 8, 16, 24, 32, 40, 72])
def test_a_torn_last_entry_of_an_old_redo_log_is_found(at: int) -> None:
    first, last = entry(1, b"one"), entry(2, b"two")
    torn = last[:at] + bytes([last[at] ^ 0x40]) + last[at + 1 :]
    found = read_redo(disk(redo=redo(first, torn)), REDO)
    assert found is not None
    assert [its.sequence for its in found.entries] == [1]
    assert found.torn_at == 4096 + len(first)


@pytest.mark.parametrize("copy", [0, 2048])
def test_one_of_the_two_headers_of_an_old_redo_log_is_enough(copy: int) -> None:
    content = bytearray(redo(entry(1, b"one")))
    content[copy : copy + 512] = bytes(512)
    found = read_redo(disk(redo=bytes(content)), REDO)
    assert found is not None
    assert len(found.entries) == 1

# docs/format/acks.md, held against the code.

from __future__ import annotations

import struct

import diskq
from diskq.engine.queue.ack_log import Tried, read_ack_logs
from diskq.engine.queue.files import QueueFiles, QueuePosition
from diskq.testing import CrashFS
from tests.docs.documents import ROOT, hex_block, table_rows
from tests.docs.test_format_nsq import castagnoli

DOCUMENT = ROOT / "docs/format/acks.md"
PATH = "/q/.diskq/jobs.000001.acks"
MESSAGES = [b"one", b"two", b"three", b"four"]


def disk() -> CrashFS:
    fs = CrashFS()
    fs.epoch = 1_700_000_000.0
    fs.make_directory_durably("/q")
    return fs


def test_the_journal_is_what_diskq_writes() -> None:
    fs = disk()
    with diskq.Queue("/q", "jobs", fs=fs) as queue:
        queue.put_many(MESSAGES)
        with diskq.QueueWork(queue) as work:
            _, second, third = work.get_many(3)
            work.ack(second)
            work.nack(third, delay=60.0)
            assert fs.read(PATH) == hex_block(DOCUMENT, "hex journal")


def test_its_rows_say_what_the_text_says() -> None:
    """By struct alone."""
    content = hex_block(DOCUMENT, "hex journal")
    rows = [content[at : at + 36] for at in range(0, len(content), 36)]
    assert [struct.unpack("<HHIQQq", row[:32]) for row in rows] == [
        (2, 0, 0, 0, 23, 0),
        (1, 0, 0, 0, 7, 14),
        (3, 1, 60_000, 0, 14, 1_700_000_060 * 10**9),
    ]
    for row in rows:
        assert row[32:] == castagnoli(row[:32]).to_bytes(4, "little")


def test_it_is_read_as_the_text_says() -> None:
    fs = disk()
    with diskq.Queue("/q", "jobs", fs=fs) as queue:
        queue.put_many(MESSAGES)
    fs.write_durably(PATH, hex_block(DOCUMENT, "hex journal"))
    known = read_ack_logs(fs, QueueFiles(fs, "/q", "jobs"))
    assert (known.acked, known.handed) == ({0: [(7, 14)]}, QueuePosition(0, 23))
    assert known.tried == {(0, 14): Tried(1, 1_700_000_060.0, 60.0)}
    with diskq.Queue("/q", "jobs", fs=fs) as queue, diskq.QueueWork(queue) as work:
        assert [(lease.body, lease.attempts) for lease in work.get_many(9)] == [(b"one", 2), (b"four", 1)]
        assert work._next_due() == 60.0


def test_every_promise_names_its_proof() -> None:
    for row in table_rows(ROOT / "docs/acks.md", "## What it promises"):
        assert "tests/" in row[-1], row[0]


def test_the_defaults_that_are_told_are_the_defaults() -> None:
    told = {
        row[0].strip("`"): row[1]
        for row in table_rows(ROOT / "docs/acks.md", "## What leaves the queue, and when")
    }
    assert told == {
        "max_in_flight": f"{diskq.QueueWorkOptions().max_in_flight}",
        "max_ahead": f"{diskq.QueueWorkOptions().max_ahead:,}",
        "max_ahead_bytes": f"{diskq.QueueWorkOptions().max_ahead_bytes // 2**20} MiB",
        "max_attempts": f"{diskq.QueueWorkOptions().max_attempts}",
    }

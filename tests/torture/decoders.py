# What may be given any bytes at all, and what must be true of it all the same. Law: a decoder refuses or
# decodes; what it says of the bytes is the same whichever way it is asked; it says nothing that is not there.
#
# Each decoder is a function of bytes that raises AssertionError where that does not hold. An exception that
# the decoder is to raise for bad bytes is caught here; any other one is a finding.

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import NamedTuple

from diskq._native.core.append_buffer import WAL_ENTRY
from diskq._native.core.log_entry import encode_entry
from diskq._native.hub import wire as hubwire
from diskq._native.journal import codec as journal_codec
from diskq._native.priority import codec as priority_codec
from diskq._native.priority import state_codec
from diskq._native.queue import codec as queue_codec
from diskq._native.stream import codec as stream_codec
from diskq._native.stream.codec import TripletFraming
from diskq._native.stream.index_entries import rows_of
from diskq.engine.log import timestamps
from diskq.engine.log.committed_offset import ShadowCopy
from diskq.engine.log.recovery_points import RecoveryPoint, RecoveryPoints
from diskq.engine.priority.files import read_settings
from diskq.engine.queue.files import QueueMetadata, QueuePosition
from diskq.engine.spool.dead_letters import DeadLetter
from diskq.engine.spool.files import Note, SpoolState, Trace
from diskq.engine.stream import settings as streamsettings
from diskq.engine.stream.transactions.staging import Extent, StagedFile, StagedName
from diskq.engine.stream.transactions.transaction import Intent, PartitionShare
from diskq.errors import CorruptionError, UnsupportedFormatError
from diskq.storage.fs import Stamp
from diskq.storage.lock import holder_of, read_holder
from diskq.storage.log import format as log_format
from diskq.storage.log.entries import LogHeader
from diskq.storage.log.format import holds_nothing, read_wal, rows_on
from diskq.storage.old_state import old_fields
from diskq.storage.state import LastWriter
from diskq.storage.status_file import DiskBound, StatusNote
from tests.engine.ram import RamFS
from tests.reference import log_oracle
from tests.torture import vouching

__all__ = ["DECODERS", "Decoder"]

BODIES = [b"", b"a", b"hello", b"x" * 100, bytes(range(256)), b"\x00" * 40]
KEYS = [b"", b"k", b"user-042", b"k" * 127]
TIMES = [0, 1, 1_700_000_000_000_000_000, -1, 2**63 - 1]


class Decoder(NamedTuple):
    seeds: list[bytes]
    """Right, each of its kind."""
    check: Callable[[bytes], None]


# --- NSQ's files ------------------------------------------------------------------------------------


def nsq_records(data: bytes) -> None:
    scanned, counted, columns = queue_codec.scan(data), queue_codec.count(data), queue_codec.columns(data)
    end = scanned.valid_end
    assert (len(scanned.bodies), end, scanned.stop) == counted
    assert (columns.records, columns.valid_end, columns.stop) == counted
    assert columns.values == b"".join(scanned.bodies)
    assert queue_codec.encode(scanned.bodies) == data[:end]


def nsq_metadata(data: bytes) -> None:
    _nsq_metadata(data)
    _nsq_metadata(vouching.text(data))


def _nsq_metadata(data: bytes) -> None:
    found = QueueMetadata.parse(data)
    if found is not None:
        assert found.read <= found.write
        assert not found.is_ours or QueueMetadata.parse(found.render()) == found


# --- go-diskq's files -------------------------------------------------------------------------------


def triplet_records(data: bytes, *, varuint: bool = False) -> None:
    scanned = stream_codec.scan(data, first_offset=7, varuint=varuint)
    end = scanned.valid_end
    facts = (len(scanned.messages), end, scanned.stop)
    assert stream_codec.count(data, varuint) == facts
    columns = stream_codec.columns(data, varuint)
    assert (columns.records, columns.valid_end, columns.stop) == facts
    assert columns.values == b"".join(message.value for message in scanned.messages)
    assert columns.keys == b"".join(message.key for message in scanned.messages)
    slices = stream_codec.slices(data, varuint)
    assert (slices.records, slices.valid_end, slices.stop) == facts
    rows = rows_of(TripletFraming(varuint=varuint), data, 7, 0)
    assert (rows.records, rows.valid_end, rows.stop) == facts
    if not varuint:
        parts = [(message.key, message.timestamp_ns, message.value) for message in scanned.messages]
        again = stream_codec.encode(parts, 7)
        assert (again.data, again.index_rows, again.timeindex_rows) == (
            data[:end],
            rows.index_rows,
            rows.timeindex_rows,
        )


def triplet_varuint(data: bytes) -> None:
    triplet_records(data, varuint=True)


def triplet_rows(data: bytes) -> None:
    assert len(stream_codec.index_rows(data)) == len(data) // stream_codec.INDEX_ROW_SIZE
    assert len(stream_codec.timeindex_rows(data)) == len(data) // stream_codec.TIMEINDEX_ROW_SIZE


def settings(data: bytes) -> None:
    with contextlib.suppress(UnsupportedFormatError):
        found = streamsettings.parse(data)
        assert streamsettings.parse(found.render()) == found


def points(data: bytes) -> None:
    for content in (data, vouching.text(data)):
        found = RecoveryPoints.parse(content)
        assert found is None or RecoveryPoints.parse(found.render()) == found


def intent(data: bytes) -> None:
    for content in (data, vouching.text(data)):
        found = Intent.parse(content)
        assert found is None or Intent.parse(found.render()) == found


# --- sej's files ------------------------------------------------------------------------------------


def sej_records(data: bytes) -> None:
    scanned = journal_codec.scan(data)
    end = scanned.valid_end
    facts = (len(scanned.messages), end, scanned.stop)
    assert journal_codec.count(data) == facts
    columns = journal_codec.columns(data)
    assert (columns.records, columns.valid_end, columns.stop) == facts
    assert columns.values == b"".join(message.value for message in scanned.messages)
    if scanned.messages:
        first = scanned.messages[0].offset
        parts = [(each.key, each.timestamp_ns, each.type, each.value) for each in scanned.messages]
        assert journal_codec.encode(parts, first) == data[:end]
        back = journal_codec.scan_back(data[:end], scanned.messages[-1].offset + 1)
        assert back.start == 0
        assert list(reversed(back.messages)) == scanned.messages


def sej_anywhere(data: bytes) -> None:
    for start in range(0, min(len(data), 64), 7):
        found = journal_codec.resume(data[start:], 0, may_be_torn=True)
        if found is not None:
            at, offset = found
            assert start + at <= len(data)
            assert offset >= 0
    for end in (len(data), len(data) // 2):
        journal_codec.scan_back(data[:end])
        journal_codec.boundary(data[:end], 1)
    for size in (1, 64, 4096):
        blocks = journal_codec.blocks(data, -1, size)
        assert all(0 <= at <= len(data) for at, _ in blocks)


# --- TaskFlux's files -------------------------------------------------------------------------------


def taskflux_records(data: bytes) -> None:
    for content in (data, vouching.commands(data)):
        _taskflux_records(content)


def _taskflux_records(data: bytes) -> None:
    whole = priority_codec.scan(data)
    assert 0 <= whole.end <= len(data)
    assert len(whole.commands) == whole.records
    singly, at = 0, 0
    while True:
        found = priority_codec.scan(memoryview(data)[at:], len(data) - at, most=1)
        if not found.records:
            break
        singly, at = singly + 1, at + found.end
    assert (singly, at) == (whole.records, whole.end)
    skimmed = priority_codec.scan(data, only_records=True)
    assert skimmed.records >= whole.records
    priority_codec.has_record(data)


def taskflux_state(data: bytes) -> None:
    for content in (data, vouching.metadata(data)):
        with contextlib.suppress(ValueError):
            state_codec.decode_metadata(content)
    for head in state_codec.decode_snapshot_heads(data, len(data)):
        assert head.start + head.length <= len(data)
    at = 0
    with contextlib.suppress(ValueError):
        while (queue := state_codec.decode_queue_head(data, at)) is not None:
            assert at < queue.end <= len(data)
            at = queue.end


# --- the hub's wire, and small files ------------------------------------------------------------------


def hub_requests(data: bytes) -> None:
    for read, field in ((hubwire.read_put, hubwire.OF_PUT), (hubwire.read_get, hubwire.OF_GET)):
        with contextlib.suppress(ValueError):
            request = read(data)
            assert request.client in data
            assert request.journal in data
        with contextlib.suppress(ValueError):
            told = hubwire.records(data, field, 0)
            assert journal_codec.count(told.data, 0).stop == "END"
            messages = hubwire.messages(data, field)
            assert len(messages) >= told.taken


def spool_state(data: bytes) -> None:
    for content in (data, vouching.text(data)):
        found = SpoolState.parse(content)
        assert found is None or SpoolState.parse(found.render()) is not None


def dead_letters(data: bytes) -> None:
    found = DeadLetter._unpack(data, "place")
    assert found.body in data
    if found.id != "place":
        assert DeadLetter._unpack(found._pack(), "again").body == found.body


def small_rows(data: bytes) -> None:
    for content in (data, vouching.rows(data, max(5, len(data)))):
        note, shadow, status = Note.unpack(content), ShadowCopy.unpack(content), StatusNote.unpack(content)
        assert note is None or Note.unpack(note.pack()) == note
        assert shadow is None or ShadowCopy.unpack(shadow.pack()) == shadow
        assert status is None or StatusNote.unpack(status.pack()) == status


def signatures(data: bytes) -> None:
    fs = RamFS({"/lock": data})
    holder, _ = holder_of(fs, "/lock")
    assert holder is not None
    read_holder(fs, "/lock")
    old = LastWriter.of(old_fields(data[:512]) or b"")
    assert old is None or LastWriter.parse(old.render()) == old


def store_settings(data: bytes) -> None:
    with contextlib.suppress(CorruptionError):
        read_settings(RamFS({"/store/taskflux.settings.json": data}), "/store")


def times(data: bytes) -> None:
    with contextlib.suppress(ValueError, UnicodeDecodeError):
        timestamps.from_text(data.decode())


def log_entries(data: bytes) -> None:
    for number in (7, int.from_bytes(data[8:16], "little")):
        head = log_format.head_at(number, data, 0)
        entry = None if head is None else log_format.entry_of(head, data, 0)
        judged = log_oracle.entry_at(data)
        if judged is not None and judged.number == number:
            assert entry is not None
            assert entry == (judged.sequence, tuple(judged.parts))
        else:
            assert entry is None


def redo_logs(data: bytes) -> None:
    with contextlib.suppress(UnsupportedFormatError):
        found = log_format.read_redo(RamFS({"/redo": data}), "/redo")
        for entry in () if found is None else found.entries:
            assert all(part.content in data for part in entry.parts)


def write_ahead_logs(data: bytes) -> None:
    with contextlib.suppress(UnsupportedFormatError):
        fs = RamFS({"/wal": data})
        waiting = read_wal(fs, "/wal")
        assert waiting is None or waiting.content in data
        assert waiting is None or not holds_nothing(fs, "/wal")
        assert all(row.start < row.end for row in rows_on(fs, "/wal", 0))


# --- what is right ----------------------------------------------------------------------------------


def _redo_log() -> bytes:
    header = log_format.encode_header(LogHeader(log_format.SYNCED, 7, b"", 4096, 2, 512))
    entries = b"".join(encode_entry(7, number, 1, [(0, 0, 0, 8, b"message")]) for number in (1, 2, 3))
    return header.ljust(4096 - 128, b"\0") + header + entries.ljust(2 * 512, b"\0")


def _write_ahead_log(kib: int) -> bytes:
    size = kib * 1024
    boot = RamFS({}).identity().boot_id.encode()
    areas = (1, size - WAL_ENTRY) if kib == 64 else (0, 0)
    header = log_format.encode_header(LogHeader(log_format.WRITTEN, 7, boot, WAL_ENTRY, *areas))
    entry = encode_entry(7, 1, 1, [(0, 0, 0, 8, b"message")]) if kib == 64 else b""
    return (header.ljust(WAL_ENTRY - 128, b"\0") + header + entry).ljust(size, b"\0")


def _journal() -> list[bytes]:
    messages = list(itertools.product(KEYS, [*TIMES, None], (0, 7, 255), BODIES))
    return [
        journal_codec.encode(messages[at : at + 5], first)
        for first in (0, 41)
        for at in range(0, len(messages), 9)
    ]


def _stream(*, varuint: bool) -> list[bytes]:
    messages = list(itertools.product(KEYS, TIMES, BODIES))
    return [
        stream_codec.encode(messages[at : at + 5], varuint=varuint).data for at in range(0, len(messages), 3)
    ]


def _commands() -> list[bytes]:
    found = []
    for document in (False, True):
        records = [
            priority_codec.encode(
                priority_codec.create_command(b"mail", 2, 100, 1000, (-5, 5)), document=document
            ),
            priority_codec.encode_adds(b"mail", BODIES, list(range(len(BODIES))), document=document)[0],
            priority_codec.encode_removes(b"mail", [1, 3], document=document)[0],
            priority_codec.encode(priority_codec.delete_command(b"mail"), document=document),
        ]
        found += [*records, b"".join(records), b"".join(records) + priority_codec.END_MARKER]
    return found


def _state() -> list[bytes]:
    queue = state_codec.encode_queue_head(b"mail", 2, 17, 100, 1000, (-5, 5), 2)
    return [
        state_codec.encode_metadata(3, 1),
        state_codec.encode_metadata(3, 1, document=True),
        state_codec.encode_snapshot_head(12, 3, len(queue)) + queue,
        queue * 3,
    ]


def _requests() -> list[bytes]:
    columns = journal_codec.columns(journal_codec.encode([(b"k", 5, 1, body) for body in BODIES]))
    return [
        hubwire.put_request(b"web1", b"events", columns),
        hubwire.get_request(b"web1", b"events", 5),
        hubwire.get_response(columns),
    ]


_POINTS = RecoveryPoints(False, {0: RecoveryPoint(0, 128, 4), 3: RecoveryPoint(9, 0, 9, 5)})
_STAGED = StagedFile(
    str(StagedName("sink", 3, 0, "01ab")), (Extent(0, 0, 128, 1, 7), Extent(3, 128, 40, 2, 9))
)
_INTENT = Intent(
    "sink",
    3,
    "01234567-89ab-cdef-0123-456789abcdef",
    {0: PartitionShare(5, 0, 1), 3: PartitionShare(9, 1, 2)},
    (_STAGED,),
)
_LETTER = DeadLetter("epoch:0:30", "HTTP 400", 1_700_000_000, 3, b"body\nof two lines")
_ROWS = stream_codec.encode([(b"k", 5, body) for body in BODIES])

DECODERS: dict[str, Decoder] = {
    "nsq records": Decoder([queue_codec.encode(BODIES[at:]) for at in range(len(BODIES))], nsq_records),
    "nsq metadata": Decoder(
        [b"3\n0,0\n0,40\n", QueueMetadata(3, QueuePosition(0, 8), QueuePosition(1, 40), True).render()],
        nsq_metadata,
    ),
    "triplet records": Decoder(_stream(varuint=False), triplet_records),
    "triplet records, varuint": Decoder(_stream(varuint=True), triplet_varuint),
    "triplet rows": Decoder([_ROWS.index_rows, _ROWS.timeindex_rows], triplet_rows),
    "stream settings": Decoder(
        [
            b'{"partition_count": 3, "segment_size_bytes": 100}\n',
            b'{"retention_max_age": 5, "encoding": "varuint", "other": [1, {"a": null}]}',
        ],
        settings,
    ),
    "stream points": Decoder([_POINTS.render()], points),
    "stream intent": Decoder([_INTENT.render()], intent),
    "sej records": Decoder(_journal(), sej_records),
    "sej anywhere": Decoder(_journal()[:20], sej_anywhere),
    "taskflux records": Decoder(_commands(), taskflux_records),
    "taskflux state": Decoder(_state(), taskflux_state),
    "hub requests": Decoder(_requests(), hub_requests),
    "spool state": Decoder([SpoolState(is_open=True, tail=QueuePosition(0, 8)).render()], spool_state),
    "dead letters": Decoder(
        [_LETTER._pack(), b"a body of somebody else's", b'{"version": 2, "id": [1, {}]}\nbody'], dead_letters
    ),
    "small rows": Decoder(
        [
            Note(QueuePosition(0, 14), Trace.of(b"body"), QueuePosition(0, 42), 2, 3, 1).pack(),
            ShadowCopy(7, Stamp(11, 13)).pack(),
            StatusNote(4711, 1, 2, 3, 4, DiskBound(1 << 20, 5, True)).pack(),
        ],
        small_rows,
    ),
    "signatures": Decoder(
        [b'{"pid": 4711, "host": "a", "since": "2013-07-04T10:00:00+00:00", "boot_id": "b"}  \n'], signatures
    ),
    "store settings": Decoder(
        [
            b'{"LogFileSoftLimit": 1024, // bytes\n "logFileHardLimit": "2048", /* twice */}',
            b'{"dataDirectory": "data", "snapshotCreationSegmentsThreshold": 3}',
        ],
        store_settings,
    ),
    "log entries": Decoder(
        [encode_entry(7, 1, 1, [(0, 0, 0, 8, b"message"), (0, 1, 0, 24, b"row")]), encode_entry(7, 2, 3, [])],
        log_entries,
    ),
    "redo logs": Decoder([_redo_log()], redo_logs),
    "write-ahead logs": Decoder([_write_ahead_log(4), _write_ahead_log(64)], write_ahead_logs),
    "times": Decoder([b"2013-07-04T10:00:00.000001Z", b"1700000000", b"-1h30m"], times),
}

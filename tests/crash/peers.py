# Other programs at work on a disk that a crash left. Law: each does what its program does when it opens the
# files, appends messages and closes, or dies before it has; it knows no file of diskq. What it writes is
# durable, so that nothing of it may be missing afterwards.

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence

from diskq.testing import CrashFS
from tests.engine import journals, streams
from tests.reference import nsq_oracle, sej_oracle, taskflux_oracle, triplet_oracle

__all__ = ["go_diskq", "go_diskqueue", "is_left_of", "sej", "taskflux"]

_TRIPLET = (streams.data, streams.index, streams.timeindex)


def go_diskqueue(
    fs: CrashFS, directory: str, name: str, values: Sequence[bytes], *, dies: bool
) -> list[bytes]:
    """It goes on where the metadata says; in the next file, if there is more. A file is not shortened.

    At its start it reads a message ahead, and sets a file aside whose next message is not whole. If it dies,
    that is before its first sync of the metadata after the messages. Returns the messages.
    """
    metadata = f"{directory}/{name}.diskqueue.meta.dat"
    depth = read = at = write = byte = 0
    if (told := fs.files().get(metadata)) is not None:
        depth, read, at, write, byte = map(int, told.replace(b",", b"\n").split(b"\n")[:5])

    def path(number: int) -> str:
        return f"{directory}/{name}.diskqueue.{number:06}.dat"

    def save() -> None:
        text = b"%d\n%d,%d\n%d,%d\n" % (depth, read, at, write, byte)
        if fs.size_of(metadata) is not None:
            fs.unlink(metadata)  # it is replaced: another file has its name
        fs.write_durably(metadata, text)

    if told is not None and byte < (fs.size_of(path(write)) or 0):
        write, byte = write + 1, 0
    while read < write or at < byte:
        content = fs.files().get(path(read), b"")
        size = int.from_bytes(content[at : at + 4], "big", signed=True)
        if 0 <= size <= len(content) - at - 4:
            break
        if read == write:
            write, byte = write + 1, 0
        if fs.size_of(path(read)) is not None:
            fs.rename(path(read), f"{path(read)}.bad")
            fs.sync_directory(directory)
        read, at = read + 1, 0
        if (read, at) == (write, byte):
            depth = 0
        save()
    content = fs.files().get(path(write), b"")
    new = b"".join(map(nsq_oracle.frame, values))
    content = content[:byte].ljust(byte, b"\0") + new + content[byte + len(new) :]
    fs.write_durably(path(write), content)
    byte += len(new)
    depth += len(values)
    if not dies:
        save()
    return list(values)


def go_diskq(fs: CrashFS, values: Sequence[bytes], *, dies: bool) -> list[bytes]:
    """It appends to the three files of the last segment, whatever is at their ends.

    Its first offset is the number of whole entries in the index. Without an index it opens nothing. If it
    dies, that is before the last entry of the index. Returns the messages that have entries. The user has
    removed the file `owner`, before and after it.
    """
    files = fs.files()
    if streams.OWNER in files:
        fs.unlink(streams.OWNER)
        fs.sync_directory(streams.ROOT)
    pushed: list[bytes] = []
    for group in range(3):
        base = max(streams.segments(files, group), default=None)
        paths = [] if base is None else [of(base, group) for of in _TRIPLET]
        if base is None or not all(path in files for path in paths):
            continue
        its, rows, moments = (bytearray(files[path]) for path in paths)
        offset = base + len(rows) // 24
        mine = list(enumerate(values))[group::3]
        for number, value in mine:
            record = triplet_oracle.record(b"peer", number, value)
            moments += triplet_oracle.timeindex_row(offset, number)
            at = len(its)
            its += record
            if dies and (number, value) == mine[-1]:
                break
            rows += triplet_oracle.index_row(offset, at, len(record))
            pushed.append(value)
            offset += 1
        for path, content in zip(paths, (its, rows, moments), strict=True):
            fs.write_durably(path, bytes(content))
    return pushed


def sej(fs: CrashFS, values: Sequence[bytes], *, dies: bool) -> list[bytes]:
    """It goes on after the record that ends the last file; if none does, after the first whole ones.

    Its lock file is emptied, and goes. If it dies, the lock file stays, and half of the last record is there.
    Returns the messages whose records are whole.
    """
    fs.write_durably(journals.LOCK, b"")
    name = max(journals.segments(fs))
    path, next_offset = f"{journals.ROOT}/jnl/{name}", int(name.removesuffix(".jnl"), 16)
    content = fs.read(path)
    start = len(content) - int.from_bytes(content[-4:], "big")
    last = sej_oracle.records(content[start:])[0] if 0 <= start < len(content) else []
    if len(last) == 1:
        next_offset = last[0].offset + 1
    else:
        found, end, _ = sej_oracle.records(content, next_offset)
        next_offset += len(found)
        content = content[:end]
    new = [
        sej_oracle.record(offset, b"peer", 0, 0, value) for offset, value in enumerate(values, next_offset)
    ]
    fs.write_durably(path, content + _joined(new, dies=dies))
    if not dies:
        fs.unlink(journals.LOCK)
    return list(values[: len(values) - dies])


def taskflux(fs: CrashFS, data: str, values: Sequence[bytes], *, dies: bool) -> list[bytes]:
    """It adds messages to the default queue, and ends. It removes segments after a gap in the log.

    If it dies, half of the last record is there. Returns the messages whose records are whole: none if it
    refuses the store, or would lose a part of it.
    """
    files = {path.removeprefix(f"{data}/"): content for path, content in fs.files().items()}
    logs = {int(path[4:-4]): content for path, content in sorted(files.items()) if path.startswith("log/")}
    log: dict[int, tuple[int, int]] = {}
    try:
        assert files["tflux.metadata"] == taskflux_oracle.metadata()
        covered, _ = taskflux_oracle.read_snapshot(files.get("tflux.snapshot", b""))
        next_lsn = min(logs, default=0)
        for base, content in logs.items():
            if base != next_lsn:
                break
            log[base] = _whole_records(content)
            next_lsn += log[base][0]
        assert min(log, default=0) <= covered + 1
    except (AssertionError, KeyError, struct.error):
        return []
    if next_lsn <= covered:
        log, next_lsn = {}, covered + 1
    ends = []
    for base in logs.keys() - log.keys():
        with contextlib.suppress(AssertionError):
            ends.append(base + _whole_records(logs[base])[0])
    if max(ends, default=0) > next_lsn:
        return []  # it would remove records that it could read, because an old segment came back
    for base in logs.keys() - log.keys():
        fs.unlink(_segment(data, base))
    fs.sync_directory(f"{data}/log")
    base = max(log, default=next_lsn)
    at = log[base][1] if base in log else 0
    new = [taskflux_oracle.record(taskflux_oracle.add("", 0, value), "code") for value in values]
    added = (b"" if at else taskflux_oracle.HEAD) + _joined(new, dies=dies) + (b"" if dies else bytes(4))
    before = logs.get(base, b"")
    is_torn = before[at : at + 4].strip(b"\0")
    after = b"" if is_torn else before[at + len(added) :]
    fs.write_durably(_segment(data, base), before[:at] + added + after)
    return list(values[: len(values) - dies])


def _segment(data: str, base: int) -> str:
    return f"{data}/log/{base:019}.log"


def _whole_records(content: bytes) -> tuple[int, int]:
    """The number of records of a segment that TaskFlux reads, and where they end: 0 without a head.

    Raises AssertionError if it does not open the log.
    """
    if not content:
        return 0, 0
    assert content.startswith(taskflux_oracle.HEAD)
    count, at = 0, len(taskflux_oracle.HEAD)
    while content[at : at + 4].strip(b"\0"):
        assert len(content) < at + 4 or content.startswith(taskflux_oracle.MARKER, at)
        if len(content) < at + 20:
            break
        term, check, size = struct.unpack_from(">qIi", content, at + 4)
        assert term > 0
        assert size >= 0
        payload = content[at + 20 : at + 20 + size]
        if len(payload) < size or taskflux_oracle.crc(payload) != check:
            break
        count, at = count + 1, at + 20 + size
    return count, at


def _joined(records: Sequence[bytes], *, dies: bool) -> bytes:
    """The records; of the last one half, if the program dies as it writes it."""
    *others, last = records
    return b"".join([*others, last[: len(last) // 2] if dies else last])


def is_left_of(value: bytes, whole: bytes) -> bool:
    """True if a power cut may have left `value` of a message: it is as long, and has holes.

    Beside bytes of a program without checksums, those of diskq that were not synced are believed by their
    lengths alone.
    """
    return len(value) == len(whole) > 0 and all(
        one in (0, other) for one, other in zip(value, whole, strict=True)
    )

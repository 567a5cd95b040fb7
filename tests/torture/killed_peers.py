# What a peer does to a directory of ours whose process was killed, by `struct` alone. Law: it does what its
# program does (docs/format), reads our files as that program reads them, and knows nothing of ours.

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.reference import nsq_oracle, sej_oracle, taskflux_oracle, triplet_oracle
from tests.torture.killed_making import item
from tests.torture.messages import message, number_of

__all__ = ["Written", "go_diskq", "go_diskqueue", "sej", "taskflux"]


class Written(NamedTuple):
    """What a peer has done."""

    sent: list[int]
    consumed: list[int]
    """Messages that it took out, of ours or of its own; also what it has set aside, or overwritten and then
    removed: nobody can tell that from what was consumed."""
    what: str


# --- go-diskqueue -----------------------------------------------------------------------------------


def go_diskqueue(files: Path, name: str, numbers: Iterable[int], rng: random.Random) -> Written:
    """It opens, takes some, puts, takes some more, and closes."""
    meta = nsq_oracle.read_meta(files, name)
    most = rng.choice((100 << 20, 8192, 1000))
    depth, read_file, read_at, write_file, write_at = meta

    def path(number: int) -> Path:
        return nsq_oracle.data_path(files, name, number)

    if path(write_file).exists() and write_at < path(write_file).stat().st_size:
        write_file, write_at = write_file + 1, 0
    consumed: list[int] = []
    overwritten = dict[int, list[int]]()

    def inside(number: int) -> list[int]:
        """The messages of a file, as far as it has whole ones."""
        bodies = nsq_oracle.frames(path(number).read_bytes(), may_be_torn=True)
        return [found for body in bodies if (found := number_of(body)) is not None]

    def take(count: int) -> None:
        nonlocal consumed, depth, read_file, read_at, write_file, write_at
        while count and (read_file < write_file or read_at < write_at):
            data = path(read_file).read_bytes() if path(read_file).exists() else b""
            limit = len(data) if read_file < write_file else write_at
            size = struct.unpack_from(">i", data, read_at)[0] if read_at + 4 <= limit else -1
            if size < 0 or read_at + 4 + size > limit:  # it sets the file aside, and goes on with the next
                if read_file == write_file:
                    write_file, write_at = write_file + 1, 0
                if path(read_file).exists():
                    consumed += [*inside(read_file), *overwritten.pop(read_file, [])]
                    path(read_file).rename(f"{path(read_file)}.bad")
                read_file, read_at = read_file + 1, 0
                continue
            consumed.append(number_of(data[read_at + 4 : read_at + 4 + size]) or 0)
            read_at += 4 + size
            depth, count = depth - 1, count - 1
            if read_file < write_file and read_at >= limit:
                path(read_file).unlink()
                consumed += overwritten.pop(read_file, [])
                read_file, read_at = read_file + 1, 0
        if read_file == write_file and read_at == write_at:
            depth = 0

    def put(number: int) -> None:
        nonlocal depth, write_file, write_at
        record = nsq_oracle.frame(message(number))
        if write_at > 0 and write_at + len(record) > most:
            write_file, write_at = write_file + 1, 0
        if write_file not in overwritten:
            overwritten[write_file] = inside(write_file) if path(write_file).exists() else []
        with path(write_file).open("r+b" if path(write_file).exists() else "w+b") as file:
            file.seek(write_at)
            file.write(record)
        write_at += len(record)
        depth += 1

    before, after = rng.choice(((0, 0), (0, 0), (5, 0), (0, 7), (400, 0), (0, 500)))
    take(before)
    sent = list(numbers)
    for number in sent:
        put(number)
    take(after)
    nsq_oracle.write_meta(files, name, nsq_oracle.Meta(depth, read_file, read_at, write_file, write_at))
    return Written(sent, consumed, f"go-diskqueue takes {before}, puts {len(sent)}, takes {after}")


# --- go-diskq ---------------------------------------------------------------------------------------


def go_diskq(files: Path, numbers: Iterable[int], rng: random.Random) -> Written:
    """The owner file was removed by hand; it opens, pushes, and closes, or is killed."""
    (files / "owner").unlink(missing_ok=True)
    (files / "owner").write_bytes(uuid.UUID(int=rng.getrandbits(128), version=4).bytes)
    told = triplet_oracle.settings(files)
    varuint = told.get("encoding") == "varuint"  # a go-diskq that keeps to its README
    count, size = told.get("partition_count", 3), told.get("segment_size_bytes", 32 << 20)
    size = rng.choice((size, 3000))
    parts = [files / f"parts/{partition:06}" for partition in range(count)]
    last = [part / f"{triplet_oracle.bases(part)[-1]:020}.data" for part in parts]
    if not all(path.with_suffix(f".{end}").exists() for path in last for end in ("index", "timeindex")):
        return Written([], [], "go-diskq refuses to open, and leaves its owner file")
    sent = list(numbers)
    for number in sent:
        key, value, when = item(number)
        part = files / f"parts/{triplet_oracle.fnv1(key) % count:06}"
        base = triplet_oracle.bases(part)[-1]
        data, index, timeindex = (part / f"{base:020}.{end}" for end in ("data", "index", "timeindex"))
        offset = base + index.stat().st_size // 24
        record = triplet_oracle.record(key, when, value, varuint=varuint)
        position = data.stat().st_size
        _append(timeindex, triplet_oracle.timeindex_row(offset, when))
        _append(data, record)
        _append(index, triplet_oracle.index_row(offset, position, len(record)))
        if position + len(record) >= size:
            for end in ("data", "index", "timeindex"):
                (part / f"{offset + 1:020}.{end}").touch()
    closes = rng.random() < 0.7
    if closes:
        (files / "owner").unlink()
    ends = "closes" if closes else "is killed"
    return Written(sent, [], f"go-diskq pushes {len(sent)}, segments of {size}, and {ends}")


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


# --- sej --------------------------------------------------------------------------------------------


def sej(files: Path, numbers: Iterable[int], rng: random.Random) -> Written:
    """It locks, which empties the lock file, appends, and closes, which removes it, or is killed."""
    (files / "jnl.lck").write_bytes(b"")
    size = rng.choice((1 << 30, 8192, 3000))
    path = max((files / "jnl").glob("*.jnl"))
    content = path.read_bytes()
    offset = int(path.stem, 16)
    if content:
        (length,) = struct.unpack(">i", content[-4:])
        assert 0 < length <= len(content), f"sej finds {path.name} corrupt"
        offset = struct.unpack_from(">Q", content, len(content) - length)[0] + 1
    sent = list(numbers)
    for number in sent:
        key, value, when = item(number)
        _append(path, sej_oracle.record(offset, key, when, number % 5, value))
        offset += 1
        if path.stat().st_size >= size:
            path = path.with_name(f"{offset:016x}.jnl")
            path.touch()
    closes = rng.random() < 0.7
    if closes:
        (files / "jnl.lck").unlink()
    ends = "closes" if closes else "is killed"
    return Written(sent, [], f"sej appends {len(sent)}, segments of {size}, and {ends}")


# --- TaskFlux ---------------------------------------------------------------------------------------


def taskflux(files: Path, numbers: Iterable[int], rng: random.Random) -> Written:
    """It reads its store, takes some messages, adds some, and ends."""
    root = files / "data"
    state = taskflux_oracle.read_store(root)[""]
    takes = rng.choice((0, 0, 3, 20))
    taken = state.ordered()[:takes]
    sent = list(numbers)
    commands = [taskflux_oracle.remove("", number) for _, number, _ in taken]
    commands += [taskflux_oracle.add("", number % 5, message(number)) for number in sent]
    path = max((root / "log").glob("*.log"))
    content = path.read_bytes()
    end = 8 + sum(len(taskflux_oracle.record(each.command)) for each in taskflux_oracle.records(content))
    added = b"".join(taskflux_oracle.record(command) for command in commands) + bytes(4)
    path.write_bytes(content[:end] + added + content[end + len(added) :])
    consumed = [number_of(payload) or 0 for _, _, payload in taken]
    return Written(sent, consumed, f"TaskFlux takes {len(taken)}, adds {len(sent)}")

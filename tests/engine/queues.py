# The vocabulary of the engine's tests: queues on a disk in memory, and the content of their files.

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.queue.queue_errors import QueueEmptyError
from diskq.engine.queue.work import Lease, QueueWork
from diskq.options import QueueOptions
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS, FaultFS
from tests.engine.ram import RamFS
from tests.reference.nsq_oracle import frame

ROOT = "/q"

Disk = CrashFS | RamFS


def disk() -> CrashFS:
    """A disk in memory with an empty directory for queues."""
    fs = CrashFS()
    fs.make_directory_durably(ROOT)
    return fs


def failing_disk() -> FaultFS[CrashFS]:
    """The same, with planned failures."""
    return FaultFS(disk())


def opened(fs: FileSystem, name: str = "q", **options: Any) -> Queue:
    return Queue(ROOT, name, options=QueueOptions(**options), fs=fs)


def size(fs: FileSystem, path: str) -> int:
    """Return the size of a file that exists."""
    found = fs.size_of(path)
    assert found is not None, path
    return found


def data(number: int = 0) -> str:
    return f"{ROOT}/q.diskqueue.{number:06d}.dat"


def sums(number: int = 0) -> str:
    return f"{ROOT}/.diskq/q.diskqueue.{number:06d}.dat.sums"


def meta() -> str:
    return f"{ROOT}/q.diskqueue.meta.dat"


LOCK = f"{ROOT}/.diskq/q.lock"
STATE = f"{ROOT}/.diskq/q.queue.state"
WAL = f"{ROOT}/.diskq/q.wal"


def records(*bodies: bytes) -> bytes:
    return b"".join(map(frame, bodies))


def body(number: int, length: int = 100) -> bytes:
    """Return message `number`, which contains its number, and fills its length with it."""
    return (b"%08d|" % number * (length // 9 + 1))[:length]


def bodies(count: int, length: int = 100, start: int = 0) -> list[bytes]:
    return [body(number, length) for number in range(start, start + count)]


def taken(queue: Queue) -> bytes | None:
    """Take the first message; None if there is none."""
    try:
        return queue.get_nowait()
    except QueueEmptyError:
        return None


def leased(work: QueueWork) -> Lease | None:
    """Lease the next message; None if none may be handed out."""
    return next(iter(work.get_many(1)), None)


def drained(queue: Queue) -> list[bytes]:
    """Return all messages, received one by one, as a consumer does."""
    return list(iter(lambda: taken(queue), None))


def contents(fs: FileSystem, /, **options: Any) -> list[bytes]:
    """Return what the queue on this disk holds: opened, drained, closed."""
    with opened(fs, **options) as queue:
        return drained(queue)


def flip(fs: Disk, path: str, at: int, mask: int = 0xFF) -> None:
    """Let one byte of a file rot."""
    content = bytearray(fs.read(path))
    content[at] ^= mask
    fs.write_durably(path, bytes(content))


def truncate(fs: Disk, path: str, size: int) -> None:
    fs.write_durably(path, fs.read(path)[:size])


def zero(fs: Disk, path: str, start: int, end: int) -> None:
    content = bytearray(fs.read(path))
    content[start:end] = bytes(end - start)
    fs.write_durably(path, bytes(content))


def abandoned(queue: Queue, fs: CrashFS) -> CrashFS:
    """Kill the process. Returns the disk as the next one finds it."""
    queue.flush()
    return fs.kill()


def put_files(fs: CrashFS, files: Iterable[bytes], metadata: bytes | None = None, first: int = 0) -> None:
    """A queue's files as another program left them."""
    for number, content in enumerate(files, first):
        fs.write_durably(data(number), content)
    if metadata is not None:
        fs.write_durably(meta(), metadata)


def listed(fs: FileSystem, directory: str = ROOT) -> list[str]:
    return sorted(fs.list_directory(directory))

# The words of the tests of stores: one on a disk in memory, and what lies in its files.

from __future__ import annotations

from typing import Any

from diskq._native.priority.record_table import PriorityRecord
from diskq.engine.priority.store import PriorityStore
from diskq.options import PriorityOptions
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS, FaultFS
from tests.reference import taskflux_oracle as oracle

__all__ = [
    "DATA",
    "ROOT",
    "disk",
    "drain",
    "failing_disk",
    "files",
    "kept",
    "opened",
    "segment",
    "segments",
    "state",
    "stored",
    "written",
]

ROOT = "/q"
DATA = f"{ROOT}/data"

Disk = CrashFS | FaultFS[CrashFS]


def disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably(ROOT)
    return fs


def failing_disk() -> FaultFS[CrashFS]:
    return FaultFS(disk())


def opened(fs: FileSystem, *, repairs_damage: bool = False, **options: Any) -> PriorityStore:
    options = {"preallocate": False} | options
    return PriorityStore(ROOT, options=PriorityOptions(**options), fs=fs, repairs_damage=repairs_damage)


def segment(base: int = 0) -> str:
    return f"{DATA}/log/{base:019d}.log"


def files(fs: Disk) -> dict[str, bytes]:
    """All files of the store that TaskFlux knows, by their paths below its root."""
    inner = fs.inner if isinstance(fs, FaultFS) else fs
    found = {path.removeprefix(f"{DATA}/"): data for path, data in inner.files().items()}
    return {path: data for path, data in found.items() if not path.startswith(".diskq/")}


def kept(fs: Disk) -> dict[str, bytes]:
    """What was set aside, by its name."""
    inner = fs.inner if isinstance(fs, FaultFS) else fs
    return {path.rpartition("/")[2]: data for path, data in inner.files().items() if ".bad" in path}


def segments(fs: Disk, layout: str = "aligned") -> dict[int, list[oracle.Record]]:
    """The records in each segment, by its first one's number."""
    logs = {int(path[4:23]): data for path, data in files(fs).items() if path.startswith("log/")}
    return {base: oracle.records(data, layout) for base, data in sorted(logs.items())}


def stored(fs: Disk, layout: str = "aligned") -> oracle.State:
    """What the files of a store say, to the oracle."""
    return oracle.read_files(files(fs), layout)


def written(
    fs: CrashFS,
    commands: dict[int, list[bytes]],
    *,
    layout: str = "aligned",
    snapshot: bytes = b"",
    metadata: bytes | None = None,
) -> CrashFS:
    """The same disk with the files of a store, as the oracle lays them down."""
    fs.write_durably(f"{DATA}/tflux.metadata", oracle.metadata() if metadata is None else metadata)
    fs.write_durably(f"{DATA}/tflux.snapshot", snapshot)
    fs.make_directory_durably(f"{DATA}/log")
    for base, in_it in commands.items():
        fs.write_durably(segment(base), oracle.segment(in_it, layout))
    return fs


def told(records: list[PriorityRecord]) -> list[tuple[int, int, bytes]]:
    return [(record.priority, record.id, record.body) for record in records]


def drain(store: PriorityStore, name: str = "") -> list[tuple[int, int, bytes]]:
    """Everything that is ready, as it comes out; it is acknowledged."""
    queue = store.queue(name)
    records = store.get_many(queue, 10**6)
    store.ack_many(queue, records)
    return told(records)


def state(store: PriorityStore) -> oracle.State:
    """What the store holds, without taking it out; nothing may be in hand."""
    found = {}
    for info in store.queues():
        queue = store.queue(info.name)
        records = told(store.peek(queue, info.ready))
        assert info.stored == info.ready
        assert records == sorted(records, key=lambda record: record[:2])
        found[info.name] = oracle.Queue(
            queue.implementation,
            info.last_id,
            info.max_messages,
            info.max_message_size,
            info.priority_range,
            {number: (key, payload) for key, number, payload in records},
        )
    return found

"""Power cuts of real file systems: `python -m tests.torture.real_disks --cuts 100` (as root, on Linux).

A process writes to a store on ext4 or XFS on a loop device. The shutdown ioctl then stops the file system
under it: what is not on the device is gone, as after a power cut, and the boot id is the same, as it is when
a disk goes away and comes back. After umount and mount diskq opens the store, or the real peer first.

A cut is FILESYSTEM:KIND:FLAG:FIRST:SEED. FLAG: `nologflush` (the file system's journal loses what it had in
memory) or `logflush`. FIRST: `diskq`, or how the peer ends, `closes` or `dies`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import logging
import os
import pickle
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio

from diskq.storage.fs import OsFileSystem
from tests.contract.kinds import CHANNELS, ENGINES
from tests.torture.cut_judging import FAULTS, Sent, Verdict, judge
from tests.torture.peer_first import let_write
from tests.torture.real_peers import PEERS, Peer, real_peers

__all__ = ["FILE_SYSTEMS", "run_cut", "why_not"]

FILE_SYSTEMS = {"ext4": (["mkfs.ext4", "-q", "-F"], 64), "xfs": (["mkfs.xfs", "-q", "-f"], 320)}
"""How each is made, and the MiB that it needs."""
FLAGS = {"logflush": 1, "nologflush": 2}
_SHUTDOWN = 0x8004587D
"""_IOR('X', 125, __u32): EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are the same number."""
_MIB = 1024 * 1024

T = TypeVar("T")


def why_not(file_system: str) -> str | None:
    """Return why there can be no cut of this file system here, in a sentence; None if there can be."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return f"{file_system}: left out: only root may mount it, on Linux"
    missing = [
        name for name in (FILE_SYSTEMS[file_system][0][0], "mount", "losetup") if not shutil.which(name)
    ]
    if missing:
        return f"{file_system}: left out: {', '.join(missing)} is not installed"
    try:
        with tempfile.TemporaryDirectory(prefix="diskq-disk-") as room, _disk(file_system, Path(room)):
            return None
    except subprocess.CalledProcessError as failure:
        return f"{file_system}: left out: {' '.join((failure.stderr or b'').decode().split())}"


@contextmanager
def _disk(file_system: str, room: Path) -> Iterator[Path]:
    """A new file system on a loop device, mounted."""
    image, mount = room / "image", room / "mount"
    command, size = FILE_SYSTEMS[file_system]
    with image.open("wb") as file:
        file.truncate(size * _MIB)
    _run(*command, str(image))
    mount.mkdir()
    _run("mount", "-o", "loop", str(image), str(mount))
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], capture_output=True, check=False)


def _wait_for_end(image: Path) -> None:
    """Return when no mount of the image is left, in whatever namespace. Raises AssertionError after a minute.

    A process that has its own mounts, which were copied from ours, may have one for some time: mounted again,
    the file system would be the one that was stopped.
    """
    limit = time.monotonic() + 60
    while any(_backing_file(device) == str(image) for device in Path("/sys/block").glob("loop*")):
        assert time.monotonic() < limit, "another process has it mounted"
        time.sleep(0.01)


def _backing_file(device: Path) -> str | None:
    with contextlib.suppress(OSError):
        return (device / "loop/backing_file").read_text().strip()
    return None  # it has none now


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=True)


def _body(number: int) -> bytes:
    return b"ours %d " % number + b"." * (7, 90, 700)[number % 3]


async def _write(kind: str, path: str, seed: int, acknowledged: int) -> None:
    """Send until the process ends. The number of each synced message goes to the file `acknowledged`."""
    luck = random.Random(seed)
    numbers = iter(range(10**9))
    options: dict[str, Any] = {"segment_size": 20_000} if kind in ("queue", "spool") else {}
    options = {"segment_size": 20_000} if kind in ("stream", "journal") else options
    if luck.random() < 0.5:
        options = {}

    async def send(durability: str) -> None:
        for number in numbers:
            await channel.send(_body(number), durability)  # type: ignore[arg-type]
            os.write(acknowledged, b"%s %d\n" % (durability[:1].encode(), number))
            await trio.sleep(luck.random() * 0.002)

    async with CHANNELS[kind].open(path, **options) as channel, trio.open_nursery() as nursery:
        for durability in ("synced", "synced", "synced", "written"):
            nursery.start_soon(send, durability)


def _forked(act: Callable[[], T]) -> int:
    """Run `act` in a process of its own. Returns its number."""
    process = os.fork()
    if not process:
        try:
            act()
        finally:
            os._exit(0)
    return process


def _in_a_process(act: Callable[[], T], room: Path) -> T:
    """Return what `act` returns in a process of its own: what it opens, and its threads, end with it."""
    answer = room / "answer"
    os.waitpid(_forked(lambda: answer.write_bytes(pickle.dumps(act()))), 0)
    result: T = pickle.loads(answer.read_bytes())
    return result


def _silently(act: Callable[[], None]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the writer's disk is about to fail
    act()


def run_cut(case: str, peer: Peer | None) -> tuple[Verdict, int, str]:
    """Make one cut. Returns the verdict, the number of synced messages, and what the peer refused."""
    file_system, kind, flag, first, seed = case.split(":")
    luck = random.Random(case)
    with tempfile.TemporaryDirectory(prefix="diskq-disk-") as directory:
        room = Path(directory)
        with _disk(file_system, room) as mount:
            store = mount / "store"
            store.mkdir()
            os.sync()
            log = os.open(room / "acknowledged", os.O_CREAT | os.O_RDWR | os.O_APPEND)
            writer = _forked(lambda: _silently(lambda: trio.run(_write, kind, str(store), int(seed), log)))
            limit = time.monotonic() + 20
            while not os.fstat(log).st_size and time.monotonic() < limit:
                time.sleep(0.005)
            time.sleep(luck.random() * 0.5)
            handle = os.open(mount, os.O_RDONLY)
            fcntl.ioctl(handle, _SHUTDOWN, struct.pack("I", FLAGS[flag]))
            os.close(handle)
            time.sleep(luck.random() * 0.02)
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
            os.close(log)
            _run("umount", str(mount))
            _wait_for_end(room / "image")
            _run("mount", "-o", "loop", str(room / "image"), str(mount))
            lines = (room / "acknowledged").read_text().split("\n")[:-1]
            numbers = [int(line.split()[1]) for line in lines]
            sent = Sent([_body(number) for number in range(max(numbers, default=0) + 100)])
            sent.synced = {_body(int(line.split()[1])) for line in lines if line.startswith("s")}
            refused = ""
            if peer is not None and first != "diskq":
                refused = let_write(peer, store, luck.randrange(1, 31), first == "dies", sent, room)
            verdict = _in_a_process(lambda: judge(ENGINES[kind], store, OsFileSystem(), sent), room)
    return verdict, len(sent.synced), refused


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first cut")
    parser.add_argument("--only", metavar="CUT", action="append", default=[])
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    cases = args.only or list(_cases(args.cuts, args.seed))
    reasons = {name: why_not(name) for name in FILE_SYSTEMS}
    for reason in filter(None, reasons.values()):
        print(reason)
    peers: dict[str, Peer] = {}
    for each in real_peers(list(PEERS)):
        if isinstance(each, str):
            print(each)
        else:
            peers[each.kind] = each
    rows: dict[str, Counter[str]] = {}
    for case in cases:
        file_system, kind, flag, first, _ = case.split(":")
        if reasons[file_system] or (first != "diskq" and kind not in peers):
            continue
        verdict, synced, refused = run_cut(case, peers.get(kind))
        row = rows.setdefault(
            f"{file_system} {flag}, {'diskq' if first == 'diskq' else 'peer'} first", Counter()
        )
        row.update({"cuts": 1, "synced": synced, "peer refused": bool(refused)})
        row.update(verdict.faults)
        row.update({f"{name}, reported": count for name, count in verdict.reported.items()})
        row["failed"] += bool(+verdict.faults)
        if +verdict.faults or args.only:
            print(case, *verdict.notes, *([f"the peer refused: {refused}"] if refused else []), sep="\n    ")
    columns = ("cuts", "synced", "peer refused", *FAULTS, "failed", "lost, reported", "peer's lost, reported")
    print(f"{'':30}" + "  ".join(columns))
    for name, row in sorted(rows.items()):
        print(f"{name:30}" + "  ".join(f"{row[column]:{len(column)}}" for column in columns))
    sys.exit(any(row["failed"] for row in rows.values()))


def _cases(count: int, seed: int) -> Iterator[str]:
    """Yield cuts of all kinds, file systems and flags in turn, half of them with the peer first."""
    kinds = ("queue", "stream", "journal", "spool", "priority")
    for number in range(count):
        kind = kinds[number % 5]
        first = ("diskq", "closes", "diskq", "dies")[number // 20 % 4] if kind in PEERS.values() else "diskq"
        file_system, flag = ("ext4", "xfs")[number // 5 % 2], ("nologflush", "logflush")[number // 10 % 2]
        yield f"{file_system}:{kind}:{flag}:{first}:{seed + number}"


if __name__ == "__main__":
    main()

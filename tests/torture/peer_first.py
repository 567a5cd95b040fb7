"""A real peer opens first after a power cut: `python -m tests.torture.peer_first --cases 500`.

A writer of diskq sends, syncs and consumes on a disk in memory, which then loses its power. What it kept is
put into a real directory, where the real go-diskqueue, go-diskq or sej writes messages and closes, or ends
before it has closed. Then diskq opens it. A case is PEER:STATE:BOOT:ENDING:SEED, and `--only` runs it again.

STATE: `killed` (no power cut: SIGKILL), `durable` (exactly what was synced), `drawn` (of the rest any part,
as drawn), `sums` (what was synced, and all checksum files), `data` (what was synced, and all files that a
peer has, too), `records` (of these the data files), `index` (of these the others). BOOT: the boot id after it
is another one, the same one, or the machine has none. ENDING: the peer `closes`, or `dies`; or `none` comes,
and diskq is first.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from diskq.engine.stream.files import StreamFiles
from diskq.storage.fs import Identity, OsFileSystem
from diskq.testing import CrashFS
from tests.contract.kinds import ENGINES, Kind, Opened
from tests.torture.cut_judging import FAULTS, Sent, Verdict, judge
from tests.torture.real_peers import PEERS, Peer, PeerError, real_peers

__all__ = ["BOOTS", "ENDINGS", "STATES", "let_write", "run_case"]

STATES = ("killed", "durable", "drawn", "sums", "data", "records", "index")
BOOTS = ("changed", "unchanged", "absent")
ENDINGS = ("closes", "dies", "none")
AT = "/q"
PREFIX = "PEER"


class Disk(CrashFS):
    """A disk in memory, perhaps of a machine without a boot id."""

    has_boot_id = True

    def identity(self) -> Identity:
        identity = super().identity()
        return identity if self.has_boot_id else replace(identity, boot_id="")


class Machine(OsFileSystem):
    """The real file system, with another boot id."""

    def __init__(self, boot_id: str) -> None:
        self._boot_id = boot_id

    def identity(self) -> Identity:
        return replace(super().identity(), boot_id=self._boot_id)


def lived(kind: Kind, luck: random.Random, disk: CrashFS) -> tuple[Sent, Opened]:
    """Send and consume, as drawn. Returns what was sent, with the engine that is still open."""
    sent = Sent()
    disk.make_directory_durably(AT)
    options = dict(kind.small) if luck.random() < 0.4 else {}
    engine = kind.open(AT, fs=disk, wal=luck.random() < 0.8, **options)
    waiting: list[bytes] = []
    for number in range(luck.randrange(1, 80)):
        body = b"ours %d " % number + b"." * luck.choice((0, 5, 80, 600))
        durability = luck.choice(("written", "written", "synced", "memory"))
        engine.put(body, durability=durability)  # type: ignore[arg-type]
        sent.sent.append(body)
        waiting.append(body)
        if engine.takes and luck.random() < 0.2:
            engine.take()
        if durability != "synced" and luck.random() < 0.1:
            engine.sync()
            durability = "synced"
        if durability == "synced":
            sent.synced.update(waiting)
            waiting.clear()
        if luck.random() < 0.2:
            engine.flush()
        if luck.random() < 0.03:
            engine.close()
            sent.synced.update(waiting)
            waiting.clear()
            engine = kind.open(AT, fs=disk, wal=True, **options)
    if engine.takes:  # what is left is what was not taken
        count = len(engine.engine.peek_many(1 << 30))
        sent.synced.intersection_update(sent.sent[len(sent.sent) - count :])
    return sent, engine


def left(disk: CrashFS, state: str, luck: random.Random) -> CrashFS:
    """Return the disk after the power cut."""
    if state == "killed":
        return disk.kill()
    if state == "drawn":
        return disk.crash(luck)
    after, seen = disk.crash(), disk.kill().files()
    for path, content in seen.items():
        is_ours = "/.diskq/" in path
        is_data = path.endswith((".data", ".jnl")) or (".diskqueue.0" in path and path.endswith(".dat"))
        survives = {
            "sums": path.endswith(".sums"),
            "data": not is_ours,
            "records": is_data,
            "index": not is_ours and not is_data,
        }
        if survives.get(state):
            after.write_durably(path, content)
    return after


def run_case(peer: Peer, state: str, boot: str, ending: str, seed: int, room: Path) -> tuple[Verdict, str]:
    """Run one case in `room`, an empty directory. Returns the verdict, and what the peer refused."""
    luck = random.Random(f"{peer.name}:{state}:{boot}:{seed}")
    kind = ENGINES[peer.kind]
    disk = Disk()
    disk.has_boot_id = boot != "absent"
    boot_id = disk.identity().boot_id
    sent, _ = lived(kind, luck, disk)
    store = room / "store"
    left(disk, state, luck).to_directory(store, AT)
    refused = (
        ""
        if ending == "none"
        else let_write(peer, store, luck.randrange(1, 31), ending == "dies", sent, room)
    )
    machine = Machine(boot_id if boot != "changed" else "another-boot")
    return judge(kind, store, machine, sent), refused


def let_write(peer: Peer, store: Path, count: int, dies: bool, sent: Sent, room: Path) -> str:
    """Let the peer write. Returns why it did not, if it refused."""
    if peer.kind == "stream":
        Path(StreamFiles(OsFileSystem(), str(store)).owner).unlink(missing_ok=True)  # as its user has to
    bodies = [b"%s %d" % (PREFIX.encode(), number) for number in range(count)]
    sent.perhaps.update(bodies)
    try:
        peer.write(store, count, PREFIX, dies=dies)
    except PeerError as refusal:
        if peer.kind == "stream":
            Path(StreamFiles(OsFileSystem(), str(store)).owner).unlink(missing_ok=True)
        return str(refusal)[:200]
    finally:
        if peer.kind == "stream" and dies:
            Path(StreamFiles(OsFileSystem(), str(store)).owner).unlink(missing_ok=True)
    if dies and peer.kind == "queue":
        sent.theirs = bodies  # its metadata is as old as diskq's: only diskq can find them
        return ""
    copy = room / "copy"
    shutil.copytree(store, copy)
    with_them = set(peer.read(copy))
    sent.theirs = [body for body in bodies if body in with_them]
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=500, help="of each peer")
    parser.add_argument("--seed", type=int, default=1, help="of the first case")
    parser.add_argument("--peer", choices=PEERS, action="append")
    parser.add_argument("--only", metavar="CASE", action="append", default=[])
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    names = args.peer or ([each.split(":")[0] for each in args.only] or list(PEERS))
    is_bad = False
    for peer in real_peers(list(dict.fromkeys(names))):
        if isinstance(peer, str):
            print(peer)
        else:
            is_bad |= _run_peer(peer, args)
    sys.exit(is_bad)


def _run_peer(peer: Peer, args: argparse.Namespace) -> bool:
    cases = [
        (STATES[n % 7], BOOTS[n // 7 % 3], ENDINGS[n // 21 % 3], args.seed + n) for n in range(args.cases)
    ]
    if args.only:
        parts = [each.split(":") for each in args.only if each.startswith(f"{peer.name}:")]
        cases = [(state, boot, ending, int(seed)) for _, state, boot, ending, seed in parts]
    counts: dict[str, Counter[str]] = {}
    for state, boot, ending, seed in cases:
        case = f"{peer.name}:{state}:{boot}:{ending}:{seed}"
        with tempfile.TemporaryDirectory(prefix="diskq-peer-") as room:
            verdict, refused = run_case(peer, state, boot, ending, seed, Path(room))
        row = counts.setdefault(f"{state}, boot id {boot}", Counter())
        row["cases"] += 1
        row["with the peer"] += ending != "none" and not refused
        row["peer refused"] += bool(refused)
        row.update({f"{name}, reported": count for name, count in verdict.reported.items()})
        row.update(verdict.faults)
        row["failed"] += bool(+verdict.faults)
        if +verdict.faults or args.only:
            print(case, *verdict.notes, *([f"the peer refused: {refused}"] if refused else []), sep="\n    ")
    _show(peer.name, counts)
    return any(row["failed"] for row in counts.values())


def _show(name: str, counts: dict[str, Counter[str]]) -> None:
    reported = ("lost, reported", "peer's lost, reported")
    columns = ("cases", "with the peer", "peer refused", *FAULTS, "failed", *reported)
    total: Counter[str] = Counter()
    print(f"{name:26}" + "  ".join(columns))
    for row, found in sorted(counts.items()):
        total.update(found)
        print(f"{row:26}" + "  ".join(f"{found[column]:{len(column)}}" for column in columns))
    print(f"{'all':26}" + "  ".join(f"{total[column]:{len(column)}}" for column in columns), flush=True)


if __name__ == "__main__":
    main()

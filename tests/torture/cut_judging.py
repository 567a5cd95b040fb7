# What a store must be after a power cut, whoever opened it first. Law: no synced message of ours and none
# that the other program has written is missing without a report, nothing is altered, every scan ends, and the
# depth is the number of messages that come.

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

import diskq
from diskq.storage.fs import OsFileSystem
from tests.contract.kinds import NAME, Kind

__all__ = ["FAULTS", "Sent", "Verdict", "judge"]

FAULTS = ("lost", "peer's lost", "altered", "endless", "depth", "refused", "crashed")
"""A synced message of ours, or one of the other program, is missing, and no report counts it; a message that
nobody sent comes; a scan has not ended; the depth is not the number of messages that come; the open raised
one of diskq's errors, or something raised anything else."""

_A_SCAN = 20.0
"""Seconds after which a scan counts as endless."""


@dataclass
class Sent:
    """What a writer sent before the power cut, and another program after it."""

    sent: list[bytes] = field(default_factory=list)
    synced: set[bytes] = field(default_factory=set)
    """Of these, the messages that a sync has covered, and that were not consumed."""
    theirs: list[bytes] = field(default_factory=list)
    """Messages of the other program that must come."""
    perhaps: set[bytes] = field(default_factory=set)
    """Messages of the other program that may come."""


@dataclass
class Verdict:
    """Of one case: how many messages or events there are of each fault."""

    faults: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    reported: Counter[str] = field(default_factory=Counter)
    """Messages that are missing, and that a report counts: `lost` and `peer's lost`."""

    def fault(self, name: str, note: str, count: int = 1) -> None:
        self.faults[name] += count
        self.notes.append(f"{name}: {note}")


def judge(kind: Kind, path: Path, fs: OsFileSystem, sent: Sent, **options: Any) -> Verdict:
    """Open the store with diskq, read all of it in each way that there is, and compare."""
    verdict = Verdict()
    try:
        with kind.open(path, fs=fs, wal=True, **options) as store:
            repairs = store.repairs
            depth = store.engine.depth if kind.name in ("queue", "spool") else None
        found = trio.run(_drained, kind, path, fs, verdict)
        read = kind.read(path, fs=fs) if not kind.name.startswith(("queue", "spool")) else found
    except (diskq.DiskqError, OSError) as refusal:
        verdict.fault("refused", f"{type(refusal).__name__}: {refusal}")
        return verdict
    except Exception as failure:  # whatever it is, it is not one of diskq's errors
        while isinstance(failure, ExceptionGroup):
            failure = failure.exceptions[0]
        verdict.fault("crashed", f"{type(failure).__name__}: {failure}")
        return verdict
    if verdict.faults["endless"]:
        return verdict
    if depth is not None and depth != len(found):
        verdict.fault("depth", f"it was {depth}, and {len(found)} messages came")
    if sorted(read) != sorted(found):
        only = [*(Counter(read) - Counter(found)), *(Counter(found) - Counter(read))][0][:40]
        verdict.fault("endless", f"a reader finds {len(read)} messages, a scan {len(found)}; not {only!r}")
    known = {*sent.sent, *sent.theirs, *sent.perhaps}
    if strange := [body for body in found if body not in known]:
        verdict.fault("altered", f"{strange[0][:40]!r}", len(strange))
    counts = [repair.records for repair in repairs]
    is_uncounted = any(count is None for count in counts)
    reported = sum(count or 0 for count in counts)
    there = set(found)
    for name, wanted in (("peer's lost", sent.theirs), ("lost", sorted(sent.synced))):
        missing = [body for body in wanted if body not in there]
        covered = len(missing) if is_uncounted else min(reported, len(missing))
        reported -= min(reported, covered)
        verdict.reported[name] += covered
        if silent := len(missing) - covered:
            words = "; ".join(map(str, repairs)) or "no report"
            verdict.fault(
                name, f"{missing[0][:20]!r} and so on, {len(missing)} of {len(wanted)}: {words}", silent
            )
    if +verdict.reported:
        verdict.notes.append(f"reported: {'; '.join(map(str, repairs))}"[:600])
    return verdict


async def _drained(kind: Kind, path: Path, fs: OsFileSystem, verdict: Verdict) -> list[bytes]:
    """Return what a receiver, a scanner or consumers give, up to the end that they see."""
    found: list[bytes] = []
    with trio.move_on_after(_A_SCAN) as waiting:
        match kind.name:
            case "queue" | "spool":
                name = NAME if kind.name == "queue" else "spool"
                async with diskq.open_queue(path, name, fs=fs) as queue:
                    while queue.depth:
                        found.append(await queue.receive())
                    by_depth = len(found)
                    with contextlib.suppress(trio.WouldBlock):
                        while True:
                            found.append(queue.receive_nowait())
                if by_depth < len(found):
                    verdict.fault("depth", f"it was 0 after {by_depth} of {len(found)} messages")
            case "stream":
                async with diskq.open_consumer(path, start="oldest", end="close", fs=fs) as consumer:
                    found += [bytes(message.value) async for message in consumer]
            case "journal":
                async with diskq.open_scanner(path, end="close", fs=fs) as scanner:
                    found += [bytes(message.value) async for message in scanner]
            case _:
                async with diskq.open_priority_store(path, fs=fs) as store:
                    with contextlib.suppress(trio.WouldBlock):
                        while True:
                            found.append(bytes(store.queue().receive_nowait().body))
    if waiting.cancelled_caught:
        verdict.fault("endless", f"a scan has not ended after {len(found)} messages")
    return found

# The share of the machine's limit that each path reaches, and where the rest goes. Law: a path below half of
# its limit has a reason here, and its figures come from the sweep, which measures both in the same round.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.harness import Result, Spread
from benchmarks.report import line_of, range_of, short

__all__ = ["ENOUGH", "GAPS", "Gap", "Reached", "markdown", "reached"]

ENOUGH = 0.5
"""The share of the limit from which on no reason is required."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A path, the limit that it is compared with, and why it does not reach it."""

    path: str
    section: str
    ours: str
    limit: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reached:
    gap: Gap
    ours: Spread
    """Messages a second."""
    limit: Spread
    share: Spread
    """Of the limit, round by round."""

    @property
    def needs_reason(self) -> bool:
        return self.share.median < ENOUGH


def _each(path: str, kind: str, reason: str = "") -> Gap:
    call = path.removeprefix(f"{kind} ")
    limit = "writev" if call == "send_many(100)" else "write"
    ours = f"{kind} {call.removesuffix('(100)')} @ 100 B"
    return Gap(path, "Each path: 100 B", ours, f"limit {limit} @ 100 B", reason)


def _read(path: str, reason: str) -> Gap:
    ours = path.removesuffix("(100)")
    return Gap(path, "Reading: 100 B", f"{ours} @ 100 B", "limit read @ 100 B", reason)


def _durable(kind: str, producers: int, reason: str) -> Gap:
    return Gap(
        f"{kind} send, synced, {producers} {'task' if producers == 1 else 'tasks'}",
        f"Durable: producers: {producers}",
        f"{kind} @ {producers}",
        f"limit fdatasync @ {producers}",
        reason,
    )


_AWAITED = (
    "One call from Python and back is 50 to 100 ns, an await with its slice's clock as much again. What "
    "is written waits in a mapped file for the slice's one write(2), so that one by one costs no call each."
)
_BATCHED = (
    "writev(2) hands over a hundred bodies that lie there. Ours takes each one's bytes out of a Python list, "
    "lays a length before it and a checksum of the block beside it: some 0.2 µs, most of it in the "
    "interpreter's objects and not in the file."
)
_ONE_SYNC = (
    "Both sync one file for all that wait. Each message is written twice, to its file and to the redo log, "
    "which alone is synced; the files and checksums are synced at the sync policy's pace, on the same disk."
)
_LOGGED = (
    "Both sync one file for all that wait. Each message is a record of the command log, and an entry of the "
    "heap that it is taken from; it can be received only after its sync."
)
_AWAKE = (
    " The rest of a lone send is the call, and two hand-overs: to the thread that syncs, and back. Both "
    "threads wait awake for a short time; on a disk that takes longer, or with one processor, each of the "
    "two is the wake-up of a thread."
)
_RETURNED = (
    " The rest grows with the tasks: each is woken by Trio's loop and sends its next message before the "
    "next group is whole, about the time of a bare hand-over between two tasks (the queue's report has it), "
    "in which the disk has nothing to do."
)
_OBJECT = (
    "The limit moves bytes by the MiB and looks at none. A message is a Python object of its own to make and "
    "to let go, after its length was looked at and its block held against the checksum"
)

GAPS = (
    _each("queue send", "queue", _AWAITED),
    _each("queue send_many(100)", "queue", _BATCHED),
    _each(
        "stream send", "stream", _AWAITED + " A stream writes two rows of indexes for each message besides."
    ),
    _each(
        "stream send_many(100)",
        "stream",
        _BATCHED
        + " A stream has three files: index and timeindex are 40 bytes a message, in calls of their own.",
    ),
    _each("journal send", "journal", _AWAITED),
    _each(
        "journal send_many(100)",
        "journal",
        _BATCHED + " A journal's messages are pairs of key and value, each with a head of 26 bytes.",
    ),
    _each(
        "priority send",
        "priority",
        "The limit's write(2) is in each send, too: nothing is gathered over a slice, as a record is visible "
        "only once it is written. Besides that a send is the call and its await, the record with its "
        "CRC-32/MPEG-2, and the place in the heap. Batches are the way.",
    ),
    _each(
        "priority send_many(100)",
        "priority",
        "Each message is a record of the command log with a CRC-32/MPEG-2 of its own, and an entry of the "
        "heap with bytes that stay in memory until it is acknowledged: a store is no append-only file.",
    ),
    _read("queue receive", _OBJECT + "; and an await of its own, with a call into the interpreter and back."),
    _read("queue receive_many(100)", _OBJECT + "."),
    _read(
        "stream receive_many(100)",
        _OBJECT + "; here with key, value, offset and time: three objects, and the index beside the data.",
    ),
    _read("journal receive_many(100)", _OBJECT + "; here with key, value, offset and time: three objects."),
    _read(
        "stream columns",
        "No object for a message, but every byte is read, summed (CRC-32C, 10 GB/s here) and copied once "
        "more, into the columns; lengths vary, so that the copies are of 100 bytes each. It is bound by "
        "memory and not by calls: 128 bytes of file for the limit's 100.",
    ),
    _read(
        "journal columns",
        "As a stream's, over big-endian heads of 26 bytes that are turned round: 134 bytes of file for the "
        "limit's 100.",
    ),
    *(
        _durable(kind, producers, (_LOGGED if kind == "priority" else _ONE_SYNC) + rest)
        for kind in ("queue", "stream", "journal", "priority")
        for producers, rest in ((1, _AWAKE), (16, _RETURNED), (256, _RETURNED))
    ),
)


def reached(results: Sequence[Result]) -> list[Reached]:
    """Of the sweep's results, what was measured with its limit in the same rounds."""
    found = []
    for gap in GAPS:
        measured = {
            reading: figures["rate"]
            for result in results
            if result.section == gap.section
            for reading, figures in ((result.row.ours, result.ours), (result.row.peer, result.peer))
            if figures
        }
        ours, limit = measured.get(gap.ours), measured.get(gap.limit)
        if ours is not None and limit is not None:
            pairs = zip(ours.each, limit.each, strict=True)
            found.append(Reached(gap, ours, limit, Spread.of([a / b for a, b in pairs])))
    return found


def markdown(results: Sequence[Result]) -> Iterator[str]:
    """The report's section: shares, and why the rest is missing, in Markdown."""
    paths = reached(results)
    if not paths:
        return
    yield from ("## How far from the machine's limit", "")
    yield (
        "100 bytes a message; what one takes here, and what the same bytes take in C with no queue "
        "([limits.c](../limits.c)), in the same round: no length, no checksum, no name, no task that waits."
    )
    yield from ("", line_of(("path", "a message", "limit", "a message", "share", "least..most")))
    yield "|---|---:|---|---:|---:|---:|"
    for each in paths:
        limit = each.gap.limit.removeprefix("limit ").partition(" @ ")[0]
        share = Spread.of([100 * value for value in each.share.each])
        cells = (each.gap.path, _micros(each.ours), limit, _micros(each.limit))
        yield line_of((*cells, f"{short(share.median)} %", range_of(share)))
    yield ""
    reasons: dict[str, list[str]] = {}
    for each in paths:
        if each.needs_reason:
            reasons.setdefault(each.gap.reason or "no reason is stated (benchmarks/gaps.py).", []).append(
                each.gap.path
            )
    if reasons:
        yield from (f"### Why the rest is missing, below {100 * ENOUGH:.0f} %", "")
        for reason, names in reasons.items():
            yield f"* **{'; '.join(names)}**: {reason}"
        yield ""


def _micros(rate: Spread) -> str:
    return f"{1e6 / rate.median:.3f} µs" if rate.median > 1e6 else f"{short(1e6 / rate.median)} µs"

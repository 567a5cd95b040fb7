# Where a log begins, against where it began when it was last written to. Law: what retention of ours removes,
# it removes with its checksums, and notes before where the log begins from then on. So a first segment of the
# recovery point that is not there, or checksums without their segment at the beginning, tell of segments that
# somebody else took away: by hand, by a peer's retention, or by an accident. It may be meant: nothing is
# refused, and it is said once.

from __future__ import annotations

from collections.abc import Callable, Iterable

from diskq.storage.repairs import Repair

__all__ = ["missing_start"]


def missing_start(
    bases: list[int],
    checksum_files: Iterable[int],
    data: Callable[[int], str],
    *,
    noted: int | None,
    first: int = 0,
) -> Repair | None:
    """What is missing before the first of the segments; None: nothing.

    `checksum_files` are the segments of which checksums are there, `data` names a segment's file, `noted` is
    the first segment as the recovery point has it (None: unknown), and before segment `first` retention has
    removed all. Where no segment is left, the recovery point tells.
    """
    if not bases:
        return None
    begun = checksum_files if noted is None else (*checksum_files, max(noted, first))
    gone = [base for base in begun if first <= base < bases[0]]
    if not gone:
        return None
    start, now = min(gone), bases[0]
    return Repair(
        path=data(start),
        kept=0,
        dropped=0,
        reason=f"it begins with message {now}, and began with {start}: somebody else removed those before",
        records=now - start,
    )

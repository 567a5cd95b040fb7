# Where a log begins, compared with where it began when it was last written. Law: diskq's retention removes a
# segment together with its checksums, and notes first where the log begins from then on. So if the first
# segment of the recovery point is missing, or the first checksums have no segment, another program or a
# person removed segments: by hand, by a peer's retention, or by accident. It may be meant: nothing is
# refused, and it is reported once.

from __future__ import annotations

from collections.abc import Callable, Iterable

from diskq.storage.repairs import Repair, RepairKind

__all__ = ["missing_start"]


def missing_start(
    bases: list[int],
    checksum_files: Iterable[int],
    data: Callable[[int], str],
    *,
    noted: int | None,
    first: int = 0,
) -> Repair | None:
    """Return what is missing before the first of the segments; None if nothing is.

    `checksum_files` are the segments that have checksums, `data` names a segment's file, `noted` is the first
    segment as the recovery point has it (None: unknown), and `first` is the segment before which retention
    has removed all. If no segment is left, the recovery point shows that.
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
        kind=RepairKind.LOST,
        kept=0,
        dropped=0,
        reason=f"it begins with message {now}, but began with {start}: diskq did not remove the others",
        records=now - start,
    )

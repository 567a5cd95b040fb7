# What becomes of a case. Law: what is delivered was sent; what was acknowledged and does not come is
# reported; what a peer has written always comes; no open takes longer than the limit; and `verify` finds
# damage beforehand where the open then loses messages.

from __future__ import annotations

import contextlib
import random
import shutil
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import diskq
from diskq.tools.convert.sources import entries
from diskq.tools.stores import stores_found
from diskq.tools.verify.verification import verify
from tests.torture.killed_cases import Done, Killed, damage
from tests.torture.killed_kinds import Said, Seen
from tests.torture.messages import message, number_of

__all__ = ["FAULTS", "Verdict", "judge"]

_LIMIT = 2.0
"""Seconds that an open may take."""

FAULTS = (
    *("altered", "early", "silent", "fewer", "peer's"),
    *("slow", "false clean", "false loss", "holes", "crashed"),
)
"""Delivered and never sent; the same by a reader before the open; gone and not reported; reported, but as
fewer; a peer's message gone; an open over the limit; `verify` finds no damage where messages are lost; loss
is reported where nothing is lost; the peer's program cannot read what we deliver; something else than one of
our errors was raised."""


@dataclass
class Verdict:
    """Of one case."""

    id: str
    what: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    refused: str = ""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def fault(self, name: str, note: str, count: int = 1) -> None:
        self.faults[name] += count
        self.notes.append(f"{name}: {note}")


def judge(killed: Killed, case: str, seed: int, room: Path, *, limit: float = 0.0) -> Verdict:
    """Run the case of this id: TEMPLATE:DAMAGE:NUMBER. SIGALRM ends it after `limit` seconds, if any."""
    verdict = Verdict(case)
    rng = random.Random(f"{seed} {case}")
    place = room / "case"
    place.mkdir()
    try:
        killed.lay(place / "files")
        done = damage(killed, place / "files", case.split(":")[1], rng)
        verdict.what = done.what
        if limit:
            signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            _judge(killed, place / "files", done, verdict)
        finally:
            if limit:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except diskq.DiskqError as refusal:
        verdict.refused = f"{type(refusal).__name__}: {refusal}"
    except Exception as failure:
        verdict.fault("crashed", f"{type(failure).__name__}: {failure}")
    finally:
        shutil.rmtree(place)
    return verdict


def _judge(killed: Killed, files: Path, done: Done, verdict: Verdict) -> None:
    damaged, lost = _verified(files, verdict)
    _read_early(files, killed, done, verdict)
    seen = killed.kind.read(files, killed.how, False)
    reported_now = any(each.records != 0 for each in seen.said)
    seen.tell(done.repairs)
    verdict.refused, verdict.seconds = seen.refused, seen.seconds
    verdict.notes += [f"told: {each.text}" for each in seen.said]
    if seen.seconds > _LIMIT:
        verdict.fault("slow", f"{seen.seconds:.1f} s")
    delivered = set(seen.numbers)
    if invented := delivered - killed.tried - set(done.written.sent):
        verdict.fault("altered", f"numbers that nobody sent: {sorted(invented)[:5]}", len(invented))
    if seen.altered:
        verdict.fault("altered", f"{len(seen.altered)} bodies, {seen.altered[0][:40]!r}", len(seen.altered))
    consumed = killed.consumed | set(done.written.consumed)
    gone = set(killed.sent - consumed - delivered)
    gone_theirs = set(done.written.sent) - consumed - delivered
    _account(seen, gone, files, verdict)
    if gone_theirs:
        verdict.fault("peer's", f"{len(gone_theirs)} gone, {sorted(gone_theirs)[:5]}", len(gone_theirs))
    # What an open in between reported is no news to `verify`.
    is_news = reported_now or not any(repair.records != 0 for repair in done.repairs)
    if (gone or gone_theirs or reported_now) and is_news and not damaged:
        verdict.fault("false clean", f"verify finds no damage; {len(gone) + len(gone_theirs)} are gone")
    if not (gone or gone_theirs or reported_now) and lost:
        verdict.fault("false loss", f"verify says {lost} lost, nothing is")
    if reported_now and done.what == "nothing":
        verdict.fault("false loss", "the open tells of loss, and nothing was damaged")
    if killed.kind.peer_view is not None and not (done.hits_peer_files or done.hides_ours):
        try:
            unseen = delivered - set(killed.kind.peer_view(files))
        except (AssertionError, LookupError, ValueError, OSError) as failure:
            verdict.fault("holes", f"{type(failure).__name__}: {failure}")
        else:
            if unseen:
                verdict.fault("holes", f"{len(unseen)} that the peer does not see, {sorted(unseen)[:5]}")
    again = killed.kind.read(files, killed.how, True)
    if again.refused and not verdict.refused:
        verdict.fault("crashed", f"the second open: {again.refused}")
    if again.altered and not seen.altered:
        verdict.fault("altered", f"by the second open, {again.altered[0][:40]!r}", len(again.altered))
    later = delivered - consumed - set(again.numbers)
    if later and not any(each.records != 0 for each in again.said):
        verdict.fault("silent", f"{len(later)} that the first open had, {sorted(later)[:5]}", len(later))


def _verified(files: Path, verdict: Verdict) -> tuple[bool, int]:
    """Return whether `verify` finds damage, and how many messages it says are lost."""
    try:
        found = [verify(store) for store in stores_found(files)]
    except (FileNotFoundError, diskq.DiskqError) as failure:
        verdict.notes.append(f"verify: {type(failure).__name__}: {failure}")
        return True, 0
    for each in found:
        told = "; ".join(
            f"{one.path.rpartition('/files/')[2]}@{one.at} {one.severity} {one.what}" for one in each.findings
        )
        verdict.notes.append(f"verify: {each.verdict}, {each.messages} messages, {each.lost} lost; {told}")
    return any(each.verdict == "damaged" for each in found), sum(each.lost for each in found)


def _read_early(files: Path, killed: Killed, done: Done, verdict: Verdict) -> None:
    """By somebody who only looks, beside a writer that is dead."""
    known = killed.tried | set(done.written.sent)
    with contextlib.suppress(FileNotFoundError, diskq.DiskqError):
        for store in stores_found(files):
            strange = [each.value for each in entries(store) if number_of(each.value) not in known]
            if strange:
                verdict.fault(
                    "early", f"{store.kind}: {len(strange)} bodies, {strange[0][:40]!r}", len(strange)
                )


def _account(seen: Seen, gone: set[int], files: Path, verdict: Verdict) -> None:
    """What is gone is told of, or lies in what was kept aside and told of."""
    if not gone:
        return
    short = f"{len(gone)} gone, {sorted(gone)[0]} to {sorted(gone)[-1]}"
    if not any(each.records != 0 or each.dropped for each in seen.said):
        verdict.fault("silent", short, len(gone))
        return
    if any(each.records is None for each in seen.said):
        return
    # A reader passes over what the open has told of, and tells it again.
    told = sum({(each.path, each.at): each.records or 0 for each in seen.said}.values())
    aside = b"".join(_kept(each) for each in seen.said)
    left = sum(message(number) not in aside for number in gone)
    if left > told:
        verdict.fault("fewer", f"{short}; told {told}, aside {len(gone) - left}", left - told)


def _kept(said: Said) -> bytes:
    """What was dropped: it is aside, or will be when its file is consumed."""
    if said.aside is None:
        return b""
    for path in (Path(said.aside), Path(said.path)):
        if path.exists():
            return path.read_bytes()
    return b""

# What fuzzing has found, and where it is kept. Law: the bytes of a finding are on the disk before anybody is
# told of it, behind a line with the name of its decoder, so that `--again FILE` needs nothing else.

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["KEPT", "Fuzzed", "file_name", "keep", "tell", "what_went_wrong"]

KEPT = Path(__file__).parents[2] / ".cache" / "fuzz"


@dataclass(slots=True)
class Fuzzed:
    """What was tried of one decoder."""

    name: str
    cases: int = 0
    seconds: float = 0.0
    coverage: tuple[int, int] | None = None
    """Edges reached by what was there at the start, and by all that was tried; None: not counted."""
    findings: dict[str, bytes] = field(default_factory=dict)
    """The bytes, by the place at which it went wrong."""
    ended_early: str = ""
    """Why it was given less than its time."""

    def add(self, what: str, data: bytes) -> None:
        """One finding for each kind of error at each place."""
        if _place(what) not in {_place(known) for known in self.findings}:
            self.findings[what] = data


def _place(what: str) -> str:
    return what.split(": ")[0]


def what_went_wrong(failure: Exception) -> str:
    """`AssertionError at decoders.py:56: the message`."""
    place = traceback.extract_tb(failure.__traceback__)[-1]
    return f"{type(failure).__name__} at {Path(place.filename).name}:{place.lineno}: {failure}"


def file_name(decoder: str) -> str:
    """A name for what is kept of this decoder."""
    return re.sub(r"[^\w.-]+", "_", decoder).strip("_")


def keep(name: str, data: bytes, kept: Path = KEPT) -> Path:
    file = kept / hashlib.sha256(data).hexdigest()[:16]
    file.write_bytes(name.encode() + b"\n" + data)
    return file


def tell(results: Iterable[Fuzzed], kept: Path = KEPT) -> int:
    """Say what became of each as it comes, and keep what was found. Returns the exit code."""
    decoders = cases = findings = 0
    for each in results:
        decoders += 1
        cases += each.cases
        findings += len(each.findings)
        print(_line(each), flush=True)
        for what, data in each.findings.items():
            print(f"    {what}\n    {keep(each.name, data, kept)}", flush=True)
    print(f"{decoders} decoders, {cases:,} cases, {findings or 'no'} findings", flush=True)
    return 1 if findings else 0


def _line(each: Fuzzed) -> str:
    covered = ""
    if each.coverage is not None:
        covered = f"  coverage {each.coverage[0]:,} -> {each.coverage[1]:,}"
    early = f"  ({each.ended_early})" if each.ended_early else ""
    found = f"{len(each.findings) or 'no'} findings"
    return f"{each.name:56}{each.cases:>12,} cases {each.seconds:>7,.0f} s{covered}  {found}{early}"

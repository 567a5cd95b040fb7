"""Every decoder, given bytes that are nearly right: python -m tests.torture.fuzz --seconds 3600

Each gets the same time. A finding is an exception that is not the decoder's own refusal, or a decoder that
says two things of the same bytes; its bytes are kept under .cache/fuzz, and `--again FILE` tries them again.
For memory errors run it on a build with DISKQ_SANITIZE=1 (CONTRIBUTING.md): then a crash is a finding,
too, and its bytes are in .cache/fuzz/last.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture.decoders import DECODERS, Decoder
from tests.torture.directories import directories
from tests.torture.mutating import Mutator

__all__ = ["Fuzzed", "all_decoders", "fuzz", "main"]

KEPT = Path(__file__).parents[2] / ".cache" / "fuzz"


@dataclass(slots=True)
class Fuzzed:
    """What was tried of one decoder."""

    name: str
    cases: int = 0
    findings: dict[str, bytes] = field(default_factory=dict)
    """The bytes, by the place at which it went wrong."""


def all_decoders() -> dict[str, Decoder]:
    return DECODERS | directories()


def fuzz(
    name: str, decoder: Decoder, seed: int, *, seconds: float = 0.0, cases: int = 0, keeps_last: bool = False
) -> Fuzzed:
    """Try one for so many seconds, or so many cases. `keeps_last`: a crash leaves its bytes."""
    done = Fuzzed(name)
    mutator = Mutator(decoder.seeds, seed, largest=1 << 20)
    until = time.monotonic() + seconds
    while done.cases < cases or (seconds and time.monotonic() < until):
        data = mutator.next()
        done.cases += 1
        if keeps_last:
            (KEPT / "last").write_bytes(name.encode() + b"\n" + data)
        try:
            decoder.check(data)
        except Exception as failure:
            place = traceback.extract_tb(failure.__traceback__)[-1]
            what = f"{type(failure).__name__} at {Path(place.filename).name}:{place.lineno}: {failure}"
            known = {told.split(": ")[0] for told in done.findings}
            if what.split(": ")[0] not in known:
                done.findings[what] = data
    return done


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all of them together (default: 60)")
    parser.add_argument("--only", default="", metavar="TEXT", help="decoders with TEXT in their name")
    parser.add_argument("--seed", type=int, help="of the mutations (default: random)")
    parser.add_argument("--again", type=Path, metavar="FILE", help="try the bytes of a finding, and stop")
    args = parser.parse_args(argv)
    logging.getLogger("diskq").setLevel(logging.CRITICAL)
    KEPT.mkdir(parents=True, exist_ok=True)
    decoders = {name: each for name, each in all_decoders().items() if args.only in name}
    if not decoders:
        parser.error(f"no decoder has {args.only!r} in its name")
    if args.again is not None:
        name, _, data = args.again.read_bytes().partition(b"\n")
        decoders[name.decode()].check(data)
        return 0
    seed = random.randrange(2**32) if args.seed is None else args.seed
    share = args.seconds / len(decoders)
    print(f"{len(decoders)} decoders, {share:.1f} s each, seed {seed}", flush=True)
    return _tell(
        fuzz(name, decoder, seed, seconds=share, keeps_last=True) for name, decoder in decoders.items()
    )


def _tell(results: Iterable[Fuzzed]) -> int:
    cases = findings = 0
    for each in results:
        cases += each.cases
        findings += len(each.findings)
        print(f"{each.name:48}{each.cases:>12,} cases  {len(each.findings) or 'no'} findings", flush=True)
        for what, data in each.findings.items():
            file = KEPT / hashlib.sha256(data).hexdigest()[:16]
            file.write_bytes(each.name.encode() + b"\n" + data)
            print(f"    {what}\n    {file}")
    print(f"{cases:,} cases, {findings or 'no'} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

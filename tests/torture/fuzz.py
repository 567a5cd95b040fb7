"""Every decoder, given bytes that are nearly right.

A finding is an exception that is not the decoder's own refusal, or a decoder that says two things of the same
bytes; its bytes are kept under .cache/fuzz, and `--again FILE` tries them again.

There are two engines. Without --guided bytes are changed at random, and nothing more is needed. On a build
with DISKQ_SANITIZE=1 (CONTRIBUTING.md) a memory error is a finding, too, and its bytes are in
.cache/fuzz/last-DECODER. With --guided it is libFuzzer that changes them, through atheris: it keeps what
reaches code that nothing had reached, in .cache/fuzz/corpus, and goes on from there the next time. It has a
build of its own with the address and undefined-behaviour sanitizers, and needs clang and the extra `fuzz`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.torture import guided
from tests.torture.decoders import DECODERS, Decoder
from tests.torture.directories import directories
from tests.torture.findings import KEPT, Fuzzed, file_name, tell, what_went_wrong
from tests.torture.mutating import Mutator

__all__ = ["all_decoders", "fuzz", "main", "replay"]

EXAMPLES = """
examples:
  %(prog)s --seconds 60                       a minute, shared by all
  %(prog)s --guided --each 3600 --jobs 8      an hour each, eight at once
  %(prog)s --guided --each 600 --only journal
  %(prog)s --guided --again .cache/fuzz/0f3a...
  %(prog)s --replay                           the corpora, on the build that is installed
"""


def all_decoders() -> dict[str, Decoder]:
    return DECODERS | directories()


def fuzz(
    name: str, decoder: Decoder, seed: int, *, seconds: float = 0.0, cases: int = 0, keeps_last: bool = False
) -> Fuzzed:
    """Try one for so many seconds, or so many cases. `keeps_last`: a crash leaves its bytes."""
    done = Fuzzed(name)
    mutator = Mutator(decoder.seeds, seed, largest=1 << 20)
    last = KEPT / f"last-{file_name(name)}"
    started = time.monotonic()
    while done.cases < cases or (seconds and time.monotonic() < started + seconds):
        data = mutator.next()
        done.cases += 1
        if keeps_last:
            last.write_bytes(name.encode() + b"\n" + data)
        _try(decoder, data, done)
    if keeps_last:
        last.unlink(missing_ok=True)
    done.seconds = time.monotonic() - started
    return done


def _try(decoder: Decoder, data: bytes, done: Fuzzed) -> None:
    try:
        decoder.check(data)
    except Exception as failure:
        done.add(what_went_wrong(failure), data)


def replay(name: str, decoder: Decoder, kept: Path = KEPT) -> Fuzzed:
    """Try what guided runs have kept of one."""
    done = Fuzzed(name)
    started = time.monotonic()
    corpus = kept / "corpus" / file_name(name)
    for file in sorted(corpus.iterdir()) if corpus.exists() else []:
        done.cases += 1
        _try(decoder, file.read_bytes(), done)
    done.seconds = time.monotonic() - started
    return done


def _mutated(names: list[str], seconds: float, seed: int, jobs: int) -> Iterator[Fuzzed]:
    if jobs == 1:
        decoders = all_decoders()
        for name in names:
            yield fuzz(name, decoders[name], seed, seconds=seconds, keeps_last=True)
    else:
        with ProcessPoolExecutor(jobs) as pool:
            yield from pool.map(_one, *zip(*((name, seconds, seed) for name in names), strict=True))


def _one(name: str, seconds: float, seed: int) -> Fuzzed:
    logging.getLogger("diskq").setLevel(logging.CRITICAL)
    return fuzz(name, all_decoders()[name], seed, seconds=seconds, keeps_last=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture.fuzz",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    time_given = parser.add_mutually_exclusive_group()
    time_given.add_argument(
        "--seconds", type=float, default=60.0, help="of work for all decoders together, shared equally (60)"
    )
    time_given.add_argument("--each", type=float, metavar="SECONDS", help="of work for each decoder")
    parser.add_argument("--only", default="", metavar="TEXT", help="decoders with TEXT in their name")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="decoders at once, a core each (1)")
    parser.add_argument("--seed", type=int, help="of the mutations (default: random)")
    parser.add_argument(
        "--guided",
        nargs="?",
        choices=("must", "try"),
        const="must",
        help="by coverage; `try`: where that can be, else at random",
    )
    parser.add_argument("--again", type=Path, metavar="FILE", help="try the bytes of a finding, and stop")
    parser.add_argument("--replay", action="store_true", help="try what guided runs have kept, and stop")
    parser.add_argument("--list", action="store_true", help="name the decoders, and stop")
    args = parser.parse_args(argv)
    logging.getLogger("diskq").setLevel(logging.CRITICAL)
    KEPT.mkdir(parents=True, exist_ok=True)
    decoders = {name: each for name, each in all_decoders().items() if args.only in name}
    if not decoders:
        parser.error(f"no decoder has {args.only!r} in its name")
    if args.jobs < 1:
        parser.error("--jobs is at least 1")
    if args.list:
        print(*decoders, sep="\n")
        return 0
    is_guided = args.guided is not None
    if is_guided and (reason := guided.why_not()) is not None:
        if args.guided == "must":
            parser.error(f"--guided: {reason}")
        print(f"at random, not guided: {reason}", flush=True)
        is_guided = False
    if is_guided:
        print("building for the sanitizers, in build/fuzz", flush=True)
        guided.build()
    if args.again is not None or args.replay:
        if is_guided:
            return _on_the_guided_build([each for each in argv or sys.argv[1:] if each != "--guided"])
        if args.replay:
            return tell(replay(name, decoder) for name, decoder in decoders.items())
        name, _, data = args.again.read_bytes().partition(b"\n")
        decoders[name.decode()].check(data)
        return 0
    seed = random.randrange(2**31) if args.seed is None else args.seed
    share = args.each or args.seconds / len(decoders)
    hours = share * len(decoders) / args.jobs / 3600
    print(f"{len(decoders)} decoders, {share:,.1f} s each, {args.jobs} at once: {hours:.1f} h; seed {seed}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the children end, too
    if not is_guided:
        return tell(_mutated(list(decoders), share, seed, args.jobs))
    with contextlib.closing(
        guided.Guided(decoders, seconds=share, seed=seed, jobs=args.jobs).results()
    ) as results:
        return tell(results)


def _on_the_guided_build(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "tests.torture.fuzz", *arguments]
    return subprocess.run(command, env=guided.environment(), cwd=os.curdir, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

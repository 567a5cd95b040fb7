"""Conversions of messages of 100 bytes, from each format into others, with the sync at their end."""

from __future__ import annotations

from benchmarks.floors import CONVERT
from benchmarks.harness import Measurement, Scale, Work

ROUNDS = 5
SECTIONS = CONVERT


def measurements(scale: Scale) -> dict[str, Measurement]:
    many = scale(500_000, least=1_000)
    pairs = (("nsq", "sej"), ("nsq", "jsonl"), ("nsq", "taskflux"), ("sej", "nsq"), ("triplet", "sej"))
    few = scale(100_000, least=1_000)
    return {
        **{f"{a} to {b}": _work(a, b, many) for a, b in pairs},
        "jsonl to sej": _work("jsonl", "sej", few),
        "nsq to triplet": _work("nsq", "triplet", few),
    }


def _work(source: str, target: str, count: int) -> Work:
    options = {"source": source, "target": target, "count": count}
    return Work("convert_all", options, module="convert_works")

# Sizes and durations as people write them. Law: strict. What could be read in two ways is refused, with
# advice how to write it. Both are argparse types.

from __future__ import annotations

import argparse
import re
from decimal import ROUND_DOWN, Decimal
from itertools import pairwise

__all__ = ["duration", "show_duration", "show_size", "size"]

_BYTES = {"": 1, "b": 1}
_BYTES |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)}
_BYTES |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}

_SECONDS = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"),
}

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_SIZE = re.compile(rf"({_NUMBER}) ?([A-Za-z]*)", re.ASCII)
_PART = re.compile(rf"({_NUMBER})(d|h|ms|m|us|s)", re.ASCII)


def size(text: str) -> int:
    """Return bytes: "4096", "64MiB" (1024s), "64MB" (1000s), "1.5GiB"."""
    match = _SIZE.fullmatch(text)
    factor = _BYTES.get(match[2].lower()) if match else None
    if match is None or factor is None or (value := Decimal(match[1]) * factor) % 1:
        raise argparse.ArgumentTypeError(f"a size is written 4096, 64KiB, 64MiB or 1.5GiB, not {text!r}")
    return int(value)


def duration(text: str) -> float:
    """Return seconds: "250ms", "2s", "1h30m". Larger units first, each once."""
    parts = _PART.findall(text)
    places = [list(_SECONDS).index(unit) for _, unit in parts]
    is_whole = text == "".join(number + unit for number, unit in parts)
    if not parts or not is_whole or any(first >= second for first, second in pairwise(places)):
        raise argparse.ArgumentTypeError(f"a duration is written 250ms, 2s, 10m or 1h30m, not {text!r}")
    return float(sum(Decimal(number) * _SECONDS[unit] for number, unit in parts))


def show_size(count: int) -> str:
    """Return it for people: "999 B", "1.5 KiB", "64.0 MiB"."""
    power = min(4, (max(count, 1).bit_length() - 1) // 10)
    return f"{count / 1024**power:.1f} {' KMGT'[power]}iB" if power else f"{count} B"


def show_duration(nanoseconds: int) -> str:
    """Return it for people: "250ms", "1.5s", "1h30m", "2d4h": its two largest units."""
    sign, left = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if left < 60 * 10**9:
        unit = next((unit for unit in ("s", "ms") if left >= _SECONDS[unit] * 10**9), "us")
        number = (Decimal(left) / 10**9 / _SECONDS[unit]).quantize(Decimal("0.1"), ROUND_DOWN)
        return f"{sign}{number}".removesuffix(".0") + unit if left else "0s"
    seconds = left // 10**9
    parts = []
    for unit in "dhms":
        times, seconds = divmod(seconds, int(_SECONDS[unit]))
        parts.append((times, unit))
    first = next(at for at, (times, _) in enumerate(parts) if times)
    return sign + "".join(f"{times}{unit}" for times, unit in parts[first : first + 2] if times)

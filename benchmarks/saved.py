# A report as JSON. Law: each reading is written once, however many rows compare with it, with six significant
# digits and without what follows from the rest: ratios, spreads and verdicts are computed when it is read.
#
#   {..., "measurements": {NAME: {...}}, "took": {NAME: seconds},
#    "readings": [[SECTION, READING, {FIGURE: [a value for each round]}]],
#    "rows": [{"section": ..., "name": ..., "ours": READING, "peer": READING, ...}]}
#
# A line for each measurement, reading and row, so that two runs can be compared by eye. Files of earlier
# versions, which held the figures of each row with their spreads, are read, too.

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from benchmarks.floors import Row
from benchmarks.harness import Result, Spread, ratio_of

__all__ = ["load", "text_of"]

DIGITS = 6
_DERIVED = ("count", "seconds")
"""Figures that are not written: the count is an option of the measurement, seconds are count / rate."""

_Figures = dict[str, Spread]


def text_of(about: Mapping[str, Any], results: Sequence[Result]) -> str:
    """The JSON text of a report."""
    lines = [f"{_json(name)}: {_value(value)}" for name, value in about.items()]
    readings = [
        [section, reading, {figure: list(map(_rounded, spread.each)) for figure, spread in figures.items()}]
        for (section, reading), figures in _readings(results).items()
    ]
    rows = [_row(result) for result in results]
    lines += [f'"readings": {_list(readings)}', f'"rows": {_list(rows)}']
    return "{" + ",\n".join(lines) + "}\n"


def load(text: str) -> tuple[dict[str, Any], list[Result]]:
    """What a report says of its run, and its results."""
    about = json.loads(text)
    rows = about.pop("rows")
    if "readings" not in about:
        return about, list(map(_result_of_before, rows))
    readings: dict[tuple[str, str], _Figures] = {
        (section, reading): {figure: Spread.of(each) for figure, each in figures.items()}
        for section, reading, figures in about.pop("readings")
    }
    return about, [_result(row, readings) for row in rows]


# --- writing -------------------------------------------------------------------------------------------


def _readings(results: Sequence[Result]) -> dict[tuple[str, str], _Figures]:
    found: dict[tuple[str, str], _Figures] = {}
    for result in results:
        for reading, figures in ((result.row.ours, result.ours), (result.row.peer, result.peer)):
            if figures:
                kept = {name: spread for name, spread in figures.items() if name not in _DERIVED}
                found.setdefault((result.section, reading), kept)
    return found


def _row(result: Result) -> dict[str, Any]:
    """Without what is as by default; the reason only where it is of use."""
    row = result.row
    written: dict[str, Any] = {"section": result.section}
    for each in fields(Row):
        value = getattr(row, each.name)
        if value != each.default and (each.name != "reason" or result.is_reached is False):
            written[each.name] = value
    return written | ({"missing": result.missing} if result.missing else {})


def _rounded(value: float) -> float:
    found = float(f"{value:.{DIGITS}g}")
    return int(found) if found.is_integer() else found


def _value(value: Any) -> str:
    if isinstance(value, Mapping) and any(isinstance(each, Mapping) for each in value.values()):
        return "{\n" + ",\n".join(f"{_json(name)}: {_json(each)}" for name, each in value.items()) + "}"
    return _json(value)


def _list(items: Sequence[Any]) -> str:
    return "[\n" + ",\n".join(map(_json, items)) + "]"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- reading -------------------------------------------------------------------------------------------


def _result(saved: Mapping[str, Any], readings: Mapping[tuple[str, str], _Figures]) -> Result:
    section = saved["section"]
    row = Row(**{name: saved[name] for name in _names() if name in saved})
    if missing := saved.get("missing", ""):
        return Result(section, row, missing=missing)
    result = Result(section, row, ours=readings[section, row.ours])
    if row.peer:
        result.peer = readings[section, row.peer]
        result.ratio = ratio_of(row, result.ours, result.peer)
    return result


def _result_of_before(saved: Mapping[str, Any]) -> Result:
    """Of a file that held each row's figures; it may have fewer fields than a row has now."""

    def spreads(of: str) -> _Figures:
        return {figure: Spread.of(spread["each"]) for figure, spread in saved[of].items()}

    known = {name: saved[name] for name in _names() if name in saved}
    row = Row(**known | {"ours": saved.get("reading", saved["name"])})
    ratio = saved["ratio"] and Spread.of(saved["ratio"]["each"])
    return Result(saved["section"], row, spreads("ours"), spreads("against"), ratio, saved["missing"])


def _names() -> Iterator[str]:
    return (each.name for each in fields(Row))

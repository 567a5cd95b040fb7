"""The README's table of figures, made of the reports in benchmarks/results.

    python -m scripts.readme_table        writes it between its marks

A figure of the README is one of the reports', without its "/s": nothing stands there that was not
measured. Speed comes from report.md, losses from torture.md, each from its section "At a glance".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["marked", "table"]

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"

SPEED = {
    "send": "send",
    "receive": "receive",
    "durable, 1 producer": "durable, one by one",
    "durable, 256 at once": "durable, 256 at once",
}
"""Columns of report.md, with their headings in the README."""
LOSSES = {"lost: killed": "lost: kill", "lost: power cut": "lost: power cut"}
"""Columns of torture.md, of whose cells only the number of messages is shown."""
TRIED_AS = {
    "diskq": "diskq",
    "go-diskqueue": "go-diskqueue",  # with a sync after each message
    "persist-queue": "persist-queue SQLite",  # that is the one whose speed is measured
    "diskcache": "diskcache Deque",
}
"""Names of systems in report.md, with those in torture.md where they differ."""
VERSION = re.compile(r" v?\d+(\.\d+)+(?P<how>.*)$")
PREFERRED = ("", ", all kinds", ", sync 1")
"""Of rows of one system in torture.md the later of these ways to open it is taken: the safest one."""


def table() -> str:
    """The table, without its marks."""
    speed, losses = _cells("report.md"), _tried()
    headings = ["", *SPEED.values(), *LOSSES.values()]
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)]]
    for name, row in speed.items():
        system = name.strip("*")
        lost = losses.get(TRIED_AS.get(system, system), {})
        rates = (_rate(row[each]) for each in SPEED)
        lines.append([name, *rates, *(_count(lost.get(each, "")) for each in LOSSES)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def marked(text: str) -> re.Match[str]:
    """The place in the README's text between the marks."""
    found = re.search(r"(?<=<!-- figures -->\n\n).*?(?=\n\n<!-- /figures -->)", text, re.DOTALL)
    assert found is not None, "README.md has lost the marks of its table"
    return found


def _tried() -> dict[str, dict[str, str]]:
    found: dict[str, tuple[int, dict[str, str]]] = {}
    for name, row in _cells("torture.md").items():
        version = VERSION.search(name)
        system, how = (name[: version.start()], version["how"]) if version else (name, "")
        rank = PREFERRED.index(how)
        if rank >= found.get(system, (-1, {}))[0]:
            found[system] = rank, row
    return {system: row for system, (_, row) in found.items()}


def _cells(name: str) -> dict[str, dict[str, str]]:
    """The first table of a report's section "At a glance": by the first cell, then by heading."""
    section = (RESULTS / name).read_text(encoding="utf-8").partition("## At a glance")[2]
    head, _, *rows = _rows(section.partition("\n## ")[0])
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line[1:-1].split("|")]


def _rate(cell: str) -> str:
    """`1.8 M/s` is 1.8 M, on one line however narrow the table is."""
    return cell.replace("/s", "").replace(" ", "\N{NO-BREAK SPACE}")


def _count(cell: str) -> str:
    """`24 in 23 of 305` is 24."""
    return cell.partition(" in ")[0]


def main() -> None:
    text = README.read_text(encoding="utf-8")
    place = marked(text)
    README.write_text(text[: place.start()] + table() + text[place.end() :], encoding="utf-8")


if __name__ == "__main__":
    main()

# The README's first screen. Law: its tables are those of the results, figure by figure, so that nobody reads
# there what was not measured.

from __future__ import annotations

import re

from tests.docs.documents import ROOT

RESULTS = ROOT / "benchmarks" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def at_a_glance(name: str) -> list[str]:
    """The first table of a result's first section."""
    return rows(
        (RESULTS / name).read_text(encoding="utf-8").partition("## At a glance")[2].partition("\n## ")[0]
    )


def shown(name: str) -> list[str]:
    """The table between a pair of marks."""
    (text,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", README, re.DOTALL)
    return rows(text)


def test_how_fast_it_is_said_to_be_was_measured() -> None:
    assert shown("fast") == at_a_glance("report.md") != []


def test_how_trustworthy_it_is_said_to_be_was_tried() -> None:
    kinds = re.compile(r"\| diskq (?!\S+, all kinds)")
    assert shown("trustworthy") == [row for row in at_a_glance("torture.md") if not kinds.match(row)] != []


def test_the_picture_is_there() -> None:
    assert "](benchmarks/results/overview.png)" in README
    assert (RESULTS / "overview.png").stat().st_size > 10_000

# The README's first screen. Law: its table is made of the results, figure by figure, so that no reader sees
# there what was not measured.

from __future__ import annotations

from scripts.readme_table import marked, table
from tests.docs.documents import ROOT

RESULTS = ROOT / "benchmarks" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_figures_are_those_of_the_reports() -> None:
    """`python -m scripts.readme_table` writes them anew."""
    assert marked(README)[0] == table()


def test_of_every_system_that_is_measured_there_is_a_row() -> None:
    rows = [line.split("|")[1].strip(" *") for line in table().splitlines()[2:]]
    assert rows[0] == "diskq"
    report = (RESULTS / "report.md").read_text(encoding="utf-8").partition("## At a glance")[2]
    assert (
        rows
        == [
            line.split("|")[1].strip(" *")
            for line in report.partition("\n## ")[0].splitlines()
            if line.startswith("|")
        ][2:]
    )


def test_what_was_tried_and_what_was_lost_is_in_it() -> None:
    """A name that the reports spell otherwise would leave its cells empty."""
    torture = (RESULTS / "torture.md").read_text(encoding="utf-8")
    for line in table().splitlines()[2:]:
        name, *_, killed, cut = [cell.strip(" *") for cell in line[1:-1].split("|")]
        assert bool(killed) == bool(cut) == (f"\n| {name} " in torture), name


def test_its_table_is_narrow_enough_to_be_read() -> None:
    assert max(len(line) for line in table().splitlines()) <= 100


def test_the_picture_is_there() -> None:
    assert "](benchmarks/results/overview.png)" in README
    assert (RESULTS / "overview.png").stat().st_size > 10_000

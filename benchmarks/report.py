# What a run says: a table for the terminal, the same in Markdown, JSON with every round, a picture.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import saved
from benchmarks.floors import FIGURES, Row
from benchmarks.harness import Result, Spread

__all__ = [
    "Report",
    "against",
    "cpu_of",
    "floor_of",
    "line_of",
    "range_of",
    "save",
    "short",
    "value_of",
    "verdict_of",
]

HEAD = ("", "diskq", "CPU", "against", "", "CPU", "ratio", "least..most", "floor", "")
TEXT_COLUMNS = (0, 3, 9)
MOST_BARS = 120
RULE = "".join("|---" if place in TEXT_COLUMNS else "|---:" for place in range(len(HEAD))) + "|"


@dataclass(frozen=True, slots=True)
class Report:
    about: dict[str, Any]
    """What ran, when and on what."""
    results: list[Result]

    @property
    def missed(self) -> list[Result]:
        return [result for result in self.results if result.is_reached is False]

    def write(self, directory: Path) -> list[Path]:
        """NAME.json, NAME.md and, with matplotlib, NAME.png, where the benchmark is called NAME."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / self.about["benchmark"]
        text = saved.text_of(self.about, self.results)
        path.with_suffix(".json").write_text(text)
        path.with_suffix(".md").write_text(Report.read(text).markdown())  # of the digits that are written
        written = [path.with_suffix(".json"), path.with_suffix(".md")]
        bars = sum(result.ratio is not None for result in self.results)
        if not 0 < bars <= MOST_BARS:
            return written  # too many bars to read: benchmarks/summary.py draws their summary
        try:
            draw(self.results, path.with_suffix(".png"))
        except ModuleNotFoundError:
            return written
        return [*written, path.with_suffix(".png")]

    @classmethod
    def read(cls, text: str) -> Report:
        """Of the JSON that `write` has written, in this version or an earlier one."""
        return cls(*saved.load(text))

    # --- tables ------------------------------------------------------------------------------------------

    def text(self) -> str:
        """For a terminal: columns, and a line about the machine."""
        table = [(section, list(map(_cells, results))) for section, results in _by_section(self.results)]
        everything = [HEAD, *(cells for _, rows in table for cells in rows)]
        widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
        lines = [self._about(), "", _columns(HEAD, widths)]
        for section, rows in table:
            lines += ["", section, *(_columns(cells, widths) for cells in rows)]
        return "\n".join([*lines, "", self._verdict()])

    def markdown(self) -> str:
        lines = [self._about(), ""]
        for section, results in _by_section(self.results):
            lines += [f"### {section}", "", line_of(HEAD), RULE]
            lines += [*(line_of(_cells(result)) for result in results), ""]
        return "\n".join([*lines, self._verdict(), ""])

    def _about(self) -> str:
        about, machine = self.about, self.about["machine"]
        versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
        return "\n".join(
            [
                f"{about['benchmark']}, {about['scale']}, {about['rounds']} rounds, {about['began']}, "
                f"commit {about['commit']}",
                f"{machine['cpu']}, {machine['cores']} cores, {machine['system']} {machine['kernel']}, "
                f"{machine['file_system']}; load {about['load_before']} before, {about['load_after']} after",
                versions,
            ]
        )

    def _verdict(self) -> str:
        floors = [result for result in self.results if result.is_reached is not None]
        if not floors:
            return "No row has a floor."
        if not self.missed:
            return f"All {len(floors)} floors reached."
        names = ", ".join(result.row.name for result in self.missed)
        return f"{len(self.missed)} of {len(floors)} floors missed: {names}."


def _by_section(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    for section, group in groupby(results, key=lambda result: result.section):
        yield section, list(group)


def _columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if place in TEXT_COLUMNS else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  " + "  ".join(padded).rstrip()


def line_of(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(result: Result) -> tuple[str, ...]:
    row = result.row
    peer = against(row)
    if result.missing:
        return (row.name, "", "", peer, "", "", "", result.missing, floor_of(result), verdict_of(result))
    ratio = result.ratio
    return (
        row.name,
        value_of(row.figure, result.ours),
        cpu_of(row.figure, result.ours),
        peer,
        value_of(row.figure, result.peer),
        cpu_of(row.figure, result.peer),
        f"{short(ratio.median)} x" if ratio else "",
        range_of(ratio) if ratio else range_of(result.ours[row.figure], row.figure),
        floor_of(result),
        verdict_of(result),
    )


def against(row: Row) -> str:
    return row.peer.replace(": ", " ")


def value_of(figure: str, spreads: dict[str, Spread]) -> str:
    if not spreads:
        return ""
    divisor, unit = _scale_of(figure, spreads[figure])
    return f"{short(spreads[figure].median / divisor)} {unit}"


def _scale_of(figure: str, spread: Spread) -> tuple[float, str]:
    """Return the divisor for printing, and the unit after the division."""
    unit = FIGURES[figure].unit
    if unit != "/s":
        return 1, unit
    return (1e6, "M/s") if spread.median >= 1e6 else (1e3, "k/s")


def cpu_of(figure: str, spreads: dict[str, Spread]) -> str:
    """Return the processor time per message; empty if no messages were counted."""
    if not spreads or figure not in ("rate", "p50_us"):
        return ""
    return f"{short(spreads['cpu_us'].median)} µs"


def floor_of(result: Result) -> str:
    if result.row.at_least is not None:
        return f"{result.row.at_least:g} x"
    if result.row.at_most is not None:
        return f"<= {result.row.at_most:g} {FIGURES[result.row.figure].unit}"
    if result.row.reaches is not None:
        return f">= {result.row.reaches:g} {FIGURES[result.row.figure].unit}"
    return ""


def verdict_of(result: Result) -> str:
    return {None: "", True: "reached", False: "MISSED"}[result.is_reached]


def range_of(spread: Spread, figure: str = "") -> str:
    """Return least and most, in the unit of the median of that figure; a ratio has no unit."""
    divisor, _ = _scale_of(figure, spread) if figure else (1, "")
    return f"{short(spread.least / divisor)}..{short(spread.most / divisor)}"


def short(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


# --- the picture -----------------------------------------------------------------------------------------


def draw(results: Sequence[Result], path: Path) -> None:
    """Each row's ratio: a bar to the median, a line from least to most, a tick at the floor."""
    import_module("matplotlib").use("Agg")
    pyplot = import_module("matplotlib.pyplot")
    drawn = [result for result in results if result.ratio is not None]
    figure, axes = pyplot.subplots(figsize=(9, 1.0 + 0.21 * len(drawn)), layout="constrained")
    for place, result in enumerate(drawn):
        ratio, row = result.ratio, result.row
        assert ratio is not None
        color = "#c8553d" if result.is_reached is False else "#3d6f99"
        axes.barh(place, ratio.median - 1, left=1, height=0.6, color=color)
        axes.plot([ratio.least, ratio.most], [place, place], color="black", linewidth=1)
        if row.at_least is not None:
            axes.plot([row.at_least] * 2, [place - 0.45, place + 0.45], color="black", linewidth=2.5)
        axes.annotate(
            f"{short(ratio.median)} x",
            (max(ratio.most, row.at_least or 0, 1), place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    labels = [f"{result.row.name}  |  {against(result.row)}" for result in drawn]
    axes.set_yticks(range(len(drawn)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.1, y=0.01)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("diskq, times the peer (bar: median; line: least to most; tick: floor)")
    axes.grid(axis="x", which="both", alpha=0.2)
    axes.set_axisbelow(True)
    save(figure, path)
    pyplot.close(figure)


def save(figure: Any, path: Path, dpi: int = 80) -> None:
    """As PNG with a palette, which is a third as large: pictures are kept in the tree."""
    figure.savefig(path, dpi=dpi)
    image = import_module("PIL.Image")  # what matplotlib itself saves with
    with image.open(path) as drawn:
        small = drawn.convert("RGB").quantize(64)
    small.save(path, optimize=True)

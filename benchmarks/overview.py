# One picture and one table of all systems, by a handful of questions. Law: what was not measured is left out;
# a figure of a quick run is marked in the table and in the picture.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.harness import Spread
from benchmarks.report import Report, line_of, save, short

__all__ = ["PICTURE", "Glance", "draw", "glance", "markdown"]

PICTURE = "overview.png"
OURS = "diskq"
GO = "go-diskqueue"
PEERS = (
    "queuelib",
    "persist-queue",
    "litequeue",
    "localqueue",
    "diskcache",
    "sqlite3",
    "LMDB",
    "RocksDB",
    "Redis",
    "NATS",
)
SYSTEMS = (OURS, GO, *PEERS)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the readings of a benchmark that answer it."""

    title: str
    benchmark: str
    ours: str
    go: str
    peer: str
    """With {} for the name."""
    figure: str = "rate"

    def reading_of(self, system: str) -> str:
        return {OURS: self.ours, GO: self.go}.get(system, self.peer.format(system))


ASKED = (
    Asked("send", "queue", "channel: put", "go put", "{}: put"),
    Asked("send, 100 at once", "sweep", "queue @ 100 at once", "", "{} @ 100 at once"),
    Asked("receive", "queue", "channel: get", "go get", "{}: get"),
    Asked("read in order", "sweep", "stream receive_many @ 100 B", "", "{} @ 100 B"),
    Asked("durable, 1 producer", "queue", "durable 1", "go syncput", "{}, synced: put"),
    Asked("durable, 256 producers", "sweep", "queue @ 256", "go-diskqueue @ 256", ""),
    Asked("durable, 256 at once", "sweep", "queue send_many @ 256", "", "{} @ 256"),
    Asked("send: processor time", "queue", "channel: put", "go put", "{}: put", figure="cpu_us"),
)


@dataclass(slots=True)
class Glance:
    of: dict[str, dict[str, Spread]] = field(default_factory=dict)
    """By the question's title, then by system; questions and systems without an answer are not there."""
    quick: set[str] = field(default_factory=set)
    """Questions whose figures are of a quick run."""
    ran: list[str] = field(default_factory=list)
    """When and at which commit."""
    machines: set[str] = field(default_factory=set)

    @property
    def origin(self) -> str:
        return f"{', '.join(self.ran)}; {'; '.join(sorted(self.machines))}"

    @property
    def asked(self) -> list[Asked]:
        return [each for each in ASKED if each.title in self.of]

    @property
    def systems(self) -> list[str]:
        return [each for each in SYSTEMS if any(each in answers for answers in self.of.values())]


def glance(reports: Sequence[Report]) -> Glance:
    """Return the answers, of the questions for which diskq itself was measured."""
    found = Glance()
    by_name = {report.about["benchmark"]: report for report in reports}
    for name in dict.fromkeys(asked.benchmark for asked in ASKED):
        if (report := by_name.get(name)) is None:
            continue
        readings = {
            reading: figures
            for result in report.results
            for reading, figures in ((result.row.ours, result.ours), (result.row.peer, result.peer))
            if reading and figures
        }
        about = report.about
        for asked in ASKED:
            if asked.benchmark != name or asked.ours not in readings:
                continue
            found.of[asked.title] = {
                system: readings[reading][asked.figure]
                for system in SYSTEMS
                if (reading := asked.reading_of(system)) in readings
            }
            if about["scale"] != "full":
                found.quick.add(asked.title)
        if any(asked.title in found.of for asked in ASKED if asked.benchmark == name):
            machine = about["machine"]
            found.ran.append(f"{name} {about['began'][:10]} at {about['commit']}")
            found.machines.add(f"{machine['cpu']}, {machine['cores']} cores, {machine['file_system']}")
    return found


# --- the table ---------------------------------------------------------------------------------------------


def markdown(found: Glance, drawn: set[str]) -> Iterator[str]:
    """The report's first section, in Markdown."""
    if not found.of:
        return
    yield from ("## At a glance", "")
    if PICTURE in drawn:
        yield from (f"![diskq beside its peers]({PICTURE})", "")
    yield (
        "100 bytes a message. *Send*, *receive*: one call each, in the page cache when it returns. "
        "*Durable*: on the disk when it returns, which go-diskqueue does not wait for; *producers* are tasks "
        "or goroutines that each wait for a message of their own, *at once* is one call, transaction, batch "
        "or pipeline. *Read*: every message in order, as Python objects, of a stream, a table or a store; "
        "none is taken. Where a place is empty, there is no such call, or it was not measured."
    )
    yield ""
    yield line_of(("", *(each.title + ("*" if each.title in found.quick else "") for each in found.asked)))
    yield "|---|" + "---:|" * len(found.asked)
    for system in found.systems:
        cells = (_cell(each, found.of[each.title].get(system)) for each in found.asked)
        row = [system, *cells]
        yield line_of([f"**{cell}**" if system == OURS and cell else cell for cell in row])
    yield ""
    if found.quick:
        yield from ("\\* a quick run, and no evidence.", "")
    yield from (f"Medians: {found.origin}.", "")


def _cell(asked: Asked, spread: Spread | None) -> str:
    if spread is None:
        return ""
    return f"{short(spread.median)} µs" if asked.figure == "cpu_us" else f"{_brief(spread.median)}/s"


def _brief(rate: float) -> str:
    """Two digits or three, as they are read at a glance."""
    for unit, name in ((1e6, " M"), (1e3, " k")):
        if rate >= unit:
            return f"{rate / unit:.0f}{name}" if rate >= 10 * unit else f"{rate / unit:.1f}{name}"
    return f"{rate:.0f}"


# --- the picture -------------------------------------------------------------------------------------------

_BLUE, _GREY, _STEM, _INK, _FAINT, _RED = "#0072b2", "#8a949e", "#e3e6e9", "#22272b", "#6b747c", "#d55e00"
_ACROSS = 4
_ROW = 0.205  # inches for a system
_DPI = 160  # twice what it is shown at, 850 pixels wide


def draw(found: Glance, path: Path) -> None:
    """A panel for each question, a dot for each system; farther right is better. Needs matplotlib."""
    import_module("matplotlib").use("Agg")
    pyplot = import_module("matplotlib.pyplot")
    asked, systems = found.asked, found.systems
    deep = -(-len(asked) // _ACROSS)
    panel = _ROW * len(systems)
    height = 0.72 + deep * (panel + 0.52) + 0.28
    canvas, every = pyplot.subplots(deep, _ACROSS, figsize=(10.625, height), squeeze=False)
    canvas.subplots_adjust(
        left=0.115,
        right=0.985,
        top=1 - 1.02 / height,
        bottom=0.36 / height,
        wspace=0.07,
        hspace=0.52 / panel,
    )
    for place, axes in enumerate(every.flat):
        if place < len(asked):
            _panel(axes, asked[place], found, systems, has_names=place % _ACROSS == 0)
        else:
            axes.axis("off")
    _words(canvas, found, height)
    save(canvas, path, dpi=_DPI)
    pyplot.close(canvas)


def _panel(axes: Any, asked: Asked, found: Glance, systems: Sequence[str], *, has_names: bool) -> None:
    answers = found.of[asked.title]
    # Messages for a second of the processor's: so that right is better in every panel.
    values = {
        system: 1e6 / spread.median if asked.figure == "cpu_us" else spread.median
        for system, spread in answers.items()
    }
    least, most = min(values.values()), max(values.values())
    low = min(least / 2, most / 200)  # not so near that a few percent look like much
    high = most * (most / low) ** 0.42  # room for the farthest figure
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(len(systems) - 0.4, -0.6)
    for place, system in enumerate(systems):
        if system not in values:
            continue
        is_ours = system == OURS
        color = _BLUE if is_ours else _GREY
        axes.plot([low, values[system]], [place, place], color=color if is_ours else _STEM, linewidth=2.2)
        axes.plot([values[system]], [place], "o", color=color, markersize=7 if is_ours else 5.5)
        spread = answers[system]
        text = f"{short(spread.median)} µs" if asked.figure == "cpu_us" else _brief(spread.median)
        axes.annotate(
            text,
            (values[system], place),
            xytext=(7, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=9,
            color=_BLUE if is_ours else _INK,
            fontweight="bold" if is_ours else "normal",
        )
    mark = "*" if asked.title in found.quick else ""
    axes.set_title(asked.title + mark, fontsize=10, fontweight="bold", loc="left", color=_INK, pad=6)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color(_STEM)
    axes.xaxis.set_major_locator(import_module("matplotlib.ticker").NullLocator())
    axes.xaxis.set_minor_locator(import_module("matplotlib.ticker").NullLocator())
    axes.set_yticks(range(len(systems)), systems if has_names else [""] * len(systems), fontsize=9.5)
    axes.tick_params(axis="y", length=0, pad=4, colors=_INK)
    if has_names and systems[0] == OURS:
        label = axes.get_yticklabels()[0]
        label.set_color(_BLUE)
        label.set_fontweight("bold")


def _words(canvas: Any, found: Glance, height: float) -> None:
    def write(x: float, inches: float, text: str, **style: Any) -> None:
        canvas.text(x, 1 - inches / height, text, va="center", **style)

    write(0.015, 0.2, "diskq, and what one would take instead", fontsize=13, fontweight="bold", color=_INK)
    told = (
        "messages of 100 bytes a second, and the processor's µs for one; logarithmic, farther right is better"
    )
    write(0.015, 0.47, told, fontsize=9.5, color=_FAINT)
    if found.quick:
        told = "* a quick run: no evidence"
        write(0.985, 0.2, told, fontsize=10, fontweight="bold", color=_RED, ha="right")
    write(
        0.015,
        height - 0.14,
        f"empty: no such call. Medians: {found.origin}",
        fontsize=8,
        color=_FAINT,
    )
